"""Python as the third door, beside HTTP and the command line: the same words, one call each."""

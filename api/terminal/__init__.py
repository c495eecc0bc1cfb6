"""The terminal: what the command line is given, what it shows, and how it ends."""

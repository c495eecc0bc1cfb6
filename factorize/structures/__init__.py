"""Strategy matrices by structure: the stored tensors, rows, products, and compiled recurrences of each."""

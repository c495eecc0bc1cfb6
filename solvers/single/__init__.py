"""Single participation: Newton's method on the dual, with one file for each shape of the workload's inverse."""

"""Few diagonals and equal column norms: the optimum under min_sep."""

"""`min_sep` participation: the optimum over all matrices, its bounds, and the patterns of steps that they sum over."""

"""Few diagonals, of which no two steps of one user overlap: the optimum of the class."""

"""Lower bounds, evaluated from a solver's dual evidence by mathematics that the solvers do not use."""

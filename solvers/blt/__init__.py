"""Buffered linear Toeplitz strategies: C and C^-1 from the same few numbers, by closed forms where there are any.

parameters.py says which numbers are varied and where the search begins, loss.py what they cost,
solver.py what a spec makes of all that.
"""

from factorize.solvers.blt.solver import MAX_BUFFERS, estimate, solve, supports

__all__ = ["MAX_BUFFERS", "estimate", "solve", "supports"]

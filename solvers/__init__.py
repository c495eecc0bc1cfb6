"""How factorizations are found: one list of solvers, and the one path from a spec to a certified result."""

from solvers.budget import Estimate
from solvers.compare import compare
from solvers.register import SOLVERS, Entry, choose
from solvers.solving import estimate, solve

__all__ = ["SOLVERS", "Entry", "Estimate", "choose", "compare", "estimate", "solve"]

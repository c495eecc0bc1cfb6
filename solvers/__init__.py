"""How factorizations are found: one list of solvers, and the one path from a spec to a certified result."""

from factorize.solvers.budget import Estimate
from factorize.solvers.comparing.compare import compare
from factorize.solvers.register import SOLVERS, Entry, choose
from factorize.solvers.solving import estimate, solve

__all__ = ["SOLVERS", "Entry", "Estimate", "choose", "compare", "estimate", "solve"]

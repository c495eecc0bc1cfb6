"""Solvers: one list of them, and the one path from a spec to a certified result."""

from factorize.solvers.budget import Estimate
from factorize.solvers.comparing.compare import compare
from factorize.solvers.register import SOLVERS, Entry, choose
from factorize.solvers.solving import estimate, solve

__all__ = ["SOLVERS", "Entry", "Estimate", "choose", "compare", "estimate", "solve"]

if __name__ == "solvers":  # a checkout's own folder: the modules are those of `factorize.solvers`, not second copies
    from factorize.former_names import hand_out

    hand_out("solvers")

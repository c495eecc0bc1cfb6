"""Solvers: one list of them, and the one path from a spec to a certified result."""

from typing import TYPE_CHECKING, Any

from factorize.solvers.problem import Estimate
from factorize.solvers.register import SOLVERS, Entry, choose
from factorize.solvers.solving import estimate, search, solve

if TYPE_CHECKING:
    from factorize.solvers.comparing.compare import compare

__all__ = ["SOLVERS", "Entry", "Estimate", "choose", "compare", "estimate", "search", "solve"]


def __getattr__(name: str) -> Any:
    """Import the comparison when it is asked for: a solve needs none of what it compares."""
    if name != "compare":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from factorize.solvers.comparing.compare import compare

    globals()[name] = compare
    return compare

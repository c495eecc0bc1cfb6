"""`factorize mechanisms`: the names that a spec may give."""

from __future__ import annotations

from factorize.api.terminal.output import Shown
from factorize.solvers.register import SOLVERS


def mechanisms() -> Shown:
    """List the mechanisms that have a solver."""
    names = sorted(SOLVERS)
    return names, "\n".join(names)

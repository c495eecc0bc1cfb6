"""Solvers: one list of them (`register.py`), and the one path from a spec to a certified result (`solving.py`).

The file that has the optimum over all matrices, the mechanism `dense`, for an objective that weighs rows:

| workload                           | single               | fixed_epochs             | min_sep                    |
| ---------------------------------- | -------------------- | ------------------------ | -------------------------- |
| under 128 steps; window, matrix    | single/dense.py      | epochs/decompositions.py | min_sep/min_sep_optimum.py |
| decay, identity, prefix, schedule  | single/few_states.py | epochs/recursions.py     | min_sep/min_sep_optimum.py |
| adam, momentum, mu2, srg           | single/few_states.py | epochs/recursions.py     | min_sep/min_sep_optimum.py |
| weight_decay                       | single/few_states.py | epochs/recursions.py     | min_sep/min_sep_optimum.py |
| weight_decay, coupled, oscillating | epochs/recursions.py | epochs/recursions.py     | min_sep/min_sep_optimum.py |
| momentum, learning rates of zero   | epochs/recursions.py | epochs/decompositions.py | min_sep/min_sep_optimum.py |

For the objective `max` and `single` it is single/max_error.py. Restricted matrices have a room each: `banded`,
`buffered`, `toeplitz`, `blt`, `frequency` (spectral), and `formulas` where nothing is searched; `amplified` optimises
under a sampling.
"""

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

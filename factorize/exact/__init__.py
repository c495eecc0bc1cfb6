"""The checker: claims proved again from the bytes of a file.

It shares no code with the solvers or with the certificate's own sensitivity. Read in this order: `check`, `report`,
`claims`, `mechanism` and `convergence` (what is claimed), `sensitivity` (the privacy claim), `strategy` and
`structures/` (C from its tensors, a class for each structure), `spec/` (workloads as programs, and objectives),
`utility` (which road proves losses and bounds), `arithmetic/` (integers, intervals, series in balls, what is assumed of
the machine), `losses/` (covariances, balls), `doubles/` (whole matrices with bounded rounding), `bounds/` (resolvents,
determinants, classes), and `stored` and `noising` (a stored B or C_inv). Privacy under sampling is in `sampling/`, and
that of two moments in `moment_pairs`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from factorize.exact.check import check_factor_file, check_strategy, undecided
    from factorize.exact.file import read_array
    from factorize.exact.moment_pairs import check_moments
    from factorize.exact.report import Report
    from factorize.exact.sampling.calibrations import check_calibration

_HOMES = {
    "Report": "factorize.exact.report",
    "check_calibration": "factorize.exact.sampling.calibrations",
    "check_factor_file": "factorize.exact.check",
    "check_moments": "factorize.exact.moment_pairs",
    "check_strategy": "factorize.exact.check",
    "read_array": "factorize.exact.file",
    "undecided": "factorize.exact.check",
}
__all__ = [
    "Report",
    "check_calibration",
    "check_factor_file",
    "check_moments",
    "check_strategy",
    "read_array",
    "undecided",
]


def __getattr__(name: str) -> Any:
    """Import what is asked for: training jobs read single modules of the checker, and have neither scipy nor flint."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)

"""The checker: claims proved again from the bytes of a file.

It shares no code with the solvers or the second program for the sensitivity. Read in this order: `check`, `report`,
`claims`, `mechanism` and `convergence` (what is claimed), `sensitivity` (the privacy claim), `strategy` and
`structures/` (C from its tensors, a class for each structure), `spec/` (workloads as programs, and objectives),
`utility` (which road proves losses and bounds), `arithmetic/` (balls, series, what is assumed of the machine),
`losses/` (covariances, balls), `doubles/` (whole matrices with bounded rounding), `bounds/` (resolvents, determinants,
classes), and `stored` and `noising` (a stored B or C_inv). Privacy under sampling is in `sampling/`, and that of two
moments in `moment_pairs`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from factorize.checker.check import check_factor_file, check_strategy, undecided
    from factorize.checker.file import read_array
    from factorize.checker.moment_pairs import check_moments
    from factorize.checker.report import Report
    from factorize.checker.sampling.calibrations import check_calibration

_HOMES = {
    "Report": "factorize.checker.report",
    "check_calibration": "factorize.checker.sampling.calibrations",
    "check_factor_file": "factorize.checker.check",
    "check_moments": "factorize.checker.moment_pairs",
    "check_strategy": "factorize.checker.check",
    "read_array": "factorize.checker.file",
    "undecided": "factorize.checker.check",
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

"""The exact checker: claims re-derived from the bytes of a file, in integers, rationals and enclosures.

It shares no code with the solvers or with the certificate in double precision. Read in this order: `check`, `report`,
`claims`, `mechanism` and `convergence` (what is claimed), `sensitivity` (the privacy claim), `strategy` and
`structures/` (C from its tensors, a class for each structure), `spec/` (workloads as programs, and objectives),
`arithmetic/` (integers, intervals, slices, what is assumed of the machine), `routes` (which proof is tried first),
`doubles/` (whole matrices with bounded rounding), `losses/check_whole`, `losses/residual`, `forms`, `noising` and
`bounds/bound` (the same in integers, and what is due to B), `losses/check_long` with the others of `losses/` and
`bounds/` (long matrices, by recursions), `bounds/classes` (bounds within a class), `file` and `description`. Privacy
under sampling is in `sampling/`, and that of two moments in `moment_pairs`.
"""

from factorize.exact.check import check_factor_file, check_strategy, undecided
from factorize.exact.file import read_array
from factorize.exact.moment_pairs import check_moments
from factorize.exact.report import Report
from factorize.exact.sampling.calibrations import check_calibration

__all__ = [
    "Report",
    "check_calibration",
    "check_factor_file",
    "check_moments",
    "check_strategy",
    "read_array",
    "undecided",
]

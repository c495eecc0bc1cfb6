"""The exact checker: claims re-derived from the bytes of a file, in integers, rationals and enclosures.

It shares no code with the solvers or with the certificate in double precision. Read in this order: `check`, `report`,
`claims`, `mechanism` and `convergence` (what is claimed), `sensitivity` (the privacy claim), `strategy`, `buffers`,
`geometric`, `renewal`, `redrawn` and `trees` (C from its tensors), `integers` and `intervals` (arithmetic),
`residual`, `forms`, `workload` and `bound` (utility, and what rests on B), `beyond_whole` with `series`,
`toeplitz_forms`, `variances`, `row_products`, `resolvents` and `determinants` (the same for long matrices), `classes`
and `overlaps` (bounds within a class), `file`. Privacy under sampling: `calibrations` and `star_claim` (the claim),
`bins` (C by residue classes), `star` with `enclosures` (closed forms), `bets` with `quantiles` (the sampled test).
"""

from factorize.exact.check import check_factor_file, check_strategy, undecided
from factorize.exact.file import read_array
from factorize.exact.report import Report
from factorize.exact.sampling.calibrations import check_calibration

__all__ = ["Report", "check_calibration", "check_factor_file", "check_strategy", "read_array", "undecided"]

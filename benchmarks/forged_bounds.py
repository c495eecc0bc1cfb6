"""Claims known by bounds alone: forged ones are refused, and true ones are checked at full size.

A claim about random allocation has no samples, so that a forgery is refused or is true: 1 % less
noise, 5 % less delta, a smaller epsilon, fewer bins, a larger clipping norm, another file.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.report import Report
from factorize.accounting import calibrate_bins
from factorize.checker.sampling.calibrations import check_calibration

EPSILON, DELTA = 2.0, 1e-6
SIZES = (1024, 2048)
FORGERIES = 40  # the number of forgeries
_FLOATS: dict[str, tuple[float, float]] = {
    "sigma": (0.9, 0.99),
    "delta": (0.5, 0.95),
    "epsilon": (0.8, 0.995),
    "clip_norm": (1.01, 1.2),
}
"""The factors that make a claim false."""


def run(report: Report, make: Callable[[np.ndarray, int], Any], data_of: Callable[[Any], bytes]) -> None:
    """Forge and time claims.

    Args:
        report: gets the rows.
        make: certified factors of a first column and a number of epochs.
        data_of: a factor file's bytes.
    """
    sizes = (64,) if report.quick else SIZES
    for n in sizes:
        one = np.zeros(n)
        one[0] = 1.0
        factors, other = make(one, 8), data_of(make(one * 2.0, 8))
        data = data_of(factors)
        began = time.process_time()
        claim = calibrate_bins(factors, epsilon=EPSILON, delta=DELTA, sampling="random_allocation").claim.document()
        making, began = time.process_time() - began, time.process_time()
        found = check_calibration(data, claim)
        checking = time.process_time() - began
        report.row(
            f"check a claim, random_allocation, n={n}, {n // 8} bins, ({EPSILON:g}, {DELTA:g})",
            seconds=checking,
            ratio=checking / making,
            of="the making",
            note=f"processor; made in {making:.2f} s; {'accepted' if found.supported else 'REFUSED'}",
        )
        if n == sizes[0]:
            _forge(report, data, other, claim)


def _forge(report: Report, data: bytes, other: bytes, claim: dict[str, Any]) -> None:
    rng, began, refused = np.random.default_rng(21), time.perf_counter(), 0
    forged = [_forgery(claim, rng) for _ in range(FORGERIES - 1)]
    for one in forged:
        found = check_calibration(data, one)
        refused += not found.supported
        if found.supported:
            report.remark(f"accepted {one}")
    refused += not check_calibration(other, claim).supported
    title = "forged claims, random_allocation"
    report.row(title, seconds=time.perf_counter() - began, ratio=refused / FORGERIES, of="the forgeries")


def _forgery(claim: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """Return a number that makes the claim false, or a mechanism that is not the file's."""
    found = copy.deepcopy(claim)
    kind = str(rng.choice([*_FLOATS, "bins", "epochs", "n", "factors", "protocol"]))
    if kind in _FLOATS:
        found[kind] = (float.fromhex(claim[kind]) * rng.uniform(*_FLOATS[kind])).hex()
    elif kind == "bins":  # twice as many epochs: more steps of each example
        found["mechanism"] |= {"bins": claim["mechanism"]["bins"] // 2, "epochs": 2 * claim["mechanism"]["epochs"]}
    elif kind in ("epochs", "n"):
        found["mechanism"][kind] += int(rng.integers(1, 9))
    elif kind == "factors":
        found["mechanism"]["factors"] = "sha256:" + rng.bytes(32).hex()
    else:
        found |= {"protocol": "bins-0"} if rng.random() < 0.5 else {"sampling": "balls_in_bins"}
    return found

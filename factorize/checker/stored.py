"""A stored B and a stored C_inv: what they are multiplied by, and what privacy rests on where they are used.

Publishing B (C G + Z) rests on C alone: B comes after the noise. Adding noise to exact results, A G + B Z, is
B (E G + Z) with the encoder E = B^-1 A = C - B^-1 R, R = B C - A: there the bytes of B matter, and directions that B
does not reach are published without noise.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import numpy as np
from flint import ctx

from factorize.checker import noising
from factorize.checker.arithmetic import series
from factorize.checker.arithmetic.balls import PLACES, Balls, of_doubles
from factorize.checker.arithmetic.near import NotEnclosed
from factorize.checker.claims import check_added_noise
from factorize.checker.doubles import whole
from factorize.checker.doubles.roundings import SLACK, finite
from factorize.checker.doubles.workload_rows import WorkloadRows
from factorize.checker.file import FactorFile
from factorize.checker.participation import allowed
from factorize.checker.report import ADDED_NOISE, DECODER, Report
from factorize.checker.sensitivity import Bracket, square_root_up
from factorize.checker.spec import toeplitz_column
from factorize.checker.strategy import Strategy
from factorize.checker.structures.base import toeplitz_array
from factorize.checker.utility import OUT_OF_REACH
from factorize.errors import CertificateError, CorruptObject

LIMITS = {"float64": 2.0**-40, "float32": 2.0**-18}
"""Of the residual, beside the workload's largest column sum, by the type in which B is stored."""
Encoder = tuple[float, float] | str
"""The sensitivity of an encoder from above and what it adds to that of C, or why there is none."""


def check_inverse(report: Report, file: FactorFile, strategy: Strategy, bracket: Bracket) -> None:
    """Check a stored C^-1."""
    if "C_inv" not in file.matrices:
        return
    stored = _read(file, "C_inv", (strategy.n, strategy.n))
    try:
        if stored.ndim == 1 and strategy.toeplitz is not None and strategy.n <= series.LARGEST:
            proved = noising.toeplitz(strategy.toeplitz, stored, bracket.upper)
        else:
            proved = noising.in_doubles(strategy, _array(stored), bracket.upper)
    except OUT_OF_REACH as reason:
        noising.check_noising(report, file, str(reason))
    else:
        noising.check_noising(report, file, proved)


def check_decoder(
    report: Report, file: FactorFile, strategy: Strategy, bracket: Bracket, user: Mapping[str, np.ndarray]
) -> None:
    """Check B C - A for a stored B, and adding noise with it."""
    if "B" not in file.matrices:
        check_added_noise(report, file, None)
        return
    spec, entry = file.manifest["spec"], file.manifest["matrices"]["B"]
    try:
        stored = _read(file, "B", tuple(entry["shape"]))
        largest, sums, encoder = decoded(spec, strategy, stored, bracket.upper, user)
    except OUT_OF_REACH as reason:
        report.leave(f"the stored B: {reason}", of=[DECODER, ADDED_NOISE])
        return
    limit = LIMITS[entry["dtype"]] * max(sums, 1.0)
    report.require(
        largest <= limit,
        f"B C = A up to {largest:.3g} per entry, rounding bounded in advance, for the stored B",
        f"B C differs from A by {largest:.3g}, above the limit {limit:.3g}",
        of=DECODER,
    )
    check_added_noise(report, file, encoder if isinstance(encoder, str) else encoder[0])


def decoded(
    spec: Mapping[str, Any],
    strategy: Strategy,
    stored: np.ndarray,
    upper: Fraction,
    user: Mapping[str, np.ndarray],
) -> tuple[float, float, Encoder]:
    """Return the largest entry of |B C - A| from above, the largest column sum of |A|, and what the encoder is.

    Args:
        spec: canonical spec.
        strategy: C.
        stored: B as an array, or its first column where it is Toeplitz.
        upper: squared sensitivity of C from above.
        user: numbers of user-supplied workloads by sha256.

    Raises:
        NotEnclosed: A, B and C are not Toeplitz and too long for whole matrices, or B cannot be inverted.
        CertificateError: B is not lower-triangular, or loses rank.
    """
    most = allowed(spec["participation"], strategy.n).most
    column = toeplitz_column(spec["workload"]) if stored.ndim == 1 and strategy.n <= series.LARGEST else None
    if column is not None and strategy.toeplitz is not None:
        return _by_series(stored, strategy.toeplitz, column, most, upper)
    return _whole(_array(stored), strategy, WorkloadRows(spec["workload"], user), most, upper)


def _read(file: FactorFile, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """A stored matrix as an array, or as the first column of a Toeplitz one.

    Raises:
        CorruptObject: a structure in which they are never stored, another shape, or numbers that are not finite.
    """
    structure, parts = file.manifest["matrices"][name]["structure"], file.matrices[name]
    if structure == "dense" and parts[""].shape == shape:
        found = parts[""]
    elif structure == "toeplitz" and parts["coefficients"].shape == (shape[1],) and shape[0] == shape[1]:
        found = parts["coefficients"]
    else:
        raise CorruptObject(f"a stored {name} of shape {shape} cannot be {structure[:40]} with these tensors")
    if not np.isfinite(found).all():
        raise CorruptObject(f"{name} holds NaN or infinity")
    return np.asarray(found, dtype=np.float64)


def _array(stored: np.ndarray) -> np.ndarray:
    if stored.ndim == 1 and len(stored) > whole.LARGEST:
        raise NotEnclosed(f"whole matrices are multiplied up to n={whole.LARGEST}")
    return toeplitz_array(stored) if stored.ndim == 1 else stored


def _whole(
    stored: np.ndarray, strategy: Strategy, workload: WorkloadRows, most: int, upper: Fraction
) -> tuple[float, float, Encoder]:
    """See `decoded`; by products of matrices."""
    if workload.triangular and np.triu(stored, 1).any():
        raise CertificateError("the stored B is not lower-triangular")
    rest = whole.residual(stored, whole.entries_of(strategy), workload)
    sums, lost = np.zeros(strategy.n), []
    for i, row in enumerate(workload.times()):
        sums += np.abs(row.values)
        if workload.rows == workload.columns and row.values[i] != 0 and stored[i, i] == 0:
            lost.append(i)
    if lost:  # where A has a zero on its diagonal, so has B
        raise CertificateError(f"the stored B does not have full rank: its diagonal is 0 at {lost[0]}")
    return rest.largest, float(sums.max()), whole.added_noise(stored, rest, most, upper)


def _by_series(
    stored: np.ndarray, column: Balls, workload: Balls, most: int, upper: Fraction
) -> tuple[float, float, Encoder]:
    """The same for first columns: no column of B^-1 R is longer than the first, nor that than |B^-1| |R|."""
    n = len(stored)
    with ctx.workprec(PLACES):
        target, decoder = series.series_of(workload), series.series_of(of_doubles(stored))
        guess, error = series.near(decoder * series.series_of(column) - target, n)
        largest = (float(np.abs(guess).max()) + error) * (1 + SLACK)
        sums = series.sum_of_sizes(target, n)
        if not stored[0]:
            return largest, sums, "B is singular, so a part of A G would have no noise"
        length = (float(np.linalg.norm(guess)) + error * n**0.5) * (1 + SLACK)
        added = most * series.sum_of_sizes(1 / decoder, n) * length * (1 + SLACK)
    finite(largest, added)
    return largest, sums, (square_root_up((Fraction(square_root_up(upper)) + Fraction(added)) ** 2), added)

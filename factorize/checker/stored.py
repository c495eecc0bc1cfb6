"""A stored B and a stored C_inv: their residuals, and the sensitivity that privacy rests on where they are used.

Publishing B (C G + Z) rests on C alone, since B comes after the noise. Adding noise to exact results, A G + B Z, is
B (E G + Z) with the encoder E = B^-1 A = C - B^-1 R, R = B C - A: then the bytes of B matter, and directions that B
does not reach are published without noise.

Noise that is drawn with a stored C_inv, N, protects N^-1 and not C. With C N = g (I + F), N^-1 = (I + F)^-1 C / g, so
that |N^-1 u| <= |C u| / (g (1 - |F|)) for every contribution u. g is any number, here the mean of the diagonal of C N:
1 times the factor by which N was enlarged on purpose.
"""

from collections.abc import Mapping
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
from flint import arb_series, ctx

from factorize.checker.arithmetic.balls import PLACES, Balls, of_doubles
from factorize.checker.arithmetic.machine import check_products
from factorize.checker.arithmetic.near import (
    SLACK,
    TINY,
    UNIT,
    NotEnclosed,
    finite,
    gamma,
    norm_of,
    row_norms,
    square_root_up,
)
from factorize.checker.claims import check_added_noise
from factorize.checker.losses import series, whole_matrices
from factorize.checker.losses.products import WorkloadRows, roundings_of, toeplitz_array
from factorize.checker.participation import allowed
from factorize.checker.report import ADDED_NOISE, DECODER, INVERSE, Report
from factorize.checker.sensitivity import Bracket
from factorize.checker.spec.workloads import toeplitz_column
from factorize.checker.strategy import FactorFile, Strategy
from factorize.checker.utility import ROAD_FAILURES
from factorize.errors import CertificateError
from factorize.format.quantities import at_most

LIMITS = {"float64": 2.0**-40, "float32": 2.0**-18}
"""The largest residual relative to the workload's largest column sum, by the type in which B is stored."""
Encoder = tuple[float, float] | str
"""An upper bound of an encoder's sensitivity and what it adds to that of C, or the reason why there is none."""


def check_inverse(report: Report, file: FactorFile, strategy: Strategy, bracket: Bracket) -> None:
    """Check a stored C^-1."""
    (stored,) = file.matrices["C_inv"].values()
    noising: Noising | str
    try:
        if stored.ndim == 1 and strategy.toeplitz is not None and strategy.n <= series.MAX_N:
            noising = noising_of_column(strategy.toeplitz, stored, bracket.upper)
        else:
            noising = noising_of_array(strategy, _array(stored), bracket.upper)
    except ROAD_FAILURES as reason:
        noising = str(reason)
    check_noising(report, file, noising)


def check_decoder(
    report: Report, file: FactorFile, strategy: Strategy, bracket: Bracket, user: Mapping[str, np.ndarray]
) -> None:
    """Check B C - A for a stored B, and adding noise with it."""
    spec, entry = file.manifest["spec"], file.manifest["matrices"]["B"]
    try:
        (stored,) = file.matrices["B"].values()  # It is an array, or the first column of a Toeplitz matrix.
        largest, sums, encoder = decoded(spec, strategy, stored, bracket.upper, user)
    except ROAD_FAILURES as reason:
        report.leave(f"the stored B: {reason}", of=[DECODER, ADDED_NOISE])
        return
    limit = LIMITS[entry["dtype"]] * max(sums, 1.0)
    report.require(
        largest <= limit,
        f"B C = A up to {at_most(largest, 3)} per entry, rounding bounded in advance, for the stored B",
        f"B C differs from A by {largest:.3g}, above the limit {limit:.3g}",
        of=DECODER,
    )
    check_added_noise(report, file, encoder if isinstance(encoder, str) else encoder[0])


def decoded(
    spec: Mapping[str, Any], strategy: Strategy, stored: np.ndarray, upper: Fraction, user: Mapping[str, np.ndarray]
) -> tuple[float, float, Encoder]:
    """Return an upper bound of the entries of |B C - A|, the largest column sum of |A|, and the encoder.

    `stored` is B or its first column, and `upper` bounds the squared sensitivity of C.

    Raises:
        NotEnclosed: A, B and C are not Toeplitz and too long for whole matrices, or B cannot be inverted.
        CertificateError: B loses rank.
    """
    most = allowed(spec["participation"], strategy.n).most
    column = toeplitz_column(spec["workload"]) if stored.ndim == 1 and strategy.n <= series.MAX_N else None
    if column is not None and strategy.toeplitz is not None:
        return _by_series(stored, strategy.toeplitz, column, most, upper)
    return _whole(_array(stored), strategy, WorkloadRows(spec["workload"], user), most, upper)


def _array(stored: np.ndarray) -> np.ndarray:
    if stored.ndim == 1 and len(stored) > whole_matrices.MAX_N:
        raise NotEnclosed(f"whole matrices are multiplied up to n={whole_matrices.MAX_N}")
    return toeplitz_array(stored) if stored.ndim == 1 else stored


def _whole(
    stored: np.ndarray, strategy: Strategy, workload: WorkloadRows, most: int, upper: Fraction
) -> tuple[float, float, Encoder]:
    """Return the same as `decoded`, by products of matrices."""
    rest = whole_matrices.residual(stored, whole_matrices.entries_of(strategy), workload)
    sums, lost = np.zeros(strategy.n), []
    for i, row in enumerate(workload.times()):
        sums += np.abs(row.values)
        if workload.rows == workload.columns and row.values[i] != 0 and stored[i, i] == 0:
            lost.append(i)
    if lost:  # Where A has a zero on its diagonal, B has one, too.
        raise CertificateError(f"the stored B does not have full rank: its diagonal is 0 at {lost[0]}")
    return rest.largest, float(sums.max()), whole_matrices.bound_added_noise(stored, rest, most, upper)


def _by_series(
    stored: np.ndarray, column: Balls, workload: Balls, most: int, upper: Fraction
) -> tuple[float, float, Encoder]:
    """Return the same for first columns: no column of B^-1 R is longer than its first, nor that than |B^-1| |R|."""
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


MAX_INVERSE_ERROR = {"float64": Fraction(1, 2**26), "float32": Fraction(1, 2**10)}
"""The largest norm of C N - I at which N counts as C^-1, by the type in which it is stored."""
_SUMS = 2.0**-30  # A few operations on doubles round by less.


class Noising(NamedTuple):
    """The proved properties of a stored N.

    Attributes:
        squared: an upper bound of the squared sensitivity of N^-1; None where none is proved.
        distance: an upper bound of the norm of C N - I (or of N C - I).
    """

    squared: Fraction | None
    distance: Fraction


def check_noising(report: Report, file: FactorFile, noising: Noising | str) -> None:
    """Report what is proved of the stored C_inv beside the claim for C, or why nothing is."""
    text = "drawing noise with the stored C_inv, A (G + N Z)"
    advice = "draw it from C, as the client does"
    if isinstance(noising, str):
        report.leave(f"{text}: {noising}; {advice}", of=[INVERSE])
        return
    claim = Fraction(float.fromhex(file.manifest["certificate"]["sensitivity"]["hex"]))
    farthest = MAX_INVERSE_ERROR[file.manifest["matrices"]["C_inv"]["dtype"]]
    if noising.distance > farthest:
        report.refute(
            f"the stored C_inv is not C^-1: their product differs from I by {float(noising.distance):.3g} in norm, "
            f"above {float(farthest):.3g}",
            of=INVERSE,
        )
        return
    report.prove(f"the stored C_inv and C multiply to I up to {at_most(noising.distance, 3)} in norm", of=INVERSE)
    proved = None if noising.squared is None else square_root_up(noising.squared)
    if noising.squared is None:
        report.refute(f"{text}: no sensitivity of its encoder N^-1 is proved", of=INVERSE)
    elif noising.squared <= claim**2:
        report.prove(f"{text}, is covered by the claim: its encoder N^-1 has sensitivity at most {proved!r}")
    else:
        report.leave(
            f"{text}: its encoder N^-1 has sensitivity at most {proved!r}, which the claim {float(claim)!r} does not "
            f"cover; {advice}, or calibrate with that number"
        )


def noising_of_column(column: Balls, stored: np.ndarray, upper: Fraction) -> Noising:
    """Return what first columns of C and N prove: the norm of a Toeplitz matrix is at most the sum of its column.

    Raises:
        NotEnclosed: the product leaves the range of doubles.
    """
    n = len(stored)
    with ctx.workprec(PLACES):
        image = series.series_of(of_doubles(stored)) * series.series_of(column)
        first = image[0]
        below = series.sum_of_sizes(image - arb_series([first], n), n)
        mean, away = float(first.lower()) * (1 - UNIT), float((first - 1).abs_upper()) * (1 + _SUMS)
    finite(below, mean, away)
    return Noising(_enlarged(upper, Fraction(mean), Fraction(below)), Fraction(below) + Fraction(away))


def noising_of_array(strategy: Strategy, stored: np.ndarray, upper: Fraction) -> Noising:
    """Return what C N proves for a lower-triangular N, shape (n, n), with a bound of the rounding in doubles.

    Raises:
        NotEnclosed: C has no entries here, or is too ill-conditioned, or doubles cannot be relied on.
    """
    n, errors, right = len(stored), 0.0, stored
    array = strategy.reading.doubles if n <= whole_matrices.MAX_N else None
    check_products()
    with np.errstate(over="ignore", invalid="ignore"):
        if array is None:
            entries = whole_matrices.entries_of(strategy)
            array, errors = entries.values, norm_of(entries.errors) * whole_matrices.norm_above(stored)
        elif strategy.scale is not None:
            right = stored * strategy.scale[:, None]
        slack = gamma(roundings_of(n) + 2) * row_norms(right) * (1 + SLACK)
        rest = whole_matrices.residual(array, whole_matrices.Entries(right, np.zeros(1), slack), None)
        diagonal = np.diagonal(rest.values)
        mean = float(diagonal.mean())
        away, apart = (norm_of(row_norms(rest.values - shift * np.eye(n))) for shift in (0.0, mean))
        largest = float(np.abs(array).max())
    # The product of N and the columns' factors may underflow.
    rounded = (norm_of(rest.errors) + errors) * (1 + SLACK) + n * n * TINY * (1 + largest)
    if not rounded <= float(MAX_INVERSE_ERROR["float64"]):
        raise NotEnclosed(f"C is too ill-conditioned: doubles round C times the stored C_inv by up to {rounded:.3g}")
    finite(away, apart)
    defect, distance = (Fraction(norm * (1 + SLACK)) + Fraction(rounded) for norm in (apart, away))
    return Noising(_enlarged(upper, 1 + Fraction(mean), defect), distance)


def _enlarged(upper: Fraction, mean: Fraction, defect: Fraction) -> Fraction | None:
    """Return upper / (g (1 - |F|))^2 for g |F| = defect; None where N may lose a direction."""
    return upper / (mean - defect) ** 2 if mean > defect else None

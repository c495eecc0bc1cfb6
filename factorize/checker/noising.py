"""A stored C_inv, N: what noise that is drawn with it protects, which is N^-1 and not C.

With C N = g (I + F), N^-1 = (I + F)^-1 C / g, so that for every contribution u, whatever the participation,

    |N^-1 u| <= |C u| / (g (1 - |F|)).

No entry of C^-1 sets the scale of F: a tiny diagonal entry of C, which makes a row of C^-1 large, allows for nothing in
the others. g is any number, here the mean of the diagonal of C N: 1, and what an N was enlarged by on purpose.
"""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

import numpy as np
from flint import arb_series, ctx

from factorize.checker.arithmetic import series
from factorize.checker.arithmetic.balls import PLACES, Balls, of_doubles
from factorize.checker.arithmetic.machine import check_products
from factorize.checker.arithmetic.near import TINY, UNIT, NotEnclosed
from factorize.checker.doubles import whole
from factorize.checker.doubles.roundings import SLACK, finite, gamma, norm_of, row_norms
from factorize.checker.doubles.triangles import roundings_of
from factorize.checker.file import FactorFile
from factorize.checker.report import INVERSE, Report
from factorize.checker.sensitivity import square_root_up
from factorize.checker.strategy import Strategy
from factorize.errors import CertificateError

FARTHEST = {"float64": Fraction(1, 2**26), "float32": Fraction(1, 2**10)}
"""Norm of C N - I above which N is not C^-1, by the type in which it is stored."""
_SUMS = 2.0**-30  # more than a few operations on doubles round


class Noising(NamedTuple):
    """What is proved of a stored N.

    Attributes:
        squared: the squared sensitivity of N^-1 from above; None where none is proved.
        distance: the norm of C N - I (or of N C - I) from above.
    """

    squared: Fraction | None
    distance: Fraction


def check_noising(report: Report, file: FactorFile, found: Noising | str) -> None:
    """File what is proved of the stored C_inv beside the claim for C.

    Args:
        report: receives the findings.
        file: the file.
        found: what is proved, or why nothing is.
    """
    text = "drawing noise with the stored C_inv, A (G + N Z)"
    advice = "draw it from C, as the client does"
    if isinstance(found, str):
        report.leave(f"{text}: {found}; {advice}", of=[INVERSE])
        return
    claim = Fraction(float.fromhex(file.manifest["certificate"]["sensitivity"]["hex"]))
    farthest = FARTHEST[file.manifest["matrices"]["C_inv"]["dtype"]]
    if found.distance > farthest:
        report.refute(
            f"the stored C_inv is not C^-1: their product differs from I by {float(found.distance):.3g} in norm, above "
            f"{float(farthest):.3g}",
            of=INVERSE,
        )
        return
    report.prove(f"the stored C_inv and C multiply to I up to {float(found.distance):.3g} in norm", of=INVERSE)
    proved = None if found.squared is None else square_root_up(found.squared)
    if found.squared is None:
        report.refute(f"{text}: no sensitivity of its encoder N^-1 is proved", of=INVERSE)
    elif found.squared <= claim**2:
        report.prove(f"{text}, is covered by the claim: its encoder N^-1 has sensitivity at most {proved!r}")
    else:
        report.leave(
            f"{text}: its encoder N^-1 has sensitivity at most {proved!r}, which the claim {float(claim)!r} does not "
            f"cover; {advice}, or calibrate with that number"
        )


def toeplitz(column: Balls, stored: np.ndarray, upper: Fraction) -> Noising:
    """Return what C N says for first columns: the norm of a Toeplitz matrix is at most the sum of its column.

    Args:
        column: first column of C, shape (n,).
        stored: first column of N.
        upper: squared sensitivity of C from above.

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


def in_doubles(strategy: Strategy, stored: np.ndarray, upper: Fraction) -> Noising:
    """Return what C N says for arrays, with a bound on what doubles round.

    Args:
        strategy: C.
        stored: N, shape (n, n).
        upper: squared sensitivity of C from above.

    Raises:
        CertificateError: N is not lower-triangular.
        NotEnclosed: C has no entries here, or is too ill-conditioned, or doubles cannot be relied on.
    """
    if np.triu(stored, 1).any():
        raise CertificateError("the stored C_inv is not lower-triangular")
    n, array, errors, right = len(stored), strategy.reading.array, 0.0, stored
    check_products()
    with np.errstate(over="ignore", invalid="ignore"):
        if array is None or n > whole.LARGEST:
            entries = whole.entries_of(strategy)
            array, errors = entries.values, norm_of(entries.errors) * whole.norm_above(stored)
        elif strategy.scale is not None:
            right = stored * strategy.scale[:, None]
        slack = gamma(roundings_of(n) + 2) * row_norms(right) * (1 + SLACK)
        rest = whole.residual(array, whole.Entries(right, np.zeros(1), slack), None)
        diagonal = np.diagonal(rest.values)
        mean = float(diagonal.mean())
        away, apart = (norm_of(row_norms(rest.values - shift * np.eye(n))) for shift in (0.0, mean))
        largest = float(np.abs(array).max())
    rounded = (norm_of(rest.errors) + errors) * (1 + SLACK) + n * n * TINY * (1 + largest)  # N times factors underflows
    if not rounded <= float(FARTHEST["float64"]):
        raise NotEnclosed(f"C is too ill-conditioned: doubles round C times it by up to {rounded:.3g}")
    finite(away, apart)
    defect, distance = (Fraction(norm * (1 + SLACK)) + Fraction(rounded) for norm in (apart, away))
    return Noising(_enlarged(upper, 1 + Fraction(mean), defect), distance)


def _enlarged(upper: Fraction, mean: Fraction, defect: Fraction) -> Fraction | None:
    """Return upper / (g (1 - |F|))^2 for g |F| = defect; None where N may lose a direction."""
    return upper / (mean - defect) ** 2 if mean > defect else None

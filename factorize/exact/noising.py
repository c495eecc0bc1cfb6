"""A stored C_inv, N: what noise that is drawn with it protects, which is N^-1 and not C.

With C N = g (I + F), N^-1 = (I + F)^-1 C / g, so that for every contribution u, whatever the participation,

    |N^-1 u| <= |C u| / (g (1 - |F|)).

No entry of C^-1 sets the scale of F: a tiny diagonal entry of C, which makes a row of C^-1 large, allows for nothing in
the others. g is any number, here the mean of the diagonal of C N: 1, and what an N was enlarged by on purpose.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from factorize.errors import CertificateError
from factorize.exact.arithmetic.integers import Limbs, Numbers, integers, limbs, product, split
from factorize.exact.arithmetic.intervals import NotEnclosed
from factorize.exact.arithmetic.machine import check_products
from factorize.exact.arithmetic.series import product as series_product
from factorize.exact.doubles.roundings import ROOT_OF_TINY, TINY
from factorize.exact.file import FactorFile
from factorize.exact.report import INVERSE, Report
from factorize.exact.sensitivity import square_root_up
from factorize.exact.strategy import Strategy

FARTHEST = {"float64": Fraction(1, 2**26), "float32": Fraction(1, 2**10)}
"""Norm of C N - I above which N is not C^-1, by the type in which it is stored."""
LARGEST_IN_DOUBLES = 8192
_BLOCK = 256
_UNIT = 2.0**-53
_SUMS = 2.0**-30  # of sums of squares over blocks of up to 256 x 8192 entries


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


def whole(strategy: Strategy, stored: np.ndarray, upper: Fraction) -> Noising:
    """Return what C N says, multiplied without rounding.

    Args:
        strategy: C, short enough to be had whole.
        stored: N, shape (n, n).
        upper: squared sensitivity of C from above.

    Raises:
        CertificateError: N is not lower-triangular.
    """
    _refuse_above(stored)
    right = limbs(stored) if strategy.factors is None else _rows_scaled(stored, strategy.factors)
    image = product(strategy.whole, right)
    n, values = strategy.n, image.values
    mean = sum(int(entry) for entry in np.diagonal(values)) // n
    return Noising(
        _enlarged(upper, image.fraction(mean), _norm(_less(values, mean), image)),
        _norm(
            _less(image.at(min(image.exponent, 0)).values, 1 << max(-image.exponent, 0)),
            image.at(min(image.exponent, 0)),
        ),
    )


def toeplitz(column: Numbers, stored: np.ndarray, upper: Fraction) -> Noising:
    """Return what C N says for first columns: the norm of a Toeplitz matrix is at most the sum of its column.

    Args:
        column: first column of C, shape (n,).
        stored: first column of N.
        upper: squared sensitivity of C from above.
    """
    image = series_product(integers(stored), column)
    image = image.at(min(image.exponent, 0))
    sizes = [abs(int(entry)) + image.radius for entry in image.values]
    below, first = image.fraction(sum(sizes[1:])), int(image.values[0])
    away = image.fraction(abs(first - (1 << -image.exponent)) + image.radius)
    return Noising(_enlarged(upper, image.fraction(first - image.radius), below), below + away)


def in_doubles(array: np.ndarray, scale: np.ndarray | None, stored: np.ndarray, upper: Fraction) -> Noising | str:
    """Return what C N says for arrays too long for exact products, with a bound on what doubles round.

    Args:
        array: C without its columns' factors, shape (n, n).
        scale: these, or None.
        stored: N, shape (n, n).
        upper: squared sensitivity of C from above.

    Raises:
        CertificateError: N is not lower-triangular.
    """
    _refuse_above(stored)
    n = len(array)
    if n > LARGEST_IN_DOUBLES:
        return f"a C_inv without structure is multiplied up to n={LARGEST_IN_DOUBLES}"
    try:
        check_products()
    except NotEnclosed as reason:
        return str(reason)
    right = stored if scale is None else stored * scale[:, None]
    rest = sizes = 0.0
    with np.errstate(over="ignore", invalid="ignore"):
        magnitudes = np.abs(right)
        for first in range(0, n, _BLOCK):
            left = array[first : first + _BLOCK]
            image = left @ right
            image[np.arange(len(left)), np.arange(first, first + len(left))] -= 1.0
            rest += float(np.square(image).sum())
            sizes += float(np.square(np.abs(left) @ magnitudes).sum())
        largest = float(max(array.max(), -array.min()))
    gamma = (n + 4) * _UNIT
    underflow = n * n * TINY * (1 + largest)  # of products, and of N times the columns' factors
    rounded = gamma * (1 + 2 * gamma) * math.sqrt(sizes) * (1 + _SUMS) + underflow
    if not rounded <= float(FARTHEST["float64"]):
        return f"C is too ill-conditioned: doubles round C times it by up to {rounded:.3g}"
    defect = Fraction(math.sqrt(rest) * (1 + _SUMS) + n * ROOT_OF_TINY) + Fraction(rounded)
    return Noising(_enlarged(upper, Fraction(1), defect), defect)


def by_rows(defect: Fraction, norm: Fraction, most: int, upper: Fraction) -> Noising:
    """Return what N C = I + E says, where only that is known: N^-1 = C - C E (I + E)^-1.

    No column differs by more than |C| |E| / (1 - |E|), and a pattern has at most `most` of them.

    Args:
        defect: norm of E from above.
        norm: of C from above.
        most: participations.
        upper: squared sensitivity of C from above.
    """
    if defect >= 1:
        return Noising(None, defect)
    return Noising((Fraction(square_root_up(upper)) + most * norm * defect / (1 - defect)) ** 2, defect)


def _refuse_above(stored: np.ndarray) -> None:
    if any(row[i + 1 :].any() for i, row in enumerate(stored)):
        raise CertificateError("the stored C_inv is not lower-triangular")


def _enlarged(upper: Fraction, mean: Fraction, defect: Fraction) -> Fraction | None:
    """Return upper / (g (1 - |F|))^2 for g |F| = defect; None where N may lose a direction."""
    return upper / (mean - defect) ** 2 if mean > defect else None


def _less(values: np.ndarray, diagonal: int) -> np.ndarray:
    found = values.copy()
    places = np.arange(len(found))
    found[places, places] -= diagonal
    return found


def _norm(values: np.ndarray, like: Numbers) -> Fraction:
    """At least the Frobenius norm of integers in the unit, and with the radius, of others."""
    total = int(((abs(values) + like.radius) ** 2).sum())
    return Fraction(square_root_up(like.fraction(1) ** 2 * total))


def _rows_scaled(stored: np.ndarray, factors: Numbers) -> Limbs:
    return split(integers(stored).scaled(Numbers(factors.values[:, None], factors.exponent, factors.radius)))

"""The lower bound for long steps s_i = k_i s_{i-1} + e_i x_i, whose inverse is bidiagonal: no n x n array.

With M = W A F, F = diag(sqrt v), the nuclear norm is tr K^(-1/2), K the inverse of M M^T or M^T M, tridiagonal. From
x^(-1/2) = (2 / pi) integral of e^t / (x + e^(2t)), the sum with step h is x^(-1/2) times 1 + 2 sum_j cos(.) / cosh(pi^2
j / h) (Poisson), so it exceeds x^(-1/2) by a factor of at most 1 + 4.1 exp(-pi^2 / h); leaving terms out lowers it.
Every trace is computed from positive numbers, with a running bound on its error. Squared entries of the bidiagonal
matrix are rounded once from rationals, which moves its singular values by no more than the product of the factors of
all entries (Demmel and Kahan 1990). A node that is off by a relative error moves its term by no more than that.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import numpy as np

from factorize.errors import CertificateError
from factorize.exact.arithmetic.intervals import NotEnclosed
from factorize.exact.bounds.resolvent_traces import traces
from factorize.exact.spec import program_of, weighing_of

_STEP = 0.3
LARGEST_IN_DOUBLES = 1 << 14
"""Steps up to which 12 roundings of each square are far below what claims may differ by."""
_ROUNDINGS = 12
_SAFE = 1e-120  # and its inverse: what products of a few numbers may reach without leaving the range of doubles
_SMALL = 1e-14  # terms beyond are left out
_UNIT = 2.0**-53
_NODE_ERROR = 1e-13  # of factors and shifts: exp, its argument below 1000, a square
_EXCESS = 1 + 4.1 * math.exp(-(math.pi**2) / _STEP)  # of the sum over the integral, see above
_PI_ABOVE = Fraction(3141592653589794, 10**15)


def lower_bound(spec: Mapping[str, Any], dual: Mapping[str, np.ndarray]) -> Fraction | None:
    """Return the bound for single participation, or None where the workload or the evidence is of another kind.

    Raises:
        CertificateError: the evidence has the wrong shape, or is negative or not finite.
        NotEnclosed: its numbers are too far apart.
    """
    program = program_of(spec["workload"])
    if spec["participation"]["kind"] != "single" or "weights" not in dual or program is None:
        return None
    n = spec["workload"]["n"]
    steps = program.steps(n)
    if steps is None:
        return None
    weighing = weighing_of(spec["objective"], n)
    if weighing.tau is not None or (weighing.weights is None and "row_weights" not in dual):
        return None
    rows = _positive(dual["row_weights"], n) if weighing.weights is None else weighing.weights
    divisor = _above(rows) if weighing.weights is None else Fraction(weighing.divisor or 1)
    columns = _positive(dual["weights"], n)
    if not all(rows) or not all(columns):
        return None
    norm = _norm_of(steps, rows, columns)
    return Fraction(max(norm, 0.0)) ** 2 / (_above(columns) * divisor)


def _positive(weights: np.ndarray, n: int) -> list[Fraction]:
    if weights.shape != (n,) or not np.isfinite(weights).all() or (weights < 0).any():
        raise CertificateError(f"the dual evidence must be {n} finite non-negative numbers")
    return [Fraction(weight) for weight in weights.tolist()]


def _above(numbers: list[Fraction]) -> Fraction:
    return Fraction(math.fsum(map(float, numbers))) * (1 + Fraction(1, 2**52))


def _norm_of(steps: list[tuple[Fraction, Fraction]], rows: list[Fraction], columns: list[Fraction]) -> float:
    """A number not above the nuclear norm; squares of entries are made in doubles where few steps round them."""
    if len(steps) <= LARGEST_IN_DOUBLES:
        rounded = _squares_in_doubles(steps, rows, columns)
        if rounded is not None:
            return _norm(*rounded, _ROUNDINGS)
    return _norm(*_squares(steps, rows, columns))


def _squares_in_doubles(
    steps: list[tuple[Fraction, Fraction]], rows: list[Fraction], columns: list[Fraction]
) -> tuple[np.ndarray, np.ndarray] | None:
    """What `_squares` returns, each number within `_ROUNDINGS` roundings; None where a part leaves a safe range.

    1 / (e e v w) takes 7 (e is rounded and counts twice, so does each product, w and the quotient), k k times it 11.
    """
    same = all(step is steps[0] for step in steps)
    k, e = (np.array([float(step[part]) for step in (steps[:1] if same else steps)]) for part in (0, 1))
    w, v = (np.array([float(number) for number in numbers]) for numbers in (rows, columns))
    with np.errstate(all="ignore"):
        square = e * e
        once = square * v
        diagonal, moved = 1.0 / (once * w), k * k
        below = (moved if same else moved[1:]) / (once[1:] * w[:-1])
    parts = [e, w, v, square, once, diagonal, moved[k != 0], below[below != 0], once[1:] * w[:-1]]
    safe = all(((np.abs(part) > _SAFE) & (np.abs(part) < 1 / _SAFE)).all() for part in parts)
    return (diagonal, below) if safe else None


def _squares(
    steps: list[tuple[Fraction, Fraction]], rows: list[Fraction], columns: list[Fraction]
) -> tuple[np.ndarray, np.ndarray]:
    """Squared entries of M^-1 = F^-1 A^-1 W^-1: x_i = (s_i - k_i s_{i-1}) / e_i, and s_i = o_i / sqrt w_i."""
    scales = [1 / (e * e * v) for (_, e), v in zip(steps, columns, strict=True)]
    diagonal = [float(scale / w) for scale, w in zip(scales, rows, strict=True)]
    below = [float(k * k * scale / w) for (k, _), scale, w in zip(steps[1:], scales[1:], rows, strict=False)]
    return np.array(diagonal), np.array(below)


def _norm(a: np.ndarray, b: np.ndarray, roundings: int = 1) -> float:
    """A number not above tr K^(-1/2); each entry is off by so many roundings."""
    if not (np.isfinite(a).all() and np.isfinite(b).all() and (a > 1e-250).all() and a.max() < 1e250):
        raise NotEnclosed("the dual evidence is too uneven for its bound to be evaluated in double precision")
    n, centre = len(a), 0.5 * math.log(float(a.mean() + b.sum() / len(a)))
    terms: list[float] = []
    for side, first in ((1, 0), (-1, 1)):
        factors = (math.exp(centre + side * k * _STEP) for k in itertools.count(first))
        here, squared = itertools.tee(factors)
        found = traces(a, b, (factor * factor for factor in squared))
        for factor, (value, error) in zip(here, found, strict=True):
            terms.append(factor * (value - error))
            if terms[-1] < _SMALL * math.fsum(terms):
                break
    rounding = 1 - (roundings * n + 64) * _UNIT * (1 + 1e-6) - _NODE_ERROR
    return math.fsum(terms) * (2 * _STEP / float(_PI_ABOVE)) / _EXCESS * rounding

"""The lower bound for long workloads that are chains, whose inverse is bidiagonal: no n x n array.

With M = W A F, F = diag(sqrt v), the nuclear norm is tr K^(-1/2), K the inverse of M M^T or M^T M, tridiagonal. From
x^(-1/2) = (2 / pi) integral of e^t / (x + e^(2t)), the sum with step h is x^(-1/2) times 1 + 2 sum_j cos(.) / cosh(pi^2
j / h) (Poisson), so it exceeds x^(-1/2) by a factor of at most 1 + 4.1 exp(-pi^2 / h); leaving terms out lowers it.
Every trace is computed from positive numbers, with a running bound on its error. What rounding changes in the entries
of the bidiagonal matrix moves its singular values by no more than the product of the factors of all entries (Demmel and
Kahan 1990). A node that is off by a relative error moves its term by no more than that.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import numpy as np

from factorize.checker.arithmetic.near import UNIT, NotEnclosed
from factorize.checker.bounds.chains import chain_of
from factorize.checker.bounds.evidence import sum_above, weights_of

_STEP = 0.3
_ROUNDINGS = 19
"""Of a step, in the roots of the squares that it leaves (`Chain.squares`)."""
_SMALL = 1e-14  # terms beyond are left out
_NODE_ERROR = 1e-13  # of factors and shifts: exp, its argument below 1000, a square
_EXCESS = 1 + 4.1 * math.exp(-(math.pi**2) / _STEP)  # of the sum over the integral, see above
_PI_ABOVE = Fraction(3141592653589794, 10**15)


def lower_bound(spec: Mapping[str, Any], dual: Mapping[str, np.ndarray]) -> Fraction | None:
    """Return the bound for single participation, or None where the workload or the evidence is of another kind.

    Raises:
        CertificateError: the evidence has the wrong shape, or is negative, not finite or all zero.
        NotEnclosed: its numbers are too far apart.
    """
    if spec["participation"]["kind"] != "single" or "weights" not in dual:
        return None
    chain = chain_of(spec, dual)
    if chain is None:
        return None
    columns = weights_of(dual, "weights", len(chain.feed))
    diagonal, below, scale = chain.squares(columns)
    norm = norm_below(diagonal, below, _ROUNDINGS * len(columns)) if len(diagonal) else 0.0
    return Fraction(max(norm, 0.0)) ** 2 * scale / (sum_above(columns) * chain.divisor)


def norm_below(a: np.ndarray, b: np.ndarray, roundings: float) -> float:
    """Return a number not above tr K^(-1/2).

    Args:
        a: squared diagonal of M^-1, shape (n,).
        b: squared sub-diagonal, shape (n - 1,).
        roundings: of all entries together, which are the roots of these.

    Raises:
        NotEnclosed: the entries are too far apart.
    """
    from factorize.checker.bounds.resolvent_kernels import trace

    if not (np.isfinite(a).all() and np.isfinite(b).all() and (a > 1e-250).all() and a.max() < 1e250):
        raise NotEnclosed("the dual evidence is too uneven for its bound to be evaluated in double precision")
    centre = 0.5 * math.log(float(a.mean() + b.sum() / len(a)))
    terms: list[float] = []
    for side, first in ((1, 0), (-1, 1)):
        for k in itertools.count(first):
            factor = math.exp(centre + side * k * _STEP)
            value, error = trace(a, b, factor * factor)
            terms.append(factor * (value - error))
            if terms[-1] < _SMALL * math.fsum(terms):
                break
    rounding = 1 - (roundings + 64) * UNIT * (1 + 1e-6) - _NODE_ERROR
    return math.fsum(terms) * (2 * _STEP / float(_PI_ABOVE)) / _EXCESS * rounding

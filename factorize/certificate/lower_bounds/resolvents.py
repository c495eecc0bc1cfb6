"""A lower bound on the nuclear norm of A diag(sqrt v) in O(n), for workloads whose inverse is bidiagonal.

With G = A^-1, D = diag(sqrt v) and T = D^-1 G G^T D^-1 the norm is tr T^(-1/2). The trapezoidal rule with step h for

    x^(-1/2) = (2 / pi) integral over u of e^u / (x + e^(2u))

satisfies sqrt(x) r(x) = 1 + 2 sum_{l >= 1} cos(pi l log(x) / h) / cosh(pi^2 l / h) for every x > 0 (Poisson summation
of 1/cosh), so r(x) <= (1 + delta) x^(-1/2) with delta = 2 sum 1 / cosh(pi^2 l / h). Lowering r keeps the bound, so only
finitely many terms are taken: neighbouring terms outwards shrink by at most e^-h, since 1 / (x + t) falls with t and
t / (x + t) rises, and the geometric series with that ratio is a lower bound of each tail. Hence tr r(T) / (1 + delta)
is a lower bound whatever the spectrum of T. Each term is a trace of a resolvent of a tridiagonal matrix, computed from
positive numbers with a running error bound.

This shares neither nodes nor code with the solvers, which use Zolotarev's approximation.
"""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from factorize.numbers.rounding import UNIT
from factorize.workloads.forms import BidiagonalInverse, FirstOrder

_STEP = math.pi**2 / math.log(4e15)  # delta is then 1e-15
_TAIL = math.exp(-_STEP) / (1 - math.exp(-_STEP)) * (1 - 1e-14)
_CUTOFF = 1e-8  # beyond it, the tail differs from its geometric bound by the square of this
_MOST_TERMS = 2000
_HALF_UNIT = 2.0**-53
_NODE_ERRORS = 24.0
"""Roundings of a node, its weight and the sum; r moves by no more than the errors of nodes and weights together."""


def nuclear_norm_below(inverse: BidiagonalInverse, weights: np.ndarray) -> float:
    """Return a number not above the nuclear norm of A diag(sqrt(weights)).

    Args:
        inverse: A^-1, diagonal p > 0 and negated sub-diagonal q >= 0, each of shape (n,).
        weights: v, shape (n,), non-negative, not all zero.
    """
    p, q = (np.ascontiguousarray(part, dtype=np.float64) for part in inverse)
    v = np.ascontiguousarray(weights, dtype=np.float64)
    # Half the log of a typical eigenvalue of T. Any start is correct; a good one saves terms.
    centre = 0.5 * math.log(float((p * p + q * q).mean()) / float(v.mean()))
    with ThreadPoolExecutor(2) as pool:
        sides = pool.map(lambda start: _one_side(p, q, v, centre + start * _STEP, start), (0.5, -0.5))
    delta = 2.0 / math.cosh(math.pi**2 / _STEP) * 1.0001
    return math.fsum(term for side in sides for term in side) * (2 * _STEP / math.pi) / (1 + delta) * (1 - 1e-15)


def nuclear_norm_of_recursion_below(steps: FirstOrder, row_weights: np.ndarray, weights: np.ndarray) -> float:
    """Return a number not above the nuclear norm of diag(sqrt u) A diag(sqrt v) for a recursion A; zeros are welcome.

    The singular values of a bidiagonal matrix depend on the relative size of its entries alone: if each is off by a
    factor of at most 1 + eps, the singular values are off by at most the product of all these factors (Demmel, Kahan
    1990). Each step of the recursion costs the entries of `_reduced` at most 12 roundings.

    Args:
        steps: A, rows a_i = follow_i a_{i-1} + feed_i e_i^T, each part of shape (n,).
        row_weights: u, shape (n,), non-negative, not all zero.
        weights: v, shape (n,), non-negative, not all zero.
    """
    inverse = _reduced(steps, row_weights, weights)
    if inverse is None:
        return 0.0
    allowance = 1 - 12 * len(weights) * UNIT
    return nuclear_norm_below(inverse, np.ones(len(inverse.p))) * allowance


def _reduced(steps: FirstOrder, row_weights: np.ndarray, weights: np.ndarray) -> BidiagonalInverse | None:
    """Return a bidiagonal matrix; its inverse has the non-zero singular values of diag(sqrt u) A diag(sqrt v).

    Let b_i be the rows of A diag(sqrt v): b_i = follow_i b_{i-1} + c_i e_i^T, c_i = feed_i sqrt(v_i). The Gram matrix
    sum_i u_i b_i^T b_i has these singular values, squared.

    - c_i = 0: b_i = follow_i b_{i-1}, so the term of row i is that of row i - 1 with weight u_i follow_i^2.
    - u_i = 0: rows from i + 1 on hold follow_{i+1} c_i e_i^T + c_{i+1} e_{i+1}^T only as one; a rotation of these two
      columns makes it hypot(follow_{i+1} c_i, c_{i+1}) in one column, and the other column zero.

    What is left is diag(sqrt u) L diag(c), L^-1 with ones on the diagonal and -follow below it.
    """
    carried = np.array(row_weights, dtype=np.float64)
    inputs = steps.feed * np.sqrt(weights)
    for i in range(len(inputs) - 1, 0, -1):
        if inputs[i] == 0.0:
            carried[i - 1] += carried[i] * steps.follow[i] ** 2
    p: list[float] = []
    q: list[float] = []
    entering, factor, before = 0.0, 1.0, 1.0
    for follow, own, weight in zip(steps.follow, inputs, carried, strict=True):
        if own == 0.0:
            factor *= follow
            entering *= follow
            continue
        entering, factor = math.hypot(entering * follow, own), factor * follow
        if weight > 0.0:
            root = math.sqrt(weight)
            p.append(1.0 / (entering * root))
            q.append(factor / (entering * before) if q else 0.0)
            entering, factor, before = 0.0, 1.0, root
    return BidiagonalInverse(np.array(p), np.array(q)) if p else None


def _one_side(p: np.ndarray, q: np.ndarray, v: np.ndarray, u: float, direction: float) -> list[float]:
    """Return the terms from u outwards, each lowered by its rounding error, and a lower bound of the rest."""
    from factorize.structures.kernels.buffered import resolvent_trace

    terms: list[float] = []
    step = math.copysign(_STEP, direction)
    while len(terms) < _MOST_TERMS and (not terms or terms[-1] > _CUTOFF * max(terms)):
        trace, error = resolvent_trace(p, q, v, math.exp(2 * u))
        terms.append(math.exp(u) * trace * (1 - (error + _NODE_ERRORS) * _HALF_UNIT))
        u += step
    return [*terms, terms[-1] * _TAIL]

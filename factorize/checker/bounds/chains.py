"""Chains: a weighted workload whose steps depend on one number of the step before, and its bidiagonal inverse.

Row i of W A is sqrt(w_i) s_i with s_i = k_i s_{i-1} + e_i x_i. For running sums (every k_i = 1) what is left of a row
less the row at the last restart is such a chain too: one that begins anew after each restart.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from factorize.checker.arithmetic.near import NotEnclosed
from factorize.checker.bounds.evidence import sum_above, weights_of
from factorize.checker.spec import program_of, weighing_of

_SAFE = 1e-120  # and its inverse: what products of a few numbers may reach without leaving the range of doubles


class Chain(NamedTuple):
    """W A, each number rounded at most once.

    Attributes:
        follow: k, shape (n,); the first is 0.
        feed: e, shape (n,).
        weights: w of the rows times some number, shape (n,).
        divisor: of the objective, times the same number.
    """

    follow: np.ndarray
    feed: np.ndarray
    weights: np.ndarray
    divisor: Fraction

    def inverse(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Return the diagonal p > 0 and negated sub-diagonal q > 0 of (W A)^-1, at most 7 roundings each, shape (n,).

        None where they are not of that kind, or leave a safe range; the first of q is not used.
        """
        with np.errstate(all="ignore"):
            roots = np.sqrt(self.weights)
            p = 1.0 / (self.feed * roots)
            q = self.follow / (self.feed * np.concatenate([[1.0], roots[:-1]]))
        safe = all(((part > _SAFE) & (part < 1 / _SAFE)).all() for part in (self.feed, roots, p, q[1:]))
        return (p, q) if safe else None

    def squares(self, columns: np.ndarray) -> tuple[np.ndarray, np.ndarray, Fraction]:
        """Return squared diagonal and sub-diagonal of M^-1, and c; M sqrt(c) has no larger norm than W A diag(sqrt v).

        A step with e_i v_i = 0 adds a row that follows from the one before, whose weight it makes larger. A row of
        weight 0 is only read by the next one, in which a rotation of its column and the next leaves one of the two.
        Columns and rows that are tiny beside the largest count as 0. Each step rounds what it leaves in the squares by
        at most 38 roundings in all.

        Args:
            columns: v, shape (n,), non-negative.

        Raises:
            NotEnclosed: numbers are too far apart.
        """
        (fed, feed), (weighted, rows), (valued, own) = map(_relative, (np.abs(self.feed), self.weights, columns))
        entering, kept = _without_tiny(feed * feed * own).tolist(), (self.follow * self.follow).tolist()
        weights = _without_tiny(rows).tolist()
        if not all(not k or _SAFE**2 < k < _SAFE**-2 for k in kept):
            raise NotEnclosed("the factors of the workload's steps are too far apart for a bound in doubles")
        for i in range(len(kept) - 1, 0, -1):
            if not entering[i]:
                weights[i - 1] += weights[i] * kept[i]
        diagonal, below, collected, factor, before = [], [], 0.0, 1.0, 1.0
        for k, e, weight in zip(kept, entering, weights, strict=True):
            if factor and k and not factor * k > _SAFE**2:
                raise NotEnclosed("too many rows without weight follow each other for a bound in doubles")
            collected, factor = collected * k + e, factor * k
            if e and weight > _SAFE:
                diagonal.append(1.0 / (collected * weight))
                below.append(factor / (collected * before))
                collected, factor, before = 0.0, 1.0, weight
        return np.array(diagonal), np.array(below[1:]), Fraction(2) ** (2 * fed + weighted + valued)


def chain_of(spec: Mapping[str, Any], dual: Mapping[str, np.ndarray]) -> Chain | None:
    """Return W A as a chain, or None where it is none.

    Args:
        spec: canonical spec.
        dual: has `row_weights` where the objective is the largest error.

    Raises:
        CertificateError: these weights have the wrong shape, or are negative, not finite or all zero.
    """
    program = program_of(spec["workload"])
    steps = None if program is None else program.steps(spec["workload"]["n"])
    if steps is None:
        return None
    weighing = weighing_of(spec["objective"], len(steps))
    follow, feed = (np.array([float(step[part]) for step in steps]) for part in (0, 1))
    follow[0] = 0.0
    if weighing.tau is not None:
        if any(k != 1 for k, _ in steps[1:]):
            return None
        follow[:: weighing.tau] = 0.0
    if weighing.weights is not None:
        return Chain(follow, feed, weighing.doubles, Fraction(weighing.divisor or 1))
    if "row_weights" not in dual:
        return None
    rows = weights_of(dual, "row_weights", len(steps))
    return Chain(follow, feed, rows, sum_above(rows))


def _relative(numbers: np.ndarray) -> tuple[int, np.ndarray]:
    """Return a power of two that is about the largest number, and the numbers over it."""
    exponent = int(np.frexp(numbers.max())[1])
    return exponent, np.ldexp(numbers, -exponent)


def _without_tiny(numbers: np.ndarray) -> np.ndarray:
    return np.where(numbers < _SAFE, 0.0, numbers)

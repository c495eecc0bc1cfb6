"""Lower bounds over all strategy matrices, in doubles: (tr(Q^T W A F) / |Q|)^2 over the cost of F.

Any F and any Q prove something: a bad guess weakens a bound and never makes it false. Q = P (I - E / 2) for P near the
polar factor of W A F, as a C near the optimum or singular vectors suggest it, and E the computed P^T P - I
(docs/notes/checker.md, "Lower bound").
"""

import math
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from factorize.checker.arithmetic.near import (
    SLACK,
    TINY,
    UNIT,
    Around,
    Factor,
    NotEnclosed,
    column_norms,
    finite,
    gamma,
    norm_of,
)
from factorize.checker.bounds.evidence import Evidence
from factorize.checker.losses.products import WorkloadRows, gram, roundings_of
from factorize.checker.losses.whole_matrices import norm_above
from factorize.checker.spec.objectives import Weighing

MAX_N_OF_VECTORS = 2048
"""The largest n for which F is merged and eigenvectors are computed, which takes about 10 products of that size."""
_MAX_NORM = 0.5  # With a larger norm of P^T P - I, no bound comes out and no step helps.
_MIN_GAIN = 1e-10  # With a smaller squared norm of P^T P - I over the columns, a step would gain less than that.
_MAX_STEPS = 6  # The most steps of Newton and Schulz.
_MIN_EIGENVALUE_RATIO = 1e-10  # With a smaller ratio for M^T M, no step or two mends the guess M (M^T M)^-1/2.
_COLUMNS_AT_ONCE = 2048  # The columns of W A F that are computed together.


class WeightedTarget(NamedTuple):
    """The matrix W A: each row less the row that it refers to, times the row factors `scales`, shape (m,)."""

    workload: WorkloadRows
    weighing: Weighing
    scales: np.ndarray

    def times(self, matrix: np.ndarray) -> Iterator[Around]:
        """Yield the rows of W A times a matrix."""
        before = None
        for t, row in enumerate(self.workload.times(matrix)):
            since = row if before is None else row - before
            yield since if self.scales[t] == 1 else since * Factor(float(self.scales[t]), 0.0)
            if self.weighing.tau is not None and (t + 1) % self.weighing.tau == 0:
                before = row

    def guess(self, matrix: np.ndarray) -> np.ndarray:
        """Return an approximation of W A times a matrix of n rows."""
        rows = self.workload.guess(matrix)
        if self.weighing.tau is not None:
            rows = rows - self.weighing.referred(rows)
        return np.asarray(rows * self.scales[:, None])


def targets(evidence: Evidence, weighted: WeightedTarget) -> Iterator[tuple[np.ndarray, float]]:
    """Yield columns of W A F in the order of the patterns, with an upper bound of the norm of their error."""
    count, k = evidence.patterns.shape
    step = max(_COLUMNS_AT_ONCE // k, 1)
    for first in range(0, count, step):
        patterns, blocks = evidence.patterns[first : first + step], evidence.blocks[first : first + step]
        places = np.arange(len(patterns) * k)
        matrix, errors = np.zeros((weighted.workload.columns, len(places))), np.zeros(weighted.workload.rows)
        matrix[patterns[:, :, None], places.reshape(-1, 1, k)] = blocks
        values = np.empty((weighted.workload.rows, len(places)))
        for t, row in enumerate(weighted.times(matrix)):
            values[t], errors[t] = row.values, norm_of(row.errors)
        yield values, norm_of(errors)


def merged(factors: Sequence[Evidence], n: int) -> tuple[Sequence[Evidence], Fraction]:
    """Return F and its cost, or one square L for all steps where overlapping patterns have very many columns.

    L L^T <= F F^T + 2 d I, and the right side is evidence too: it adds 2 d for each step alone, at a cost of 2 n d. d
    exceeds all roundings, so that F F^T + 2 d I is never singular. Entries are near 1, so underflow is far below d.

    Raises:
        NotEnclosed: the triangle loses more to rounding than it may.
    """
    cost = sum((factor.cost() for factor in factors), start=Fraction(0))
    if sum(factor.patterns.size for factor in factors) <= max(n, _COLUMNS_AT_ONCE) or n > MAX_N_OF_VECTORS:
        return factors, cost
    total, squares, met = np.zeros(n * n), 0.0, np.zeros(n, dtype=np.int64)
    for patterns, blocks in factors:
        places = patterns[:, :, None] * n + patterns[:, None, :]
        total += np.bincount(places.ravel(), (blocks @ blocks.swapaxes(1, 2)).ravel(), n * n)
        squares += float(np.einsum("pij,pij->", blocks, blocks)) * (1 + 2.0**-20)
        met += np.bincount(patterns.ravel(), minlength=n)
    added = gamma(int(met.max()) + len(factors) + max(factor.patterns.shape[1] for factor in factors) + 4) * squares
    multiplied = gamma(roundings_of(n) + 1)
    spare = 4 * (added + multiplied * squares)
    dual = total.reshape(n, n) + spare * np.eye(n)
    try:
        lower = np.linalg.cholesky(dual)
    except np.linalg.LinAlgError:
        raise NotEnclosed("the matrix of the evidence's patterns is not definite") from None
    off = norm_of(column_norms(dual - gram(lower.T))) + multiplied * norm_of(column_norms(lower)) ** 2
    if not (added + off) * (1 + SLACK) <= spare:
        raise NotEnclosed("the matrix of the evidence's patterns loses too much to rounding in its triangle")
    return [Evidence(np.arange(n)[None], lower[None])], cost + 2 * n * Fraction(spare)


def guess_by_strategy(weighted: WeightedTarget, factors: Sequence[Evidence], inverse: np.ndarray) -> np.ndarray:
    """Return Z F^-T, near the polar factor of W A F if C is near the optimum; Z = W A (C^T C)^-1.

    Raises:
        NotEnclosed: F is singular, or numbers leave the range of doubles.
    """
    with np.errstate(all="ignore"):
        rows, parts = weighted.guess(inverse @ inverse.T), []
        for patterns, blocks in factors:
            try:
                turned = np.linalg.inv(blocks).swapaxes(1, 2)
            except np.linalg.LinAlgError:
                raise NotEnclosed("the evidence is singular, so no polar factor can be guessed from C") from None
            own = rows[:, patterns.ravel()].reshape(len(rows), *patterns.shape).swapaxes(0, 1)
            parts.append((own @ turned).swapaxes(0, 1).reshape(len(rows), -1))
        out = np.concatenate(parts, axis=1)
        total = float(np.einsum("ij,ij->", out, out))
        finite(total, 1.0 / total if total else math.inf)
        out *= math.sqrt(out.shape[1] / total)  # The scale of F is that of the evidence, which has no meaning.
    return out


def guess_by_vectors(target: np.ndarray) -> np.ndarray:
    """Return a matrix near the polar factor of M, shape (m, n), m >= n; raise NotEnclosed without eigenvectors."""
    try:
        values, vectors = np.linalg.eigh(gram(target))
        if values[0] > _MIN_EIGENVALUE_RATIO * values[-1]:
            return np.asarray(target @ gram((vectors * values**-0.25).T))  # The Gram matrix is (M^T M)^-1/2.
        left, _, right = np.linalg.svd(target, full_matrices=False)
    except np.linalg.LinAlgError:
        raise NotEnclosed("no singular vectors of the target were found") from None
    return np.asarray(left @ right)


def norm_by_vectors(weighted: WeightedTarget, factors: Sequence[Evidence]) -> Fraction:
    """Return a number not above the nuclear norm of W A F, without help from C.

    Raises:
        NotEnclosed: n is too large, or `norm_below` raises it.
    """
    if max(weighted.workload.rows, weighted.workload.columns) > MAX_N_OF_VECTORS:
        raise NotEnclosed(f"singular vectors are computed up to n={MAX_N_OF_VECTORS}")
    with np.errstate(all="ignore"):
        parts = [block for factor in factors for block in targets(factor, weighted)]
        target, lost = np.concatenate([values for values, _ in parts], axis=1), norm_of(np.array([p[1] for p in parts]))
        finite(float(np.einsum("ij->", target)), lost)
        target = target if len(target) >= target.shape[1] else np.ascontiguousarray(target.T)
        guess = guess_by_vectors(target)
    return norm_below(iter([(target, lost)]), guess)


def norm_below(targets: Iterator[tuple[np.ndarray, float]], guess: np.ndarray) -> Fraction:
    """Return a number not above the nuclear norm of M.

    Args:
        targets: columns of M, each with an upper bound of the norm of their error.
        guess: P, in the shape of M, which has at least as many rows as columns.

    Raises:
        NotEnclosed: the columns of P are far from orthonormal, or numbers leave the range of doubles.
    """
    with np.errstate(all="ignore"):
        guess, near = _nearer(guess)
        (rows, columns), lengths, magnitude = guess.shape, column_norms(guess), norm_above(guess)
        apart = norm_of(column_norms(near))
        error = gamma(roundings_of(rows) + 1) * magnitude**2 + 2 * UNIT * (apart + 1) + guess.size * TINY
        parts, lost, start = [], 0.0, 0
        for target, off in targets:
            some = slice(start, start + target.shape[1])
            turned = guess @ near[:, some]
            rounded = gamma(columns + 1) * magnitude * norm_of(column_norms(near[:, some])) + target.size * TINY
            sizes, both = column_norms(target), lengths[some] + column_norms(turned)
            lost += gamma(rows + 4) * math.fsum((both * sizes).tolist()) + target.size * TINY
            lost += rounded * norm_of(sizes) + (norm_of(both) + rounded) * off
            parts += np.einsum("ij,ij->j", guess[:, some], target).tolist()
            parts += (-0.5 * np.einsum("ij,ij->j", turned, target)).tolist()
            start = some.stop
    delta = (apart + error) * (1 + SLACK)
    finite(delta, lost, *parts)
    if not delta < _MAX_NORM:
        raise NotEnclosed("the guess of the polar factor is too far from one with orthonormal columns")
    squared = 1 + (error * (1 + delta) * (1 + delta / 2) + error**2) * (1 + SLACK)
    below = math.fsum(parts) * (1 - 4 * UNIT) - lost * (1 + SLACK) * (1 + SLACK)
    return Fraction(max(below, 0.0)) / Fraction(math.nextafter(math.sqrt(math.nextafter(squared, 2.0)), 2.0))


def _nearer(guess: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return P after as many steps of Newton and Schulz as it needs, and P^T P - I as computed."""
    for step in range(_MAX_STEPS + 1):
        near = gram(guess)
        near[np.diag_indices(len(near))] -= 1.0
        if step == _MAX_STEPS or not _MIN_GAIN * len(near) < float(np.einsum("ij,ij->", near, near)) < _MAX_NORM**2:
            break
        guess = guess - 0.5 * (guess @ near)
    return guess, near

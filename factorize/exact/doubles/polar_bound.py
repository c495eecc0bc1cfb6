"""The lower bound over all strategy matrices, in doubles: (tr(Q^T W A F) / |Q|)^2 over the cost of F, for any Q.

Where C is near the optimum, (W A F)^T W A F is near the square of (C F)^T C F, so that Z F^-T with Z = W A (C^T C)^-1
is near the polar factor of W A F: no singular values are needed. For P near it and a computed E near P^T P - I,
Q = P (I - E / 2) is nearer (Newton and Schulz), and |Q|^2 <= 1 + what E is off by, since (1 - d / 2)^2 (1 + d) <= 1 for
every d <= 3. The sums are bounded in advance; a bad P weakens the bound and never makes it false.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from fractions import Fraction

import numpy as np

from factorize.exact.arithmetic.intervals import NotEnclosed
from factorize.exact.arithmetic.pairs import in_pairs
from factorize.exact.doubles.roundings import (
    SLACK,
    TINY,
    UNIT,
    column_norms,
    finite,
    gamma,
    norm_of,
)
from factorize.exact.doubles.suffix_sums import SuffixSums, Traces
from factorize.exact.doubles.triangles import TERMS, blocks_of, roundings_of
from factorize.exact.doubles.weighted_targets import Factor, TargetBlock, TargetSource, WeightedTarget

_FARTHEST = 0.5  # norm of P^T P - I above which nothing is to be won
_NEAR = 1e-10  # of its square over the columns: what another step would win is below that
_MOST_STEPS = 3
_TOO_FAR = "the guess of the polar factor is too far from one with orthonormal columns"
_WHOLE_GRAM = 4096  # columns up to which P^T P is held whole, as a symmetric product of half the work
_SIDE = 128  # rows of P^T P that are made at one time: long ones, which BLAS makes sooner than long columns
_SAMPLES = 16  # vectors by which it is estimated how far P is from one with orthonormal columns


def _never(_norm: Fraction) -> bool:
    return False


def polar_guess(weighted: WeightedTarget, factor: Factor, inverse: np.ndarray) -> np.ndarray:
    """Return something near the polar factor of W A F, columns in the order of the patterns of F.

    Args:
        weighted: W A.
        factor: F.
        inverse: N near C^-1.

    Raises:
        NotEnclosed: F is singular, or numbers leave the range of doubles.
    """
    with np.errstate(all="ignore"):
        out = factor.undone(weighted_decoder_by_inverse(weighted, inverse))
        total = float(np.einsum("ij,ij->", out, out))
        finite(total, 1.0 / total if total else math.inf)
        out *= math.sqrt(out.shape[1] / total)  # the scale of F is that of the evidence, which says nothing
    return out


def weighted_decoder_by_inverse(weighted: WeightedTarget, inverse: np.ndarray) -> np.ndarray:
    """Return W A N N^T, nearly."""
    if weighted.of_ones:
        return sums_of_rows(_symmetric_product(inverse))
    n = len(inverse)
    out = np.empty((weighted.workload.rows, n))

    def fill(block: tuple[int, int, np.ndarray]) -> None:
        start, stop, rows = block
        for first, last in blocks_of(n):
            width = min(rows.shape[1], last)
            np.matmul(rows[:, :width], inverse[first:last, :width].T, out=out[start:stop, first:last])

    for _ in in_pairs(fill, weighted.decoder(inverse), n):
        pass
    return out


def _symmetric_product(inverse: np.ndarray) -> np.ndarray:
    """N N^T, nearly, of half the work."""
    n = len(inverse)
    out = np.empty((n, n))

    def fill(block: tuple[int, int]) -> None:
        first, last = block
        for start, stop in (one for one in blocks_of(n) if one[1] <= last):
            product = inverse[first:last, :stop] @ inverse[start:stop, :stop].T
            out[first:last, start:stop], out[start:stop, first:last] = product, product.T

    for _ in in_pairs(fill, reversed(list(blocks_of(n))), n):  # the longest first
        pass
    return out


def sums_of_rows(array: np.ndarray) -> np.ndarray:
    """A times an array, in place, for prefix sums A; row by row is ten times as quick as a cumulative sum over rows."""
    for i in range(1, len(array)):
        np.add(array[i], array[i - 1], out=array[i])
    return array


def norm_below(
    weighted: WeightedTarget, factor: TargetSource, guess: np.ndarray, *, enough: Callable[[Fraction], bool] = _never
) -> Fraction:
    """Return a number not above the nuclear norm of W A F.

    Args:
        weighted: W A.
        factor: F.
        guess: P, shape (m, columns of F); it may be overwritten.
        enough: says of such a number whether a larger one would prove no more of what is claimed.

    Raises:
        NotEnclosed: P is too far from one with orthonormal columns, or numbers leave the range of doubles.
    """
    with np.errstate(all="ignore"):
        guess = _nearer(guess)
        for _ in range(_MOST_STEPS):
            found = _Step(guess)
            below = found.taken(weighted, factor)
            if found.apart**2 <= _NEAR * guess.shape[1] or enough(below):
                break
            guess = found.moved  # a step more costs two products of matrices, and wins what is left of E squared
    return below


def _nearer(guess: np.ndarray) -> np.ndarray:
    """Return P after steps in single precision, of half the work, as long as it is not near and they bring it nearer.

    Whatever they return is a guess: a step in doubles proves what there is to prove of it, and mends their roundings.
    """
    columns = guess.shape[1]
    away = _estimate(guess)
    for _ in range(_MOST_STEPS if columns <= _WHOLE_GRAM else 0):
        if not _NEAR * columns < away < _FARTHEST**2:
            break
        single = guess.astype(np.float32)
        moved = _moved(guess, single, whole_gram(single))
        left = _estimate(moved)
        if not left < away:
            break
        guess, away = moved, left
    return guess


def _moved(guess: np.ndarray, single: np.ndarray, gram: np.ndarray) -> np.ndarray:
    """P (3 - P^T P) / 2, with the product of P in single precision and P^T P."""
    out = np.empty_like(guess)
    gram[np.diag_indices(len(gram))] -= 1

    def fill(block: tuple[int, int]) -> None:
        columns = slice(*block)
        np.subtract(guess[:, columns], 0.5 * (single @ gram[:, columns]), out=out[:, columns])

    for _ in in_pairs(fill, blocks_of(len(gram)), len(gram)):
        pass
    return out


def _estimate(guess: np.ndarray) -> float:
    """The square of the norm of P^T P - I, about: that of its products with a few vectors of random signs."""
    signs = np.random.default_rng(0).choice((-1.0, 1.0), (guess.shape[1], _SAMPLES))
    away = -signs

    def share(block: tuple[int, int]) -> np.ndarray:
        some = guess[slice(*block)]  # which is still near for the second product
        return np.asarray(some.T @ (some @ signs))

    for _, found in in_pairs(share, blocks_of(len(guess)), guess.shape[1]):
        away += found
    return float(np.einsum("ij,ij->", away, away)) / _SAMPLES


class _Step:
    """One step from P to P (I - E / 2), and what it proves.

    Args:
        guess: P.
    """

    def __init__(self, guess: np.ndarray) -> None:
        self._guess, self._moved, self._has_moved = guess, np.empty_like(guess), False
        self._lengths, self._magnitude = column_norms(guess), _magnitude(guess)
        short = guess.shape[1] <= _WHOLE_GRAM
        self._gram = whole_gram(guess) if short else None
        self.apart = 0.0
        distance = math.inf if self._gram is None else _distance(self._gram)
        if self._gram is not None and not distance < _FARTHEST:
            raise NotEnclosed(_TOO_FAR)  # as `_spectral` finds, after more products
        self._last = distance**2 < 0.5 * _NEAR * guess.shape[1]  # so that `norm_below` does not ask for another

    def _less_one(self, columns: slice) -> np.ndarray:
        """Some columns of E."""
        found = _gram(self._guess, columns) if self._gram is None else self._gram[:, columns].copy()
        places = np.arange(columns.start, columns.stop)
        found[places, places - columns.start] -= 1.0
        return found

    def taken(self, weighted: WeightedTarget, factor: TargetSource) -> Fraction:
        """Return a lower bound of tr(Q^T W A F) over one of |Q| from above."""
        parts, lost, squares = [], 0.0, 0.0
        for share in self._shares(weighted, factor):
            parts += share.parts
            lost += share.lost
            squares += share.apart**2 * (1 + SLACK)
        self.apart = math.sqrt(squares) * (1 + SLACK)
        finite(self.apart, lost, *parts)
        below = math.fsum(parts) * (1 - SLACK) - lost * (1 + SLACK)
        return Fraction(max(below, 0.0)) / Fraction(self._spectral())

    @property
    def moved(self) -> np.ndarray:
        """P (I - E / 2), nearly."""
        if not self._has_moved:

            def move(block: tuple[int, int]) -> None:
                columns = slice(*block)
                turned = self._guess @ self._less_one(columns)
                np.subtract(self._guess[:, columns], 0.5 * turned, out=self._moved[:, columns])

            for _ in in_pairs(move, blocks_of(self._guess.shape[1]), self._guess.shape[1]):
                pass
            self._has_moved = True
        return self._moved

    def _shares(self, weighted: WeightedTarget, factor: TargetSource) -> Iterator[Traces]:
        """What the columns give, some of them at a time."""
        columns, gram = self._guess.shape[1], self._gram
        if gram is None or not factor.by_patterns or not weighted.of_ones:
            self._has_moved = True
            return (share for _, share in in_pairs(self._share, factor.targets(weighted), columns))
        sums = SuffixSums.of(self._guess, self._lengths, in_place=self._last)

        def share(block: tuple[int, Factor, slice]) -> Traces:
            """E here is the transposed of the computed one, which is off by as much."""
            start, part, some = block
            k = part.patterns.shape[1]
            own = start + np.arange(some.start * k, some.stop * k)
            near = gram[own[0] : own[-1] + 1].copy()
            near[own - own[0], own] -= 1.0
            return sums.traces(part.patterns[some], part.blocks[some], int(own[0]), near)

        blocks = ((start, part, some) for start, part in factor.by_patterns for some in part.groups(columns))
        return (found for _, found in in_pairs(share, blocks, columns))

    def _share(self, block: TargetBlock) -> Traces:
        """The part of some columns, for which P takes the step."""
        guess, columns = self._guess, block.columns
        target, off = block.make()
        near = self._less_one(columns)
        turned = guess @ near
        np.subtract(guess[:, columns], 0.5 * turned, out=self._moved[:, columns])
        sizes, apart, steps = column_norms(target), norm_of(column_norms(near)), column_norms(turned)
        rounded = gamma(len(near) + 1) * self._magnitude * apart * (1 + SLACK) + near.size * TINY
        both = self._lengths[columns] + 0.5 * steps
        lost = gamma(len(guess) + 4) * math.fsum((both * sizes).tolist()) * (1 + SLACK)
        lost += (0.5 * rounded * norm_of(sizes) + (norm_of(both) + rounded) * off) * (1 + SLACK)
        lost += target.size * TINY
        parts = _products(guess[:, columns], target) + [-0.5 * part for part in _products(turned, target)]
        return Traces(parts, lost, apart)

    def _spectral(self) -> float:
        """At least |Q|."""
        # What E is off by, as a norm: its own rounding, and that of a product over the rows of P.
        rows = len(self._guess)
        error = gamma(roundings_of(rows) + 1) * self._magnitude**2 + 2 * UNIT * (self.apart + 1)
        error = (error + self._guess.size * TINY) * (1 + SLACK)
        delta = self.apart + error
        finite(delta)
        if not delta < _FARTHEST:
            raise NotEnclosed(_TOO_FAR)
        squared = 1 + (error * (1 + delta) * (1 + delta / 2) + error**2) * (1 + SLACK)
        return math.nextafter(math.sqrt(math.nextafter(squared, 2.0)), 2.0)


def _magnitude(guess: np.ndarray) -> float:
    """At least the norm of |P|: the lesser of two bounds."""
    columns, rows = np.zeros(guess.shape[1]), np.zeros(len(guess))
    for start, stop in blocks_of(len(guess)):
        sizes = np.abs(guess[start:stop])
        columns += sizes.sum(axis=0)
        rows[start:stop] = sizes.sum(axis=1)
    sums = float(columns.max()) * float(rows.max())
    return min(math.sqrt(sums), norm_of(column_norms(guess))) * (1 + gamma(2 * sum(guess.shape)))


def _distance(gram: np.ndarray) -> float:
    """The norm of P^T P - I, about."""
    squares = float(np.einsum("ij,ij->", gram, gram)) + len(gram) - 2 * float(np.einsum("ii->", gram))
    return math.sqrt(max(squares, 0.0)) if math.isfinite(squares) else math.inf


def _gram(guess: np.ndarray, columns: slice) -> np.ndarray:
    """Some columns of P^T P, in sums of at most `TERMS` products."""
    found, product = (np.empty((guess.shape[1], columns.stop - columns.start), guess.dtype) for _ in range(2))
    for first in range(0, len(guess), TERMS):
        some = guess[first : first + TERMS]
        np.matmul(some.T, some[:, columns], out=product if first else found)
        if first:
            found += product
    return found


def whole_gram(guess: np.ndarray) -> np.ndarray:
    """P^T P in the same sums: some rows up to the diagonal at one time, and the same above it."""
    n = guess.shape[1]
    found = np.empty((n, n), guess.dtype)

    def fill(start: int) -> None:
        stop = min(start + _SIDE, n)
        own = found[start:stop, :stop]
        for first in range(0, len(guess), TERMS):
            some = guess[first : first + TERMS]
            if first:
                own += some[:, start:stop].T @ some[:, :stop]
            else:
                np.matmul(some[:, start:stop].T, some[:, :stop], out=own)
        found[:start, start:stop] = own[:, :start].T

    for _ in in_pairs(fill, reversed(range(0, n, _SIDE)), n):  # the longest first
        pass
    return found


def _products(left: np.ndarray, right: np.ndarray) -> list[float]:
    found: list[float] = np.einsum("ij,ij->j", left, right).tolist()
    return found

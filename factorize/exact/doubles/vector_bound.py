"""The lower bound over all strategy matrices where C suggests no polar factor: by singular vectors of W A F itself.

C may be far from the optimum over all matrices (that of its class, say, or for other participations than those of the
evidence), and patterns may have different numbers of steps. The polar factor of the computed M = W A F is then guessed
as M (M^T M)^-1/2, by eigenvectors, which takes a third of the time of singular vectors, or by those where the squares
lose too many digits. What a guess proves is as in doubles/polar_bound.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from factorize.exact.arithmetic.intervals import NotEnclosed
from factorize.exact.arithmetic.pairs import in_pairs
from factorize.exact.bounds.bound import Piece
from factorize.exact.doubles.polar_bound import norm_below, sums_of_rows, whole_gram
from factorize.exact.doubles.roundings import SLACK, TINY, gamma
from factorize.exact.doubles.triangles import blocks_of
from factorize.exact.doubles.weighted_targets import Factor, TargetBlock, WeightedTarget

LARGEST_VECTORS = 2048
"""Longest n for which singular vectors are computed: about 30 products of matrices of that size."""
_FLATTEST = 1e-10  # ratio of eigenvalues of M^T M below which M (M^T M)^-1/2 is no guess that a step or two mends


class GroupedFactor(NamedTuple):
    """F, block diagonal over patterns of several lengths.

    Attributes:
        groups: those of each length.
    """

    groups: tuple[Factor, ...]

    def targets(self, weighted: WeightedTarget) -> Iterator[TargetBlock]:
        """Yield W A F by columns in the order of the groups."""
        start = 0
        for group in self.groups:
            for columns, make in group.targets(weighted):
                yield TargetBlock(slice(start + columns.start, start + columns.stop), make)
            start += group.patterns.size

    @property
    def by_patterns(self) -> tuple[tuple[int, Factor], ...]:
        """Its groups, each with its first column; none for one pattern alone."""
        if sum(len(group.patterns) for group in self.groups) <= 1:
            return ()
        starts = np.cumsum([0] + [group.patterns.size for group in self.groups]).tolist()
        return tuple(zip(starts, self.groups, strict=False))

    @property
    def apart(self) -> bool:
        """Whether no step is in two patterns."""
        steps = np.concatenate([group.patterns.ravel() for group in self.groups])
        return len(np.unique(steps)) == len(steps)

    def whole(self, n: int) -> np.ndarray:
        """Return F for n steps, of which none is in two patterns."""
        found, start = np.zeros((n, sum(group.patterns.size for group in self.groups))), 0
        for group in self.groups:
            stop = start + group.patterns.size
            own = np.arange(start, stop).reshape(group.patterns.shape)
            found[group.patterns[:, :, None], own[:, None, :]] = group.blocks
            start = stop
        return found

    def times(self, array: np.ndarray, n: int) -> np.ndarray:
        """Return F times an array with a row for each of its columns, for n steps, of which none is in two patterns."""
        found, start = np.zeros((n, array.shape[1])), 0
        for group in self.groups:
            count, k = group.patterns.shape
            some = array[start : start + count * k].reshape(count, k, -1)
            found[group.patterns.ravel()] = (group.blocks @ some).reshape(count * k, -1)
            start += count * k
        return found

    def cost(self) -> Fraction:
        """At least the sum of the largest diagonal entries of F F^T."""
        return sum((cost_of(group) for group in self.groups), start=Fraction(0))


def grouped(pieces: Sequence[Piece]) -> GroupedFactor:
    """Return F by lengths of patterns, times a power of two that brings its largest entry near 1.

    Any scale proves the same. Blocks are cut to squares; columns that are left out make F F^T smaller.
    """
    largest = max((float(np.abs(piece.block).max(initial=0.0)) for piece in pieces), default=0.0)
    exponent = math.frexp(largest)[1]
    lengths = sorted({len(piece.steps) for piece in pieces})
    groups = []
    for length in lengths:
        some = [piece for piece in pieces if len(piece.steps) == length]
        blocks = np.ldexp(np.array([piece.block[:, :length] for piece in some]), -exponent)
        groups.append(Factor(np.array([piece.steps for piece in some]), blocks))
    return GroupedFactor(tuple(groups))


def cost_of(factor: Factor) -> Fraction:
    """At least the sum over the patterns of the largest diagonal entry of F F^T."""
    k = factor.blocks.shape[2]
    diagonals = np.einsum("pij,pij->pi", factor.blocks, factor.blocks).max(axis=1)
    total = Fraction(math.fsum(diagonals.tolist())) * (1 + Fraction(gamma(k + 2)) + Fraction(SLACK) / 4096)
    return total + factor.patterns.size * Fraction(TINY)  # squares may have underflowed


def bound_by_vectors(weighted: WeightedTarget, factors: GroupedFactor) -> Fraction:
    """Return a number not above the squared nuclear norm of W A F over the cost of F.

    Raises:
        NotEnclosed: n is too large, the evidence is zero or has blocks that are not square, W A F has dependent
            columns, or numbers leave the range of doubles.
    """
    columns = sum(group.patterns.size for group in factors.groups)
    square = all(group.blocks.shape[1] == group.blocks.shape[2] for group in factors.groups)
    if columns > LARGEST_VECTORS or not square or columns > weighted.workload.rows:
        raise NotEnclosed(f"singular vectors are computed of square blocks up to n={LARGEST_VECTORS} and m >= n")
    if not any(group.blocks.any() for group in factors.groups):
        raise NotEnclosed("the evidence is all zero")
    return norm_below(weighted, factors, _guess(weighted, factors, columns)) ** 2 / factors.cost()


def _guess(weighted: WeightedTarget, factors: GroupedFactor, columns: int) -> np.ndarray:
    rows = weighted.workload.rows

    with np.errstate(all="ignore"):  # what leaves the range of doubles is refused by `norm_below`
        try:
            if weighted.of_ones and factors.apart:
                return _polar_factor(
                    sums_of_rows(factors.whole(rows)), lambda root: sums_of_rows(factors.times(root, rows))
                )
            whole = np.empty((rows, columns))
            for place, make in factors.targets(weighted):
                whole[:, place] = make()[0]
            return _polar_factor(whole)
        except np.linalg.LinAlgError:
            raise NotEnclosed("no singular vectors of the target were found") from None


def _polar_factor(whole: np.ndarray, times: Callable[[np.ndarray], np.ndarray] | None = None) -> np.ndarray:
    """Return something near the polar factor of M.

    Args:
        whole: M, shape (m, n), m >= n.
        times: gives M times an array of n rows in less work than a product takes.
    """
    values, vectors = np.linalg.eigh(whole_gram(whole))
    if values[0] > _FLATTEST * values[-1]:
        root = whole_gram((vectors * values**-0.25).T)  # (M^T M)^-1/2, by half of a product
        return _product(whole, root) if times is None else times(root)
    left, _, right = np.linalg.svd(whole, full_matrices=False)
    return np.asarray(left @ right)


def _product(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """A product of matrices, nearly, on two cores."""
    out = np.empty((len(left), right.shape[1]))

    def fill(block: tuple[int, int]) -> None:
        columns = slice(*block)
        np.matmul(left, right[:, columns], out=out[:, columns])

    for _ in in_pairs(fill, blocks_of(right.shape[1]), right.shape[1]):
        pass
    return out

"""The stored evidence of lower bounds over all strategy matrices: F over patterns, and factors of the rows.

For F from the evidence and any matrix Q, objective >= scale * (tr(Q^T W A F) / |Q|_2)^2 / cost(F). cost(F) is the sum
over the patterns of the largest diagonal entry of F F^T, which is at least tr(F F^T X) for every feasible X. Patterns
may overlap: each has its own columns of F.
"""

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from factorize.checker.arithmetic.near import SLACK, TINY, gamma, square_root_down
from factorize.checker.participation import Allowed, allowed
from factorize.checker.spec.objectives import Weighing
from factorize.errors import CertificateError

MAX_N_IN_BAND = 4096
"""The largest n for which the bound over banded matrices is proved, which takes about five arrays of n x n numbers."""
MAX_SHARED_ENTRIES = 1 << 25
"""The most entries of F where patterns share blocks, so that a small file cannot fill the memory."""


class LowerBound(NamedTuple):
    """A lower bound for all strategy matrices, or for those of the mechanism's class.

    Attributes:
        objective: the bound, in the objective's units, rounded down.
        rule: the road that proves it.
    """

    objective: float
    rule: str


class Evidence(NamedTuple):
    """F by patterns of k steps, shape (patterns, k), each with its own columns, shape (patterns, k, k)."""

    patterns: np.ndarray
    blocks: np.ndarray

    def cost(self) -> Fraction:
        """Return an upper bound of the sum over the patterns of the largest diagonal entry of F F^T."""
        diagonals = np.einsum("pij,pij->pi", self.blocks, self.blocks).max(axis=1)
        total = Fraction(math.fsum(diagonals.tolist())) * (
            1 + Fraction(gamma(self.blocks.shape[2] + 2)) + Fraction(SLACK) / 4096
        )
        return total + self.patterns.size * Fraction(TINY)  # The squares may have underflowed.


def evidence_of(participation: Mapping[str, object], dual: Mapping[str, np.ndarray], n: int) -> list[Evidence] | None:
    """Return F by lengths of patterns; None where the evidence is of another kind.

    All of it is multiplied by a power of two that brings its largest entry near 1: any scale proves the same. Blocks
    of shorter patterns are cut to squares; columns that are left out make F F^T smaller. Where there are fewer blocks
    than patterns, the patterns take them in turn.

    Raises:
        CertificateError: the evidence has the wrong shape, is negative, not finite or all zero.
    """
    form, several = allowed(participation, n), participation["kind"] != "single"
    if ("factors" if several else "weights") not in dual:
        return None
    patterns = _patterns_of(dual, form, n)
    factors = dual["factors"] if several else np.sqrt(weights_of(dual, "weights", n))[:, None, None]
    if "patterns" in dual and 0 < len(factors) < len(patterns) and len(patterns) % len(factors) == 0:
        if len(patterns) * factors[0].size > MAX_SHARED_ENTRIES:
            raise CertificateError(
                f"dual.patterns has {len(patterns)} rows that share blocks of {factors[0].size} entries, together more "
                f"than {MAX_SHARED_ENTRIES}; list fewer patterns"
            )
        factors = np.concatenate([factors] * (len(patterns) // len(factors)))
    shape = (len(patterns), form.most, form.most)
    if factors.shape != shape or not np.isfinite(factors).all() or not factors.any():
        raise CertificateError(f"dual.factors must be finite, not all zero, of shape {shape}; got {factors.shape}")
    lengths, groups = np.array([len(steps) for steps in patterns]), []
    factors = np.ldexp(factors, -math.frexp(float(np.abs(factors).max()))[1])
    for k in np.unique(lengths).tolist():
        chosen = np.flatnonzero(lengths == k)
        groups.append(Evidence(np.array([patterns[p] for p in chosen]), factors[chosen, :k, :k]))
    return groups


def _patterns_of(dual: Mapping[str, np.ndarray], form: Allowed, n: int) -> list[np.ndarray]:
    """Return the patterns that the evidence lists, padded with -1, or else disjoint patterns that cover the steps."""
    if "patterns" not in dual:
        classes = [np.arange(j, n, form.separation) for j in range(form.separation)]
        return [steps[start : start + form.most] for steps in classes for start in range(0, len(steps), form.most)]
    given = dual["patterns"]
    patterns = [row[row != -1] for row in given.astype(np.int64)] if given.ndim == 2 else []
    lengths = [len(row) for row in patterns if (row % n == row).all() and (np.diff(row) >= form.separation).all()]
    every = patterns and len(lengths) == len(patterns) and 0 < min(lengths) <= max(lengths) <= form.most
    if form.periodic or not every:
        raise CertificateError("dual.patterns must be rows of allowed patterns, each filled up with -1")
    return patterns


def weights_of(dual: Mapping[str, np.ndarray], name: str, n: int) -> np.ndarray:
    """Return weights of the evidence, shape (n,).

    Raises:
        CertificateError: they have the wrong shape, or are negative, not finite or all zero.
    """
    weights = dual[name]
    if weights.shape != (n,) or not np.isfinite(weights).all() or (weights < 0).any() or not weights.any():
        raise CertificateError(f"dual.{name} must be {n} finite non-negative numbers, not all zero")
    return weights.astype(np.float64)


def row_weights(weighing: Weighing, dual: Mapping[str, np.ndarray]) -> tuple[np.ndarray, Fraction] | None:
    """Return squared row factors of W and a divisor of the square of the norm; for restarts, both times tau.

    The largest row error is at least the mean of all with any weights, so the evidence may choose them.
    """
    if weighing.weights is not None:
        times = weighing.tau or 1
        return weighing.multiplied(weighing.weights, times), Fraction((weighing.divisor or 1) * times)
    if "row_weights" not in dual:
        return None
    weights = weights_of(dual, "row_weights", weighing.rows)
    return weights, Fraction(math.fsum(weights)) * (1 + Fraction(1, 2**52))


def rows_of(weighing: Weighing, dual: Mapping[str, np.ndarray]) -> tuple[np.ndarray, Fraction] | None:
    """Return row factors of W, rounded down (a smaller W has a smaller objective), and a divisor of the square."""
    rows = row_weights(weighing, dual)
    if rows is None:
        return None
    weights = rows[0].tolist()
    inside = {weight: square_root_down(Fraction(weight)) for weight in set(weights)}
    return np.array([inside[weight] for weight in weights]), rows[1]

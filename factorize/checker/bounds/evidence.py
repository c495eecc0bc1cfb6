"""The stored evidence of lower bounds over all strategy matrices: F over disjoint patterns, and factors of the rows.

For F from the evidence and any matrix Q, objective >= scale * (tr(Q^T W A F) / |Q|_2)^2 / cost(F), cost(F) the sum over
the patterns of the largest diagonal entry of F F^T: at least tr(F F^T X) for every feasible X.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from factorize.checker.participation import allowed
from factorize.checker.sensitivity import square_root_down
from factorize.checker.spec import Weighing
from factorize.errors import CertificateError

LARGEST_IN_BAND = 4096
"""Longest n for which the bound over banded matrices is proved, by some fifteen products of whole matrices."""


class LowerBound(NamedTuple):
    """A bound that no strategy matrix beats, or none of the mechanism's class.

    Attributes:
        objective: the bound, in the objective's units, rounded down.
        rule: the road that proves it.
    """

    objective: float
    rule: str

    @classmethod
    def of(cls, objective: Fraction, rule: str) -> LowerBound:
        """Return the bound of a rational number."""
        return cls(math.nextafter(float(objective), 0.0), rule)

    def document(self) -> dict[str, Any]:
        """Return the contract's JSON form."""
        return self._asdict()


class Piece(NamedTuple):
    """Rows `steps` of F, in columns of their own: block has shape (len(steps), any)."""

    steps: np.ndarray
    block: np.ndarray


def pieces_of(participation: Mapping[str, Any], dual: Mapping[str, np.ndarray], n: int) -> list[Piece] | None:
    """Return F for disjoint allowed patterns that cover the steps."""
    form = allowed(participation, n)
    several = participation["kind"] != "single"
    if "weights" in dual and not several:
        roots = np.sqrt(weights_of(dual, "weights", n))
        return [Piece(np.array([j]), np.array([[root]])) for j, root in enumerate(roots)]
    if "factors" not in dual or not several:
        return None
    patterns = []
    for j in range(form.separation):
        steps = np.arange(j, n, form.separation)
        patterns += [steps[start : start + form.most] for start in range(0, len(steps), form.most)]
    factors, shape = dual["factors"], (len(patterns), form.most, form.most)
    if factors.shape != shape or not np.isfinite(factors).all() or not factors.any():
        raise CertificateError(f"dual.factors must be finite, not all zero, of shape {shape}; got {factors.shape}")
    return [Piece(steps, block[: len(steps)]) for steps, block in zip(patterns, factors, strict=True)]


def weights_of(dual: Mapping[str, np.ndarray], name: str, n: int) -> np.ndarray:
    """Return weights of the evidence, shape (n,).

    Raises:
        CertificateError: they have the wrong shape, or are negative, not finite or all zero.
    """
    weights = dual[name]
    if weights.shape != (n,) or not np.isfinite(weights).all() or (weights < 0).any() or not weights.any():
        raise CertificateError(f"dual.{name} must be {n} finite non-negative numbers, not all zero")
    return weights.astype(np.float64)


def sum_above(weights: np.ndarray) -> Fraction:
    """Return at least the sum."""
    return Fraction(math.fsum(weights)) * (1 + Fraction(1, 2**52))


def rows_of(weighing: Weighing, dual: Mapping[str, np.ndarray]) -> tuple[np.ndarray, Fraction] | None:
    """Return row factors of W, rounded down (a smaller W has a smaller objective), and a divisor of the square."""
    if weighing.weights is not None:
        inside = {weight: square_root_down(weight) for weight in set(weighing.weights)}
        return np.array([inside[weight] for weight in weighing.weights]), Fraction(weighing.divisor or 1)
    if "row_weights" not in dual:
        return None
    # The largest of the row errors is at least their mean with any weights: here the squares of the roots.
    roots = np.sqrt(weights_of(dual, "row_weights", weighing.rows))
    total = sum((Fraction(root) ** 2 for root in roots), start=Fraction(0))
    return (roots, total) if total else None

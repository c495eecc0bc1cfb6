"""Re-drawn bins: a closed form for delta, epsilon and sigma where every epoch draws the bin of each example anew.

An example takes part in one step of each epoch, S = {e b + J_e} with J_0, J_1, ... independent and uniform in 0..b-1.
With H = |C|^T |C| / s^2 the pair of theorem 1 has K_SS' = the sum of H over S x S', and theorem 4 says, for m >= 2,

    E L^m <= E_S (E_S' e^{m K_SS' / 2})^(m-1).

Given S the inner mean is a product over the epochs of S'. Each factor is bounded by a product of functions of
neighbouring epochs of S (theorem 9 of docs/notes/amplification-proofs.md), so that the outer mean is a chain of b x b
matrices. Everything grows with every entry of H, and is rounded up.
"""

from __future__ import annotations

import math
from functools import partial
from typing import ClassVar, Self

import numpy as np

from factorize.accounting.bins_claim import Direction, Evidence
from factorize.accounting.laws.bounded_law import BoundedLaw
from factorize.accounting.redrawn.redrawn_gram import RedrawnGram, redrawn_gram
from factorize.accounting.star_bound import best_order_from, log_constant, log_put
from factorize.structures.endless import AnyStrategy

LARGEST_ORDER = 512
_UP = 2.0**-50
_WIDE = 2.0**-38  # more than the sums of a Gram matrix lose, here and in a checker that adds them otherwise
_LEAST = -700.0  # of an exponent: raised to it, nothing underflows


class RedrawnLaw(BoundedLaw):
    """Bounds at several noise multipliers of one Gram matrix; it remembers the last order that was best.

    Args:
        gram: of the steps, in epochs.
    """

    sampling: ClassVar[str] = "redrawn_bins"
    rule: ClassVar[str] = "largest products of columns"

    def __init__(self, gram: RedrawnGram) -> None:
        self._gram = gram
        self._order = 4
        self.n, self.bins = gram.n, gram.bins

    @classmethod
    def of(cls, matrix: AnyStrategy, bins: int) -> Self:
        """Return the law on a C; see `redrawn_gram`."""
        return cls(redrawn_gram(matrix, bins))

    @property
    def sensitivity(self) -> float:
        """Of one step of every epoch, each charged its largest products with the others."""
        return self._gram.sensitivity

    @property
    def signed(self) -> bool:
        """Whether |C| is not C."""
        return self._gram.steps.signed

    @property
    def digest(self) -> str:
        """Of the Gram matrix of all columns."""
        return self._gram.steps.digest

    def log_moment(self, multiplier: float, order: int) -> float:
        """Return the log of a bound of E L^m, from above; infinite where doubles do not reach."""
        gram = self._gram
        half = order / 2 / multiplier / multiplier * (1 + 4 * _UP)
        potentials, couplings = self._chain(half, order)
        forward, total = np.full(gram.bins, -math.log(gram.bins)), 0.0
        for e in range(gram.epochs):
            forward = forward + potentials[e]
            if e + 1 < gram.epochs:
                top, most = float(forward.max()), float(couplings[e].max())
                weights = np.exp(np.maximum(forward - top, _LEAST))
                passed = weights @ np.exp(np.maximum(couplings[e] - most, _LEAST))
                forward = np.log(passed) - math.log(gram.bins)
                total += top + most
        top = float(forward.max())
        value = total + top + math.log(float(np.exp(np.maximum(forward - top, _LEAST)).sum()))
        size = order * half * float(gram.sensitivity) ** 2
        return value + (order + 1) * (gram.epochs + 1) * (2 * gram.bins + 64 + 8 * size) * _UP

    def _chain(self, half: float, order: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Return logs of the factors, to the power m - 1: of each epoch, shape (b,), of neighbours, shape (b, b)."""
        gram = self._gram
        rows, logs = [], []
        for e in range(gram.epochs):
            own = gram.blocks[e, :, e]
            tops = half * own.max(axis=1)
            rows.append(np.exp(np.maximum(half * own - tops[:, None], _LEAST)))
            logs.append((order - 1) * (tops + np.log(rows[e].mean(axis=1)) + half * gram.far[e]))
        couplings = []
        for e in range(gram.epochs - 1):
            left = _log_ratios(half * gram.near[e], rows[e + 1])  # (i of e, j of e + 1)
            right = _log_ratios(half * gram.nearer[e], rows[e])  # (l of e + 1, j of e)
            couplings.append((order - 1) * (left + right.T))
        return logs, couplings

    def log_weight(self, multiplier: float, epsilon: float, order: int) -> float:
        """Return log W(m) from above."""
        found = self.log_moment(multiplier, order) + log_constant(epsilon, order)
        return found if math.isfinite(found) else math.inf

    def best_order(self, multiplier: float, epsilon: float) -> tuple[int, float]:
        """Return the m of the smallest W(m), and log W(m); by steps that double until they turn."""
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            weight = partial(self.log_weight, multiplier, epsilon)
            found = best_order_from(self._order, weight, largest=LARGEST_ORDER)
        self._order = found[0] if math.isfinite(found[1]) else 4
        return found

    def log_removal(self, multiplier: float, epsilon: float) -> tuple[Evidence, float]:
        """Return theorem 9 at its best order."""
        order, star = self.best_order(multiplier, epsilon)
        return Evidence(rule="star_bound", tilt=float(order)), star

    def log_addition(self, multiplier: float, epsilon: float) -> tuple[Evidence, float]:
        """Return theorem 7."""
        return Evidence(rule="closed_form"), log_reverse(self._gram, multiplier, epsilon)

    def log_bound(self, direction: Direction, evidence: Evidence, multiplier: float, epsilon: float) -> float:
        """Return theorem 9 at an order, or theorem 7."""
        if evidence.rule == "closed_form":
            return log_reverse(self._gram, multiplier, epsilon)
        return self.log_weight(multiplier, epsilon, int(evidence.tilt or 0))


def _log_ratios(excess: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return log of mean_j' e^{a_jj' + x_ij'} / mean_j' e^{a_jj'}, shape (i, j), for e^a = rows and x >= 0."""
    tops = excess.max(axis=1)
    raised = np.exp(np.maximum(excess - tops[:, None], _LEAST)) @ rows.T
    found: np.ndarray = tops[:, None] + np.log(raised) - np.log(rows.sum(axis=1))
    return np.maximum(found, 0.0)


def log_reverse(gram: RedrawnGram, multiplier: float, epsilon: float) -> float:
    """Return the log of theorem 7's closed form for the other direction, from above."""
    scale = (1 + _WIDE) / multiplier / multiplier
    mean, above = gram.mean_norm * scale, gram.whole * scale
    below = min(above * (1 - 4 * gram.steps.slack - 4 * _WIDE), mean)
    return log_put(epsilon - mean / 2 + below / 2, math.sqrt(above))

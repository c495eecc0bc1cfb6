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
from collections.abc import Callable
from functools import partial

import numpy as np

from factorize.accounting.redrawn.redrawn_gram import RedrawnGram
from factorize.accounting.star_bound import BinsDelta, best_order_from, log_constant, log_put
from factorize.errors import InvalidParameter
from factorize.numbers.falling import descend
from factorize.numbers.gaussian import (
    MAX_NOISE_MULTIPLIER,
    check_delta,
    gaussian_delta,
    noise_multiplier_for_epsilon,
)
from factorize.numbers.scalars import finite_real

LARGEST_ORDER = 512
LARGEST_EPSILON = 1e6
_UP = 2.0**-50
_WIDE = 2.0**-38  # more than the sums of a Gram matrix lose, here and in a checker that adds them otherwise
_LEAST = -700.0  # of an exponent: raised to it, nothing underflows


class RedrawnEvaluator:
    """Bounds at several noise multipliers of one Gram matrix; it remembers the last order that was best.

    Args:
        gram: of the steps, in epochs.
    """

    def __init__(self, gram: RedrawnGram) -> None:
        self._gram = gram
        self._order = 4

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

    def delta(self, multiplier: float, epsilon: float) -> BinsDelta:
        """Return the bounds of both directions."""
        order, star = self.best_order(multiplier, epsilon)
        closed = log_reverse(self._gram, multiplier, epsilon)
        plain = log_gaussian(self._gram, multiplier, epsilon)
        return BinsDelta.smallest(order, star=star, closed=closed, plain=plain)


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


def log_gaussian(gram: RedrawnGram, multiplier: float, epsilon: float) -> float:
    """Return the log of the delta that holds if the draws become known."""
    mu = gram.sensitivity / multiplier * (1 + 4 * _UP)
    if mu >= MAX_NOISE_MULTIPLIER:
        return 0.0
    return math.log(gaussian_delta(epsilon, max(mu, 1 / MAX_NOISE_MULTIPLIER)))


def redrawn_epsilon(gram: RedrawnGram, *, multiplier: float, delta: float) -> float:
    """Return an epsilon that the run has at delta, within 1e-7 of the smallest that the bounds give.

    Raises:
        InvalidParameter: a value outside its range, or so little noise that no epsilon below 10^6 holds.
    """
    noise = finite_real("multiplier", multiplier, remedy="give sigma / clip_norm, above 0")
    target, star = math.log(check_delta(delta)), RedrawnEvaluator(gram)
    if star.delta(noise, 0.0).log_delta <= target:
        return 0.0
    high = 1.0
    while star.delta(noise, high).log_delta > target:
        high *= 2
        if high > LARGEST_EPSILON:
            raise InvalidParameter(
                f"no epsilon below {LARGEST_EPSILON:g} has delta={delta} at multiplier={noise:g}; give more noise",
                field="sigma",
            )
    return descend(lambda epsilon: star.delta(noise, epsilon).log_delta - target, 0.0, high)


def redrawn_sigma(gram: RedrawnGram, *, epsilon: float, delta: float) -> float:
    """Return an s = sigma / clip_norm that gives (epsilon, delta), within 1e-6 of the smallest that the bounds give.

    Raises:
        InvalidParameter: a value outside its range.
    """
    level = finite_real("epsilon", epsilon, remedy="give an epsilon above 0")
    target, star = math.log(check_delta(delta)), RedrawnEvaluator(gram)
    plain = noise_multiplier_for_epsilon(level, delta) * gram.sensitivity * (1 + 16 * _UP)

    def removal(log_multiplier: float) -> float:
        return min(star.best_order(math.exp(log_multiplier), level)[1], 0.0) - target

    def addition(log_multiplier: float) -> float:
        return log_reverse(gram, math.exp(log_multiplier), level) - target

    high = math.log(plain)
    least = _falls_to(addition, high)  # the closed form is cheap, and most often what binds
    if removal(least) > 0:
        least = _falls_to(removal, high, least)
    return min(math.exp(least) * (1 + 4 * _UP), plain * (1 + 64 * _UP))


def _falls_to(excess: Callable[[float], float], high: float, low: float | None = None) -> float:
    """Return where a falling function is 0, from above; `high` where it is positive there, and never below `low`."""
    if excess(high) > 0:
        return high
    if low is None:
        low = high - 0.5
        while excess(low) <= 0:
            low, high = low - 0.5, low
    return descend(excess, low, high, tolerance=1e-6)

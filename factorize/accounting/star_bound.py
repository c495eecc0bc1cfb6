"""The star bound: a closed form for delta, epsilon and sigma under balls-in-bins sampling, without any sampling.

With L = mean_j exp(Y_j) the likelihood ratio of the dominating pair, K = G / s^2 and T = e^epsilon,

    E L^m <= E*(m) = mean_j (mean_l exp(m K_jl / 2))^(m-1)                        for every integer m >= 2,
    delta of (P, Q) <= W(m) = T^(1-m) (m-1)^(m-1) m^-m E*(m),
    delta of (Q, P) <= E (1 - T e^N)_+ with N normal, of mean -mean_j K_jj / 2 and variance mean_jl K_jl,

and both are at most the delta of the Gaussian mechanism without amplification. docs/notes/amplification-proofs.md has
the proofs. All logarithms are rounded up, so a delta of 1e-20 is as good as one of 0.1.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np

from factorize.accounting.gram_matrix import BinGram
from factorize.errors import InvalidParameter
from factorize.numbers.falling import descend
from factorize.numbers.gaussian import (
    MAX_NOISE_MULTIPLIER,
    check_delta,
    gaussian_delta,
    noise_multiplier_for_epsilon,
)
from factorize.numbers.scalars import finite_real

LARGEST_ORDER = 4096
"""Orders m that are tried; log W(m) is convex in m, so that the search stops at its minimum."""

_UP = 2.0**-50


@dataclass(frozen=True)
class BinsDelta:
    """Upper bounds of delta in both directions, as logarithms.

    Attributes:
        log_pq: of the mixture against the Gaussian (the data with the example against those without).
        log_qp: of the Gaussian against the mixture.
        order: m of the star bound.
        pq_rule: `star_bound` or `gaussian`, whichever is smaller.
        qp_rule: `closed_form` or `gaussian`.
    """

    log_pq: float
    log_qp: float
    order: int
    pq_rule: str
    qp_rule: str

    @property
    def log_delta(self) -> float:
        """The larger one."""
        return max(self.log_pq, self.log_qp)

    @classmethod
    def smallest(cls, order: int, *, star: float, closed: float, plain: float) -> BinsDelta:
        """Return the smaller bound of each direction: logs of the star bound at m, of the closed form, without bins."""
        return cls(
            log_pq=min(star, plain, 0.0),
            log_qp=min(closed, plain, 0.0),
            order=order,
            pq_rule="star_bound" if star <= plain else "gaussian",
            qp_rule="closed_form" if closed <= plain else "gaussian",
        )

    @property
    def delta(self) -> float:
        """Rounded up, never 0."""
        return min(math.nextafter(math.exp(min(self.log_delta, 0.0)), 1.0), 1.0)


def best_order_from(start: int, log_weight: Callable[[int], float], *, largest: int) -> tuple[int, float]:
    """Return the m up to `largest` of the smallest W(m), and log W(m), by steps from `start` that double and turn."""
    known: dict[int, float] = {}

    def at(order: int) -> float:
        if order not in known:
            known[order] = log_weight(order)
        return known[order]

    order, step = start, 1
    while step:
        nearest = min((max(2, order - step), order, min(largest, order + step)), key=at)
        step = step * 2 if nearest != order else step // 2
        order = nearest
    return order, at(order)


class StarEvaluator:
    """Bounds at several noise multipliers of one Gram matrix; it remembers the last order that was best.

    Args:
        gram: of the bins.
    """

    def __init__(self, gram: BinGram) -> None:
        self._gram = gram
        self._largest = gram.gram.max(axis=1)
        self._scratch = np.empty_like(gram.gram)
        self._order = 8

    def log_moment(self, multiplier: float, order: int) -> float:
        """Return log E*(m) at s = `multiplier`, from above."""
        scale = _scale(multiplier)
        half = order / 2 * scale
        np.subtract(self._gram.gram, self._largest[:, None], out=self._scratch)
        np.multiply(self._scratch, half, out=self._scratch)
        np.exp(self._scratch, out=self._scratch)
        rows = (order - 1) * (half * self._largest + np.log(self._scratch.mean(axis=1)))
        top = float(rows.max())
        value = top + math.log(float(np.exp(rows - top).mean()))
        kmax = scale * float(self._largest.max())
        return value + (order + 1) * (self._gram.bins + 16 + 4 * order * kmax) * _UP

    def log_weight(self, multiplier: float, epsilon: float, order: int) -> float:
        """Return log W(m) from above."""
        return self.log_moment(multiplier, order) + log_constant(epsilon, order)

    def best_order(self, multiplier: float, epsilon: float) -> tuple[int, float]:
        """Return the m of the smallest W(m), and log W(m); by steps that double until they turn."""
        weight = partial(self.log_weight, multiplier, epsilon)
        found = best_order_from(self._order, weight, largest=LARGEST_ORDER)
        self._order = found[0]
        return found

    def delta(self, multiplier: float, epsilon: float) -> BinsDelta:
        """Return the bounds of both directions."""
        order, star = self.best_order(multiplier, epsilon)
        closed = log_reverse(self._gram, multiplier, epsilon)
        plain = log_gaussian(self._gram.sensitivity, multiplier, epsilon)
        return BinsDelta.smallest(order, star=star, closed=closed, plain=plain)


def log_constant(epsilon: float, order: int) -> float:
    """Return log c_m from above, c_m = sup over L >= T of (L - T) L^-m = T^(1-m) (m-1)^(m-1) m^-m."""
    m = float(order)
    terms = ((1 - m) * epsilon, -m * math.log1p(1 / (m - 1)), -math.log(m - 1))
    return math.fsum(terms) + 8 * _UP * math.fsum(map(abs, terms))


def log_reverse(gram: BinGram, multiplier: float, epsilon: float) -> float:
    """Return the log of the closed form for the other direction, from above.

    E (1 - T' e^(sqrt(kappa) z - kappa/2))_+ grows with kappa and falls with T' = e^(epsilon - kbar/2 + kappa/2), so the
    Gram matrix from above enters the first and from below the second.
    """
    scale, size = _scale(multiplier), gram.bins
    mean = float(gram.gram.diagonal().mean()) * scale
    above = float(gram.gram.mean()) * scale * (1 + size * _UP)
    below = min(above * (1 - 2 * gram.slack - 4 * size * _UP), mean)
    log_t = epsilon - mean * (1 + size * _UP) / 2 + below / 2
    return log_put(log_t, math.sqrt(above))


def log_put(log_t: float, spread: float) -> float:
    """Return the log of E (1 - t e^(a z - a^2/2))_+ = Phi(d) - t Phi(d - a) from above, d = a/2 - log(t) / a.

    The difference of the two terms loses digits: its relative error is bounded by theirs over their difference.
    """
    from scipy.special import log_ndtr

    d = spread / 2 - log_t / spread
    first, second = float(log_ndtr(d)), log_t + float(log_ndtr(d - spread))
    gap = -math.expm1(min(second - first, 0.0))
    lost = 1e-13 * (4 + abs(first) + abs(second) + d * d)
    if not gap > 0:
        return first + lost if math.isfinite(first) else first
    return min(first + lost, first + math.log(gap + 2 * lost) + lost)


def log_gaussian(sensitivity: float, multiplier: float, epsilon: float) -> float:
    """Return the log of the delta without amplification: a mixture is at most as far from Q as its farthest part."""
    mu = sensitivity / multiplier * (1 + 4 * _UP)
    if mu >= MAX_NOISE_MULTIPLIER:
        return 0.0
    return math.log(gaussian_delta(epsilon, max(mu, 1 / MAX_NOISE_MULTIPLIER)))


def log_single_bin(gram: BinGram, multiplier: float, epsilon: float) -> float:
    """Return the log of mean_j delta_Gauss(epsilon + log b; sqrt(K_jj)): no accountant of (P, Q) may say less.

    A lower bound in ordinary floating point (theorem 8 a), for tests and to refuse claims that cannot be true.
    """
    from scipy.special import log_ndtr, logsumexp

    mus, level = np.sqrt(gram.gram.diagonal()) / multiplier, epsilon + math.log(gram.bins)
    first, second = log_ndtr(mus / 2 - level / mus), level + log_ndtr(-mus / 2 - level / mus)
    gaps = np.maximum(-np.expm1(np.minimum(second - first, 0.0)), 1e-300)
    return float(logsumexp(first + np.log(gaps))) - math.log(gram.bins)


def bins_delta(gram: BinGram, *, multiplier: float, epsilon: float) -> BinsDelta:
    """Return a delta that the run has at epsilon, without sampling.

    Args:
        gram: of the bins, `bin_gram(C, b)`.
        multiplier: s = sigma / clip_norm, for sums of contributions.
        epsilon: at least 0.
    """
    noise = finite_real("multiplier", multiplier, remedy="give sigma / clip_norm, above 0")
    level = finite_real("epsilon", epsilon, strict=False, remedy="give a finite epsilon >= 0")
    return StarEvaluator(gram).delta(noise, level)


def bins_epsilon(gram: BinGram, *, multiplier: float, delta: float) -> float:
    """Return an epsilon that the run has at delta, within 1e-7 of the smallest that the bounds give."""
    noise = finite_real("multiplier", multiplier, remedy="give sigma / clip_norm, above 0")
    target, star = math.log(check_delta(delta)), StarEvaluator(gram)
    if star.delta(noise, 0.0).log_delta <= target:
        return 0.0
    high = 1.0
    while star.delta(noise, high).log_delta > target:
        high *= 2
        if high > 1e9:
            raise InvalidParameter(
                f"no epsilon below 1e9 has delta={delta} at multiplier={noise:g}; give more noise", field="multiplier"
            )
    return descend(lambda epsilon: star.delta(noise, epsilon).log_delta - target, 0.0, high)


def bins_sigma(gram: BinGram, *, epsilon: float, delta: float) -> float:
    """Return an s = sigma / clip_norm that gives (epsilon, delta), without sampling.

    It is at most that of the Gaussian mechanism without amplification, and within 1e-7 of the smallest that the bounds
    give.

    Raises:
        InvalidParameter: a value outside its range.
    """
    level = finite_real("epsilon", epsilon, remedy="give an epsilon above 0")
    target, star = math.log(check_delta(delta)), StarEvaluator(gram)
    plain = noise_multiplier_for_epsilon(level, delta) * gram.sensitivity * (1 + 16 * _UP)

    def excess(log_multiplier: float) -> float:
        return star.delta(math.exp(log_multiplier), level).log_delta - target

    high = math.log(plain)
    if excess(high) > 0:
        return plain * (1 + 64 * _UP)
    low = high - 0.5
    while excess(low) <= 0:
        low -= 1.0
    return math.exp(descend(excess, low, high)) * (1 + 4 * _UP)


class RenyiDivergences(NamedTuple):
    """Of an integer order, both directions from above.

    Attributes:
        pq: of the mixture from the Gaussian, log E*(m) / (m - 1).
        qp: of the Gaussian from the mixture, kbar / 2 + (m - 1) kappa / 2.
    """

    pq: float
    qp: float


def renyi_divergence(gram: BinGram, *, multiplier: float, order: int) -> RenyiDivergences:
    """Return Renyi divergences of an integer order >= 2; those of independent runs add up, direction by direction.

    Runs are independent if each draws its own bins and its own Z. A mu of the noise does not compose to an amplified
    epsilon.
    """
    noise = finite_real("multiplier", multiplier, remedy="give sigma / clip_norm, above 0")
    if isinstance(order, bool) or not isinstance(order, (int, np.integer)) or not 2 <= order <= LARGEST_ORDER:
        raise InvalidParameter(f"order={order!r} is not an integer from 2 to {LARGEST_ORDER}", field="order")
    forward = StarEvaluator(gram).log_moment(noise, int(order)) / (order - 1)
    scale = _scale(noise)
    mean, whole = float(gram.gram.diagonal().mean()) * scale, float(gram.gram.mean()) * scale
    backward = (mean + (order - 1) * whole) / 2
    return RenyiDivergences(forward * (1 + 4 * _UP), backward * (1 + (gram.bins + 16) * _UP))


def renyi_epsilon(divergences: dict[int, float], delta: float) -> float:
    """Return the smallest epsilon that a table of Renyi divergences (order: sum over the runs) gives at delta.

    Reference:
        Canonne, Kamath, Steinke 2020, proposition 12.
    """
    target = check_delta(delta)
    if not divergences:
        raise InvalidParameter("0 orders given, at least one is needed; give {order: divergence}", field="divergences")
    found = (
        value + math.log1p(-1 / order) - (math.log(target) + math.log(order)) / (order - 1)
        for order, value in divergences.items()
    )
    return max(0.0, min(found) * (1 + 64 * _UP) + 64 * _UP)


def _scale(multiplier: float) -> float:
    return (1 + _UP) / multiplier / multiplier * (1 + _UP)

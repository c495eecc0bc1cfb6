"""Point estimates of delta, epsilon and sigma under balls-in-bins sampling, on common random numbers.

An estimate proves nothing: it says which claim is worth testing. The normals and the picks are drawn once, and L scales
as 1 / s, so that an evaluation at another sigma, epsilon or order takes no further product of matrices.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import NamedTuple

import numpy as np

from factorize.accounting.gram_matrix import BinCovariance, BinGram, bin_covariance, shared_part
from factorize.accounting.shared.shared_call import (
    LARGEST_LEVEL,
    LARGEST_SPREAD,
    LEAST_SPREAD,
    best_shared_tilt,
    log_call_ceiling,
)
from factorize.accounting.star_bound import (
    LARGEST_ORDER,
    StarEvaluator,
    best_order_from,
    bins_sigma,
    log_constant,
    log_single_bin,
)
from factorize.accounting.star_sampler import (
    CHUNK,
    StarTables,
    best_tilt,
    forward_weights,
    log_mixture,
    log_reverse_ceiling,
    log_shared_reverse_ceiling,
    multiplied,
    normals_of,
    reverse_weights,
    shared_reverse_weights,
    shared_weights,
)
from factorize.errors import InvalidParameter
from factorize.numbers.falling import descend, descend_near

_NUMBERS = 1 << 23  # of normals kept
_THREADED = 1 << 19  # of normals, from which on threads are worth their start
_MOST, _LEAST = 4 * CHUNK, CHUNK
_CLOSE = 2e-4  # relative, of sigma: less than the estimate's own error
_LIGHT = 1e4  # of m^2 times the largest K: up to there float32 is good for an estimate
_TUPLE_WORK = 1.25  # of each pick of a tuple, in bins of a sample: 0.04 microseconds
_FURTHER = 4  # orders beyond that of the lowest ceiling, which thinned bets may use
_NEAR = 0.1  # relative, of sigma: around a guess


class Sampled(NamedTuple):
    """Weights of one direction with what they were drawn by.

    Attributes:
        weights: shape (samples,), with mean delta.
        ceiling: W, that none exceeds.
        tilt: m of the forward direction, eta of the reverse one.
        shared: variance of the part that is integrated in closed form; 0 where all is drawn.
        chances: of each weight's tuple to be kept by a thinned bet, shape (samples,); None where there is none.
    """

    weights: np.ndarray
    ceiling: float
    tilt: float
    shared: float = 0.0
    chances: np.ndarray | None = None

    @property
    def delta(self) -> float:
        """The mean."""
        return float(self.weights.mean())

    @property
    def relative_error(self) -> float:
        """Standard error of the mean over the mean; it is itself an estimate, and small where nothing was seen."""
        mean = self.delta
        return float(self.weights.std() / math.sqrt(len(self.weights)) / mean) if mean > 0 else math.inf


class _Drawn:
    """A covariance at s = 1 with its normals.

    Args:
        unit: the covariance.
        base: L times normals, shape (samples, b).
        star: of the covariance.
    """

    def __init__(self, unit: BinCovariance, base: np.ndarray, star: StarEvaluator) -> None:
        self.unit, self.base, self.star = unit, base, star

    @cached_property
    def light(self) -> np.ndarray:
        """Normals in half the bytes: rounding moves a weight by less than a thousandth where m^2 K is small."""
        return self.base.astype(np.float32)


def candidate_work(order: int, bins: int, chance: float) -> float:
    """Return what a candidate of a thinned bet costs, in bins of a sample: its tuple, and noise where it is kept."""
    return _TUPLE_WORK * order + chance * bins


def usual_samples(bins: int) -> int:
    """Return how many samples an estimate takes by default: 4096 to 16384, fewer for many bins."""
    return max(_LEAST, min(_MOST, _NUMBERS // bins // CHUNK * CHUNK))


class StarEstimate:
    """Weights at any multiplier and epsilon on one set of normals and picks.

    Args:
        gram: of the bins.
        seed: of the common random numbers.
        samples: their number; from 4096 to 16384 by default, fewer for many bins.
    """

    def __init__(self, gram: BinGram, *, seed: int = 0, samples: int | None = None) -> None:
        self.gram = gram
        self.samples = samples or usual_samples(gram.bins)
        self.star = StarEvaluator(gram)
        self._unit = bin_covariance(gram.gram, 1.0)
        self._shared_variance = shared_part(gram.gram)
        self._order = 8  # where the search for the best one starts
        self._random = np.random.Philox(seed)
        self._normals = normals_of(self._random.random_raw(self.samples * gram.bins)).reshape(self.samples, gram.bins)
        self._picks = np.empty((self.samples, 0), dtype=np.uint64)

    def forward(self, multiplier: float, epsilon: float, order: int | None = None) -> Sampled:
        """Return weights for delta of (P, Q); by default with the order whose ceiling is lowest."""
        from factorize.accounting.star_kernels import scaled_with_rows

        spread = self._spread(multiplier, epsilon)
        drawn = self._shared if spread else self._whole
        m = order or self._best_order(multiplier, epsilon)[0]
        matrix = drawn.unit.matrix / multiplier**2
        tables, words = StarTables(matrix, m), self._words(m)
        log_constants = log_call_ceiling(epsilon, spread, m) if spread else log_constant(epsilon, m)
        light = m * m * float(matrix.max()) < _LIGHT
        base, rows = (drawn.light, matrix.astype(np.float32)) if light else (drawn.base, matrix)

        def some(start: int) -> tuple[np.ndarray, np.ndarray]:
            part = slice(start, min(start + CHUNK, self.samples))
            picks, shifted = words[part], np.empty_like(base[part])
            tuples, log_ratio = tables.draw(picks, matrix)
            scaled_with_rows(base[part], rows.dtype.type(1 / multiplier), tuples, rows, shifted)
            log_l = log_mixture(shifted, rows.diagonal() / 2)
            if spread:
                return shared_weights(log_l, log_ratio + tables.log_moment, epsilon, m, spread), np.exp(log_ratio)
            return forward_weights(log_l, log_ratio + tables.log_moment, epsilon, m), np.exp(log_ratio)

        starts = range(0, self.samples, CHUNK)
        if self.samples * self.gram.bins < _THREADED:
            parts = [some(start) for start in starts]
        else:
            with ThreadPoolExecutor(min(os.cpu_count() or 1, 8)) as pool:
                parts = list(pool.map(some, starts))
        weights, chances = (np.concatenate(part) for part in zip(*parts, strict=True))
        ceiling = math.exp(min(tables.log_moment + log_constants, 700.0))
        if not spread:
            return Sampled(weights, ceiling, m)
        return Sampled(weights, ceiling, m, self._shared_variance / multiplier**2, chances)

    def orders(self, multiplier: float, epsilon: float, known: int = 0) -> Iterable[int]:
        """Return the orders that a plan of a claim should try: `known`, if it is one, or those about the best one."""
        if known:
            return (known,)
        lowest = self._best_order(multiplier, epsilon)[0]
        if self._spread(multiplier, epsilon):
            return (self._cheapest_order(multiplier, epsilon, lowest),)
        return range(max(2, lowest - 2), lowest + 1)

    def _cheapest_order(self, multiplier: float, epsilon: float, lowest: int) -> int:
        """Return the order from `lowest` on whose bet takes least work, thinned or not; by some tuples of each."""
        matrix, spread = self._shared.unit.matrix / multiplier**2, self._spread(multiplier, epsilon)
        words = self._words(lowest + _FURTHER)[:CHUNK]
        best, least = lowest, math.inf
        for order in range(lowest, lowest + _FURTHER + 1):
            try:
                log_call_most = log_call_ceiling(epsilon, spread, order)
            except InvalidParameter:  # of an order that is too large
                break
            tables = StarTables(matrix, order)
            log_chance = tables.draw(np.ascontiguousarray(words[:, :order]), matrix)[1]
            each = candidate_work(order, self.gram.bins, float(np.exp(log_chance).mean()))
            work = tables.log_moment + log_call_most + math.log(min(each, self.gram.bins))
            if work >= least:
                break
            best, least = order, work
        return best

    def _best_order(self, multiplier: float, epsilon: float) -> tuple[int, float]:
        spread = self._spread(multiplier, epsilon)
        if not spread:
            return self.star.best_order(multiplier, epsilon)

        def log_weight(order: int) -> float:
            try:
                return self._shared.star.log_moment(multiplier, order) + log_call_ceiling(epsilon, spread, order)
            except InvalidParameter:  # of an order that is too large
                return math.inf

        self._order, ceiling = best_order_from(self._order, log_weight, largest=LARGEST_ORDER)
        return self._order, ceiling

    def _spread(self, multiplier: float, epsilon: float) -> float:
        """Standard deviation of the part that is integrated; 0 where the protocol has none so small."""
        spread = math.sqrt(self._shared_variance) / multiplier
        inside = (
            LEAST_SPREAD * (1 + 1e-6) <= spread <= LARGEST_SPREAD * (1 - 1e-6) and abs(epsilon) <= LARGEST_LEVEL - 1
        )
        return spread if inside else 0.0

    def reverse(self, multiplier: float, epsilon: float, eta: float | None = None) -> Sampled:
        """Return weights for delta of (Q, P); by default with the tilt whose ceiling is lowest."""
        spread = self._spread(multiplier, epsilon)
        drawn = self._shared if spread else self._whole
        matrix = drawn.unit.matrix / multiplier**2
        kbar, kappa = float(matrix.diagonal().mean()), float(matrix.mean())
        if eta is not None:
            tilt = eta
        else:
            tilt = best_shared_tilt(kbar, kappa, epsilon, spread) if spread else best_tilt(kbar, kappa, epsilon)
        log_l, means = np.empty(self.samples), np.empty(self.samples)
        for start in range(0, self.samples, CHUNK):
            part = slice(start, start + CHUNK)
            shifted = drawn.base[part] / multiplier - tilt * matrix.mean(axis=0)
            means[part] = shifted.mean(axis=1)
            log_l[part] = log_mixture(shifted, matrix.diagonal() / 2)
        scale = tilt * means + tilt**2 * kappa / 2
        if not spread:
            ceiling = log_reverse_ceiling(kbar, kappa, epsilon, tilt)
            return Sampled(reverse_weights(log_l, scale, epsilon), math.exp(min(ceiling, 700.0)), tilt)
        weights = shared_reverse_weights(log_l, scale, epsilon, tilt, spread)
        ceiling = log_shared_reverse_ceiling(kbar, kappa, epsilon, tilt, spread)
        return Sampled(weights, math.exp(min(ceiling, 700.0)), tilt, self._shared_variance / multiplier**2)

    @cached_property
    def _whole(self) -> _Drawn:
        return _Drawn(self._unit, self._base, self.star)

    @cached_property
    def _shared(self) -> _Drawn:
        unit = bin_covariance(self.gram.gram, 1.0, self._shared_variance)
        rest = BinGram(unit.matrix, self.gram.steps, self.gram.slack, self.gram.signed)
        return _Drawn(unit, multiplied(unit.factor, self._normals.copy()), StarEvaluator(rest))

    @cached_property
    def _base(self) -> np.ndarray:
        return multiplied(self._unit.factor, self._normals.copy())

    def _words(self, order: int) -> np.ndarray:
        missing = order - self._picks.shape[1]
        if missing > 0:
            more = self._random.random_raw(self.samples * missing).reshape(self.samples, missing)
            self._picks = np.ascontiguousarray(np.hstack([self._picks, more]))
        return np.ascontiguousarray(self._picks[:, :order])

    def pair_weights(self, multiplier: float, epsilon: float, *, width: float = 0.35) -> np.ndarray:
        """Return D, the derivative of delta of (P, Q) by the entries of K up to a factor, shape (b, b).

        By Kahane's interpolation d delta = (1/2) sum_ij D_ij dK_ij with D_ij = E_Q[L_i L_j delta_Dirac(L - e^epsilon)],
        L_i = e^{Y_i} / b: no entry is negative. A bump in log L stands for the Dirac measure.

        Args:
            multiplier: s.
            epsilon: where delta is meant.
            width: standard deviation of the bump.
        """
        from factorize.accounting.star_kernels import scaled_with_rows

        m = self.star.best_order(multiplier, epsilon)[0]
        matrix = self._unit.matrix / multiplier**2
        tables = StarTables(matrix, m)
        tuples, log_ratio = tables.draw(self._words(m), matrix)
        total, shifted = np.zeros_like(matrix), np.empty((CHUNK, self.gram.bins))
        for start in range(0, self.samples, CHUNK):
            part = slice(start, min(start + CHUNK, self.samples))
            some = shifted[: part.stop - start]
            scaled_with_rows(self._base[part], 1 / multiplier, tuples[part], matrix, some)
            log_l = log_mixture(some, matrix.diagonal() / 2)  # leaves the likelihoods of the bins in the rows
            some /= some.sum(axis=1, keepdims=True)
            log_weight = log_ratio[part] + (2 - m) * log_l - (log_l - epsilon) ** 2 / (2 * width**2)
            some *= np.exp((log_weight - (2 - m) * epsilon) / 2)[:, None]
            total += some.T @ some
        return (total + total.T) / 2

    def sigma(self, epsilon: float, delta: float, *, near: float | None = None, tolerance: float = _CLOSE) -> float:
        """Return the multiplier s at which the estimated delta of (P, Q) is `delta`, to 2e-4 by default.

        It lies between that of the single-bin lower bound and that of the star bound, or within a tenth of `near`,
        whatever the samples say: a proposal that never meets the event it is for would report a mean of 0, and a
        sigma of 0 with it.

        Args:
            epsilon: of (epsilon, delta)-DP.
            delta: of (epsilon, delta)-DP.
            near: another estimate of it; searched from first, a tenth of it to either side.
            tolerance: relative, of sigma.
        """
        target = math.log(delta)

        def excess(log_multiplier: float) -> float:
            return math.log(max(self.forward(math.exp(log_multiplier), epsilon).delta, 1e-320)) - target

        def lower(log_multiplier: float) -> float:
            return log_single_bin(self.gram, math.exp(log_multiplier), epsilon) - target

        if near is not None:
            # a Gaussian tail e^(-s^2 c), as delta is, has this slope
            found = descend_near(excess, math.log(near), 2 * target, tolerance=tolerance, reach=_NEAR)
            if found is not None:
                return math.exp(found)
        high = math.log(bins_sigma(self.gram, epsilon=epsilon, delta=delta))
        low = high - 0.25
        while lower(low) <= 0:
            low -= 0.25
        floor = descend(lower, low, high, tolerance=_CLOSE) if lower(high) <= 0 else high
        return math.exp(descend(excess, floor, high, tolerance=tolerance))

    def epsilon(self, multiplier: float, delta: float) -> float:
        """Return the epsilon at which the estimated delta of (P, Q) is `delta`, to 2e-4; 0 where it is below that."""

        def excess(epsilon: float) -> float:
            return math.log(max(self.forward(multiplier, epsilon).delta, 1e-320) / delta)

        if excess(0.0) <= 0:
            return 0.0
        high = 1.0
        while excess(high) > 0:
            high *= 2
        return descend(excess, 0.0 if high == 1.0 else high / 2, high, tolerance=_CLOSE)

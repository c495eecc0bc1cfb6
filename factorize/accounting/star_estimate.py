"""Point estimates of delta, epsilon and sigma under balls-in-bins sampling, on common random numbers.

An estimate proves nothing: it says which claim is worth testing. Normals and picks are drawn once, so that an
evaluation at another sigma, epsilon or order takes no further product of matrices.

With r_j = mean_l exp(m K_jl / 2): a centre j_1 is drawn with probability proportional to r_j^(m-1), the other j_2..j_m
proportional to exp(m K_{l j_1} / 2), and X = L xi + K s with s the sum of their unit vectors. The weight
(L - T)_+ L^-m E*(m) exp(mean_i A_i) / mean_i exp(A_i), A_i = (m/2) sum_{i' != i} K_{j_i j_i'}, has the mean delta.
"""

import math
import os
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import NamedTuple

import numpy as np

from factorize.accounting.bins_law import MAX_ROWS, BinsLaw, best_order_from
from factorize.accounting.gram_matrix import BinGram, shared_part
from factorize.accounting.law import Curve
from factorize.accounting.payoff import MAX_LEVEL, best_tilt, log_call_ceiling, log_put, log_reverse_ceiling, raised
from factorize.checker.sampling.bets import MAX_SPREAD, MIN_SPREAD, log_call, log_mean_exp, sums_of_rows

CHUNK = 4096
"""The number of samples that one thread computes at a time."""
_MAX_NORMALS = 1 << 23
"""The most normals that an estimate keeps: 32 MiB in single precision."""
_SIGMA_TOLERANCE = 2e-4
"""Relative tolerance of sigma in a search, which is less than the estimate's own error."""
_MAX_SINGLE_PRECISION_SUM = 1e4
"""The largest m^2 times entry of K for which an estimate is computed in single precision."""
_WORK_PER_PICK = 2.0
"""The work for each pick of a tuple, in bins of a sample."""
_MAX_PICKS, _MIN_SAMPLES = 128, 1024
"""Tuples with more picks than this have fewer samples, but at least as many as the second number."""
_MIN_ORDER_SAMPLES, _ORDER_TOLERANCE = 512, 1 / 32
"""The least number of samples where orders are compared, and the relative tolerance of the order."""
_UNSEEN_SHARE = 0.1
"""Share of the largest second moment under the ceiling that is added to the seen one, since samples may miss it."""
_START, _START_ERROR = 0.9, 1e-3
"""The search starts from this share of the star bound's sigma, which for many bins has this relative tolerance."""


class Sampled(NamedTuple):
    """Weights of one direction, with the settings that they were drawn under.

    Attributes:
        weights: shape (samples,), with mean delta.
        ceiling: W, which no weight exceeds.
        tilt: m of the forward direction, eta of the reverse one.
        shared: variance of the part that is integrated in closed form; 0 where all is drawn, None for b-min-sep.
        chances: chance of a bet to keep each weight's tuple, shape (samples,); None where a bet draws that, too.
        rate: q of b-min-sep's reverse direction.
        reach: the largest |u_t| of its curved bound.
        boost: c of b-min-sep's forward direction.
        rule: the rule of a bet on such weights.
    """

    weights: np.ndarray
    ceiling: float
    tilt: float
    shared: float | None = 0.0
    chances: np.ndarray | None = None
    rate: float | None = None
    reach: float | None = None
    boost: int | None = None
    rule: str = "bet"

    @property
    def delta(self) -> float:
        """The mean of the weights."""
        return float(self.weights.mean())

    @property
    def relative_error(self) -> float:
        """The standard error of the mean over the mean, itself an estimate that is small where nothing was seen."""
        mean = self.delta
        return float(self.weights.std() / math.sqrt(len(self.weights)) / mean) if mean > 0 else math.inf


class Rest(NamedTuple):
    """The part of the noise that is drawn at s = 1: all of it, or the rest without the part that bins share.

    Attributes:
        law: the law of balls in bins for the rest.
        base: L times normals, shape (samples, b), in single precision.
        shared: variance of the part that is left out.
    """

    law: BinsLaw
    base: np.ndarray
    shared: float


def candidate_work(order: int, bins: int, chance: float) -> float:
    """Return the cost of a bet's candidate, in bins of a sample: its tuple, and its noise if it is kept."""
    return _WORK_PER_PICK * order + chance * bins


def usual_samples(bins: int) -> int:
    """Return the number of samples that an estimate takes by default: 4096 to 16384, fewer for many bins."""
    return max(CHUNK, min(4 * CHUNK, _MAX_NORMALS // bins // CHUNK * CHUNK))


class StarEstimate(Curve):
    """Weights at any multiplier and epsilon on one set of normals and picks.

    Args:
        gram: the Gram matrix of the bins.
        seed: seed of the common random numbers.
        samples: number of samples; from 4096 to 16384 by default, fewer for many bins.
    """

    tolerance = _SIGMA_TOLERANCE

    def __init__(self, gram: BinGram, *, seed: int = 0, samples: int | None = None) -> None:
        super().__init__(gram.sensitivity)
        self.gram, self.width = gram, gram.bins
        self.samples = samples or usual_samples(gram.bins)
        self.law = BinsLaw(gram, estimated=True)
        self._shared_variance = shared_part(gram.gram)
        self._drawn = cache(self._draw)
        self._order = 8  # the order where the search for the best one starts
        self._random = np.random.default_rng(seed)
        self._normals = self._random.standard_normal((self.samples, gram.bins)).astype(np.float32)
        self._uniforms = np.empty((self.samples, 0))

    def cost(self, sampled: Sampled) -> int:
        """Return the cost of a sample's noise, which is the same for every order."""
        return self.width

    def forward(
        self, multiplier: float, epsilon: float, order: int | None = None, samples: int | None = None
    ) -> Sampled:
        """Return weights for delta of (P, Q); by default with the order whose ceiling is lowest.

        By default it uses all samples, or fewer where each has a long tuple.
        """
        rest = self._rest(multiplier, epsilon)
        spread, m = math.sqrt(rest.shared) / multiplier, order or self.lowest_order(multiplier, epsilon)
        kernel = rest.law.gram / multiplier**2
        picks, log_moment = self._tuples(kernel, m, samples or self._fewer(self.samples, m, _MIN_SAMPLES))
        single = m * m * float(kernel.max()) < _MAX_SINGLE_PRECISION_SUM
        rows = kernel.astype(np.float32) if single else kernel

        def some(start: int) -> tuple[np.ndarray, np.ndarray]:
            part = slice(start, min(start + CHUNK, len(picks)))
            shifted = sums_of_rows(rows, picks[part])
            log_chance = _log_chances(shifted, rows, picks[part])
            shifted += rest.base[part] * rows.dtype.type(1 / multiplier)
            y = raised(_log_mixture(shifted, rows).astype(float), epsilon, spread)
            weights = np.exp(log_call(y, epsilon, spread) - m * y + log_chance + log_moment)
            return weights, np.exp(log_chance)

        with ThreadPoolExecutor(min(os.cpu_count() or 1, 8)) as pool:
            parts = list(pool.map(some, range(0, len(picks), CHUNK)))
        weights, chances = (np.concatenate(part) for part in zip(*parts, strict=True))
        ceiling = math.exp(min(log_moment + log_call_ceiling(epsilon, spread, m), 700.0))
        return Sampled(weights, ceiling, m, spread**2, chances)

    def _fewer(self, samples: int, order: int, least: int) -> int:
        """Return the number of samples that cost no more than these do where the order is smaller than the bins."""
        return min(samples, max(least, samples * max(_MAX_PICKS, 2 * self.width) // order))

    def cheapest_order(self, multiplier: float, epsilon: float, delta: float) -> int:
        """Return an order whose bet takes little work, by the second moment of some weights and by their ceiling."""

        def log_work(order: int) -> float:
            sampled = self.forward(multiplier, epsilon, order, self._fewer(CHUNK, order, _MIN_ORDER_SAMPLES))
            assert sampled.chances is not None
            second = float((sampled.weights**2 / np.maximum(sampled.chances, 1e-300)).mean())
            each = candidate_work(order, self.gram.bins, float(sampled.chances.mean()))
            return math.log(max(second + _UNSEEN_SHARE * sampled.ceiling * delta, 1e-320)) + math.log(each)

        return best_order_from(self.lowest_order(multiplier, epsilon), log_work, close=_ORDER_TOLERANCE)[0]

    def lowest_order(self, multiplier: float, epsilon: float) -> int:
        """Return the order whose ceiling is lowest."""
        rest = self._rest(multiplier, epsilon)
        spread = math.sqrt(rest.shared) / multiplier

        def log_weight(order: int) -> float:
            return rest.law.log_moment(multiplier, order) + log_call_ceiling(epsilon, spread, order)

        self._order = best_order_from(self._order, log_weight)[0]
        return self._order

    def reverse(self, multiplier: float, epsilon: float) -> Sampled:
        """Return weights for delta of (Q, P), with the tilt whose ceiling is lowest."""
        rest = self._rest(multiplier, epsilon)
        spread, kernel = math.sqrt(rest.shared) / multiplier, rest.law.gram / multiplier**2
        kappa, eta, ceiling = self._reverse_terms(multiplier, epsilon)
        log_l, means = np.empty(self.samples), np.empty(self.samples)
        for start in range(0, self.samples, CHUNK):
            part = slice(start, start + CHUNK)
            shifted = rest.base[part] / multiplier - eta * kernel.mean(axis=0)
            means[part] = shifted.mean(axis=1)
            log_l[part] = _log_mixture(shifted, kernel)
        y = -raised(-epsilon - log_l, 0.0, spread) - epsilon
        weights = np.exp(log_put(y, epsilon, spread) + eta * (y - log_l + means) + eta**2 * kappa / 2)
        return Sampled(weights, ceiling, eta, spread**2)

    def _reverse_terms(self, multiplier: float, epsilon: float) -> tuple[float, float, float]:
        """Return the mean of the kernel, the tilt whose ceiling is lowest, and W."""
        rest = self._rest(multiplier, epsilon)
        spread, gram = math.sqrt(rest.shared) / multiplier, rest.law.gram
        kbar, kappa = (float(part.mean()) / multiplier**2 for part in (gram.diagonal(), gram))
        eta = best_tilt(kbar, kappa, epsilon, spread)
        return kappa, eta, math.exp(min(log_reverse_ceiling(kbar, kappa, epsilon, eta, spread), 700.0))

    def _rest(self, multiplier: float, epsilon: float) -> Rest:
        """Return the part that is drawn: the rest of the noise where the protocol allows a shared part of this size."""
        spread = math.sqrt(self._shared_variance) / multiplier
        inside = MIN_SPREAD * (1 + 1e-6) <= spread <= MAX_SPREAD * (1 - 1e-6)
        return self._drawn(self._shared_variance if inside and abs(epsilon) <= MAX_LEVEL - 1 else 0.0)

    def _draw(self, shared: float) -> Rest:
        rest = self.gram.gram - shared
        tau = 2.0**-40 * self.gram.bins * float(self.gram.gram.max())
        base = self._normals @ np.linalg.cholesky(rest + tau * np.eye(len(rest))).T.astype(np.float32)
        return Rest(BinsLaw(BinGram(rest, self.gram.steps), estimated=True), base, shared)

    def _tuples(self, kernel: np.ndarray, order: int, samples: int | None = None) -> tuple[np.ndarray, float]:
        """Return tuples at s = 1 of a covariance, shape (samples, m), and log E*(m)."""
        missing, half, top = order - self._uniforms.shape[1], order / 2, kernel.max(axis=1)
        if missing > 0:
            self._uniforms = np.hstack([self._uniforms, self._random.random((self.samples, missing))])
        uniforms, bins = self._uniforms[:samples, :order], len(kernel)
        ends = kernel - top[:, None]  # later lines write in its place, since fresh arrays take twice the time
        np.cumsum(np.exp(np.multiply(half, ends, out=ends), out=ends), axis=1, out=ends)
        logs = (order - 1) * (half * top + np.log(ends[:, -1] / bins))
        shares = np.cumsum(np.exp(logs - logs.max()))
        centres = np.minimum(np.searchsorted(shares / shares[-1], uniforms[:, :1], side="right"), bins - 1)
        ends /= ends[:, -1:].copy()
        ends += np.arange(bins)[:, None]  # makes one ascending list of all rows, a row for each centre
        others = np.searchsorted(ends.ravel(), centres + uniforms[:, 1:], side="right") - bins * centres
        picks = np.hstack([centres, np.clip(others, 0, bins - 1)])
        return picks, float(logs.max() + math.log(shares[-1] / bins))

    def pair_weights(self, multiplier: float, epsilon: float, *, width: float = 0.35) -> np.ndarray:
        """Return D, the derivative of delta of (P, Q) by the entries of K up to a factor, shape (b, b).

        Kahane's interpolation gives d delta = (1/2) sum_ij D_ij dK_ij, D_ij = E_Q[L_i L_j delta_Dirac(L - e^epsilon)],
        L_i = e^{Y_i} / b, where no entry is negative. A bump in log L stands for the Dirac measure.

        Args:
            multiplier: s.
            epsilon: the epsilon at which delta is differentiated.
            width: standard deviation of the bump.
        """
        m = self.law.best_order(multiplier, epsilon)[0]
        kernel = self.gram.gram / multiplier**2
        picks, _ = self._tuples(kernel, m, self._fewer(self.samples, m, _MIN_SAMPLES))
        total = np.zeros_like(kernel)
        for start in range(0, len(picks), CHUNK):
            part = slice(start, min(start + CHUNK, len(picks)))
            rows = sums_of_rows(kernel, picks[part])
            log_chance = _log_chances(rows, kernel, picks[part])
            rows += self._drawn(0.0).base[part] / multiplier
            log_l = _log_mixture(rows, kernel)  # leaves the likelihoods of the bins in the rows
            rows /= rows.sum(axis=1, keepdims=True)
            log_weight = log_chance + (2 - m) * (log_l - epsilon) - (log_l - epsilon) ** 2 / (2 * width**2)
            rows *= np.exp(log_weight / 2)[:, None]
            total += rows.T @ rows
        return (total + total.T) / 2

    def log_delta(self, multiplier: float, epsilon: float) -> float:
        """Return the estimate of (P, Q), kept between the single-bin lower bound and the star bound.

        A proposal that never meets its event would report a mean of 0, and with it a sigma of 0.
        """
        seen = math.log(max(self.forward(multiplier, epsilon).delta, 1e-320))
        return min(max(seen, log_single_bin(self.gram, multiplier, epsilon)), self.law.log_delta(multiplier, epsilon))

    def guess(self, epsilon: float, delta: float) -> float:
        """Return a little less than the star bound needs."""
        return _START * self.law.sigma(epsilon, delta, tolerance=None if self.gram.bins <= MAX_ROWS else _START_ERROR)


def log_single_bin(gram: BinGram, multiplier: float, epsilon: float) -> float:
    """Return the log of mean_j delta_Gauss(epsilon + log b; sqrt(K_jj)), a lower bound on delta of (P, Q).

    It is computed in ordinary floating point (theorem 8 a), for tests and to bracket estimates.
    """
    from scipy.special import log_ndtr, logsumexp

    mus, level = np.sqrt(gram.gram.diagonal()) / multiplier, epsilon + math.log(gram.bins)
    first, second = log_ndtr(mus / 2 - level / mus), level + log_ndtr(-mus / 2 - level / mus)
    gaps = np.maximum(-np.expm1(np.minimum(second - first, 0.0)), 1e-300)
    return float(logsumexp(first + np.log(gaps))) - math.log(gram.bins)


def _log_chances(sums: np.ndarray, kernel: np.ndarray, picks: np.ndarray) -> np.ndarray:
    """Return mean_i A_i - log mean_i exp(A_i) of each tuple, at most 0, from the sums of its rows of K."""
    exponents = picks.shape[1] / 2 * (np.take_along_axis(sums, picks, axis=1) - kernel.diagonal()[picks]).astype(float)
    return np.asarray(exponents.mean(axis=1) - log_mean_exp(exponents))


def _log_mixture(shifted: np.ndarray, kernel: np.ndarray) -> np.ndarray:
    """Return log mean_j exp(X_j - K_jj / 2) of each row X; the rows are overwritten."""
    shifted -= kernel.diagonal() / 2
    top = shifted.max(axis=1)
    shifted -= top[:, None]
    np.exp(shifted, out=shifted)
    return np.asarray(top + np.log(shifted.mean(axis=1)))

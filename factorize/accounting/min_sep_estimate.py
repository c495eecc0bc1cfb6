"""Estimates of delta under b-min-sep sampling: drawn as the checker draws, from other seeds, to plan a claim."""

import math
from functools import lru_cache

import numpy as np

from factorize.accounting.law import Curve
from factorize.accounting.min_sep_law import BEYOND_WORTH, MinSepLaw, log_curved_ceiling
from factorize.accounting.star_estimate import Sampled
from factorize.checker.sampling import min_sep
from factorize.checker.sampling.bets import CHUNK, Stream, Weights
from factorize.checker.sampling.curved_field import addition
from factorize.errors import InvalidParameter

_SIGMA_TOLERANCE = 2e-3
"""Relative tolerance of sigma in a search, which is less than the error of an estimate."""
_TILTS = tuple(2.0 ** (quarters / 4) for quarters in range(-12, 21))
"""The values of eta that are tried for the direction (Q, P)."""
_START_SHARE = 0.95
"""The search starts from this share of the sigma of the bound without samples."""
_REORDER_ERROR, _BLIND_ERROR = 0.1, 0.5
"""Relative errors of a delta: above the first another order is tried, above the second samples see too little of it."""
_REORDER_GAIN = 0.25
"""The fall of a ceiling's logarithm that is worth another order: each order has other samples, and a search that meets
two of them meets a step."""
_ORDER_LOSS = 0.3
"""The rise of a ceiling's logarithm by one order more that its fewer normals are worth."""
_UNSEEN_WEIGHTS = 3.0
"""The number of weights at the ceiling that samples miss with a chance of 5 %: the delta of what they do not see."""
_MIN_DELTA = 1e-300
"""The smallest delta whose logarithm is taken, for estimates that saw nothing or whose ceiling underflows."""
_CANDIDATES_AT_ONCE = 1024
"""The number of candidates that are drawn together for weights of pairs of steps."""
_CANDIDATES_PER_KEPT = 4
"""The approximate number of candidates for each one that is kept and whose noise is drawn."""
_WORDS_PER_NORMAL, _PAIRS_PER_NORMAL = 5, 256
"""Words of a candidate, and pairs of its paths, that cost as much as one normal."""


class MinSepEstimate(Curve):
    """Weights that are drawn as the checker draws them, on streams of one seed.

    Args:
        law: the law on C.
        seed: seed of the streams.
        samples: number of candidates for each direction, rounded up to whole chunks.
        boost: factor of the chance to keep a candidate; see `ClaimEvidence`.
    """

    tolerance = _SIGMA_TOLERANCE
    epsilon_tolerance = _SIGMA_TOLERANCE

    def __init__(self, law: MinSepLaw, *, seed: int = 0, samples: int | None = None, boost: int | None = None) -> None:
        super().__init__(law.sensitivity)
        self.law, self.width = law, max(law.steps // _CANDIDATES_PER_KEPT, 1)  # normals of a sample, roughly
        self._order: int | None = None
        self._boost = boost
        self._seed, self.samples = seed, -(-(samples or CHUNK) // CHUNK) * CHUNK
        self.forward = lru_cache(maxsize=8)(self._forward)

    def _forward(self, multiplier: float, epsilon: float, order: int | None = None) -> Sampled:
        """Return weights for delta of (P, Q); by default with the order whose ceiling was lowest at first."""
        m = order or self._order or self.law.best_order(multiplier, epsilon)
        try:
            tuples = self.law.tuples(multiplier, epsilon, m)
        except InvalidParameter:  # doubles hold only smaller orders if there is less noise than at first
            tuples = self.law.tuples(multiplier, epsilon, self.law.best_order(multiplier, epsilon))
        self._order, star = tuples.order, self.law.kind(multiplier, epsilon) == "star"
        boost, rule = (self._boost, "bet" if self._boost is None else "boosted_bet") if star else (None, "chain_bet")
        weights = min_sep.removal(tuples, epsilon, boost or 1)
        return Sampled(self._drawn(weights), float(weights.bound), tuples.order, None, boost=boost, rule=rule)

    def cheapest_order(self, multiplier: float, epsilon: float, delta: float) -> int:
        """Return the best order, or one more of a star, whose candidates are kept less often and need less."""
        best = self.law.best_order(multiplier, epsilon)
        if self.law.kind(multiplier, epsilon) == "chain":
            return best
        lowest, next_one = (self.law.log_ceiling(multiplier, epsilon, m, "star") for m in (best, best + 1))
        return best + (next_one < lowest + _ORDER_LOSS)

    def cost(self, sampled: Sampled) -> int:
        """Return the cost of a candidate, in normals of a sample."""
        if sampled.rule == "chain_bet":
            return self.law.steps
        order = int(sampled.tilt)
        return max(self.width, self.law.words(order) // _WORDS_PER_NORMAL, order**2 // _PAIRS_PER_NORMAL)

    def reverse(self, multiplier: float, epsilon: float) -> Sampled:
        """Return weights for delta of (Q, P), with the shift and q whose ceiling is lowest."""
        law, curved = self.law.enough_at(multiplier), self.law.curved(multiplier, epsilon, BEYOND_WORTH)
        terms = self._reverse_terms(law, epsilon)
        if curved is not None and log_curved_ceiling(curved, epsilon, BEYOND_WORTH) < terms[0][0]:
            weights, kept = addition(curved, epsilon), (curved.rate, curved.reach)
            return Sampled(self._drawn(weights), float(weights.bound), curved.eta, None, None, *kept, rule="curved_bet")
        for _, eta, rate in terms:
            try:
                weights = min_sep.addition(law, epsilon, eta, rate)
            except InvalidParameter:
                continue
            return Sampled(self._drawn(weights), float(weights.bound), eta, None, rate=rate)
        raise InvalidParameter("sigma is so small that nothing is private; use a larger one", field="sigma")

    def _reverse_terms(self, law: min_sep.MinSepSteps, epsilon: float) -> list[tuple[float, float, float]]:
        """Return (log W, eta, q) of all that are tried, the lowest first."""
        found = []
        for rate in self.law.rates:
            field = min_sep.Field(law, rate)
            less, square = float(field.less.upper()), float(field.square.upper())
            for eta in _TILTS:
                most = eta * math.log(eta) - (1 + eta) * math.log1p(eta)
                found.append((most + eta * (less - epsilon) + eta * eta * square / 2, eta, rate))
        return sorted(found)

    def pair_weights(self, multiplier: float, epsilon: float, *, width: float = 0.35) -> np.ndarray:
        """Return D[t + d, t], the derivative of delta of (P, Q) by the entries of C^T C up to a factor, shape (b, n).

        See `StarEstimate.pair_weights`; here D_st = E_Q[L^2 P(s) P(t) delta_Dirac(L - e^epsilon)] with P(t) the chance
        of step t given the observation.
        """
        law, random = self.law.enough_at(multiplier), np.random.default_rng(0)
        m = self.law.best_order(multiplier, epsilon)
        tuples, total = self.law.tuples(multiplier, epsilon, m), np.zeros(self.law.columns.T.shape)
        for _ in range(0, self.samples, _CANDIDATES_AT_ONCE):
            words = random.bit_generator.random_raw(_CANDIDATES_AT_ONCE * tuples.words)
            counts, logs = tuples.draw(words.reshape(_CANDIDATES_AT_ONCE, -1))
            kept = np.flatnonzero(random.random(_CANDIDATES_AT_ONCE) < np.exp(np.minimum(logs, 0.0)))
            x = random.standard_normal((law.steps, len(kept))) + law.matrix @ counts[kept].T
            log_l, chances = _posterior(law, x)
            weighted = chances * np.exp((2 - m) * (log_l - epsilon) - (log_l - epsilon) ** 2 / (2 * width**2))
            for d in range(len(total)):
                total[d, : law.steps - d] += (weighted[d:] * chances[: law.steps - d]).sum(axis=1)
        return total

    def log_delta(self, multiplier: float, epsilon: float) -> float:
        """Return the estimate of (P, Q), or what samples may have missed if they see too little; 0 without noise."""
        if self.law.at(multiplier) is None:
            return 0.0
        try:
            sampled = self.forward(multiplier, epsilon)
        except InvalidParameter:  # doubles hold no order
            return 0.0
        if sampled.relative_error > _REORDER_ERROR:  # the order is the best one of another multiplier
            best, ceiling = self.law.best_order(multiplier, epsilon), math.log(max(sampled.ceiling, _MIN_DELTA))
            kind = self.law.kind(multiplier, epsilon)
            if self.law.log_ceiling(multiplier, epsilon, best, kind) < ceiling - _REORDER_GAIN:
                self._order, sampled = best, self.forward(multiplier, epsilon, best)
        delta = sampled.delta
        if sampled.relative_error > _BLIND_ERROR:
            delta = min(max(delta, _UNSEEN_WEIGHTS / len(sampled.weights) * sampled.ceiling), sampled.ceiling)
        return min(math.log(max(delta, _MIN_DELTA)), 0.0)

    def guess(self, epsilon: float, delta: float) -> float:
        """Return a little less than the bound without samples needs."""
        return _START_SHARE * self.law.sigma(epsilon, delta)

    def _drawn(self, weights: Weights) -> np.ndarray:
        drawn = np.concatenate([weights.draw(Stream((self._seed, 0), i)) for i in range(self.samples // CHUNK)])
        return drawn - drawn.min()  # a rounding that all weights share would hide that nothing was seen


def _posterior(law: min_sep.MinSepSteps, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return log L of observations, shape (n, samples), and the chance of each step given them, of the same shape."""
    n, b, keep = law.steps, law.separation, 1 - law.probability
    ratios = law.probability * np.exp(law.matrix.T @ x - law.products[:, :1] / 2)
    before, after = np.zeros((n + b, x.shape[1])), np.ones((n + b, x.shape[1]))
    before[:b] = law.starts[:, None]
    for t in range(n):
        before[t + 1] += keep * before[t]
        before[t + b] += ratios[t] * before[t]
    for t in range(n - 1, -1, -1):
        after[t] = keep * after[t + 1] + ratios[t] * after[t + b]
    total = before[n:].sum(axis=0)
    return np.log(total), before[:n] * ratios * after[b:] / total

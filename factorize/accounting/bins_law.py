"""Balls in bins: each example draws its step of the epoch once and keeps it. A closed form for delta, no sampling.

With L = mean_j exp(Y_j) the likelihood ratio of the dominating pair, K = G / s^2 and T = e^epsilon,

    E L^m <= E*(m) = mean_j (mean_l exp(m K_jl / 2))^(m-1)                        for every integer m >= 2,
    delta of (P, Q) <= W(m) = T^(1-m) (m-1)^(m-1) m^-m E*(m),
    delta of (Q, P) <= E (1 - T e^N)_+ with N normal, of mean -mean_j K_jj / 2 and variance mean_jl K_jl,

and both are at most the delta of the Gaussian mechanism without amplification (docs/notes/amplification-proofs.md).
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Self

import numpy as np

from factorize.accounting.gram_matrix import BinGram, bin_gram
from factorize.accounting.law import MARGIN, Bound, Law
from factorize.accounting.payoff import log_call_ceiling, log_put, raised
from factorize.checker.sampling.bets import MAX_SPREAD
from factorize.factors.sensitivity import Sensitivity, sensitivity_of
from factorize.participation import FixedEpochs, Single
from factorize.structures.endless import AnyStrategy

MAX_ORDER = 4096
"""The largest order m that is tried. log W(m) is convex in m, so the search usually stops at its minimum first."""
MAX_ROWS = 128
"""The most bins that an estimate looks at. Of more bins, which are much alike, it takes every second, third, ..."""


class BinsLaw(Law):
    """Balls in bins on one C; it remembers the order that was best last.

    Args:
        gram: the Gram matrix of the bins.
        estimated: whether E* may be the mean over some of the bins. That is no bound, but near it, in a fraction of the
            time.
    """

    name = "balls_in_bins"

    def __init__(self, gram: BinGram, *, estimated: bool = False) -> None:
        super().__init__(gram.steps, gram.bins, gram.sensitivity, signed=gram.signed)
        self._held, self.gram = gram, gram.gram
        self._some = -(-gram.bins // MAX_ROWS) if estimated else 1
        self._largest = gram.gram[:: self._some].max(axis=1)
        self._below = gram.gram[:: self._some] - self._largest[:, None]
        self._order = 8

    @classmethod
    def of(cls, strategy: AnyStrategy, bins: int) -> Self:
        """Return the law on C; it raises as `bin_gram` does."""
        return cls(bin_gram(strategy, bins))

    def log_moment(self, multiplier: float, order: int) -> float:
        """Return log E*(m) at s = `multiplier`."""
        half = order / 2 / multiplier**2
        shares = half * self._below
        np.exp(shares, out=shares)
        rows = (order - 1) * (half * self._largest + np.log(shares.mean(axis=1)))
        top = float(rows.max())
        return top + math.log(float(np.exp(rows - top).mean()))

    def guess(self, epsilon: float, delta: float) -> float | None:
        """Return the estimate of many bins."""
        if self.bins <= MAX_ROWS or self._some > 1:
            return None
        return BinsLaw(self._held, estimated=True).sigma(epsilon, delta, tolerance=1e-4)

    def removal(self, multiplier: float, epsilon: float) -> Bound:
        """Return the star bound at its best order."""
        order, value = self.best_order(multiplier, epsilon)
        return Bound("star_bound", value, float(order))

    def addition(self, multiplier: float, epsilon: float) -> Bound:
        """Return the smaller closed form: by the mean of the logarithms, or by the second moment (theorem 7 b)."""
        mean, spread = float(self.gram.diagonal().mean()) / multiplier**2, math.sqrt(self.gram.mean()) / multiplier
        by_mean = _log_lognormal_put(mean / 2, spread, epsilon)
        return Bound("closed_form", min(by_mean, log_put_of_second_moment(self.log_moment(multiplier, 2), epsilon)))

    def best_order(self, multiplier: float, epsilon: float) -> tuple[int, float]:
        """Return the m of the smallest W(m), and log W(m)."""
        self._order, value = best_order_from(self._order, partial(self._log_weight, multiplier, epsilon))
        return self._order, value

    def stated(self, strategy: AnyStrategy) -> Sensitivity:
        """Return the sensitivity of the same steps in a fixed order, or of |C| where the last epoch is short."""
        if self.steps % self.bins == 0:
            participation = FixedEpochs(kind="fixed_epochs", epochs=self.epochs) if self.epochs > 1 else Single()
            return sensitivity_of(strategy, participation)
        pattern = {"kind": self.name, "bins": self.bins, "epochs": self.epochs}
        return Sensitivity(self.sensitivity, "upper_bound", "absolute column sums of the bins", pattern)

    def _log_weight(self, multiplier: float, epsilon: float, order: int) -> float:
        moment, constant = self.log_moment(multiplier, order), log_call_ceiling(epsilon, 0.0, order)
        return moment + constant + MARGIN * (1 + abs(moment) + abs(constant))


def log_put_of_second_moment(moment: float, epsilon: float) -> float:
    """Return an upper bound on log E (1 - e^epsilon L)_+ from log E L^2 (theorem 7 b); 0 where it bounds nothing."""
    from scipy.special import ndtr

    lost, moment = 0.0, moment + MARGIN * (1 + abs(moment))
    while lost < 1:
        kept = math.log1p(-lost)
        spread = math.sqrt(max(moment - 2 * kept, 0.0))
        less = spread**2 / 2 - kept
        needed = float(ndtr((less - epsilon) / max(spread, 1e-300))) * math.exp(-epsilon)
        if needed <= lost:
            return _log_lognormal_put(less, spread, epsilon)
        lost = needed * 9 / 8
    return 0.0


def _log_lognormal_put(less: float, spread: float, epsilon: float) -> float:
    """Return the log of E (1 - e^(epsilon + N))_+, N normal of mean -less; 0 where the formula loses its digits."""
    if not 1e-7 < spread < MAX_SPREAD:
        return 0.0
    y = -raised(np.array(less - spread**2 / 2 - epsilon), 0.0, spread)  # a smaller y pays more
    value = float(log_put(y, 0.0, spread))
    return value + MARGIN * (1 + abs(value) + 1e-3 / spread)


def best_order_from(start: int, log_weight: Callable[[int], float], *, close: float = 0.0) -> tuple[int, float]:
    """Return the m of the smallest W(m), and log W(m), by steps from `start` that double and turn.

    Args:
        start: the order where the search begins.
        log_weight: log W(m).
        close: relative tolerance of m: the search ends with steps of this size.
    """
    known: dict[int, float] = {}

    def at(order: int) -> float:
        if order not in known:
            known[order] = log_weight(order)
        return known[order]

    order, step = start, max(1, int(close * start))
    while step >= max(1, int(close * order)):
        nearest = min((max(2, order - step), order, min(MAX_ORDER, order + step)), key=at)
        step = step * 2 if nearest != order else step // 2
        order = nearest
    return order, at(order)

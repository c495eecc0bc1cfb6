"""Sampling by b-min-sep, for a C of at most b bands: weights of a bet, and bounds without samples.

docs/notes/amplification-proofs.md has theorems 11 and 12, and docs/notes/bins-1.md the protocol.
"""

import math
from abc import ABC, abstractmethod
from fractions import Fraction
from functools import cached_property, lru_cache

import numpy as np
from flint import arb, ctx

from factorize.checker.arithmetic.balls import PLACES, ball
from factorize.checker.arithmetic.machine import EXP_SLACK, exponentials
from factorize.checker.arithmetic.near import UNIT
from factorize.checker.sampling.bets import CHUNK, Stream, Weights, log_call, log_most, normals, slack_of, uniform
from factorize.checker.sampling.min_sep_kernels import (
    advance,
    bound_chain,
    draw_chain,
    draw_paths,
    link,
    shift,
    tabulate,
)
from factorize.checker.strategy import Strategy
from factorize.errors import InvalidParameter, TooLarge
from factorize.format.bins_claims import MAX_CHAIN_ORDER, MAX_MIN_SEP_STEPS, MAX_STAR_STEPS

_MAX_EXPONENT = 300.0  # Where the exponent of a step's likelihood ratio is larger, nothing is private.
_MAX_LOG_MOMENT = 700.0  # Doubles hold no E whose logarithm is larger.
_MAX_WORTH = 100.0  # The largest sum of slopes whose rounding S covers.
_LEAST_PROBABILITY = 1e-100  # The least p of a chain, whose products of p would underflow.
_LEAST_POWER = 1e-130  # The least (1 - p)^m: where all take part in most steps, their bounds would be useless, too.
_ENTRIES_AT_ONCE = 1 << 24  # The entries of columns that are held together.
NUMBERS_AT_ONCE = 1 << 18  # The numbers of candidates that are drawn together, which fit in the cache.


def columns_of(strategy: Strategy, separation: int) -> np.ndarray:
    """Return at least |C[t + d, t]|, shape (n, b); raise InvalidParameter for more bands, TooLarge for more steps."""
    n = strategy.n
    if strategy.bandwidth > separation:
        raise InvalidParameter(
            f"C has {strategy.bandwidth} bands, more than the {separation} steps between two uses of an example; use "
            "more, or a C with fewer bands",
            field="bins",
        )
    if n > MAX_MIN_SEP_STEPS:
        raise TooLarge(f"b-min-sep sampling is supported up to n={MAX_MIN_SEP_STEPS} steps; got {n}")
    columns, steps = np.zeros((n, separation)), np.arange(n)
    for some in np.array_split(steps, -(-n * n // _ENTRIES_AT_ONCE)):
        values, far = strategy.near_columns(some)
        for d in range(strategy.bandwidth):
            inside = some[some + d < n]
            sizes = np.abs(values[inside + d, inside - some[0]])
            columns[inside, d] = (sizes + far[: len(inside)]) * (1 + 2 * UNIT)
    return columns


class MinSepSteps:
    """The law of an example's steps, with columns divided by sigma.

    Args:
        columns: upper bounds of |C|, shape (n, b).
        scale: s, rounded down.
        probability: p, in (0, 1].

    Raises:
        InvalidParameter: there is too little noise.
    """

    def __init__(self, columns: np.ndarray, scale: float, probability: float) -> None:
        from scipy.sparse import dia_array

        self.columns = np.nextafter(columns / scale * (1 + 4 * UNIT), np.inf) * (columns > 0)
        self.steps, self.separation = columns.shape
        self.probability, self.most = probability, -(-self.steps // self.separation)
        n, b = columns.shape
        self.products = np.zeros((n, b))
        with np.errstate(over="ignore"):
            for d in range(min(b, n)):
                self.products[: n - d, d] = (self.columns[: n - d, d:] * self.columns[d:, : b - d]).sum(axis=1)
        self.products *= 1 + (b + 8) * UNIT
        self.largest = float(self.products.max())
        if not self.largest < 100:
            raise InvalidParameter("sigma is so small that nothing is private; use a larger one", field="sigma")
        self.matrix = dia_array((self.columns.T[:n], -np.arange(min(b, n))), shape=(n, n)).tocsr()

    @cached_property
    def starts(self) -> np.ndarray:
        """The chances that an example is first free at step d, shape (b,), which are those at any time."""
        chances = np.full(self.separation, self.probability)
        chances[0] = 1.0
        return chances / (1 + (self.separation - 1) * self.probability)

    def slack(self, order: float) -> float:
        """Return S, which covers what a weight's logarithm loses in doubles; raise InvalidParameter above 2^-10."""
        n, b, root = self.steps, self.separation, math.sqrt(self.largest)
        if not root * (12 + order * root) <= _MAX_EXPONENT:
            raise InvalidParameter(
                f"order {order:g} is too large for a sigma this small; use a larger one", field="order"
            )
        drawn = (b + 8) * (1 + math.sqrt(b) * root) * (12 + order * root)
        return slack_of(16 * UNIT * (order + 1) * (self.most + 2) * (n + order**2 * self.largest + drawn))

    def log_ratio(self, x: np.ndarray) -> np.ndarray:
        """Return log L of observations, shape (n, samples), by the recursion over steps."""
        ratios = np.asarray(self.matrix.T @ x)
        ratios -= self.products[:, :1] / 2
        np.exp(ratios, out=ratios)
        ratios *= self.probability
        free, scale = np.repeat(self.starts[:, None], x.shape[1], axis=1), np.zeros(x.shape[1])
        advance(ratios, 1 - self.probability, free, np.empty_like(scale), scale)
        return scale


class Tuples(ABC):
    """The draw of m examples whose steps attract each other.

    Attributes:
        words: the number of words of a candidate.
        lost: what sums of chances may lose of the law of a candidate, in units of 2^-53.
        log_moment: log E.
    """

    log_moment: float
    lost: float

    def __init__(self, law: MinSepSteps, order: int, words: int) -> None:
        self.law, self.order, self.words = law, order, words

    @abstractmethod
    def draw(self, words: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return counts of the steps, shape (candidates, n), and logarithms of the chances to keep each candidate."""


@lru_cache(maxsize=2)  # Its tables have n x n numbers.
class Centres(Tuples):
    """The draw of one of the examples first, and of the others given it (theorem 11)."""

    def __init__(self, law: MinSepSteps, order: int) -> None:
        super().__init__(law, order, order * (law.most + 2))
        n, b, p, keep = law.steps, law.separation, law.probability, 1 - law.probability
        if n > MAX_STAR_STEPS:
            raise TooLarge(f"a star is supported up to n={MAX_STAR_STEPS} steps, and there are {n}; use a chain")
        if not order / 2 * law.largest < 600:
            raise InvalidParameter(f"order {order} is too large for a sigma this small", field="order")
        self.favours = exponentials(0.5 * order * law.products) * (1 + 2 * EXP_SLACK)
        gains, begins = np.ones((n, n)), np.empty(n)
        tabulate(p, keep, self.favours, gains, begins, np.empty((n, b)), np.empty(n + 2 * b), np.empty(2 * b))
        self.log_gains, self.log_begins = np.log(gains), np.log(begins)
        self.falls = falls = keep ** np.arange(n + float(b))
        self.nexts, tails = np.zeros((n, n + 1)), np.ones(n + 1)
        link(p, order, falls, self.log_gains, tails, self.nexts)
        with np.errstate(over="ignore", invalid="ignore"):
            taken = np.convolve(law.starts, falls)[: n + 1]
            taken[:n] *= p * np.exp((order - 1) * self.log_begins) * tails[:n]
            total = float(taken.sum())
        if not math.isfinite(total):
            raise InvalidParameter(f"order {order} is too large for a sigma this small", field="order")
        self.log_moment, self.firsts = math.log(total), np.cumsum(taken / total)
        self.lost = self.words * n * (16.0 * n + 2048)

    def draw(self, words: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return counts and logarithms of chances, as the base class says."""
        n, size = self.law.steps, len(words)
        counts, logs = np.empty((size, n)), np.empty(size)
        work = np.empty((5, max(n + 2 * self.law.separation, self.order * (self.law.most + 2))))
        chances = self.law.probability, self.falls
        tables = self.favours, self.law.products, self.log_gains, self.log_begins, self.firsts, self.nexts
        draw_paths(words, *chances, self.order, *tables, counts, logs, work)
        return counts, logs


@lru_cache(maxsize=4)
class ChainedTuples(Tuples):
    """The draw of all examples together, step by step, by a bound on what is still to come (theorem 11 b).

    Its E is the smaller one where examples take part rarely.

    Attributes:
        lines: heights, slopes and pulls of the bounds of the steps, shape (3, n).
        worth: the logarithm of what a part in step s - b adds, shape (n + b,).
    """

    def __init__(self, law: MinSepSteps, order: int) -> None:
        super().__init__(law, order, order + law.steps)
        n, b, p = law.steps, law.separation, law.probability
        self._powers, self.worth = (1 - p) ** np.arange(order + 1.0), np.zeros(n + b)
        self.lines = np.empty((3, n))
        few = order <= MAX_CHAIN_ORDER and self._powers[-1] > _LEAST_POWER and p > _LEAST_PROBABILITY
        held = few and bound_chain(p, order, law.products, self.worth, *self.lines, np.empty((2, order + 1)))
        begun = law.starts * np.exp(np.append(0.0, self.worth[1:b])) if held else np.full(b, math.inf)
        self.log_moment = float(self.lines[0].sum() + order * np.log(begun.sum())) if held else math.inf
        if not (self.log_moment < _MAX_LOG_MOMENT and np.abs(self.worth).max() < _MAX_WORTH):
            raise InvalidParameter(f"order {order} is too large for a sigma this small", field="order")
        self._firsts = np.cumsum(begun / begun.sum())
        heights, slopes, pulls = np.abs(self.lines)
        self.lost = self.words * (
            16 * order + 8192 + 8 * float((heights + order * (slopes + pulls * law.largest)).max())
        )

    def draw(self, words: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return counts, and logarithms that are 0 where a candidate is kept and -inf elsewhere."""
        law, counts, logs = self.law, np.empty((len(words), self.law.steps)), np.empty(len(words))
        tables = self._firsts, self._powers, law.products, self.worth, *self.lines
        draw_chain(words, law.probability, *tables, counts, logs, np.empty(law.separation, np.int64))
        return counts, logs


@ctx.workprec(PLACES)
def log_ceiling(tuples: Tuples, epsilon: float) -> arb:
    """Return an upper bound of log W(m) = log(c_m E), by theorem 11 or 11 b."""
    return log_most(arb(epsilon), 0.0, arb(tuples.order)) + arb(tuples.log_moment) + tuples.law.slack(tuples.order)


@ctx.workprec(PLACES)
def removal(tuples: Tuples, epsilon: float, boost: int = 1) -> Weights:
    """Return weights with mean delta where the example's contributions are taken out (theorem 11; `bets.removal`).

    Args:
        tuples: the draw of m examples, m at least 2.
        epsilon: epsilon of the claim.
        boost: c of theorem 5 c, a power of two, so that nothing is rounded.
    """
    law, order = tuples.law, tuples.order
    n, lost = law.steps, law.slack(order)
    near, plain = epsilon - lost, log_most(arb(epsilon) - lost, 0.0, arb(order)) + tuples.log_moment
    extra = plain.exp() * tuples.lost * UNIT
    bound, constant, added = (plain + 2 * arb(lost)).exp() + extra, tuples.log_moment + 2 * lost, float(extra)
    rows = max(NUMBERS_AT_ONCE // max(tuples.words, n), 1)

    def draw(stream: Stream) -> np.ndarray:
        words, noise, weights = stream.lane(0), stream.lane(1), np.full(CHUNK, added)
        coins = uniform(stream.lane(2).random_raw(CHUNK))
        for start in range(0, CHUNK, rows):
            size = min(rows, CHUNK - start)
            counts, logs = tuples.draw(words.random_raw(size * tuples.words).reshape(size, tuples.words))
            chances = np.exp(np.minimum(logs, 0.0))
            kept = np.flatnonzero(coins[start : start + size] < boost * chances)
            x = normals(noise.random_raw(len(kept) * n)).reshape(len(kept), n)
            shift(counts[kept], law.columns, x)
            y = law.log_ratio(x.T)
            shares = np.maximum(chances[kept], 1 / boost)
            weights[start + kept] += shares * np.exp(log_call(np.maximum(y, near), near, 0.0) - order * y + constant)
        return weights

    return Weights(bound, draw)


class Field:
    """A lower bound of L: L >= exp(<m, Z> - less), where m is the mean of the columns under a rate q in (0, 1].

    Raises:
        InvalidParameter: some steps that q allows have no chance under the law.
    """

    def __init__(self, law: MinSepSteps, rate: float) -> None:
        n, b = law.columns.shape
        if rate < 1 == law.probability:
            raise InvalidParameter(f"rate {rate!r} must be 1.0, as the probability of a step is", field="rate")
        share, p, q = rate / (1 + (b - 1) * rate), ball(Fraction(law.probability)), ball(Fraction(rate))
        self.mean = np.zeros(n)
        for d in range(min(b, n)):
            self.mean[d:] += share * law.columns[: n - d, d]
        free, norms = 1 / (1 + (b - 1) * q), arb(math.fsum(law.products[:, 0].tolist()))
        apart = q * (q / p).log() + ((1 - q) * ((1 - q) / (1 - p)).log() if rate < 1 else 0)
        begin = (free * (1 + (b - 1) * p)).log() + (b - 1) * q * free * (q / p).log()
        self.less: arb = begin + n * free * apart + q * free * norms * (1 + 2.0**-40) / 2
        self.square = arb(math.fsum((self.mean**2).tolist())) * arb(1, 2.0**-40)


@ctx.workprec(PLACES)
def addition(law: MinSepSteps, epsilon: float, eta: float, rate: float) -> Weights:
    """Return weights with mean delta where the example's contributions are put in (theorem 12; `bets.addition`)."""
    lost, field, x = law.slack(2 + eta), Field(law, rate), arb(eta)
    tilt = x * x * field.square.upper() / 2
    grown = x * (field.less - arb(epsilon) + lost) + tilt
    bound = (log_most(arb(0), 0.0, 1 + x) + grown + 2 * arb(lost)).exp()
    near, constant, n = epsilon - lost, float(tilt.upper()) + 2 * lost, law.steps

    def draw(stream: Stream) -> np.ndarray:
        weights, words, rows = np.empty(CHUNK), stream.lane(0), max(NUMBERS_AT_ONCE // n, 1)
        for start in range(0, CHUNK, rows):
            size = min(rows, CHUNK - start)
            z = normals(words.random_raw(size * n)).reshape(size, n) - eta * field.mean
            left = -np.expm1(np.minimum(near + law.log_ratio(z.T), 0.0))
            weights[start : start + size] = left * np.exp(eta * (z @ field.mean) + constant)
        return weights

    return Weights(bound, draw)

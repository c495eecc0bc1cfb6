"""The bet against a claimed delta: the sampled test of claims about balls in bins.

docs/notes/bins-1.md is the protocol, constants included; docs/notes/amplification-proofs.md has the weights between 0
and W whose mean is delta or more (theorems 5 to 5 b, 7 and 7 a). A claim is tested by
the bet prod (1 + lambda (delta - w_i)): under a false claim, its wealth reaches 2^128 with probability at most 2^-128
(Ville).
"""

import math
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from flint import arb, ctx

from factorize.checker.arithmetic.balls import PLACES, ball, normal
from factorize.checker.arithmetic.loops import HAS_COMPILER
from factorize.checker.arithmetic.near import UNIT
from factorize.checker.sampling.quantile_kernels import write_normals
from factorize.checker.sampling.star import log_moment, log_row_means, scale_gram
from factorize.errors import CertificateError, InvalidParameter

CHUNK = 8192
"""The candidates of a chunk, after which the test looks at its wealth."""
MIN_WEALTH = 128 * math.log(2) + 1e-6
"""The logarithm of the wealth 2^128 at which a claim is accepted, and a margin for rounding."""
HOPELESS_WEALTH = -40.0
"""The logarithm of the wealth at which a bet is given up; it is always sound to refuse a claim."""
_MAX_EPSILON = 1000.0  # Epsilon less its slack may not be larger by the limits of bins-1.
_TRIES = 16  # The attempts to raise a covariance until it has a Cholesky factor.
_MIN_SLACK, _MAX_SLACK = 2.0**-30, 2.0**-10
_NUMBERS_AT_ONCE = 1 << 20  # The number of normals that are drawn together.


class Covariance(NamedTuple):
    """A matrix K = L L^T, at least G / s^2 - t^2 entry by entry, its factor L and its largest diagonal entry."""

    kernel: np.ndarray
    factor: np.ndarray
    largest: float


class Stream(NamedTuple):
    """The words of one chunk of a key's stream, whole numbers of 64 bits."""

    key: tuple[int, int]
    chunk: int

    def lane(self, number: int) -> np.random.Philox:
        """Return the generator of the words of a lane."""
        counter = np.array([0, 0, self.chunk, number], dtype=np.uint64)
        return np.random.Philox(key=np.array(self.key, dtype=np.uint64), counter=counter)


class Weights(NamedTuple):
    """The sampling of a direction: a bound W that no weight exceeds, and the draw of a chunk, shape (CHUNK,)."""

    bound: arb
    draw: Callable[[Stream], np.ndarray]


class BetOutcome(NamedTuple):
    """The outcome of a bet: log wealth after the last chunk, and the number of weights, whose mean estimates delta."""

    accepted: bool
    log_wealth: float
    samples: int
    mean: float


def covariance(gram: np.ndarray, scale: float, shared: float = 0.0) -> Covariance:
    """Return a covariance that is at least G / s^2 - t^2, where t^2 is the variance of a part that all bins share.

    Raises:
        InvalidParameter: no such covariance is found in doubles.
    """
    bins = len(gram)
    least = scale_gram(gram, scale)
    rest, tau = least - shared, 64 * UNIT * bins * float(least.max())
    for _ in range(_TRIES):
        try:
            factor = np.linalg.cholesky(rest + tau * (1 + np.eye(bins)))
        except np.linalg.LinAlgError:
            tau *= 4
            continue
        whole = factor @ factor.T
        kernel = np.maximum(whole, whole.T)
        if (kernel >= rest + tau / 2).all():  # The product has lost far less: (b + 2) units of its largest entry.
            return Covariance(kernel, factor, float(np.diagonal(kernel).max()))
        tau *= 4
    raise InvalidParameter("the Gram matrix of the bins has no Cholesky factor in doubles; use fewer bins")


def slack(covariance: Covariance, order: float) -> float:
    """Return S, which covers what a weight loses in doubles; see `slack_of`."""
    bins, most = len(covariance.kernel), covariance.largest
    drawn = math.sqrt(most) * (math.sqrt(bins) + 15) + 2 * order * most + 1
    return slack_of(16 * UNIT * (bins + order + 16) * ((order + 1) * drawn + order * order * most))


def slack_of(lost: float) -> float:
    """Return a power of two that covers the loss of a logarithm; raise InvalidParameter above 2^-10."""
    if not lost <= _MAX_SLACK:
        raise InvalidParameter(f"doubles lose {lost:.3g} of a weight's logarithm, more than {_MAX_SLACK:.3g}")
    return max(2.0 ** math.ceil(math.log2(lost)), _MIN_SLACK)


def _terms(
    gram: np.ndarray, scale: float, epsilon: float, order: float, shared: float
) -> tuple[Covariance, float, float, float]:
    """Return the covariance K - t^2 of the normals, then t, S, which covers the loss in doubles, and epsilon - S."""
    rest, spread = covariance(gram, scale, shared), math.sqrt(shared)
    lost = slack(rest, order)
    near = epsilon - lost
    if not ((spread == 0 or MIN_SPREAD <= spread <= MAX_SPREAD) and abs(near) <= _MAX_EPSILON):
        raise InvalidParameter(f"a shared part of {spread!r}, epsilon {near!r}: beyond the limits of bins-1")
    return rest, spread, lost, near


@ctx.workprec(PLACES)
def removal(gram: np.ndarray, scale: float, epsilon: float, order: int, shared: float = 0.0) -> Weights:
    """Return weights whose mean is delta where the example's contributions are taken out (theorem 5).

    Args:
        gram: G rounded up, shape (bins, bins).
        scale: s, rounded down.
        epsilon: epsilon of the claim.
        order: m, at least 2.
        shared: t^2 of the claim.

    Raises:
        InvalidParameter: t, epsilon or m is beyond the limits, or G / s^2 - t^2 is no covariance.
    """
    rest, spread, lost, near = _terms(gram, scale, epsilon, order, shared)
    moment = log_moment(rest.kernel, order)
    plain = moment + log_most(arb(epsilon) - lost, shared, arb(order))
    extra = plain.exp() * order * len(gram) * (len(gram) + 4 + order * rest.largest) * (4 * UNIT)
    bound = (plain + 2 * arb(lost)).exp() + extra
    tables, constant, added = tables_of(rest.kernel, order), float(moment) + 2 * lost, float(extra)

    def draw(stream: Stream) -> np.ndarray:
        uniforms = uniform(stream.lane(0).random_raw(CHUNK * (order + 1)))
        picks = picked(uniforms[: CHUNK * order].reshape(CHUNK, order), *tables)
        kept = np.flatnonzero(uniforms[CHUNK * order :] < np.exp(log_chances(rest.kernel, picks)))
        weights = np.full(CHUNK, added)
        for some, drawn in _normals(stream.lane(1), kept, len(gram)):
            y = _log_ratio((drawn + sums_of_rows(rest.factor, picks[some])) @ rest.factor.T, rest.kernel)
            y = np.maximum(y, near - spread * (MAX_DEPTH + spread / 2))
            weights[some] += np.exp(log_call(y, near, spread) - order * y + constant)
        return weights

    return Weights(bound, draw)


@ctx.workprec(PLACES)
def addition(gram: np.ndarray, scale: float, epsilon: float, eta: float, shared: float = 0.0) -> Weights:
    """Return weights whose mean is delta where the example's contributions are put in (theorem 7).

    Args:
        gram: G rounded up, shape (bins, bins).
        scale: s, rounded down.
        epsilon: epsilon of the claim.
        eta: distance by which the normals are moved, above 0.
        shared: t^2 of the claim.

    Raises:
        InvalidParameter: t, epsilon or eta is beyond the limits, or G / s^2 - t^2 is no covariance.
    """
    rest, spread, lost, near = _terms(gram, scale, epsilon, 2 + eta, shared)
    diagonal, whole = _means_of(rest.kernel)
    x = arb(eta)
    grown = x * ball(diagonal) / 2 + x * x * ball(whole) / 2 - x * (arb(epsilon) - lost)
    bound = (log_most(arb(0), shared, 1 + x) + grown + 2 * arb(lost)).exp()
    moved = -(eta / len(gram)) * rest.factor.sum(axis=0)
    constant = float(eta * eta * whole / 2) + 2 * lost

    def draw(stream: Stream) -> np.ndarray:
        weights = np.empty(CHUNK)
        for some, drawn in _normals(stream.lane(0), np.arange(CHUNK), len(gram)):
            x = (drawn + moved) @ rest.factor.T
            y = _log_ratio(x, rest.kernel)
            u = np.minimum(near + y, spread * (MAX_DEPTH + spread / 2))
            # u - near is log L0. Where that is large, a smaller number stands in, at which put(y) e^(eta y) is larger.
            put = u + log_call(-u, 0.0, spread)
            weights[some] = np.exp(put + eta * (u - near - y) + eta * x.mean(axis=1) + constant)
        return weights

    return Weights(bound, draw)


def _normals(words: np.random.Philox, places: np.ndarray, bins: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield places, some at a time, with standard normals for each, shape (some, bins)."""
    rows = max(_NUMBERS_AT_ONCE // bins, 1)
    for start in range(0, len(places), rows):
        some = places[start : start + rows]
        yield some, normals(words.random_raw(len(some) * bins)).reshape(len(some), bins)


def uniform(words: np.ndarray) -> np.ndarray:
    """Return a multiple of 2^-53 in [0, 1) for each word."""
    return np.asarray((words >> np.uint64(11)) * 2.0**-53)


def normals(words: np.ndarray) -> np.ndarray:
    """Return one standard normal for each word: the lowest bit is the sign (1 is plus), the rest the magnitude."""
    found = np.empty(len(words))
    if HAS_COMPILER:
        write_normals(words, found)
        return found
    from scipy.special import ndtri

    sizes = ((words >> np.uint64(1)) + 0.5) * 2.0**-64
    ndtri(sizes, out=found)  # These are not above 0.
    return np.where(words & np.uint64(1), -found, found)


def _means_of(kernel: np.ndarray) -> tuple[Fraction, Fraction]:
    """Return the mean of the diagonal of K, and that of all of K rounded up, whatever the signs of its entries."""
    bins = len(kernel)
    diagonal = sum(map(Fraction, np.diagonal(kernel).tolist()), Fraction(0)) / bins
    whole = Fraction(float(kernel.sum(axis=1).sum())) / bins**2
    return diagonal, whole + Fraction(float(np.abs(kernel).mean())) / 2**44


def _log_ratio(x: np.ndarray, kernel: np.ndarray) -> np.ndarray:
    """Return log L = log mean_j exp(X_j - K_jj / 2), shape (samples,)."""
    return log_mean_exp(x - 0.5 * np.diagonal(kernel))


def bet(weights: Weights, delta: float, rate: float, key: tuple[int, int], chunks: int) -> BetOutcome:
    """Bet against delta until the wealth is 2^128 or hopeless, or the chunks are used up.

    Args:
        weights: weights of the direction.
        delta: the claimed delta.
        rate: lambda of the claim; the caller has checked that lambda (W - delta) < 1.
        key: key of the stream.
        chunks: the most chunks to draw.

    Raises:
        CertificateError: a weight is not between 0 and W, which is a theorem: a fault of this program or machine.
    """
    wealth, total, drawn = 0.0, 0.0, 0
    most = float((weights.bound * (1 + 1e-9)).upper())
    for chunk in _chunks(weights, key, chunks):
        if not (np.isfinite(chunk).all() and chunk.min() >= 0 and chunk.max() <= most):
            raise CertificateError(
                f"a weight of {chunk.max()!r} is not between 0 and its proven bound {most!r}: a fault of this checker"
            )
        wealth += float(np.log1p(rate * (delta - chunk)).sum())
        total += float(chunk.sum())
        drawn += len(chunk)
        if not HOPELESS_WEALTH <= wealth < MIN_WEALTH:
            break
    return BetOutcome(wealth >= MIN_WEALTH, wealth, drawn, total / max(drawn, 1))


def _chunks(weights: Weights, key: tuple[int, int], count: int) -> Iterator[np.ndarray]:
    """Yield the weights of the chunks in order; as many at a time as there are processors."""
    from threadpoolctl import threadpool_limits

    workers = min(count, os.cpu_count() or 1, 8)
    with ThreadPoolExecutor(workers) as pool, threadpool_limits(1, "blas"):
        for first in range(0, count, workers):
            together = [Stream(key, chunk) for chunk in range(first, min(first + workers, count))]
            yield from list(pool.map(weights.draw, together))


MIN_SPREAD, MAX_SPREAD = 2.0**-5, 30.0
"""The limits of t, where it is not 0."""
MAX_DEPTH = 30.0
"""The most standard deviations that d may be below 0: a smaller y is raised to that place."""


def log_call(y: np.ndarray, near: float, spread: float) -> np.ndarray:
    """Return log call(y), -inf where call is 0; for d <= 0 by two Mills ratios, whose difference loses no digits."""
    from scipy.special import erfcx, ndtr

    with np.errstate(divide="ignore"):
        if spread == 0:
            return np.asarray(y + np.log(-np.expm1(np.minimum(near - y, 0.0))))
        d = (y - near) / spread + spread / 2
        z, inside = np.maximum(-d, 0.0) / math.sqrt(2), np.maximum(d, 0.0)
        mills = math.sqrt(math.pi / 2) * (erfcx(z) - erfcx(z + spread / math.sqrt(2)))
        out = y - z * z - 0.5 * math.log(2 * math.pi) + np.log(mills)
        left = ndtr(inside) - np.exp(np.minimum(near - y, spread**2 / 2)) * ndtr(inside - spread)
        return np.where(d > 0, y + np.log(left), out)


@ctx.workprec(PLACES)
def log_most(near: arb, shared: float, order: arb) -> arb:
    """Return an upper bound of the largest log call(y) - m y, by a tangent at the left end of a bracket of the maximum.

    Raises:
        InvalidParameter: the maximum is farther out than y may be raised, or m is 1.
    """
    spread = arb(shared).sqrt()
    if not order > 1:
        raise InvalidParameter(f"order {order} is 1 in balls of {PLACES} places; it must be above 1", field="order")
    if not shared:
        return (order - 1) * ((order - 1).log() - near) - order * order.log()
    low, high = near - spread * (MAX_DEPTH + spread / 2), near + 1
    if not _tangent(low, near, spread, order)[1] >= 0:
        raise InvalidParameter(f"order {order} is too large for the shared part {shared!r}", field="order")
    while _tangent(high, near, spread, order)[1] > 0:
        high = near + 2 * (high - near)
    while high - low > 1e-6:
        middle = (low + high) / 2
        slope = _tangent(middle, near, spread, order)[1]
        if slope > 0:
            low = middle
        elif slope < 0:
            high = middle
        else:
            break
    value, slope = _tangent(low, near, spread, order)
    return value + slope * (high - low)  # The slope at `low` is not below 0.


def _tangent(y: arb, near: arb, spread: arb, order: arb) -> tuple[arb, arb]:
    """Return log call(y) - m y, and its slope."""
    d = (y - near) / spread + spread / 2
    first = normal(d)
    call = first - (near - y).exp() * normal(d - spread)
    if not call > 0:
        raise InvalidParameter(f"the call is too small for balls of {PLACES} places", field="shared")
    return y + call.log() - order * y, first / call - order


_MAX_PICKS_IN_PAIRS = 24  # The most picks whose pairs are looked up one by one.


def tables_of(kernel: np.ndarray, order: int) -> tuple[np.ndarray, np.ndarray]:
    """Return cumulative probabilities of the centre, shape (1, bins), and of a pick for each centre, (bins, bins)."""
    rows = [float((order - 1) * row) for row in log_row_means(kernel, order)]
    centres = np.exp(np.array(rows) - max(rows))
    exponents = 0.5 * order * kernel
    others = np.exp(exponents - exponents.max(axis=1)[:, None])
    return np.cumsum(centres / centres.sum())[None], np.cumsum(others / others.sum(axis=1)[:, None], axis=1)


def picked(uniforms: np.ndarray, centres: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Return the centre and the other picks of each sample, shape (samples, order)."""
    first = _places(centres, np.zeros((len(uniforms), 1), dtype=np.int64), uniforms[:, :1])
    return np.hstack([first, _places(others, first, uniforms[:, 1:])])


def _places(sums: np.ndarray, rows: np.ndarray, uniforms: np.ndarray) -> np.ndarray:
    """Return the number of running sums in a row that are at most u, or the last index, by bisection of all rows."""
    bins = sums.shape[1]
    step = width = 1 << (bins - 1).bit_length()
    table = np.pad(sums, ((0, 0), (0, width - bins)), constant_values=2.0).ravel()
    places = np.broadcast_to(rows * width, uniforms.shape).copy()
    while step := step // 2:
        places += step * (table.take(places + (step - 1)) <= uniforms)
    return np.minimum(places - rows * width, bins - 1)


def log_chances(kernel: np.ndarray, picks: np.ndarray) -> np.ndarray:
    """Return mean A - log mean exp A of each tuple, A_i = (m / 2) sum over the other picks of K; shape (samples,)."""
    order, bins = picks.shape[1], len(kernel)
    if order > _MAX_PICKS_IN_PAIRS:
        sums = np.take_along_axis(sums_of_rows(kernel, picks), picks, axis=1) - np.diagonal(kernel)[picks]
    else:
        columns, entries, sums = picks.T.copy(), kernel.ravel(), np.zeros(picks.shape).T
        for i in range(order - 1):
            pairs = entries.take(columns[i] * bins + columns[i + 1 :])
            sums[i] += pairs.sum(axis=0)
            sums[i + 1 :] += pairs
        sums = sums.T
    exponents = 0.5 * order * sums
    return np.asarray(exponents.mean(axis=1) - log_mean_exp(exponents))


def sums_of_rows(matrix: np.ndarray, picks: np.ndarray) -> np.ndarray:
    """Return for each tuple the sum of the rows that it names, shape (samples, bins)."""
    from scipy.sparse import csr_array

    ends, ones = np.arange(0, picks.size + 1, picks.shape[1]), np.ones(picks.size, matrix.dtype)
    return np.asarray(csr_array((ones, picks.ravel(), ends), shape=(len(picks), len(matrix))) @ matrix)


def log_mean_exp(values: np.ndarray) -> np.ndarray:
    """Return log mean exp of each row."""
    most = values.max(axis=1)
    return np.asarray(most + np.log(np.exp(values - most[:, None]).mean(axis=1)))

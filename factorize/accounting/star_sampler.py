"""The star sampler: weights with a proved ceiling, whose mean is delta of the dominating pair.

With K = L L^T and r_j = mean_l exp(m K_jl / 2): a centre j_1 is drawn with probability proportional to r_j^(m-1), the
other j_2..j_m proportional to exp(m K_{l j_1} / 2), and X = L (xi + L^T s) with s the sum of their unit vectors. Then

    w = (L - T)_+ L^-m E*(m) exp(mean_i A_i) / mean_i exp(A_i),    A_i = (m/2) sum_{i' != i} K_{j_i j_i'}

has the mean delta of (P, Q) and 0 <= w <= W(m), by the inequality of the arithmetic and the geometric mean. The other
direction draws X = L (xi - (eta/b) L^T 1) and has a ceiling by the geometric mean of the mixture. Bits, rounding and
slack are those of the protocol (docs/notes/bins-1.md).
"""

from __future__ import annotations

import math

import numpy as np

from factorize.accounting.gram_matrix import BinCovariance
from factorize.accounting.shared.shared_call import check_level, log_call, log_call_ceiling, log_put, raised
from factorize.accounting.star_bound import log_constant
from factorize.errors import CertificateError, InvalidParameter

CHUNK = 4096
"""Samples of one chunk, which has a Philox stream of its own."""

_BLOCK = 1 << 15  # normals that are made together, so that they stay in the cache
_GUIDES = 256  # of a row of running sums
_ROWS = 256  # whose exponentials are taken together, so that they stay in the cache

Key = tuple[int, int]


class StarTables:
    """Probabilities of centres and tuples for one covariance and order.

    Args:
        matrix: K, shape (b, b).
        order: m, at least 2.

    Attributes:
        order: m.
        log_moment: log E*(m).
        centres: running sums, shape (b,).
        rows: running sums, shape (b, b).
        guides: where a pick starts to look in each row, and last in the centres, shape (b + 1, 256).
    """

    def __init__(self, matrix: np.ndarray, order: int) -> None:
        from factorize.accounting.star_kernels import fill_guides

        half, top = order / 2, matrix.max(axis=1)
        self.order = order
        self.rows = np.exp(half * (matrix - top[:, None]))
        np.cumsum(self.rows, axis=1, out=self.rows)
        totals = self.rows[:, -1].copy()
        self.rows /= totals[:, None]
        logs = (order - 1) * (half * top + np.log(totals / len(matrix)))
        shares = np.exp(logs - logs.max())
        self.log_moment = float(logs.max() + math.log(shares.mean()))
        self.centres = np.cumsum(shares)
        self.centres /= self.centres[-1]
        # places of bins, of which there are at most LARGEST_BINS = 4096 (gram_matrix.py)
        self.guides = np.empty((len(matrix) + 1, _GUIDES), dtype=np.int16)
        fill_guides(self.rows, self.guides[:-1])
        fill_guides(self.centres[None], self.guides[-1:])

    def draw(self, picks: np.ndarray, matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return tuples, shape (samples, m), and mean_i A_i - log mean_i exp(A_i), shape (samples,).

        Args:
            picks: words, shape (samples, m).
            matrix: K.
        """
        from factorize.accounting.star_kernels import draw_tuples

        tuples, log_ratio = np.empty(picks.shape, dtype=np.int64), np.empty(len(picks))
        draw_tuples(picks, self.centres, self.rows, self.guides, matrix, tuples, log_ratio)
        return tuples, log_ratio


class ForwardTest:
    """Weights for delta of (P, Q), the data with the example against those without.

    Args:
        covariance: what is sampled.
        epsilon: at which delta is asked for.
        order: m, at least 2; any choice is sound, the minimiser of W is a good one.

    Attributes:
        ceiling: W, never exceeded.

    Raises:
        InvalidParameter: an order that no double holds the weights of.
    """

    direction = "pq"
    chunk = CHUNK
    _lost = 1
    """How many times the slack of the covariance epsilon is lowered by."""

    def __init__(self, covariance: BinCovariance, epsilon: float, order: int) -> None:
        self.covariance, self.order = covariance, order
        self.slack = self._lost * covariance.slack(order)
        self.level = epsilon - self.slack
        self.tables = StarTables(covariance.matrix, order)
        log_plain = self.tables.log_moment + self._log_most()
        check_hopeful(log_plain, f"order m={order}", epsilon)
        b, m = covariance.bins, order
        self._rest = math.exp(log_plain) * m * b * (b + 4 + m * covariance.largest) * 2.0**-51
        self.ceiling = math.exp(log_plain + 2 * self.slack) + self._rest

    def weights(self, key: Key, chunk: int) -> np.ndarray:
        """Return the weights of chunk number `chunk` of a stream, shape (4096,)."""
        log_l, log_ratio = drawn_star(self.covariance, self.tables, key, chunk)
        weights = self._of(log_l, log_ratio + self.tables.log_moment + 2 * self.slack)
        return check_ceiling(weights + self._rest, self.ceiling)

    def _log_most(self) -> float:
        """Return the log of what a weight is at most, but for the moment."""
        return log_constant(self.level, self.order)

    def _of(self, log_l: np.ndarray, log_scale: np.ndarray) -> np.ndarray:
        return forward_weights(log_l, log_scale, self.level, self.order)


class SharedTest(ForwardTest):
    """Weights for delta of (P, Q) that integrate a part of the noise that all bins share.

    L = L0 e^(t g - t^2 / 2), g is never drawn: the weight has call(log L0) in place of (L - T)_+ and L0 in place of L.

    Args:
        covariance: of the rest, K - t^2.
        shared: t^2.
        epsilon: at which delta is asked for.
        order: m, at least 2; any choice is sound.

    Attributes:
        ceiling: W, never exceeded.

    Raises:
        InvalidParameter: t, epsilon or m is beyond the limits of the protocol.
    """

    _lost = 2

    def __init__(self, covariance: BinCovariance, shared: float, epsilon: float, order: int) -> None:
        self._spread = math.sqrt(shared)
        super().__init__(covariance, epsilon, order)

    def _log_most(self) -> float:
        return log_call_ceiling(self.level, self._spread, self.order)

    def _of(self, log_l: np.ndarray, log_scale: np.ndarray) -> np.ndarray:
        return shared_weights(log_l, log_scale, self.level, self.order, self._spread)


def drawn_star(covariance: BinCovariance, tables: StarTables, key: Key, chunk: int) -> tuple[np.ndarray, np.ndarray]:
    """Return log L and mean_i A_i - log mean_i exp(A_i) of the samples of a chunk, shape (4096,) each."""
    from factorize.accounting.star_kernels import add_rows

    b, m = covariance.bins, tables.order
    words = chunk_words(key, chunk, CHUNK * (m + b))
    tuples, log_ratio = tables.draw(words[: CHUNK * m].reshape(CHUNK, m), covariance.matrix)
    normals = normals_of(words[CHUNK * m :]).reshape(CHUNK, b)
    add_rows(tuples, np.ascontiguousarray(covariance.factor), normals)
    return log_mixture(multiplied(covariance.factor, normals), covariance.half_diagonal), log_ratio


class ReverseTest:
    """Weights for delta of (Q, P), the data without the example against those with it.

    Args:
        covariance: what is sampled.
        epsilon: at which delta is asked for.
        eta: tilt, above 0; any choice is sound, `best_tilt` is a good one.

    Attributes:
        ceiling: W, never exceeded.

    Raises:
        InvalidParameter: a tilt that no double holds the weights of.
    """

    direction = "qp"
    chunk = CHUNK
    _lost = 1
    """How many times the slack of the covariance epsilon is lowered by."""

    def __init__(self, covariance: BinCovariance, epsilon: float, eta: float) -> None:
        self.covariance, self.eta = covariance, eta
        self.slack = self._lost * covariance.slack(2 + eta)
        self.level = epsilon - self.slack
        kbar, self._kappa = float(covariance.matrix.diagonal().mean()), float(covariance.matrix.mean())
        log_plain = self._log_most(kbar, self._kappa)
        check_hopeful(log_plain, f"tilt eta={eta:g}", epsilon)
        self.ceiling = math.exp(log_plain + 2 * self.slack)
        self._drift = covariance.factor.sum(axis=0) * (-eta / covariance.bins)

    def weights(self, key: Key, chunk: int) -> np.ndarray:
        """Return the weights of chunk number `chunk` of a stream, shape (4096,)."""
        means, log_l = drawn_reverse(self.covariance, self._drift, key, chunk)
        log_tilt = self.eta * means + self.eta**2 * self._kappa / 2 + 2 * self.slack
        return check_ceiling(self._of(log_l, log_tilt), self.ceiling)

    def _log_most(self, kbar: float, kappa: float) -> float:
        """Return the log of what a weight is at most, from the means of the diagonal and of the whole matrix."""
        return log_reverse_ceiling(kbar, kappa, self.level, self.eta)

    def _of(self, log_l: np.ndarray, log_tilt: np.ndarray) -> np.ndarray:
        return reverse_weights(log_l, log_tilt, self.level)


class SharedReverseTest(ReverseTest):
    """Weights for delta of (Q, P) that integrate a part of the noise that all bins share.

    Args:
        covariance: of the rest, K - t^2.
        shared: t^2.
        epsilon: at which delta is asked for.
        eta: tilt, above 0; any choice is sound.

    Attributes:
        ceiling: W, never exceeded.

    Raises:
        InvalidParameter: t, epsilon or eta is beyond the limits of the protocol.
    """

    _lost = 2

    def __init__(self, covariance: BinCovariance, shared: float, epsilon: float, eta: float) -> None:
        self._spread = math.sqrt(shared)
        super().__init__(covariance, epsilon, eta)

    def _log_most(self, kbar: float, kappa: float) -> float:
        check_level(self.level)
        return log_shared_reverse_ceiling(kbar, kappa, self.level, self.eta, self._spread)

    def _of(self, log_l: np.ndarray, log_tilt: np.ndarray) -> np.ndarray:
        return shared_reverse_weights(log_l, log_tilt, self.level, self.eta, self._spread)


def drawn_reverse(covariance: BinCovariance, drift: np.ndarray, key: Key, chunk: int) -> tuple[np.ndarray, np.ndarray]:
    """Return mean_j X_j and log L of the samples of a chunk of the other direction, shape (4096,) each."""
    b = covariance.bins
    normals = normals_of(chunk_words(key, chunk, CHUNK * b)).reshape(CHUNK, b)
    normals += drift
    shifted = multiplied(covariance.factor, normals)
    return shifted.mean(axis=1), log_mixture(shifted, covariance.half_diagonal)


def forward_weights(log_l: np.ndarray, log_scale: np.ndarray, level: float, order: int) -> np.ndarray:
    """Return (L - T)_+ L^-m e^scale with T = e^level, shape of log L."""
    gap = np.expm1(np.minimum(level - log_l, 0.0))  # T / L - 1
    return -gap * np.exp((1 - order) * log_l + log_scale, where=gap < 0, out=np.zeros_like(gap))


def shared_weights(log_l: np.ndarray, log_scale: np.ndarray, level: float, order: int, spread: float) -> np.ndarray:
    """Return call(y) e^(-m y + scale) with y = log L0, raised where it is very small; shape of log L0."""
    y = raised(log_l, level, spread)
    return np.asarray(np.exp(log_call(y, level, spread) - order * y + log_scale))


def reverse_weights(log_l: np.ndarray, log_scale: np.ndarray, level: float) -> np.ndarray:
    """Return (1 - T L)_+ e^scale with T = e^level, shape of log L."""
    return -np.expm1(np.minimum(level + log_l, 0.0)) * np.exp(log_scale)


def shared_reverse_weights(
    log_l: np.ndarray, log_scale: np.ndarray, level: float, eta: float, spread: float
) -> np.ndarray:
    """Return put(y) e^scale with y = log L0, lowered where it is very large; shape of log L0."""
    y = -raised(-level - log_l, 0.0, spread) - level
    return np.asarray(np.exp(log_put(y, level, spread) + eta * (y - log_l) + log_scale))


def log_shared_reverse_ceiling(kbar: float, kappa: float, level: float, eta: float, spread: float) -> float:
    """Return the log of sup put(y) e^(eta y) times the tilt's constant; kbar and kappa are those of the rest."""
    return log_call_ceiling(0.0, spread, 1 + eta) + eta * (kbar / 2 - level) + eta**2 * kappa / 2


def log_reverse_ceiling(kbar: float, kappa: float, level: float, eta: float) -> float:
    """Return the log of sup (1 - T e^y) e^(eta y) times the tilt's constant: the ceiling of the other direction."""
    return eta * (kbar / 2 - level) + eta**2 * kappa / 2 + eta * math.log(eta) - (1 + eta) * math.log1p(eta)


def best_tilt(kbar: float, kappa: float, level: float) -> float:
    """Return the eta of the smallest ceiling, whose log is convex; its derivative is `slope`."""
    low, high = 1e-9, 1.0

    def slope(eta: float) -> float:
        return kbar / 2 - level + eta * kappa - math.log1p(1 / eta)

    while slope(high) < 0 and high < 1e6:
        high *= 2
    while high - low > 1e-6 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if slope(middle) < 0 else (low, middle)
    return high


def check_hopeful(log_ceiling: float, what: str, epsilon: float) -> None:
    """Refuse weights that no double holds.

    Raises:
        InvalidParameter: the ceiling is above e^300.
    """
    if not log_ceiling <= 300:
        raise InvalidParameter(
            f"{what} has a ceiling of e^{log_ceiling:.0f} at epsilon={epsilon:g}: no number of samples would tell "
            "anything; use a smaller one, or more noise",
            field="order",
        )


def chunk_words(key: Key, chunk: int, count: int) -> np.ndarray:
    """Return the first words of a chunk's Philox stream."""
    return np.random.Philox(key=np.array(key, dtype=np.uint64), counter=[0, 0, chunk, 0]).random_raw(count)


def normals_of(words: np.ndarray) -> np.ndarray:
    """Return a standard normal for each word."""
    from factorize.accounting.star_kernels import fill_middle, fill_outer

    out = np.empty(words.shape)
    places, tails = np.empty(_BLOCK, dtype=np.int64), np.empty(_BLOCK)
    for start in range(0, len(words), _BLOCK):
        some, there = words[start : start + _BLOCK], out[start : start + _BLOCK]
        count = fill_middle(some, there, places, tails)
        fill_outer(np.sqrt(-np.log(tails[:count])), places[:count], some, there)
    return out


def multiplied(factor: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return L times each row, in place where it can: shape (samples, b), L stored by columns."""
    from scipy.linalg.blas import dtrmm

    return dtrmm(1.0, factor, rows.T, lower=1, overwrite_b=1).T


def log_mixture(shifted: np.ndarray, half_diagonal: np.ndarray) -> np.ndarray:
    """Return log mean_j exp(X_j - K_jj / 2) of each row X; the rows are overwritten."""
    out = np.empty(len(shifted))
    for start in range(0, len(shifted), _ROWS):
        part = shifted[start : start + _ROWS]
        part -= half_diagonal
        top = part.max(axis=1)
        part -= top[:, None]
        np.exp(part, out=part)
        out[start : start + _ROWS] = top + np.log(part.mean(axis=1))
    return out


def check_ceiling(weights: np.ndarray, ceiling: float) -> np.ndarray:
    """Return the weights.

    Raises:
        CertificateError: one is above its ceiling, which is a theorem: a bug, or a damaged machine.
    """
    if not (weights <= ceiling * (1 + 1e-9)).all():
        raise CertificateError(
            f"a weight of {float(weights.max())!r} is above its proved ceiling {ceiling!r}; do not use this result"
        )
    return weights

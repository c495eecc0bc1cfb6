"""Bets against a claimed delta: the sampled test of claims about balls in bins, from its page (docs/notes/bins-1.md).

Weights w between 0 and W have the mean delta(sigma, epsilon) or more. Who claims a smaller delta loses the bet
prod (1 + lambda (delta - w_i)), which is never negative and does not grow on average under a false claim: it reaches
2^128 with probability at most 2^-128 (Ville). The weights and their bound are theorems 5 and 7 of
docs/notes/amplification-proofs.md. Numpy alone draws them, in chunks of 4096.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from factorize.errors import CertificateError, InvalidParameter
from factorize.exact.arithmetic.enclosures import SLACK, context, decimal
from factorize.exact.sampling.quantiles import normals
from factorize.exact.sampling.star import log_moment, log_row_means, square_down

CHUNK = 4096
NEEDED = 128 * math.log(2) + 1e-6
HOPELESS = -40.0
"""A bet that stands there is given up: to refuse is always sound."""
_GATHERED = 24  # largest order for which pairs of picks are looked up, and not counted
_TRIES = 16
_LEAST_SLACK, _LARGEST_SLACK = 2.0**-30, 2.0**-10
UNIT = 2.0**-53
"""What one operation on doubles rounds by, relatively."""


class Covariance(NamedTuple):
    """K = L L^T, at least G / s^2 entry by entry, its Cholesky factor L, and its largest diagonal entry."""

    kernel: np.ndarray
    factor: np.ndarray
    largest: float


class Stream(NamedTuple):
    """The words of one chunk of a key's stream."""

    key: tuple[int, int]
    chunk: int

    def words(self, count: int, lane: int = 0) -> np.ndarray:
        """Return the first words of a lane, whole numbers of 64 bits, shape (count,)."""
        counter = np.array([0, 0, self.chunk, lane], dtype=np.uint64)
        return np.random.Philox(key=np.array(self.key, dtype=np.uint64), counter=counter).random_raw(count)


class Weights(NamedTuple):
    """How a direction is sampled.

    Attributes:
        bound: W, rounded up; no weight is above it.
        draw: weights of a chunk, from its words, shape (chunk,).
        chunk: how many there are in one.
    """

    bound: Decimal
    draw: Callable[[Stream], np.ndarray]
    chunk: int = CHUNK


class BetOutcome(NamedTuple):
    """What a bet came to.

    Attributes:
        accepted: whether it reached what is needed.
        log_wealth: logarithm of the product, after the last chunk.
        samples: weights that were drawn.
        mean: their mean, an estimate of delta.
    """

    accepted: bool
    log_wealth: float
    samples: int
    mean: float


def covariance(gram: np.ndarray, scale: float, shared: float = 0.0) -> Covariance:
    """Return a covariance that is at least G / s^2, or that less t^2.

    Args:
        gram: G rounded up, shape (bins, bins).
        scale: s, rounded down.
        shared: t^2, the variance of a part that all bins share and that is left out.

    Raises:
        InvalidParameter: no such covariance is found in doubles.
    """
    bins = len(gram)
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        least = np.nextafter(gram / square_down(scale) * (1 + 8 * UNIT), np.inf)
    if not (np.isfinite(least).all() and least.max() < 1e8):
        raise InvalidParameter(f"sigma gives the unit noise {scale!r}, so small that nothing is private", field="sigma")
    rest, tau = least - shared, 64 * UNIT * bins * float(least.max())
    for _ in range(_TRIES):
        try:
            factor = np.linalg.cholesky(rest + tau * (1 + np.eye(bins)))
        except np.linalg.LinAlgError:
            tau *= 4
            continue
        whole = factor @ factor.T
        kernel = np.maximum(whole, whole.T)
        if (kernel >= rest + tau / 2).all():  # far above what the product has lost: (b + 2) units of the largest
            return Covariance(kernel, factor, float(np.diagonal(kernel).max()))
        tau *= 4
    raise InvalidParameter("the Gram matrix of the bins has no Cholesky factor in doubles; take fewer bins")


def slack(covariance: Covariance, order: float) -> float:
    """Return S, which covers what doubles lose of a weight.

    Raises:
        InvalidParameter: above 2^-10.
    """
    lost, found = _lost(covariance, order), _LEAST_SLACK
    while found < lost:
        found *= 2
    if found > _LARGEST_SLACK:
        raise InvalidParameter(f"doubles lose {found:.3g} of a weight's logarithm, more than {_LARGEST_SLACK:.3g}")
    return found


def _lost(covariance: Covariance, order: float) -> float:
    """What doubles lose of a weight's logarithm at most."""
    bins, most = len(covariance.kernel), covariance.largest
    drawn = math.sqrt(most) * (math.sqrt(bins) + 15) + 2 * order * most + 1
    return 8 * UNIT * (bins + order + 16) * ((order + 1) * drawn + order * order * most)


def removal(covariance: Covariance, epsilon: float, order: int) -> Weights:
    """Weights whose mean is delta where the example's contributions are taken out (theorem 5).

    Args:
        covariance: K.
        epsilon: of the claim.
        order: m, at least 2.
    """
    kernel, bins = covariance.kernel, len(covariance.kernel)
    lost = slack(covariance, order)
    near = epsilon - lost
    moment = log_moment(kernel, order)
    with localcontext(context()):
        m, less = Decimal(order), Decimal(order - 1)
        ceiling = moment + less * (less.ln() - decimal(epsilon) + decimal(lost)) - m * m.ln() + SLACK
        extra = ceiling.exp() * order * bins * decimal((bins + 4 + order * covariance.largest) * (4 * UNIT))
        bound = (ceiling + 2 * decimal(lost)).exp() + extra * (1 + SLACK)
    tables = tables_of(kernel, order)
    log_moment_up, added = float(moment), float(extra)

    def draw(stream: Stream) -> np.ndarray:
        ratio, exponent = star_samples(covariance, tables, order, stream)
        found = (1 - order) * ratio + log_moment_up + exponent + 2 * lost
        above = np.maximum(ratio - near, 0.0)
        return np.asarray(np.exp(found) * -np.expm1(-above) + added)

    return Weights(bound, draw)


def star_samples(
    covariance: Covariance, tables: tuple[np.ndarray, np.ndarray], order: int, stream: Stream
) -> tuple[np.ndarray, np.ndarray]:
    """Return log L and mean A - log mean exp A of a chunk of the star sampler, shape (CHUNK,) each.

    Args:
        covariance: K.
        tables: of K and m, from `tables_of`.
        order: m.
        stream: of the chunk.
    """
    bins = len(covariance.kernel)
    words = stream.words(CHUNK * (order + bins))
    picks, chances = star_picks(covariance, tables, uniforms(words[: CHUNK * order]).reshape(CHUNK, order))
    return star_ratios(covariance, picks, words[CHUNK * order :]), chances


def uniforms(words: np.ndarray) -> np.ndarray:
    """Return multiples of 2^-53 in [0, 1), shape of the words."""
    return np.asarray((words >> np.uint64(11)).astype(np.float64) * 2.0**-53)


def star_picks(
    covariance: Covariance, tables: tuple[np.ndarray, np.ndarray], drawn: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the picks of each sample, shape (samples, order), and mean A - log mean exp A, shape (samples,).

    Args:
        covariance: K.
        tables: of K and m, from `tables_of`.
        drawn: uniform, shape (samples, order).
    """
    picks = _picks(drawn, *tables)
    exponents = _exponents(covariance.kernel, picks)
    return picks, np.asarray(exponents.mean(axis=1) - _log_mean_exp(exponents))


def star_ratios(covariance: Covariance, picks: np.ndarray, words: np.ndarray) -> np.ndarray:
    """Return log L of samples with these picks, shape (samples,), from the words of their normals, row by row."""
    shift = covariance.factor[picks[:, 0]]
    for i in range(1, picks.shape[1]):
        shift = shift + covariance.factor[picks[:, i]]
    drawn = normals(words).reshape(shift.shape)
    return log_ratio((drawn + shift) @ covariance.factor.T, covariance.kernel)


def addition(covariance: Covariance, epsilon: float, eta: float) -> Weights:
    """Weights whose mean is delta where the example's contributions are put in (theorem 7).

    Args:
        covariance: K.
        epsilon: of the claim.
        eta: how far the normals are moved, above 0.
    """
    kernel, bins = covariance.kernel, len(covariance.kernel)
    lost = slack(covariance, 2 + eta)
    near = epsilon - lost
    diagonal, whole = means_of(kernel)
    with localcontext(context()):
        x = decimal(eta)
        grown = x * decimal(diagonal) / 2 + x * x * decimal(whole) / 2
        least = x * x.ln() - (1 + x) * (1 + x).ln() - x * decimal(epsilon) + x * decimal(lost)
        bound = (least + grown + 2 * decimal(lost) + SLACK).exp()
    moved = -(eta / bins) * covariance.factor.sum(axis=0)
    constant = float(eta * eta * whole / 2) + 2 * lost

    def draw(stream: Stream) -> np.ndarray:
        x = (normals(stream.words(CHUNK * bins)).reshape(CHUNK, bins) + moved) @ covariance.factor.T
        below = np.minimum(near + log_ratio(x, kernel), 0.0)
        return np.asarray(-np.expm1(below) * np.exp(eta * x.mean(axis=1) + constant))

    return Weights(bound, draw)


def means_of(kernel: np.ndarray) -> tuple[Fraction, Fraction]:
    """Return the mean of the diagonal of K, and that of all of K rounded up, whatever the signs of its entries."""
    bins = len(kernel)
    diagonal = sum(map(Fraction, np.diagonal(kernel).tolist()), Fraction(0)) / bins
    whole = Fraction(float(kernel.sum(axis=1).sum())) / bins**2
    return diagonal, whole + Fraction(float(np.abs(kernel).mean())) / 2**44


def tables_of(kernel: np.ndarray, order: int) -> tuple[np.ndarray, np.ndarray]:
    """Cumulative probabilities of the centre, shape (bins,), and of a pick for each centre, shape (bins, bins)."""
    rows = [float((order - 1) * row) for row in log_row_means(kernel, order)]
    centres = np.exp(np.array(rows) - max(rows))
    exponents = 0.5 * order * kernel
    others = np.exp(exponents - exponents.max(axis=1)[:, None])
    return np.cumsum(centres / centres.sum()), np.cumsum(others / others.sum(axis=1)[:, None], axis=1)


def _picks(uniforms: np.ndarray, centres: np.ndarray, others: np.ndarray) -> np.ndarray:
    """The centre and the other picks of each sample, shape (samples, order)."""
    most = len(centres) - 1
    chosen = np.minimum(np.searchsorted(centres, uniforms[:, 0], side="right"), most)
    found = np.repeat(chosen[:, None], uniforms.shape[1], axis=1)
    by_centre = np.argsort(chosen, kind="stable")
    starts = np.flatnonzero(np.diff(chosen[by_centre])) + 1
    for rows in np.split(by_centre, starts):
        table = others[chosen[rows[0]]]
        found[rows, 1:] = np.minimum(np.searchsorted(table, uniforms[rows, 1:], side="right"), most)
    return found


def _exponents(kernel: np.ndarray, picks: np.ndarray) -> np.ndarray:
    """A_i = (m / 2) sum over the other picks of K, shape (samples, order)."""
    order, diagonal = picks.shape[1], np.diagonal(kernel)
    if order <= _GATHERED:
        sums = kernel[picks[:, :, None], picks[:, None, :]].sum(axis=2)
    else:
        bins = len(kernel)
        places = (np.arange(len(picks))[:, None] * bins + picks).ravel()
        counts = np.bincount(places, minlength=len(picks) * bins).reshape(len(picks), bins)
        sums = np.take_along_axis(counts @ kernel, picks, axis=1)
    return np.asarray(0.5 * order * (sums - diagonal[picks]))


def log_ratio(x: np.ndarray, kernel: np.ndarray) -> np.ndarray:
    """Return log L = log mean_j exp(X_j - K_jj / 2), shape (samples,)."""
    return _log_mean_exp(x - 0.5 * np.diagonal(kernel))


def _log_mean_exp(values: np.ndarray) -> np.ndarray:
    most = values.max(axis=1)
    return np.asarray(most + np.log(np.exp(values - most[:, None]).mean(axis=1)))


def bet(weights: Weights, delta: float, rate: float, key: tuple[int, int], chunks: int) -> BetOutcome:
    """Bet against delta until the wealth is 2^128 or hopeless, or the chunks are used up.

    Args:
        weights: of the direction.
        delta: claimed.
        rate: lambda of the claim; the caller has checked that lambda (W - delta) < 1.
        key: of the stream.
        chunks: how many are drawn at most.

    Raises:
        CertificateError: a weight is not between 0 and W, which is a theorem: a fault of this program or machine.
    """
    wealth, total, drawn = 0.0, 0.0, 0
    with localcontext(context()):
        most = float(weights.bound * (1 + Decimal(10) ** -9))
    for chunk in range(chunks):
        found = weights.draw(Stream(key, chunk))
        if not (np.isfinite(found).all() and found.min() >= 0 and found.max() <= most):
            raise CertificateError(
                f"a weight of {found.max()!r} is not between 0 and its proven bound {most!r}: a fault of this checker"
            )
        wealth += float(np.log1p(rate * (delta - found)).sum())
        total += float(found.sum())
        drawn += len(found)
        if not HOPELESS <= wealth < NEEDED:
            break
    return BetOutcome(wealth >= NEEDED, wealth, drawn, total / max(drawn, 1))

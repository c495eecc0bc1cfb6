"""An approximate inverse of the second derivative of the banded loss, O(n bands log n).

For a change D of X, symmetric with zero diagonal, the second derivative is 2 tr(W D S D), S = X^-1, W = S T^T T S:

    H[(i,j), (k,l)] = 2 (W_ik S_jl + W_jl S_ik + W_il S_jk + W_jk S_il)                      (i > j, k > l)

Three things make it ill-conditioned, and each has a remedy.

1. Its diagonal varies along the steps: divide by it.
2. At the optimum W vanishes in the band and jumps up at distance `bands` = b, and so does S: both have a comb of
   entries at multiples of b, falling like a power. They couple (i, j) to (j + b, i), that to (i + b, j + b), and so on:
   chains whose correlations decay like those of a Markov chain, whose inverse is tridiagonal. Hence one step of
   x_next - r x along each chain, r the correlation of neighbours. Without it the number of steps grows with n / b.
3. What is left is smooth on the scale of b: a change of frequency theta along the lag i - j and omega along the centre
   (i + j) / 2 has the symbol w(theta + omega/2) s(theta - omega/2) + w(theta - omega/2) s(theta + omega/2), with w and
   s the spectra of W and S tapered at distance b. Sines in the lag, which vanish at lags 0 and b, and cosines in the
   centre diagonalise it. Without it the number of steps grows with b.

We know of no publication of the second point.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from factorize.solvers.methods.compiled import Array

_MAX_CORRELATION = 0.98
_GRID_POINTS = 16  # points of a spectrum per band
_MAX_MULTIPLIED_ROWS = 31  # a sine transform of up to this many rows is a product with a matrix
_MIN_SYMBOL = 1e-3
"""The symbol's least part of its mean; a tapered spectrum is positive, so that only rounding could come near."""


@dataclass(frozen=True)
class Preconditioner:
    """The approximate inverse at one X.

    Attributes:
        own: factor of each entry in the whitened change, zero past the end of each band, shape (bands - 1, n).
        link: factor of each entry in the one after it on its chain, zero without one, shape (bands - 1, n).
        symbol: the symbol by frequency of lag and centre, shape (bands - 1, n).
    """

    own: Array
    link: Array
    symbol: Array

    @classmethod
    def at(cls, w: Array, w_offsets: Array, s: Array, s_offsets: Array, bands: int) -> Preconditioner:
        """Return the approximate inverse at an X.

        Args:
            w: diagonal of W, shape (n,).
            w_offsets: entries below it, shape (b - 1, n) with b = bands + 1 (or n, if bands = n).
            s: diagonal of X^-1.
            s_offsets: entries below it.
            bands: number of diagonals of C.
        """
        n = len(w)
        own, link = _chains(w, w_offsets, s, s_offsets, bands)
        return cls(own, link, _symbol(_spectrum(w, w_offsets, bands), _spectrum(s, s_offsets, bands), n))

    def apply(self, gradient: Array) -> Array:
        """Return about H^-1 times a gradient, shape (bands - 1, n), up to a constant factor."""
        from scipy.fft import dct, idct

        y = _sines(dct(self._whiten(gradient), norm="ortho", overwrite_x=True))
        y /= self.symbol
        return self._whiten_back(idct(_sines(y), norm="ortho", overwrite_x=True))

    def _whiten(self, x: Array) -> Array:
        """Whiten x, and move each band to the middle between its entries' rows and columns, up to half a step."""
        (lags, n), y = x.shape, np.zeros_like(x)
        scaled, linked = self.own * x, self.link * x
        for d in range(1, lags + 1):
            shift, before = d // 2, lags + 1 - d
            y[d - 1, shift : shift + n - d] = scaled[d - 1, : n - d]
            y[d - 1, before + shift : n - d + shift] -= linked[before - 1, : n - lags - 1]
        return y

    def _whiten_back(self, y: Array) -> Array:
        """Apply the transpose of `_whiten`."""
        (lags, n), x = y.shape, np.zeros_like(y)
        for d in range(1, lags + 1):
            shift, after = d // 2, lags + 1 - d
            x[d - 1, : n - d] = self.own[d - 1, : n - d] * y[d - 1, shift : shift + n - d]
            there = y[after - 1, d + after // 2 : n - after + after // 2]
            x[d - 1, : n - lags - 1] -= self.link[d - 1, : n - lags - 1] * there
        return x


def _sines(x: Array) -> Array:
    """Return the orthogonal sine transform along the first axis, its own inverse; O(bands^2 n) while that is faster."""
    if len(x) > _MAX_MULTIPLIED_ROWS:
        from scipy.fft import dst

        return np.asarray(dst(x, type=1, axis=0, norm="ortho", overwrite_x=True))
    numbers = np.arange(1, len(x) + 1)
    waves = np.sin(np.pi * np.outer(numbers, numbers) / (len(x) + 1))
    return np.asarray(np.sqrt(2.0 / (len(x) + 1)) * waves @ x)


def _symbol(w: Array, s: Array, n: int) -> Array:
    """Return the symbol from spectra on an even grid over [0, pi], divided by its mean."""
    lags, last = len(w) // _GRID_POINTS - 1, len(w) - 1
    grid, theta = np.arange(len(w)), last * np.arange(1, lags + 1)[:, None] / (lags + 1)
    half = last * np.arange(n) / (2 * n)
    above, below = last - np.abs(theta + half - last), np.abs(theta - half)
    symbol = np.interp(above, grid, w) * np.interp(below, grid, s)
    symbol += np.interp(below, grid, w) * np.interp(above, grid, s)
    middle = symbol.mean()
    return np.asarray(np.maximum(symbol, _MIN_SYMBOL * middle) / middle)


def _spectrum(diagonal: Array, offsets: Array, bands: int) -> Array:
    """Return sum_l (1 - |l| / bands) mean_j(r_{j+l, j}) cos(l theta), r the correlations of A: never negative.

    Args:
        diagonal: diagonal of A, positive but for steps that move nothing, shape (n,).
        offsets: A[j + d, j] at [d - 1, j].
        bands: the distance at which the taper ends.

    Returns:
        Values at theta = pi i / (16 bands), shape (16 bands + 1,).
    """
    from scipy.fft import dct

    n = len(diagonal)
    scale = np.where(diagonal > 0, diagonal, 1.0) ** -0.5
    scaled, terms = offsets[: bands - 1] * scale, np.zeros(_GRID_POINTS * bands + 1)
    terms[0] = 1.0
    for d in range(1, bands):
        terms[d] = scaled[d - 1, : n - d] @ scale[d:] / n * (1.0 - d / bands)
    return np.asarray(dct(terms, type=1))


def _chains(w: Array, w_offsets: Array, s: Array, s_offsets: Array, b: int) -> tuple[Array, Array]:
    """Return the factors of both whitenings: by the diagonal, and (x_next - r x) / sqrt(1 - r^2) along chains."""
    n, moves = len(w), w > 0.0  # a step that moves nothing leaves its entries zero
    own, link = np.zeros((b - 1, n)), np.zeros((b - 1, n))
    for d in range(1, b):
        square = w[d:] * s[:-d] + w[:-d] * s[d:] + 2.0 * w_offsets[d - 1, :-d] * s_offsets[d - 1, :-d]
        own[d - 1, :-d] = np.sqrt(1.0 / square, out=np.zeros(n - d), where=moves[d:] & moves[:-d])
    if n == b:
        return own, link
    first = slice(n - b)
    for d in range(1, b):
        i = slice(d, n - b + d)
        r = w[i] * s_offsets[b - 1, first] + w_offsets[b - 1, first] * s[i]
        r += w_offsets[b - d - 1, i] * s_offsets[d - 1, first] + w_offsets[d - 1, first] * s_offsets[b - d - 1, i]
        r *= own[d - 1, first] * own[b - d - 1, i]
        link[d - 1, first] = np.clip(r, -_MAX_CORRELATION, _MAX_CORRELATION)
    rest = 1.0 / np.sqrt(1.0 - link * link)
    link *= rest * own
    for d in range(1, b):
        own[b - d - 1, d : n - b + d] *= rest[d - 1, first]
    return own, link

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
from numpy.typing import NDArray

from factorize.solvers.methods.compiled import compiled

Array = NDArray[np.float64]

_LARGEST_CORRELATION = 0.98
_GRID = 16  # points of a spectrum per band
_MOST_MULTIPLIED = 31  # rows up to which a sine transform is a product with a matrix
_LEAST_SYMBOL = 1e-3  # of its mean; a tapered spectrum is positive, so that only rounding could come near


@dataclass(frozen=True)
class Preconditioner:
    """The approximate inverse at one X.

    Attributes:
        own: factor of each entry in the whitened change, zero past the end of each band, shape (bands - 1, n).
        link: factor of each entry in the one after it on its chain, zero without one, shape (bands - 1, n).
        symbol: by frequency of lag and centre, shape (bands - 1, n).
    """

    own: Array
    link: Array
    symbol: Array

    @classmethod
    def at(
        cls,
        w: Array,
        w_offsets: Array,
        s: Array,
        s_offsets: Array,
        bands: int,
    ) -> Preconditioner:
        """Build it.

        Args:
            w: diagonal of W, shape (n,).
            w_offsets: entries below it, shape (b - 1, n) with b = bands + 1 (or n, if bands = n).
            s: diagonal of X^-1.
            s_offsets: entries below it.
            bands: number of diagonals of C.
        """
        n = len(w)
        own, link = np.zeros((bands - 1, n)), np.zeros((bands - 1, n))
        _chains(w, w_offsets, s, s_offsets, own, link)
        return cls(own, link, _symbol(_spectrum(w, w_offsets, bands), _spectrum(s, s_offsets, bands), n))

    def apply(self, gradient: Array) -> Array:
        """Return about H^-1 times a gradient, shape (bands - 1, n), up to a constant factor."""
        from scipy.fft import dct, idct

        x, y = np.zeros_like(gradient), np.zeros_like(gradient)
        _whiten(self.own, self.link, gradient, y)
        y = _sines(dct(y, norm="ortho", overwrite_x=True))
        y /= self.symbol
        y = idct(_sines(y), norm="ortho", overwrite_x=True)
        _whiten_back(self.own, self.link, y, x)
        return x


def _sines(x: Array) -> Array:
    """Return the orthogonal sine transform along the first axis, its own inverse; O(bands^2 n) while that is faster."""
    if len(x) > _MOST_MULTIPLIED:
        from scipy.fft import dst

        return np.asarray(dst(x, type=1, axis=0, norm="ortho", overwrite_x=True))
    out = np.zeros_like(x)
    _multiply_sines(x, out)
    return out


@compiled
def _multiply_sines(x: Array, out: Array) -> None:
    lags, n = x.shape
    scale = np.sqrt(2.0 / (lags + 1))
    for k in range(lags):
        target = out[k]
        for d in range(lags):
            wave, source = scale * np.sin(np.pi * ((k + 1) * (d + 1)) / (lags + 1)), x[d]
            for j in range(n):
                target[j] += wave * source[j]


def _symbol(w: Array, s: Array, n: int) -> Array:
    """Return the symbol from spectra on an even grid over [0, pi], divided by its mean."""
    symbol = np.empty((len(w) // _GRID - 1, n))
    middle = _add_products(w, s, symbol)
    return np.maximum(symbol, _LEAST_SYMBOL * middle) / middle


def _spectrum(diagonal: Array, offsets: Array, bands: int) -> Array:
    """Return sum_l (1 - |l| / bands) mean_j(r_{j+l, j}) cos(l theta), r the correlations of A: never negative.

    Args:
        diagonal: of A, positive but for steps that move nothing, shape (n,).
        offsets: A[j + d, j] at [d - 1, j].
        bands: where the taper ends.

    Returns:
        Values at theta = pi i / (16 bands), shape (16 bands + 1,).
    """
    spectrum = np.empty(_GRID * bands + 1)
    _tapered(np.where(diagonal > 0, diagonal, 1.0) ** -0.5, offsets, bands, spectrum)
    return spectrum


@compiled
def _tapered(scale: Array, offsets: Array, bands: int, spectrum: Array) -> None:
    """Sum the cosines by Clenshaw's recurrence."""
    n, last = scale.size, spectrum.size - 1
    terms = np.zeros(bands)
    for d in range(1, bands):
        total = 0.0
        for j in range(n - d):
            total += offsets[d - 1, j] * scale[j] * scale[j + d]
        terms[d] = 2.0 * total / n * (1.0 - d / bands)
    for i in range(last + 1):
        cosine = np.cos(np.pi * i / last)
        one, two = 0.0, 0.0
        for d in range(bands - 1, 0, -1):
            one, two = terms[d] + 2.0 * cosine * one - two, one
        spectrum[i] = 1.0 + cosine * one - two


@compiled
def _add_products(w: Array, s: Array, symbol: Array) -> float:
    """Write w(above) s(below) + w(below) s(above), each between grid points; return the mean."""
    lags, n = symbol.shape
    last = w.size - 1
    total = 0.0
    for d in range(lags):
        for j in range(n):
            above = last * ((d + 1.0) / (lags + 1) + j / (2.0 * n))
            below = abs(last * ((d + 1.0) / (lags + 1) - j / (2.0 * n)))
            above = min(above, 2.0 * last - above)
            up, down = min(int(above), last - 1), min(int(below), last - 1)
            x, y = above - up, below - down
            w_up, s_up = w[up] + x * (w[up + 1] - w[up]), s[up] + x * (s[up + 1] - s[up])
            w_down, s_down = w[down] + y * (w[down + 1] - w[down]), s[down] + y * (s[down + 1] - s[down])
            symbol[d, j] = w_up * s_down + w_down * s_up
            total += symbol[d, j]
    return total / (lags * n)


@compiled
def _chains(w: Array, w_offsets: Array, s: Array, s_offsets: Array, own: Array, link: Array) -> None:
    """Write the factors of both whitenings: by the diagonal, and (x_next - r x) / sqrt(1 - r^2) along chains."""
    lags, n = own.shape
    b = lags + 1
    for d in range(1, b):
        for j in range(n - d):
            i = j + d
            square = w[i] * s[j] + w[j] * s[i] + 2.0 * w_offsets[d - 1, j] * s_offsets[d - 1, j]
            if w[i] > 0.0 and w[j] > 0.0:  # else a step that moves nothing, whose entries stay zero
                own[d - 1, j] = 1.0 / np.sqrt(square)
    for d in range(1, b):
        for j in range(n - b):
            i = j + d
            r = w[i] * s_offsets[b - 1, j] + w_offsets[b - 1, j] * s[i]
            r += w_offsets[b - d - 1, i] * s_offsets[d - 1, j] + w_offsets[d - 1, j] * s_offsets[b - d - 1, i]
            link[d - 1, j] = r
    for d in range(1, b):
        for j in range(n - b):
            r = link[d - 1, j] * own[d - 1, j] * own[b - d - 1, j + d]
            link[d - 1, j] = min(max(r, -_LARGEST_CORRELATION), _LARGEST_CORRELATION)
    scale = own.copy()
    for d in range(1, b):
        for j in range(n - b):
            rest = 1.0 / np.sqrt(1.0 - link[d - 1, j] * link[d - 1, j])
            link[d - 1, j] *= rest * scale[d - 1, j]
            own[b - d - 1, j + d] *= rest


@compiled
def _whiten(own: Array, link: Array, x: Array, y: Array) -> None:
    """Whiten x, and move each band to the middle between its entries' rows and columns, up to half a step."""
    lags, n = x.shape
    b = lags + 1
    for d in range(1, b):
        shift = d // 2
        for j in range(n - d):
            y[d - 1, j + shift] = own[d - 1, j] * x[d - 1, j]
        before = b - d
        for j in range(n - b):
            y[d - 1, j + before + shift] -= link[before - 1, j] * x[before - 1, j]


@compiled
def _whiten_back(own: Array, link: Array, y: Array, x: Array) -> None:
    """The transpose of `_whiten`."""
    lags, n = x.shape
    b = lags + 1
    for d in range(1, b):
        for j in range(n - d):
            x[d - 1, j] = own[d - 1, j] * y[d - 1, j + d // 2]
        after = b - d
        for j in range(n - b):
            x[d - 1, j] -= link[d - 1, j] * y[after - 1, j + d + after // 2]

"""Transforms of power series modulo x^n: products, reciprocals and square roots by real FFTs."""

import numpy as np
from numpy.typing import NDArray

from factorize.solvers.methods.compiled import Array

_DIRECT_TERMS = 64  # the recursion computes this many terms of the inverse before Newton's iteration takes over


class Transforms:
    """Products of series modulo x^n, along the last axis, by real FFTs of one length.

    Args:
        n: number of coefficients.
    """

    def __init__(self, n: int) -> None:
        self.n = n
        from scipy.fft import next_fast_len

        self.size = next_fast_len(2 * n, real=True)

    def forward(self, series: Array) -> NDArray[np.complex128]:
        """Return the transform, padded with zeros."""
        from scipy.fft import rfft

        return rfft(series, self.size)

    def back(self, spectrum: NDArray[np.complex128]) -> Array:
        """Return the first n coefficients."""
        from scipy.fft import irfft

        return irfft(spectrum, self.size)[..., : self.n]

    def product(self, a: Array, b: Array) -> Array:
        """Return a b modulo x^n."""
        return self.back(self.forward(a) * self.forward(b))

    def correlate(self, a: Array, b: Array) -> Array:
        """Return sum_i a_i b_{i-k} for k = 0..n-1: the transposed product."""
        return self.back(self.forward(a) * self.forward(b).conj())


def reciprocal(series: Array, n: int) -> Array:
    """Return 1 / series modulo x^n, shape (n,), by Newton's iteration.

    A step from m to 2m terms wraps the known part of each product around, so FFTs of length 2m suffice. The error is
    about 1e-15 of the largest coefficient: enough to optimise, not to certify.

    Args:
        series: shape (bands,), first entry non-zero.
        n: number of terms.
    """
    from scipy.fft import irfft, next_fast_len, rfft

    sizes = [n]
    while sizes[-1] > _DIRECT_TERMS:
        sizes.append(-(-sizes[-1] // 2))
    padded = np.zeros(n)
    padded[: min(n, len(series))] = series[:n]
    inverse = _recursion(padded[: sizes[-1]])
    for size in reversed(sizes[:-1]):
        length, known = next_fast_len(size, real=True), len(inverse)
        spectrum = rfft(inverse, length)
        defect = irfft(rfft(padded[:size], length) * spectrum, length)[known:size]
        inverse = np.concatenate([inverse, -irfft(rfft(defect, length) * spectrum, length)[: size - known]])
    return inverse


def _recursion(series: Array) -> Array:
    inverse = np.zeros(len(series))
    inverse[0] = 1.0 / series[0]
    for t in range(1, len(series)):
        inverse[t] = -(series[1 : t + 1] @ inverse[t - 1 :: -1]) / series[0]
    return inverse


def square_root(series: Array) -> Array:
    """Return the square root of a series modulo x^n, first coefficient positive, shape (n,).

    It is a r, with r = 1/sqrt(a) from Newton's iteration r <- r (3 - a r^2) / 2.
    """
    n = len(series)
    root = np.array([1.0 / np.sqrt(series[0])])
    while len(root) < n:
        size = min(2 * len(root), n)
        fft = Transforms(size)
        padded = np.concatenate([root, np.zeros(size - len(root))])
        spectrum = fft.forward(padded)
        square = fft.back(spectrum**2)
        defect = fft.product(square, series[:size])
        root = 1.5 * padded - 0.5 * fft.back(spectrum * fft.forward(defect))
    return Transforms(n).product(series, root)

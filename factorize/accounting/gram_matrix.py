"""The Gram matrix of the bins: all that balls-in-bins accounting needs to know of C.

G_jl = <m_j, m_l>, with m_j the sum of the columns of |C| over the steps of bin j, rounded up. What the run gives away
is at most what a mixture of Gaussians with these shifts does, whatever n, the dimension and the signs are; and it does
not improve as an entry of G grows, so that every rounding here goes upwards.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from factorize.accounting.column_sums import column_sums, comb_sums
from factorize.errors import CertificateError, InvalidParameter, TooLarge
from factorize.numbers.rounding import UNIT, square_root_up
from factorize.structures.base import Matrix
from factorize.structures.endless import AnyStrategy

LARGEST_BINS = 4096
"""Bins above it: b^2 doubles and b^2 exponentials per evaluation stop being cheap."""

_BLOCK = 4096  # terms of one sum, at most
_TINY = 1e-300  # covers products that underflow
_LOST = 2.0**-50
_INFLATIONS = 16
_SPARED = 2.0**-10  # of the shared part: what is left stays a covariance in doubles

LARGEST_SLACK = 2.0**-10
"""Of what doubles lose in a weight; above it no weight means anything."""


@dataclass(frozen=True, eq=False)
class BinGram:
    """The Gram matrix of a strategy's bins, from above.

    Attributes:
        gram: G, shape (b, b), symmetric, each entry at least the true one.
        steps: n.
        slack: relative amount by which an entry may be above that of the column sums it is made of.
        signed: whether |C| is not C, so that the answer may be larger than it has to be.
    """

    gram: np.ndarray
    steps: int
    slack: float
    signed: bool

    @property
    def bins(self) -> int:
        """B."""
        return len(self.gram)

    @property
    def epochs(self) -> int:
        """Steps of the first bin, the largest: ceil(n / b)."""
        return -(-self.steps // self.bins)

    @cached_property
    def sensitivity(self) -> float:
        """Without amplification: max_j sqrt(G_jj), rounded up."""
        return square_root_up(float(self.gram.diagonal().max()))

    @cached_property
    def digest(self) -> str:
        """`sha256:` of the little-endian doubles."""
        return "sha256:" + hashlib.sha256(np.ascontiguousarray(self.gram, dtype="<f8").tobytes()).hexdigest()


def bin_gram(matrix: AnyStrategy, bins: int) -> BinGram:
    """Return the Gram matrix of the bins of C.

    Args:
        matrix: C, lower-triangular, of any structure with an end.
        bins: b, from 1 to n; bin j holds the steps j, j + b, ... and the last epoch may be short.

    Raises:
        InvalidParameter: bins outside 1 to n, or a C without end.
        TooLarge: more than 4096 bins, or a C whose entries cannot be enclosed at this n.
        CertificateError: doubles do not enclose C.
    """
    if matrix.side is None:
        raise InvalidParameter(
            "a C without end has no bins of known size; solve for a finite n, or calibrate without sampling",
            field="sampling",
        )
    matrix = matrix.finite()
    check_bins(bins, matrix.n)
    comb = comb_sums(matrix, bins)
    gram, terms = _of_blocks(matrix, bins) if comb is None else _of_comb(comb, bins)
    slack = 2 * (terms + 8) * UNIT
    raised = np.maximum(gram, gram.T) * (1 + slack / 2) + _TINY
    if not np.isfinite(raised).all() or not raised.diagonal().min() > 0:
        raise CertificateError("the sums of the columns of |C| leave double precision; scale C, which changes no loss")
    raised.setflags(write=False)
    return BinGram(raised, matrix.n, slack, matrix.signed)


def check_bins(bins: int, steps: int) -> int:
    """Return the number of bins.

    Raises:
        InvalidParameter: it is no integer from 1 to n.
        TooLarge: it is above 4096.
    """
    if isinstance(bins, bool) or not isinstance(bins, (int, np.integer)) or not 1 <= bins <= steps:
        raise InvalidParameter(
            f"bins={bins!r} is not an integer from 1 to n={steps}; an epoch of the run has that many steps",
            field="bins",
        )
    if bins > LARGEST_BINS:
        raise TooLarge(
            f"bins={bins} is above the limit {LARGEST_BINS}: an evaluation takes b^2 exponentials; use fewer, larger "
            "batches",
            field="bins",
        )
    return int(bins)


def _of_comb(comb: np.ndarray, bins: int) -> tuple[np.ndarray, int]:
    from factorize.accounting.bin_kernels import lag_sums

    gram = np.empty((bins, bins))
    lag_sums(comb, bins, gram)
    return gram, _BLOCK + len(comb) // _BLOCK + bins


def _of_blocks(matrix: Matrix, bins: int) -> tuple[np.ndarray, int]:
    gram, parts = np.zeros((bins, bins)), 0
    for block in column_sums(matrix, bins):
        for start in range(0, len(block), _BLOCK):
            rows = block[start : start + _BLOCK]
            gram += rows.T @ rows
            parts += 1
    return gram, _BLOCK + parts


@dataclass(frozen=True, eq=False)
class BinCovariance:
    """The covariance that is sampled, entrywise at least G / s^2, or that less a part that all bins share.

    Attributes:
        matrix: K = L L^T, shape (b, b).
        factor: L, lower-triangular.
    """

    matrix: np.ndarray
    factor: np.ndarray

    @property
    def bins(self) -> int:
        """B."""
        return len(self.matrix)

    @cached_property
    def largest(self) -> float:
        """Largest entry, which is on the diagonal."""
        return float(self.matrix.diagonal().max())

    @cached_property
    def half_diagonal(self) -> np.ndarray:
        """K_jj / 2, shape (b,)."""
        return self.matrix.diagonal() / 2

    def slack(self, order: float) -> float:
        """Return S: what doubles lose in log L and in the exponents of a sample, as a power of two.

        Raises:
            InvalidParameter: it is above 2^-10, so that no weight would mean anything.
        """
        b, m, kmax = self.bins, order, self.largest
        drift = math.sqrt(kmax) * (math.sqrt(b) + 15) + 2 * m * kmax + 1
        lost = _LOST * (b + m + 16) * ((m + 1) * drift + m * m * kmax)
        slack = 2.0 ** max(-30, math.ceil(math.log2(lost)))
        if slack > LARGEST_SLACK:
            raise InvalidParameter(
                f"order m={m:g} with b={b} bins and K up to {kmax:.3g} loses {lost:.2g} in doubles, above 2^-10; "
                "use more noise, or the bound without sampling",
                field="order",
            )
        return slack


def bin_covariance(gram: np.ndarray, multiplier: float, shared: float = 0.0) -> BinCovariance:
    """Return a covariance that is what its factor says, and entrywise at least G / s^2 less a part that all bins share.

    K0 + tau (1 1^T + I) covers what the Cholesky factor is off by; more of a covariance is never less delta
    (corollary 1).

    Args:
        gram: G, shape (b, b).
        multiplier: s.
        shared: t^2, the variance of the part that is left out of every entry.

    Raises:
        CertificateError: no inflation makes the factorization succeed.
    """
    base = gram / (multiplier * multiplier) * (1 + _LOST)
    tau = 2.0**-47 * len(gram) * float(base.max())
    for _ in range(_INFLATIONS):
        try:
            factor = np.linalg.cholesky(base - shared + tau + tau * np.eye(len(gram)))
        except np.linalg.LinAlgError:
            tau *= 4
            continue
        product = factor @ factor.T
        return BinCovariance(np.maximum(product, product.T), np.asfortranarray(factor))
    raise CertificateError(f"the Gram matrix of {len(gram)} bins is not positive semidefinite in doubles; scale C")


def shared_part(gram: np.ndarray) -> float:
    """Return nearly the largest t^2 for which G - t^2 1 1^T is a covariance, 1 / (1^T G^-1 1); 0 where none is found.

    Any t^2 is sound whose rest has a Cholesky factor.
    """
    bins = len(gram)
    tau = 2.0**-47 * bins * float(gram.max())
    try:
        whole = float(np.linalg.solve(gram + tau * (1 + np.eye(bins)), np.ones(bins)).sum())
    except np.linalg.LinAlgError:
        return 0.0
    return (1 - _SPARED) / whole if whole > 0 else 0.0

"""The Gram matrix of the bins: everything that the accounting of balls in bins needs to know of C.

Bin j holds the steps j, j + b, j + 2b, ... G_jl = <m_j, m_l>, with m_j the sum of the columns of |C| over the steps of
bin j. The run gives away at most as much as a mixture of Gaussians with these shifts, whatever n, the dimension
and the signs are; and it does not improve as an entry of G grows. |C| is taken before the sum: the sums of a signed C
are too small.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from factorize.checker.sampling.bins import MAX_WORK
from factorize.errors import CertificateError, InvalidParameter, TooLarge
from factorize.numbers.scalars import whole_number
from factorize.spec import LARGEST_BINS
from factorize.structures.base import Matrix
from factorize.structures.endless import AnyStrategy
from factorize.structures.recursion import RecursiveMatrix

_MARGIN = 1e-9
"""Relative margin upward, which is more than sums of as many as 10^6 positive doubles lose."""
_ROWS_AT_ONCE = 256
"""The number of rows of |C| that are added up at a time, which limits the memory for a C without recursion."""
_SHARE_LEFT_OUT = 2.0**-10
"""The relative share of the shared part that is left out, so that the rest stays a covariance in doubles."""


@dataclass(frozen=True, eq=False)
class BinGram:
    """The Gram matrix of a strategy's bins.

    Attributes:
        gram: G, shape (b, b), symmetric.
        steps: n.
        signed: whether |C| differs from C, so that the answer may be larger than necessary.
    """

    gram: np.ndarray
    steps: int
    signed: bool = False

    @property
    def bins(self) -> int:
        """The number of bins, b."""
        return len(self.gram)

    @property
    def epochs(self) -> int:
        """The number of steps of the first bin, which is the largest: ceil(n / b)."""
        return -(-self.steps // self.bins)

    @cached_property
    def sensitivity(self) -> float:
        """The sensitivity without amplification: max_j sqrt(G_jj)."""
        return float(np.sqrt(self.gram.diagonal().max()))


def bin_gram(matrix: AnyStrategy, bins: int) -> BinGram:
    """Return the Gram matrix of the bins of C from slightly above, in plain doubles.

    Args:
        matrix: C, lower-triangular, of any structure with an end.
        bins: b, from 1 to n; the last epoch may be short.

    Raises:
        InvalidParameter: bins outside 1 to n, or a C without end.
        TooLarge: more than 4096 bins, or more products than the checker makes for a claim.
        CertificateError: the sums leave double precision.
    """
    if matrix.side is None:
        raise InvalidParameter(
            "balls_in_bins needs a number of steps, and this C has no last step; solve for a number n, or calibrate "
            "without sampling",
            field="sampling",
        )
    held = matrix.finite()
    _check_bins(bins, held.n)
    if held.time_invariant:
        gram = gram_of_column(np.abs(held.rows(held.n - 1, held.n)[0, ::-1]), bins)
    else:
        if held.n * bins**2 > MAX_WORK:
            raise TooLarge(
                f"bins={bins} at n={held.n} needs {held.n * bins**2} products, and the limit is {MAX_WORK}; use "
                "larger batches, which make fewer bins, or a Toeplitz C",
                field="bins",
            )
        sums = _sums(held, np.eye(bins)[np.arange(held.n) % bins])
        gram = sums.T @ sums
    gram = np.maximum(gram, gram.T) * (1 + _MARGIN)
    if not np.isfinite(gram).all() or not gram.diagonal().min() > 0:
        raise CertificateError("the column sums of |C| exceed the range of doubles; scale C, which changes no loss")
    gram.setflags(write=False)
    return BinGram(gram, held.n, held.signed)


def bins_of(factorization: Any) -> int:
    """Return the steps of an epoch, n if there is one; raise InvalidParameter for a participation without epochs."""
    participation = factorization.spec.participation
    bins: int | None = participation.epoch(factorization.strategy.finite().n)
    if bins is None:
        raise InvalidParameter(
            f"the spec's participation {participation.kind!r} has no epochs; give bins, the number of steps in an "
            "epoch",
            field="bins",
        )
    return bins


def _sums(matrix: Matrix, classes: np.ndarray) -> np.ndarray:
    """Return |C| times the indicators of the classes, shape (n, bins)."""
    if isinstance(matrix, RecursiveMatrix) and not matrix.signed:
        return matrix.recursion.products(classes.T).T
    starts = range(0, matrix.n, _ROWS_AT_ONCE)
    return np.concatenate([np.abs(matrix.rows(i, min(i + _ROWS_AT_ONCE, matrix.n))) @ classes for i in starts])


def _check_bins(bins: int, steps: int) -> None:
    whole_number("bins", bins, high=steps, remedy=f"give the number of steps in an epoch, of n={steps} in all")
    if bins > LARGEST_BINS:
        raise TooLarge(
            f"bins={bins} is above the limit of {LARGEST_BINS}; use larger batches, which make fewer bins",
            field="bins",
        )


def gram_of_column(column: np.ndarray, bins: int) -> np.ndarray:
    """Return G of a Toeplitz C: row t of m_j is p_{t-j}, p_t = |c_t| + |c_{t-b}| + ..., so one column tells all bins.

    Args:
        column: the first column of |C|, shape (n,).
        bins: b.
    """
    n = len(column)
    padded = np.zeros(-(-n // bins) * bins)
    padded[:n] = column
    p = np.cumsum(padded.reshape(-1, bins), axis=0).ravel()[:n]
    gram, shared = np.empty((bins, bins)), n - bins + 1  # all bins of a lag share these products
    for lag in range(bins):
        last = np.cumsum(p[shared : n - lag] * p[shared + lag :])
        sums = p[:shared] @ p[lag : lag + shared] + np.append(0.0, last)
        places = np.arange(bins - lag)
        gram[places, places + lag] = gram[places + lag, places] = sums[::-1]
    return gram


def shared_part(gram: np.ndarray) -> float:
    """Return a t^2 for which G - t^2 1 1^T is a covariance, near the largest, 1 / (1^T G^-1 1); 0 where none is found.

    Every t^2 for which the rest has a Cholesky factor is sound.
    """
    bins = len(gram)
    tau = 2.0**-47 * bins * float(gram.max())
    try:
        whole = float(np.linalg.solve(gram + tau * (1 + np.eye(bins)), np.ones(bins)).sum())
    except np.linalg.LinAlgError:
        return 0.0
    return (1 - _SHARE_LEFT_OUT) / whole if whole > 0 else 0.0

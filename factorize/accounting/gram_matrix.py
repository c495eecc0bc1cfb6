"""The Gram matrix of the bins: all that balls-in-bins accounting needs to know of C.

Bin j holds the steps j, j + b, j + 2b, ... G_jl = <m_j, m_l>, with m_j the sum of the columns of |C| over the steps of
bin j. What the run gives away is at most what a mixture of Gaussians with these shifts does, whatever n, the dimension
and the signs are; and it does not improve as an entry of G grows. |C| is taken before the sum: the sums of a signed C
are too small.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from factorize.checker.arithmetic.near import NotEnclosed
from factorize.checker.sampling.bins import gram
from factorize.checker.strategy import Strategy
from factorize.errors import CertificateError, InvalidParameter, InvalidStrategy, TooLarge
from factorize.spec import LARGEST_BINS
from factorize.structures.endless import AnyStrategy

_MARGIN = 1e-9
"""Relative: a sensitivity from the largest bin is not below the one that the certificate states, by other sums."""
_SPARED = 2.0**-10  # of the shared part: what is left stays a covariance in doubles


@dataclass(frozen=True, eq=False)
class BinGram:
    """The Gram matrix of a strategy's bins.

    Attributes:
        gram: G, shape (b, b), symmetric.
        steps: n.
        signed: whether |C| is not C, so that the answer may be larger than it has to be.
    """

    gram: np.ndarray
    steps: int
    signed: bool = False

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
        """Without amplification: max_j sqrt(G_jj)."""
        return float(np.sqrt(self.gram.diagonal().max()))


def bin_gram(matrix: AnyStrategy, bins: int) -> BinGram:
    """Return the Gram matrix of the bins of C from slightly above, as the checker does that tests a claim on it.

    Args:
        matrix: C, lower-triangular, of any structure with an end.
        bins: b, from 1 to n; the last epoch may be short.

    Raises:
        InvalidParameter: bins outside 1 to n, or a C without end.
        TooLarge: more than 4096 bins, or more products than the checker makes for a claim.
        CertificateError: the sums leave double precision, or are not enclosed.
    """
    if matrix.side is None:
        raise InvalidParameter(
            "a C without end has no bins of known size; solve for a finite n, or calibrate without sampling",
            field="sampling",
        )
    held = matrix.finite()
    check_bins(bins, held.n)
    try:
        whole = gram(Strategy(held.structure, held.tensors(), held.n), bins).high * (1 + _MARGIN)
    except (InvalidStrategy, NotEnclosed) as reason:
        raise CertificateError(f"the Gram matrix of the bins is not known: {reason}") from None
    if not whole.diagonal().min() > 1e-300:
        raise CertificateError("squares of |C| leave double precision; scale C, which changes no loss")
    whole.setflags(write=False)
    return BinGram(whole, held.n, held.signed)


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

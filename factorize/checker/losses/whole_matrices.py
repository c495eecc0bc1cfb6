"""Whole matrices in doubles: losses, and upper bounds of the error of products with C.

For B = A N, N a guess of C^-1, and R = B C - A, A C^-1 = B - R C^-1: row i of B is off by at most |R_i| |C^-1|. With
D = N C - I, |C^-1| is at most |N| / (1 - |D|). R and D are products in doubles with a bound of their rounding,
stated in advance: row i of a product X C is off by at most gamma times the sum over k of |x_ik| |C_k|.
"""

import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from factorize.checker.arithmetic.machine import check_products
from factorize.checker.arithmetic.near import (
    ROOT_OF_TINY,
    SLACK,
    TINY,
    UNIT,
    NotEnclosed,
    column_norms,
    finite,
    gamma,
    norm_of,
    row_norms,
    square_root_up,
)
from factorize.checker.losses.products import WorkloadRows, blocks_of, inverse_of, roundings_of, times_lower
from factorize.checker.losses.variances import Ends, weighed
from factorize.checker.spec.objectives import Weighing
from factorize.checker.strategy import MAX_N_COMPUTED, Strategy

MAX_N = 16384
"""The largest n for which whole matrices are multiplied in doubles: 3 n^2 doubles are 6 GB there."""
_MAX_ROWS_IN_PAIRS = 4096  # Smaller products run in one thread (numbers/blas_threads.py), two at a time.


class Entries(NamedTuple):
    """The matrix C as doubles.

    Attributes:
        values: the entries, shape (n, n).
        errors: upper bounds of the norms of the rows' errors, shape (n,).
        slack: one number s_k for each row, shape (n,), so that x C is off by at most the sum of |x_k| s_k.
    """

    values: np.ndarray
    errors: np.ndarray
    slack: np.ndarray

    def lost(self, rows: np.ndarray) -> np.ndarray:
        """Return upper bounds of the norms of the errors of products of rows with C, shape (rows,)."""
        terms = rows.shape[1]
        most = (np.abs(rows) @ self.slack[:terms]) * (1 + gamma(terms))
        return np.asarray(most * (1 + SLACK) + terms * terms * TINY)


class Residual(NamedTuple):
    """The computed B C - A, shape (m, n), and upper bounds of the norms of its rows' errors, shape (m,)."""

    values: np.ndarray
    errors: np.ndarray

    @property
    def largest(self) -> float:
        """An upper bound of its largest entry."""
        return float((np.abs(self.values).max(axis=1) * (1 + SLACK) + self.errors).max())


def entries_of(strategy: Strategy) -> Entries:
    """Return C where its entries are stored or few enough to be computed.

    Raises:
        NotEnclosed: there are too many to compute, or this machine's products cannot be relied on.
    """
    check_products()
    n, errors = strategy.n, np.zeros(1)
    if n > MAX_N:
        raise NotEnclosed(f"whole matrices are multiplied up to n={MAX_N}")
    if strategy.reading.computed and n > MAX_N_COMPUTED:
        raise NotEnclosed(f"entries of a C of this structure are computed up to n={MAX_N_COMPUTED}")
    with np.errstate(all="ignore"):
        values = strategy.doubles
        if values is None:
            values, far = strategy.near_columns(np.arange(n))
            errors = np.sqrt(np.cumsum(far * far)) * (1 + gamma(n + 4)) + ROOT_OF_TINY  # Row i has i + 1 columns.
        lengths = row_norms(values)
        slack = gamma(roundings_of(n) + 1) * lengths * (1 + SLACK) + errors * (1 + SLACK)
    finite(float(slack.sum()))
    return Entries(np.ascontiguousarray(values), errors, slack)


def residual(decoder: np.ndarray, entries: Entries, workload: WorkloadRows | None) -> Residual:
    """Return B C - A for B, shape (m, n), lower-triangular where A is; an A of None is the identity."""
    values, errors = np.zeros(decoder.shape), np.zeros(len(decoder))
    for start, rows, lost in _residual_rows(decoder, entries, workload):
        values[start : start + len(rows), : rows.shape[1]], errors[start : start + len(rows)] = rows, lost
    return Residual(values, errors)


def residual_norms(decoder: np.ndarray, entries: Entries, workload: WorkloadRows | None) -> np.ndarray:
    """Return upper bounds of the norms of the rows of B C - A, without keeping rows; arguments as for `residual`."""
    blocks = _residual_rows(decoder, entries, workload)
    return np.concatenate([row_norms(rows) * (1 + SLACK) + lost for _, rows, lost in blocks])


def _residual_rows(
    decoder: np.ndarray, entries: Entries, workload: WorkloadRows | None
) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Yield blocks of rows: the first row's number, the rows without the zeros at their end, norms of their errors."""
    targets = None if workload is None else workload.times()

    def product(block: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
        width = block[1] if workload is None or workload.triangular else decoder.shape[1]
        rows = decoder[slice(*block), :width]
        with np.errstate(all="ignore"):
            return times_lower(rows, entries.values[:width, :width]), entries.lost(rows)

    blocks = list(blocks_of(len(decoder)))
    with ThreadPoolExecutor(2 if len(decoder) <= _MAX_ROWS_IN_PAIRS else 1, "products") as pool:
        for (start, stop), (image, errors) in zip(blocks, pool.map(product, blocks), strict=True):
            with np.errstate(all="ignore"):
                if targets is None:
                    image[np.arange(stop - start), np.arange(start, stop)] -= 1.0
                else:
                    for place, row in zip(range(stop - start), targets, strict=False):
                        image[place] -= row.values[: image.shape[1]]
                        errors[place] += norm_of(row.errors) * (1 + SLACK)
            finite(float(errors.sum()), float(np.einsum("ij->", image)))
            yield start, image, errors


def norm_above(matrix: np.ndarray) -> float:
    """Return an upper bound of the spectral norm."""
    columns, longest = np.zeros(matrix.shape[1]), 0.0
    for start, stop in blocks_of(len(matrix)):
        sizes = np.abs(matrix[start:stop])
        columns += sizes.sum(axis=0)
        longest = max(longest, float(sizes.sum(axis=1).max()))
    sums = float(columns.max()) * longest
    return min(math.sqrt(sums), norm_of(row_norms(matrix))) * (1 + gamma(4 * max(matrix.shape))) * (1 + SLACK)


def _norm_of_inverse(
    inverse: np.ndarray, entries: Entries, workload: WorkloadRows, decoder: np.ndarray, rest: np.ndarray
) -> float:
    """Return an upper bound of the spectral norm of C^-1, from N near it, B, and norms of the rows of R.

    Where A is a chain, M = A^-1 B takes the place of N: M C = I + A^-1 R, and M differs from N by the rounding of
    a step of the chain (docs/notes/checker.md, "Losses").
    """
    moved, defect = 0.0, 1.0
    if workload.chain is not None:
        follow, feed = np.abs(workload.chain)
        last = np.append(0.0, rest[:-1]), np.append(0.0, row_norms(decoder)[:-1])
        defect = norm_of((rest + follow * last[0]) / feed) * (1 + SLACK)
        rounded = gamma(8) * (follow * last[1] + feed * row_norms(inverse)) + len(rest) * TINY
        moved = norm_of(rounded / feed) * (1 + SLACK)
    if not defect < 0.5:
        moved, defect = 0.0, norm_of(residual_norms(inverse, entries, None))
    if not defect < 0.5:
        raise NotEnclosed("C is too ill-conditioned: the norm of its inverse cannot be bounded in doubles")
    return (norm_above(inverse) + moved) / (1 - defect) * (1 + SLACK)


def losses(entries: Entries, inverse: np.ndarray, workload: WorkloadRows, weighing: Weighing) -> Ends:
    """Return the losses at sensitivity 1, by a lower-triangular N near C^-1.

    Raises:
        NotEnclosed: C is too ill-conditioned for doubles, or numbers leave their range.
    """
    with np.errstate(all="ignore"):
        decoder = workload.guess(inverse)
        rest = residual_norms(decoder, entries, workload)
        errors = rest * _norm_of_inverse(inverse, entries, workload, decoder, rest) * (1 + SLACK)
        ends, since = _around(decoder, errors), None
        if weighing.tau is not None:
            since = _around(decoder - weighing.referred(decoder), (errors + weighing.referred(errors)) * (1 + SLACK))
        finite(float(ends.sum()), 0.0 if since is None else float(since.sum()))
    return weighed(ends, weighing, since)


def _around(rows: np.ndarray, errors: np.ndarray) -> np.ndarray:
    """Return the ends of the squared norms of rows, shape (2, rows), from upper bounds of their errors' norms."""
    high = row_norms(rows)
    low = high * (1 - 2 * gamma(rows.shape[1] + 8)) - 2 * ROOT_OF_TINY
    ends = np.maximum(low - errors * (1 + SLACK), 0.0), (high + errors * (1 + SLACK)) * (1 + 2 * UNIT)
    return np.stack([ends[0] * ends[0] * (1 - 8 * UNIT), ends[1] * ends[1] * (1 + 8 * UNIT)])


def bound_added_noise(stored: np.ndarray, rest: Residual, most: int, upper: Fraction) -> tuple[float, float] | str:
    """Return an upper bound of the sensitivity of the encoder of A G + B Z and what it adds, or the reason for none.

    The encoder is E = B^+ A = B^+ B C - B^+ R for B, shape (m, n), and R = B C - A; B^+ B C is C or a projection of it.
    A column of B^+ R adds at most its norm to a pattern, and a pattern has at most `most` steps. `upper` bounds
    the squared sensitivity of C.

    Raises:
        NotEnclosed: the rank of B cannot be proved in doubles.
    """
    m, n = stored.shape
    if m > n:
        return "B has more rows than columns, so parts of A G that differ from B C G would have no noise"
    if m == n and not np.diagonal(stored).all():
        return "B is singular, so a part of A G would have no noise"
    with np.errstate(all="ignore"):
        guess = inverse_of(stored) if m == n else np.linalg.pinv(stored)
        left, right = (guess, stored) if m == n else (stored, guess)  # B N = I + D proves that the rows have full rank.
        image = left @ right
        image[np.diag_indices(len(image))] -= 1.0
        lost = gamma(n + 1) * norm_of(row_norms(left)) * norm_of(column_norms(right)) + n * n * TINY
        defect = (norm_of(row_norms(image)) + lost) * (1 + SLACK)
        if not defect < 0.5:
            raise NotEnclosed("the stored B is so ill-conditioned that its rank cannot be proved in doubles")
        size = norm_above(guess)
        longest = float(column_norms(guess @ rest.values).max())
        longest += gamma(n + 1) * norm_of(row_norms(guess)) * float(column_norms(rest.values).max()) + n * n * TINY
        if m < n:  # B^+ is not N, and no longer than N / (1 - |D|).
            longest = size * float(column_norms(rest.values).max())
        added = most * (longest + size * norm_of(rest.errors)) / (1 - defect) * (1 + SLACK)
    finite(added)
    return square_root_up((Fraction(square_root_up(upper)) + Fraction(added)) ** 2), added

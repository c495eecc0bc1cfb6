"""Gram bounds on a squared sensitivity: of listed patterns, and of steps that lie apart, for a C of any form."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from functools import partial
from typing import TypeVar

import numpy as np

from factorize.certificate import epoch_grams
from factorize.errors import CertificateError
from factorize.numbers.blas_threads import one_blas_thread
from factorize.numbers.pattern_sums import around_products, gram_sums
from factorize.numbers.rounding import UNIT
from factorize.numbers.wide import check_finite, of_constants
from factorize.structures.base import Matrix

Given = TypeVar("Given")
Found = TypeVar("Found")

_PATTERNS = 16  # at a time
_LONG = 512  # steps from which a thread pays


def best_selection(values: np.ndarray, separation: int, most: int) -> float:
    """Return the largest sum of at most `most` non-negative values whose positions are `separation` or more apart.

    Dynamic programme over suffixes: f_k[i] = max over i' >= i of values[i'] + f_{k-1}[i' + separation].

    Args:
        values: shape (n,), non-negative.
        separation: smallest distance of two chosen positions.
        most: largest number of positions.
    """
    n = len(values)
    best = np.zeros(n + separation)
    for _ in range(min(most, math.ceil(n / separation))):
        chosen = values + best[separation : separation + n]
        best[:n] = np.maximum.accumulate(chosen[::-1])[::-1]
    return float(best[0])


@np.errstate(over="ignore", invalid="ignore")
def gram_blocks(matrix: Matrix, patterns: np.ndarray) -> tuple[Fraction, float]:
    """Largest absolute Gram block sum over the patterns, rounded up, and a lower bound on the true squared value.

    The lower bound is the largest of the all-ones sum (one contribution repeated), that with the signs of a pattern's
    first row (one contribution and its negative) and the trace (the mean over random signs), so equality shows that the
    absolute sum is the true value. What may be the largest is summed again, wide.
    """
    enclosed = matrix.enclosed_entries()
    lowest = _largest(enclosed.low) + _largest(enclosed.error)
    whole, left_out = enclosed.high, lowest * (1 + UNIT) * patterns.shape[1]
    n, count = matrix.n, patterns.shape[1]
    allowance = (n + count**2 + 2) * UNIT
    epochs = 0 if left_out else epoch_grams.epochs_of(patterns, n)
    if epochs:
        together = _of_epochs(whole, epochs, allowance)
        if together is not None:
            return together

    def around(start: int) -> tuple[np.ndarray, np.ndarray, float]:
        """Sums from above and below, and what some contribution attains."""
        columns = _columns(whole, patterns, start)
        grams = _grams(columns)
        rows = np.abs(columns).sum(axis=1)  # the sum of all entries of |C|^T |C| is that of their squares
        sums, slack = np.abs(grams).sum(axis=(1, 2)), 2 * allowance * np.einsum("ji,ji->j", rows, rows)
        slack = slack + 2 * left_out * (rows.sum(axis=1) + n * left_out)
        return sums + slack, sums - slack, _attained(grams)

    starts = range(0, len(patterns), _PATTERNS)
    found = _in_threads(around, starts, n)
    above, least = [one[0] for one in found], np.concatenate([one[1] for one in found]).max()
    chosen = [(start, np.flatnonzero(sums >= least)) for start, sums in zip(starts, above, strict=True)]
    chosen = [(start, which) for start, which in chosen if len(which)]
    if not chosen:
        raise CertificateError("the sensitivity overflows double precision; scale C down")

    def summed(some: tuple[int, np.ndarray]) -> Fraction:
        """The largest sum over the candidates of some patterns."""
        start, which = some
        if left_out or len(which) == 1:
            return max(gram_sums(enclosed.take(slice(None), patterns[start + j])) for j in which)
        columns = _columns(whole, patterns, start)
        return max(gram_sums(of_constants(columns[j].T)) for j in which)

    return max(_in_threads(summed, chosen, n)), max(0.0, *(one[2] for one in found))


def _of_epochs(whole: np.ndarray, epochs: int, allowance: float) -> tuple[Fraction, float] | None:
    """The same for all patterns of a few long epochs of a C that is stored whole; None where doubles do not reach."""
    grams, rows = epoch_grams.gram_matrices(whole, epochs), epoch_grams.magnitudes(whole, epochs)
    sums, slack = np.abs(grams).sum(axis=(1, 2)), 2 * allowance * np.einsum("ij,ij->j", rows, rows)
    chosen = np.flatnonzero(sums + slack >= (sums - slack).max())
    if not len(chosen):
        raise CertificateError("the sensitivity overflows double precision; scale C down")
    wide = _in_threads(partial(epoch_grams.largest_sum, whole, epochs), list(epoch_grams.groups(chosen)), len(whole))
    found = [one for one in wide if one is not None]
    return (max(found), max(0.0, _attained(grams))) if len(found) == len(wide) else None


@np.errstate(over="ignore", invalid="ignore")
def near_gram_blocks(whole: np.ndarray, patterns: np.ndarray) -> float:
    """Return the largest absolute Gram block sum in doubles, within some roundings.

    Args:
        whole: lower-triangular, shape (n, n).
        patterns: see `gram_blocks`.
    """
    epochs = epoch_grams.epochs_of(patterns, len(whole))
    if epochs:
        return float(np.abs(epoch_grams.gram_matrices(whole, epochs)).sum(axis=(1, 2)).max())
    starts = range(0, len(patterns), _PATTERNS)
    return max(float(np.abs(_grams(_columns(whole, patterns, start))).sum(axis=(1, 2)).max()) for start in starts)


def _columns(whole: np.ndarray, patterns: np.ndarray, start: int) -> np.ndarray:
    """Columns of some patterns, shape (patterns, count, n)."""
    # Neighbouring patterns hold neighbouring columns: fetched together, they share cache lines.
    some = patterns[start : start + _PATTERNS]
    found = np.ascontiguousarray(np.take(whole, some.T.ravel(), axis=1).T)
    return np.asarray(found.reshape(patterns.shape[1], len(some), len(whole)).transpose(1, 0, 2))


def _grams(columns: np.ndarray) -> np.ndarray:
    """Gram matrices of columns of some patterns."""
    return np.asarray(columns @ columns.transpose(0, 2, 1))


def _largest(part: np.ndarray) -> float:
    """The largest magnitude; of one number in all places without a look at each."""
    return float(np.abs(part[(slice(1),) * part.ndim] if not any(part.strides) else part).max())


def _attained(grams: np.ndarray) -> float:
    """What some contribution attains: all ones, the signs of a pattern's first row, or the mean over random signs."""
    signs = np.where(grams[:, 0] < 0, -1.0, 1.0)
    totals = (grams.sum(axis=(1, 2)), np.einsum("js,jst,jt->j", signs, grams, signs), np.einsum("jss->j", grams))
    return max(float(total.max()) for total in totals)


def _in_threads(step: Callable[[Given], Found], given: Sequence[Given], n: int) -> list[Found]:
    """Return what is made of each, in order; long columns in two threads, with one of BLAS each."""

    def made(one: Given) -> Found:
        with np.errstate(over="ignore", invalid="ignore"):  # which threads do not take over
            return step(one)

    if n < _LONG or len(given) < 2:
        return [made(one) for one in given]
    with one_blas_thread(n), ThreadPoolExecutor(2, "patterns") as pool:
        return list(pool.map(made, given))


@np.errstate(over="ignore", invalid="ignore")
def two_stage(matrix: Matrix, separation: int, most: int) -> Fraction:
    """Bound on the square for any C: best selection within each row of |X|, then of the row values."""
    from factorize.numbers.wide_kernels import selected_sums

    enclosed = matrix.enclosed_entries()
    whole, left_out = enclosed.high, np.abs(enclosed.low) + enclosed.error
    signed = bool((whole < 0).any())
    magnitude, gram = np.abs(whole) if signed else whole, whole.T @ whole
    gram = np.abs(gram, out=gram)
    gram += (matrix.n + 2) * UNIT * (magnitude.T @ magnitude if signed else gram)
    if left_out.any():  # what the doubles of computed entries are not
        gram += around_products(magnitude, left_out)
    rows = np.empty(matrix.n)
    selected_sums(check_finite(gram), separation, most, rows)
    total = best_selection(rows, separation, most) * (1 + (2 * most + 16) * UNIT)
    if not math.isfinite(total):
        raise CertificateError("the sensitivity overflows double precision; scale C down")
    return Fraction(total)

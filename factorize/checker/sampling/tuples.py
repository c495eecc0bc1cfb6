"""Tuples of bins that weigh by how much they share: a centre and picks beside it, and the chance to keep a tuple."""

from __future__ import annotations

import numpy as np

from factorize.checker.sampling.star import log_row_means

_FEW = 24  # picks, up to which pairs of them are looked up one by one


def tables_of(kernel: np.ndarray, order: int) -> tuple[np.ndarray, np.ndarray]:
    """Cumulative probabilities of the centre, shape (1, bins), and of a pick for each centre, shape (bins, bins)."""
    rows = [float((order - 1) * row) for row in log_row_means(kernel, order)]
    centres = np.exp(np.array(rows) - max(rows))
    exponents = 0.5 * order * kernel
    others = np.exp(exponents - exponents.max(axis=1)[:, None])
    return np.cumsum(centres / centres.sum())[None], np.cumsum(others / others.sum(axis=1)[:, None], axis=1)


def picked(uniforms: np.ndarray, centres: np.ndarray, others: np.ndarray) -> np.ndarray:
    """The centre and the other picks of each sample, shape (samples, order)."""
    first = _places(centres, np.zeros((len(uniforms), 1), dtype=np.int64), uniforms[:, :1])
    return np.hstack([first, _places(others, first, uniforms[:, 1:])])


def _places(sums: np.ndarray, rows: np.ndarray, uniforms: np.ndarray) -> np.ndarray:
    """Return how many of a row of running sums are at most u, the last index at most, by bisection of all at once."""
    bins = sums.shape[1]
    step = width = 1 << (bins - 1).bit_length()
    table = np.pad(sums, ((0, 0), (0, width - bins)), constant_values=2.0).ravel()
    places = np.broadcast_to(rows * width, uniforms.shape).copy()
    while step := step // 2:
        places += step * (table.take(places + (step - 1)) <= uniforms)
    return np.minimum(places - rows * width, bins - 1)


def log_chances(kernel: np.ndarray, picks: np.ndarray) -> np.ndarray:
    """Return mean A - log mean exp A of each tuple, A_i = (m / 2) sum over the other picks of K; shape (samples,)."""
    order, bins = picks.shape[1], len(kernel)
    if order > _FEW:
        sums = np.take_along_axis(sums_of_rows(kernel, picks), picks, axis=1) - np.diagonal(kernel)[picks]
    else:
        columns, entries, sums = picks.T.copy(), kernel.ravel(), np.zeros(picks.shape).T
        for i in range(order - 1):
            pairs = entries.take(columns[i] * bins + columns[i + 1 :])
            sums[i] += pairs.sum(axis=0)
            sums[i + 1 :] += pairs
        sums = sums.T
    exponents = 0.5 * order * sums
    return np.asarray(exponents.mean(axis=1) - log_mean_exp(exponents))


def sums_of_rows(matrix: np.ndarray, picks: np.ndarray) -> np.ndarray:
    """Return for each tuple the sum of the rows that it names, shape (samples, bins)."""
    from scipy.sparse import csr_array

    ends = np.arange(0, picks.size + 1, picks.shape[1])
    return np.asarray(csr_array((np.ones(picks.size), picks.ravel(), ends), shape=(len(picks), len(matrix))) @ matrix)


def log_mean_exp(values: np.ndarray) -> np.ndarray:
    """Return log mean exp of each row."""
    most = values.max(axis=1)
    return np.asarray(most + np.log(np.exp(values - most[:, None]).mean(axis=1)))

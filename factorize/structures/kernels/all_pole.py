"""Filters with poles alone, compiled: products with the inverse of a Toeplitz matrix of few diagonals.

scipy.signal's `lfilter` gives the same bits, but takes a second to be imported, in every process that asks it.
This is imported on first use, too.
"""

from __future__ import annotations

import numba
import numpy as np


@numba.njit(cache=True, nogil=True)
def filtered_rows(noising, rows):
    """Return rows of y_t = x_t - sum_d noising_d y_{t-d}, the oldest first in each sum; noising begins with 1."""
    taps = len(noising) - 1
    out = np.empty_like(rows)
    state = np.zeros(taps + 1)  # what later steps get from those so far
    for i in range(rows.shape[0]):
        state[:] = 0.0
        for t in range(rows.shape[1]):
            value = state[0] + rows[i, t]
            out[i, t] = value
            for d in range(taps):
                state[d] = state[d + 1] - value * noising[d + 1]
    return out

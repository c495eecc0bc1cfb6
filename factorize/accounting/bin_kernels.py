"""Compiled sums behind the Gram matrix of bins. Imported on first use, since numba is heavy."""

from __future__ import annotations

import numba

_SUMS = {"reassoc", "contract", "nsz"}  # sums may be reordered: the bound on their error holds for every order


@numba.njit(cache=True, nogil=True, error_model="numpy", fastmath=_SUMS)
def lag_sums(comb, bins, gram):
    """Write G[j, j + d] = sum_{s < n - j - d} p_s p_{s+d}, for every lag d: one product per lag, then the last terms.

    What all bins of a lag share, s < n - bins + 1, is summed in blocks of 4096 terms; the others one by one.
    """
    n = comb.shape[0]
    shared = n - bins + 1
    for d in range(bins):
        total = 0.0
        for start in range(0, shared, 4096):
            part = 0.0
            for s in range(start, min(start + 4096, shared)):
                part += comb[s] * comb[s + d]
            total += part
        for last in range(bins - 1, d - 1, -1):  # the larger of the two bins: it sees n - last steps
            if last < bins - 1:
                total += comb[n - last - 1] * comb[n - last - 1 + d]
            gram[last - d, last] = total
            gram[last, last - d] = total

"""Compiled recurrences behind tree matrices. Imported on first use, since numba is heavy.

Step i is leaf p = i mod restart of its tree. While bit j of p is 1, the leaves before it in its tree include one whole
block of 2^j leaves, its left sibling at that level; row i of C has one number for each such block.
"""

from __future__ import annotations

import numba
import numpy as np


@numba.njit(cache=True, nogil=True, error_model="numpy")
def forget(p, restart, sums):
    """Clear, going backwards in time, the sums over right siblings that a new pair of siblings begins with."""
    if p == restart - 1:
        sums[:] = 0.0
    j = 0
    while (p >> j) & 1:
        sums[j] = 0.0
        j += 1


@numba.njit(cache=True, nogil=True, error_model="numpy")
def solve_rows(nodes, restart, block, out):
    """Solve y C = b for each row b of `block`, from the last step to the first.

    sums[j] holds, while step i is in the left sibling at level j, the sum over the right one of y_t nodes[j + 1, t].
    """
    levels, n = nodes.shape[0] - 1, nodes.shape[1]
    sums = np.zeros(levels)
    for r in range(block.shape[0]):
        sums[:] = 0.0
        for i in range(n - 1, -1, -1):
            p = i % restart
            forget(p, restart, sums)
            known = 0.0
            for j in range(levels):
                if not (p >> j) & 1:
                    known += sums[j]
            y = (block[r, i] - known) / nodes[0, i]
            out[r, i] = y
            if y != 0.0:
                for j in range(levels):
                    if (p >> j) & 1:
                        sums[j] += y * nodes[j + 1, i]


@numba.njit(cache=True, nogil=True, error_model="numpy")
def multiply_rows(nodes, restart, block, out):
    """Write b C for each row b of `block`: entry i is nodes[0, i] b_i plus the sums over right siblings."""
    levels, n = nodes.shape[0] - 1, nodes.shape[1]
    sums = np.zeros(levels)
    for r in range(block.shape[0]):
        sums[:] = 0.0
        for i in range(n - 1, -1, -1):
            p = i % restart
            forget(p, restart, sums)
            entry = nodes[0, i] * block[r, i]
            for j in range(levels):
                if (p >> j) & 1:
                    sums[j] += block[r, i] * nodes[j + 1, i]
                else:
                    entry += sums[j]
            out[r, i] = entry


@numba.njit(cache=True, nogil=True, error_model="numpy")
def output_variances(nodes, restart, follow, feed, read, through, variances):
    """Write the variance of each output of a workload driven by x = C^-1 z, z unit noise; shape (n,).

    nodes[0, i] x_i = z_i - sum_j nodes[j + 1, i] s_j, where s_j is the sum of x over the block at level j. The workload
    takes x: o_i = read_i . u + through_i x_i, u <- follow_i u + feed_i x_i. `spread` is the covariance of (s, u). After
    the step, blocks of the trailing ones of p and x_i merge into one, as the carry of a binary counter.
    """
    levels, n, q = nodes.shape[0] - 1, nodes.shape[1], feed.shape[1]
    size = levels + q
    spread = np.zeros((size, size))
    moved = np.zeros((size + 1, size))
    with_x = np.zeros(size)
    for i in range(n):
        p = i % restart
        with_x[:] = 0.0
        own = 1.0
        for j in range(levels):
            if (p >> j) & 1 and nodes[j + 1, i] != 0.0:
                for a in range(size):
                    with_x[a] += spread[j, a] * nodes[j + 1, i]
        for j in range(levels):
            if (p >> j) & 1:
                own += with_x[j] * nodes[j + 1, i]
        own /= nodes[0, i] ** 2
        for a in range(size):
            with_x[a] /= -nodes[0, i]
        total = through[i] ** 2 * own
        for a in range(q):
            total += 2.0 * through[i] * read[i, a] * with_x[levels + a]
            for c in range(q):
                total += read[i, a] * spread[levels + a, levels + c] * read[i, c]
        variances[i] = total
        _advance_workload(spread, moved, with_x, own, follow[i], feed[i], levels)
        _merge_blocks(spread, with_x, own, p, restart, levels)


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _advance_workload(spread, moved, with_x, own, follow, feed, levels):
    """Replace u by follow u + feed x in `spread` and in `with_x`, the covariances with x."""
    size, q = len(with_x), len(feed)
    for a in range(q):
        for c in range(size):
            entry = feed[a] * with_x[c]
            for e in range(q):
                entry += follow[a, e] * spread[levels + e, c]
            moved[a, c] = entry
    for a in range(q):
        entry = feed[a] * own
        for e in range(q):
            entry += follow[a, e] * with_x[levels + e]
        moved[q, a] = entry  # Cov(u after, x); not yet stored, since the products below need the one before
    for a in range(q):
        for c in range(levels):
            spread[levels + a, c] = moved[a, c]
            spread[c, levels + a] = moved[a, c]
        for c in range(q):
            entry = moved[q, a] * feed[c]
            for e in range(q):
                entry += moved[a, levels + e] * follow[c, e]
            # moved[a, levels + e] is Cov(u_a after, u_e before), moved[q, a] is Cov(u_a after, x)
            spread[levels + a, levels + c] = entry
    for a in range(q):
        with_x[levels + a] = moved[q, a]


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _merge_blocks(spread, with_x, own, p, restart, levels):
    """Put x and the blocks of the trailing ones of p into the block of the level above; forget a finished tree."""
    if p == restart - 1:
        spread[:levels] = 0.0
        spread[:, :levels] = 0.0
        return
    size = len(with_x)
    last = 0
    while (p >> last) & 1:
        last += 1
    if last >= levels:  # the whole tree is done, and with it the stream
        return
    itself = own
    for j in range(last):
        itself += 2.0 * with_x[j]
        for e in range(last):
            itself += spread[j, e]
    for a in range(size):
        entry = with_x[a]
        for j in range(last):
            entry += spread[j, a]
        spread[last, a] = entry
        spread[a, last] = entry
    spread[last, last] = itself
    for j in range(last):
        spread[j] = 0.0
        spread[:, j] = 0.0

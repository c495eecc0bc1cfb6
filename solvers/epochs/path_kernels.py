"""Sums over all patterns of `min_sep` of which only neighbours have weights, by dynamic programmes over the steps.

A pattern is a path; it weighs exp(sum of `nodes` of its steps + sum of `edges` of its neighbours). Neighbours that are
`separation` + d apart have edges[:, d]; those that are further apart have none. With `back` = 1 layer c is about paths
of at most c steps, with `back` = 0 layer 1 is about all of them, and layer 0 is empty.
"""

import math

from factorize.solvers.methods.compiled import Array, compiled


@compiled
def sum_paths(nodes: Array, edges: Array, separation: int, back: int, starts: Array, free: Array) -> None:
    """Write the logarithms of sums over the paths that begin at a step, shape (layers, n), and there or later.

    `free`, shape (layers, n + 1), is zero at first and counts the path without steps; `starts` is minus infinity.
    """
    n, reach = edges.shape
    for c in range(1, len(starts)):
        before = c - back
        for i in range(n - 1, -1, -1):
            rest = free[before, min(i + separation + reach, n)]
            most = rest
            for d in range(min(reach, n - i - separation)):
                most = max(most, edges[i, d] + starts[before, i + separation + d])
            total = math.exp(rest - most)
            for d in range(min(reach, n - i - separation)):
                total += math.exp(edges[i, d] + starts[before, i + separation + d] - most)
            starts[c, i] = nodes[i] + most + math.log(total)
            high, low = max(starts[c, i], free[c, i + 1]), min(starts[c, i], free[c, i + 1])
            free[c, i] = high + math.log1p(math.exp(low - high))


@compiled
def share_paths(
    nodes: Array,
    edges: Array,
    separation: int,
    back: int,
    starts: Array,
    free: Array,
    reached: Array,
    taken: Array,
    steps: Array,
    pairs: Array,
) -> None:
    """Add to `steps`, shape (n,), and `pairs`, like `edges`, the share of the sum whose paths have them.

    `starts` and `free` are from `sum_paths`; `reached` and `taken`, of the shapes of `free` and `starts`, are zero but
    for a one at the first step of the last layer of `reached`.
    """
    n, reach = edges.shape
    for c in range(len(starts) - 1, 0, -1):
        before = c - back
        for i in range(n):
            taken[c, i] += reached[c, i] * math.exp(starts[c, i] - free[c, i])
            reached[c, i + 1] += reached[c, i] * math.exp(free[c, i + 1] - free[c, i])
            here, own = taken[c, i], starts[c, i] - nodes[i]
            steps[i] += here
            far = min(i + separation + reach, n)
            reached[before, far] += here * math.exp(free[before, far] - own)
            for d in range(min(reach, n - i - separation)):
                share = here * math.exp(edges[i, d] + starts[before, i + separation + d] - own)
                pairs[i, d] += share
                taken[before, i + separation + d] += share

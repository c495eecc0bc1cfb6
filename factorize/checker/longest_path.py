"""The largest sum of |X| over a pattern of steps, from longest paths; docs/sensitivity.md has the rules.

All is in doubles. Terms are non-negative and pass at most 4 k additions in a sum of k steps, so it is off by as many
roundings.
"""

import math

import numpy as np

from factorize.checker.participation import Allowed

LONGEST_PATH = "overlapping neighbours: longest path"
ALL_PATTERNS = "absolute sums of all patterns"
BOUNDED_PATH = "longest path, with bounds of the overlaps further on"
TIE = 2.0**-52
"""The share, times the steps of a pattern, by which a bound has to be above the largest sum for a search to go on.

Patterns often tie but for rounding. The room that a stated sensitivity leaves for other orders of sums is larger.
"""
MAX_KEPT = 1 << 16
"""The most patterns after one first step that a search follows, a second of work."""
MAX_LEFT_OPEN = 4
"""After more first steps whose searches were given up, the others are bounded alone."""
MAX_SEARCH_WORK = 1 << 35
"""The most sums of the paths of all first steps, n^4 times their steps, for a search: some seconds."""
_AT_ONCE = 1 << 20  # The most entries of an array.


def largest_sum(sizes: np.ndarray, form: Allowed, memory: int) -> tuple[str, float, tuple[int, ...]]:
    """Return the rule, a bound of the largest sum of |X_ij| over a pattern, and a pattern of nearly this sum.

    Args:
        sizes: |X|, shape (n, n).
        form: what is allowed.
        memory: with how many steps before it each counts along a path, 1 or 2.
    """
    paths = _Paths(sizes, form, memory)
    pattern = paths.longest()
    if not paths.bounded or not math.isfinite(paths.bound) or len(sizes) ** 4 * form.most > MAX_SEARCH_WORK:
        return BOUNDED_PATH if paths.bounded else LONGEST_PATH, paths.bound, pattern
    best, ends, given_up, own = float(sizes[np.ix_(pattern, pattern)].sum()), [0.0], 0, paths.own
    firsts, above = own + paths.onward[-1][0], 1 + form.most * TIE
    for first in np.argsort(-firsts).tolist():
        start, end = first + form.separation, float(firsts[first])
        if end > best * above and start < len(sizes):
            rest = sizes[start:, start:] + 2 * np.diag(sizes[first, start:])
            after = _Paths(rest, Allowed(form.separation, form.most - 1, False), memory)
            found = after.search(best - float(own[first])) if given_up <= MAX_LEFT_OPEN else None
            given_up += found is None
            end = float(own[first]) + (after.bound if found is None else found[0])
            if found and found[1]:
                pattern = (first, *(start + step for step in found[1]))
                best = float(sizes[np.ix_(pattern, pattern)].sum())
        ends.append(end)
    return BOUNDED_PATH if given_up else ALL_PATTERNS, min(max(best, *ends), paths.bound), pattern


class _Paths:
    """Longest paths over X_ii and twice |X_ij| of each step with the one or two before it.

    `onward` has at [i + 1, j] what the steps after i and j add; row 0 is for no step before j, or none that counts.
    Where more steps overlap, `rests` has what i adds with those after j, of which the e-th is at least e b later: at
    most twice the largest |X_iq| of all q from there on.
    """

    def __init__(self, sizes: np.ndarray, form: Allowed, memory: int) -> None:
        n, b, self.own, self.memory = len(sizes), form.separation, sizes.diagonal(), memory
        self.most = min(form.most, math.ceil(n / b))
        self.ways = np.where(np.subtract.outer(np.arange(n), np.arange(n)) <= -b, 2 * sizes, -np.inf)
        self.bounded = self.most > memory + 1 and bool(np.triu(sizes, (memory + 1) * b).any())
        limited = self.bounded or form.most < math.ceil(n / b)
        largest = np.maximum.accumulate(sizes[:, ::-1], axis=1)[:, ::-1]
        self.rests, self.onward = [np.zeros((n, n))], [np.zeros((1 + n * (memory - 1), n))]
        for e in range(1, self.most if self.bounded else 1):
            self.rests.append(self.rests[-1].copy())
            self.rests[-1][:, : max(n - e * b, 0)] += 2 * largest[:, e * b :]
        for left in range(self.most - 1 if limited else 1):
            earlier = np.vstack([np.zeros((1, n)), (self.ways + self.rests[left * self.bounded])[: n * (memory - 1)]])
            after = self.onward[-1]
            self.onward = self.onward + ([after.copy()] if limited else [])
            for j in range(n - b - 1, -1, -1):
                before, later = slice(max(j - b + 2, 1)), slice(j + b, n if limited else j + 2 * b)
                reach = self.ways[j, later] + self.own[later] + after[(j + 1) * (memory - 1), later]
                self.onward[-1][before, j] = np.maximum((earlier[before, later] + reach).max(axis=1), 0.0)

    @property
    def bound(self) -> float:
        """The sum along the longest path."""
        return float((self.own + self.onward[-1][0]).max())

    def longest(self) -> tuple[int, ...]:
        """Return the longest path."""
        path = [int(np.argmax(self.own + self.onward[-1][0]))]
        for left in range(self.most - 2, -1, -1):
            after, rests = (tables[min(left, len(tables) - 1)] for tables in (self.onward, self.rests))
            reach = self.ways[path[-1]] + self.own + after[(path[-1] + 1) * (self.memory - 1)]
            if len(path) > 1 and self.memory > 1:
                reach += self.ways[path[-2]] + rests[path[-2]]
            if not reach.max() > 0:
                break
            path.append(int(np.argmax(reach)))
        return tuple(path)

    def search(self, least: float) -> tuple[float, tuple[int, ...]] | None:
        """Return a bound and the pattern of the largest sum above `least`, if any; None if too many may have it."""
        n, pattern, followed, bound = len(self.own), (), 0, 0.0
        blocks = [(np.arange(n)[:, None], self.own, self.own + self.onward[-1][0])]
        while blocks:
            steps, sums, bounds = blocks.pop()
            if sums.max() > least:
                least, pattern = float(sums.max()), tuple(steps[np.argmax(sums)].tolist())
            higher = bounds > least * (1 + self.most * TIE)
            bound, open_ones = max(bound, float(bounds[~higher].max(initial=0.0))), np.flatnonzero(higher)
            left, size = self.most - steps.shape[1] - 1, max(_AT_ONCE // (n * steps.shape[1]), 1)
            if left < 0 or not len(open_ones):
                continue
            now = open_ones[np.argsort(bounds[open_ones])]
            if len(now) > size:
                blocks.append((steps[now[:-size]], sums[now[:-size]], bounds[now[:-size]]))
            now, followed = now[-size:], followed + len(now[-size:])
            if followed > MAX_KEPT:
                return None
            after, rests = (tables[min(left, len(tables) - 1)] for tables in (self.onward, self.rests))
            sums = sums[now, None] + self.own + self.ways[steps[now]].sum(axis=1)
            bounds = sums + after[(steps[now, -1] + 1) * (self.memory - 1)] + rests[steps[now, :-1]].sum(axis=1)
            place, step = np.nonzero(bounds > least)
            if len(place):
                blocks.append((np.column_stack([steps[now[place]], step]), sums[place, step], bounds[place, step]))
        return max(bound, least if pattern else 0.0), pattern

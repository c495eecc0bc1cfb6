"""Selections of steps that are some distance apart, over the nodes of trees: a bound, and a pattern that may attain it.

Two steps of a tree have a smallest node that holds both. C has no negative entries, and neither has X = C^T C. So where
numbers mu >= 0 add up, over that node and all above it, to at least the entry of X for each two steps,

    |C u|^2 <= sum over the nodes A of mu_A count_A(u)^2     for every selection u.

Nodes of one level and one kind (a left child or root, a right child, one that the end of its tree cuts off) get one mu,
so a table of best selections is made once for each of them, margins at both ends being kept free. All numbers are
positive, so what doubles are off by is relative: n roundings of an entry of X, and a few for each level.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from factorize.exact.arithmetic.intervals import NotEnclosed
from factorize.exact.arithmetic.machine import check_products
from factorize.exact.structures.base import Selection

_UNIT = Fraction(1, 2**53)
_LEAST, _MOST = 2.0**-400, 2.0**900
_MOST_WORK = 1 << 32  # sums of two entries of tables: some seconds
_KINDS = 3  # left child or root, right child, cut off


@dataclass(frozen=True)
class _Table:
    """The best selections among some consecutive steps.

    Attributes:
        steps: how many.
        best: best[c - 1, l, r], with c chosen steps and none among the first l and the last r; -inf where none is.
        parts: none of one step; itself without the weight of its node; or its left and its right side.
    """

    steps: int
    best: np.ndarray
    parts: tuple[_Table, ...] = ()

    def weighted(self, weight: float) -> _Table:
        """Return it with the weight of a node that holds all of it."""
        counts = np.arange(1.0, len(self.best) + 1)
        return _Table(self.steps, self.best + (weight * counts**2)[:, None, None], (self,))


def node_selection(array: np.ndarray, restart: int, separation: int, most: int) -> Selection | None:
    """Return what the nodes say; None where doubles do not tell, an entry is negative, or tables are too large.

    Args:
        array: C, shape (n, n).
        restart: leaves of a tree; the last tree may have fewer.
        separation: least distance of two chosen steps.
        most: chosen steps at most.
    """
    n = len(array)
    if (array < 0).any() or _work(n, separation, most) > _MOST_WORK:
        return None
    try:
        check_products()
    except NotEnclosed:
        return None
    with np.errstate(all="ignore"):
        gram = array.T @ array
    peak = float(gram.max())
    if not _LEAST < peak < _MOST:
        return None
    table = _forest(gram, restart, separation, most)
    count = int(np.argmax(table.best[:, 0, 0])) + 1
    levels = (restart - 1).bit_length()
    roundings = n + 3 * levels + 2 * (n // restart).bit_length() + 8
    allowance = 1 + roundings * _UNIT * (1 + 2 * roundings * _UNIT) + Fraction(1, 2**400)
    upper = Fraction(float(table.best[count - 1, 0, 0])) * allowance
    return Selection(upper, tuple(_chosen(table, separation, count, 0, 0)))


def _work(n: int, separation: int, most: int) -> int:
    """Sums of two entries of tables, about: those of joining two sides of 1, 2, 4, ... steps."""
    total, side = 0, 1
    while side < n:
        width, count = min(side, separation), min(most, -(-side // separation))
        total += len(_gaps(side, side, separation)) * width**2 * count**2
        side *= 2
    return total


def _forest(gram: np.ndarray, restart: int, separation: int, most: int) -> _Table:
    """Return the table of all trees, one after the other."""
    trees, rest = divmod(len(gram), restart)
    firsts = [tree * restart for tree in range(trees)]
    doubled = _tree(gram, firsts, restart, separation, most)
    found: _Table | None = None
    while trees:
        if trees & 1:
            found = doubled if found is None else _joined(found, doubled, separation, most)
        trees >>= 1
        doubled = _joined(doubled, doubled, separation, most) if trees else doubled
    if rest:
        last = _tree(gram, [len(gram) - rest], rest, separation, most)
        found = last if found is None else _joined(found, last, separation, most)
    assert found is not None
    return found


def _tree(gram: np.ndarray, firsts: list[int], size: int, separation: int, most: int) -> _Table:
    """Return the table of a tree of `size` leaves; `firsts` says where such trees begin."""
    top = (size - 1).bit_length()
    weights = _weights(gram, firsts, size, top)
    one = np.full((1, 1, 1), 0.0)
    complete = [_Table(1, one)]  # without the weight of their own node
    for level in range(size.bit_length() - 1):
        left, right = (complete[level].weighted(weights[level, kind]) for kind in (0, 1))
        complete.append(_joined(left, right, separation, most))

    def node(level: int, leaves: int, kind: int) -> _Table:
        """A node of which `leaves` exist."""
        if leaves == 1 << level:
            return complete[level].weighted(weights[level, kind])
        half = 1 << (level - 1)
        inner = node(level - 1, min(leaves, half), 0)
        if leaves > half:
            inner = _joined(inner, node(level - 1, leaves - half, 2), separation, most)  # it is cut off, too
        return inner.weighted(weights[level, 2])

    return node(top, size, 0)


def _weights(gram: np.ndarray, firsts: list[int], size: int, top: int) -> np.ndarray:
    """Return mu by level and kind: from the root down, what the entries need beyond the nodes above."""
    found, above = np.zeros((top + 1, _KINDS)), np.zeros((len(firsts), 1))
    for level in range(top, -1, -1):
        nodes = list(_nodes(level, size))
        above = np.repeat(above, 2, axis=1)[:, : len(nodes)] if level < top else above
        needs = np.array([[_largest(gram, first, *node) for node in nodes] for first in firsts]) - above
        for kind in range(_KINDS):
            own = [place for place, node in enumerate(nodes) if node[-1] == kind]
            found[level, kind] = max(float(needs[:, own].max(initial=0.0)), 0.0)
            above[:, own] += found[level, kind]
    return found


def _nodes(level: int, size: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield the nodes of a level: first leaf, first leaf of the right child, end, and kind."""
    width = 1 << level
    for place, start in enumerate(range(0, size, width)):
        cut = start + width > size
        yield start, start + width // 2, min(start + width, size), 2 if cut else place & 1


def _largest(gram: np.ndarray, first: int, start: int, middle: int, stop: int, _kind: int) -> float:
    """The largest entry for two steps that this node is the first to hold, or of its one step."""
    if stop - start == 1 and middle == start:
        return float(gram[first + start, first + start])
    return float(gram[first + start : first + middle, first + middle : first + stop].max(initial=-np.inf))


def _joined(left: _Table, right: _Table, separation: int, most: int) -> _Table:
    """Put two neighbours together."""
    steps = left.steps + right.steps
    side = min(separation, steps)
    best = np.full((min(most, -(-steps // separation)), side, side), -np.inf)
    margins = np.arange(side)
    wide, high = left.best.shape[1], right.best.shape[2]  # margins that leave something of either side
    best[: len(left.best), :wide] = left.best[:, :, np.maximum(margins - right.steps, 0)]
    alone = best[: len(right.best), :, :high]
    np.maximum(alone, right.best[:, np.maximum(margins - left.steps, 0)], out=alone)
    for x in _gaps(left.steps, right.steps, separation):
        begins, ends = left.best[:, :, x], right.best[:, separation - 1 - x]
        for c, begin in enumerate(begins[: len(best) - 1]):
            some = best[c + 1 : c + 1 + len(ends), :wide, :high]
            np.maximum(some, begin[None, :, None] + ends[: len(some), None, :], out=some)
    return _Table(steps, best, (left, right))


def _gaps(left: int, right: int, separation: int) -> range:
    """Steps kept free at the end of the left side where both are chosen from; the rest is kept free on the right."""
    return range(max(separation - right, 0), min(separation, left))


def _chosen(table: _Table, separation: int, count: int, begin: int, end: int) -> list[int]:
    """Return the steps of a best selection of `count`, none among the first `begin` and the last `end`."""
    if not table.parts:
        return [0]
    if len(table.parts) == 1:
        return _chosen(table.parts[0], separation, count, begin, end)
    left, right = table.parts
    ways = [(_entry(left, count, begin, max(end - right.steps, 0)), count, begin, max(end - right.steps, 0), 0, 0)]
    ahead = max(begin - left.steps, 0)
    ways.append((_entry(right, count, ahead, end), 0, 0, 0, ahead, end))
    for x in _gaps(left.steps, right.steps, separation):
        rest = separation - 1 - x
        ways += [
            (_entry(left, c, begin, x) + _entry(right, count - c, rest, end), c, begin, x, rest, end)
            for c in range(1, count)
        ]
    _, on_left, begin, after, before, end = max(ways)
    found = _chosen(left, separation, on_left, begin, after) if on_left else []
    if count > on_left:
        found += [left.steps + step for step in _chosen(right, separation, count - on_left, before, end)]
    return found


def _entry(table: _Table, count: int, begin: int, end: int) -> float:
    if count > len(table.best) or max(begin, end) >= table.best.shape[1]:
        return -math.inf
    return float(table.best[count - 1, begin, end])

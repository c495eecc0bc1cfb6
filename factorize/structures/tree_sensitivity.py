"""Sensitivity of a tree matrix without negative entries, over repeated participations.

With C >= 0 the worst contributions all point the same way, so sens^2 is the largest sum of X_st = (C^T C)_st over the
steps s, t of a pattern. In a fixed order the patterns are few. With a minimal separation they are exponentially many;
there X is majorised by a sum over the nodes of the trees,

    X_st <= sum over the nodes A that contain s and t of mu_A,    hence sens^2 <= max over patterns sum_A mu_A count_A^2

and the right side is a dynamic programme over the trees, exact where X is such a sum: for the online decoder (mu is 1
for left children and the root, 0 for right ones) and the full Honaker decoder (X = H^T H, mu = 1 for complete nodes).
mu is read off the stored matrix, so this holds for any numbers in it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from factorize.numbers.rounding import UNIT
from factorize.structures.base import Bound
from factorize.structures.forest import Forest

Array = NDArray[np.float64]
LARGEST_WORK = 1 << 34
LARGEST_TABLE = 1 << 26
_PLATEAUS = 16
EXACT_RULE = "tree: best selection by dynamic programme over nodes"
UPPER_RULE = "tree: best selection in a majorant of the Gram matrix over nodes"
LEVEL_RULE = "tree: largest counts in the nodes of each level"
CLASS_RULE = "tree: sums over the patterns"
_EXACT = 1e-12
_ATTAINED = 1e-12


@dataclass(frozen=True)
class Stretch:
    """Consecutive steps and the best selections among them.

    Attributes:
        steps: how many.
        best: best[c - 1, l, r], the best value with c chosen steps, none among the first l and none among the last r
            steps; margins l, r < min_sep; -inf where there is no such choice.
    """

    steps: int
    best: Array


def fixed_order_bound(forest: Forest, epochs: int) -> Bound:
    """Return max over c of ||C u_c||^2 for the patterns u_c = {c, c + b, ...}, b = n / epochs; exact for C >= 0."""
    terms = 2 * len(forest.nodes) + forest.n + 64
    return Bound(_periodic_total(forest, forest.n // epochs) * (1 + terms * UNIT), True, CLASS_RULE)


def _periodic_total(forest: Forest, separation: int) -> float:
    """Return the largest ||C u||^2 over the patterns u = {c, c + b, ...} of all steps, b = separation."""
    from factorize.structures.kernels.tree import class_totals

    cells = np.zeros(2 * separation)
    class_totals(forest.nodes, forest.restart, separation, cells)
    for parent in range(1, separation):
        cells[2 * parent] += cells[parent]
        cells[2 * parent + 1] += cells[parent]
    return float(cells[separation:].max())


def separated_bound(forest: Forest, min_sep: int, most: int) -> Bound:
    """Return a bound on max over patterns ||C u||^2, u at most `most` steps at least `min_sep` apart; C >= 0."""
    weights, exact = node_weights(forest)
    coarse = _unit(forest, min_sep, most)
    if coarse is None:
        return Bound(_by_levels(weights, min_sep, most) * (1 + (2 * forest.n + 64) * UNIT), False, LEVEL_RULE)
    total = _best_selection(forest, weights, min_sep >> coarse, most, coarse)
    allowance = 1 + (2 * forest.n + 64 + most) * UNIT
    # Units of equal size have their best step at the same place, so units far enough apart have steps that are.
    exact &= not any(number % (1 << coarse) for number in (forest.n, forest.restart, min_sep))
    if not exact and most * min_sep >= forest.n:  # then the patterns {c, c + b, ...} are allowed, and may attain it
        exact = total <= _periodic_total(forest, min_sep) * (1 + _ATTAINED)
    return Bound(total * allowance, exact, EXACT_RULE if exact else UPPER_RULE)


def node_weights(forest: Forest) -> tuple[Array, bool]:
    """Return mu for each kind of node, and whether the sums over nodes are the Gram matrix to relative 1e-12.

    Returns:
        mu: shape (2, levels + 1, 3): for the trees of `restart` steps and for a shorter last one; by level; for left
            children (and the root), right children, and nodes cut off by the end of the tree.
        exact: whether the majorant is attained everywhere.
    """
    highest, lowest = _gram_by_level(forest)
    mu = np.zeros((2, len(highest), 3))
    kinds = [_kinds(forest, level) for level in range(len(highest))]
    above = np.zeros(forest.n)
    for level in reversed(range(len(highest))):
        highest[level] = np.maximum(highest[level], above)  # a node that holds no pair of its own adds nothing
        np.maximum.at(mu[:, level], kinds[level], highest[level] - above)
        above = highest[level]
    sums = np.zeros(forest.n)
    short, exact = 1.0, True
    for level in reversed(range(len(highest))):
        sums = sums + mu[:, level][kinds[level]]
        exact &= bool((sums <= lowest[level] * (1 + _EXACT)).all())
        short = max(short, float((highest[level] / np.where(sums > 0, sums, 1.0)).max()))
    return mu * short, exact


def _kinds(forest: Forest, level: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return, for each step, whether its tree is a shorter last one, and the kind of its node at a level."""
    leaves, n, restart = forest.leaves(), forest.n, forest.restart
    short = np.arange(n) >= n - n % restart
    size = np.where(short, n % restart, restart)
    node = leaves >> level
    return short.astype(np.int64), np.where((node + 1) << level > size, 2, node & (level < len(forest.nodes) - 1))


def _gram_by_level(forest: Forest) -> tuple[list[Array], list[Array]]:
    """Return, by level and step, the largest and smallest X_st over pairs that the step's node is the first to hold.

    Such a pair has s in the left and t in the right child. Rows of the right child contribute nodes[level, u] C_ut,
    whatever s is; later rows see s and t in one block. Nodes without such a pair have -inf and inf.
    """
    from factorize.structures.kernels.tree import inner_products

    levels, n = len(forest.nodes) - 1, forest.n
    highest: list[Array] = [np.empty(0)] * (levels + 1)
    lowest: list[Array] = [np.empty(0)] * (levels + 1)
    later, within = np.zeros(n), np.empty(n)
    for level in reversed(range(levels)):
        inner_products(forest.nodes, forest.restart, level, within)
        right = forest.leaves() >> level & 1 == 1
        highest[level + 1] = _by_node(forest, level + 1, np.where(right, within, -np.inf), np.maximum) + later
        lowest[level + 1] = _by_node(forest, level + 1, np.where(right, within, np.inf), np.minimum) + later
        left, totals = forest.siblings(level, forest.nodes[level + 1] ** 2)
        later[left] += totals
    highest[0] = lowest[0] = forest.nodes[0] ** 2 + later
    return highest, lowest


def _by_node(forest: Forest, level: int, values: Array, ufunc: np.ufunc) -> Array:
    """Return, for each step, the largest (smallest) value over its node at a level."""
    node = np.arange(forest.n) // forest.restart * forest.n + (forest.leaves() >> level)
    starts = np.flatnonzero(np.diff(node, prepend=-1))
    return np.repeat(ufunc.reduceat(values, starts), np.diff(starts, append=forest.n))


def _unit(forest: Forest, min_sep: int, most: int) -> int | None:
    """Return the level of the units that the dynamic programme goes by, or None where every choice takes too long.

    Units are blocks of 2^level steps, of which at most one is chosen: 2^level <= min_sep. Two chosen units are
    min_sep >> level or more apart, and each is charged its best step, so coarser units give a larger bound.
    """
    sizes = [1 << level for level in range(1, len(forest.nodes))]
    trees = forest.n // forest.restart
    sizes += [forest.restart << doubling for doubling in range(1, trees.bit_length())]
    counts = [min(most, math.ceil(size / 2 / min_sep)) for size in sizes]
    for level in range(min(min_sep.bit_length(), len(forest.nodes))):
        apart = min_sep >> level
        work = sum(count**2 for count in counts) * apart**2 * min(apart, _PLATEAUS)
        if work <= LARGEST_WORK and sum(2 * count for count in counts) * apart**2 <= LARGEST_TABLE:
            return level
    return None


def _by_levels(weights: Array, min_sep: int, most: int) -> float:
    """Counts within the nodes of a level add up to at most `most` and are at most ceil(size / min_sep) each."""
    levels = weights.max(axis=(0, 2))
    return float(sum(mu * most * min(most, math.ceil((1 << level) / min_sep)) for level, mu in enumerate(levels)))


def _best_selection(forest: Forest, weights: Array, apart: int, most: int, unit: int) -> float:
    """Return the largest sum over nodes of mu count^2, for units of 2^unit steps that are `apart` or more apart."""
    trees, rest = divmod(forest.n, forest.restart)
    pieces = []
    doubled = _tree(forest.restart, weights[0], apart, most, unit)
    while trees:
        if trees & 1:
            pieces.append(doubled)
        trees >>= 1
        doubled = _join(doubled, doubled, most) if trees else doubled
    if rest:
        pieces.append(_tree(rest, weights[1], apart, most, unit))
    whole = pieces[0]
    for piece in pieces[1:]:
        narrow = Stretch(whole.steps, whole.best[:, :1])
        whole = _join(narrow, Stretch(piece.steps, piece.best[:, :, :1]) if piece is pieces[-1] else piece, most)
    return float(whole.best[:, 0, 0].max())


def _tree(steps: int, weights: Array, apart: int, most: int, unit: int) -> Stretch:
    """Return the stretch of one tree; weights by level and kind."""
    complete = {unit: _one(_best_step(unit, 1 << unit, weights), apart)}  # without the weight of their own root
    for level in range(unit + 1, steps.bit_length()):
        child = complete[level - 1]
        complete[level] = _join(_own(child, weights[level - 1, 0]), _own(child, weights[level - 1, 1]), most)

    def cut(level: int, size: int, kind: int) -> Stretch:
        """Return a node of which only `size` leaves exist."""
        if size == 1 << level:
            return _own(complete[level], weights[level, kind])
        half = 1 << (level - 1)
        if level == unit:
            return _own(_one(_best_step(level, size, weights), apart), weights[level, 2])
        if size <= half:
            return _own(cut(level - 1, size, 0), weights[level, 2])
        return _own(_join(cut(level - 1, half, 0), cut(level - 1, size - half, 1), most), weights[level, 2])

    return cut(len(weights) - 1, steps, 0)


def _one(value: float, apart: int) -> Stretch:
    """Return a stretch of one unit."""
    best = np.full((1, apart, apart), -np.inf)
    best[0, 0, 0] = value
    return Stretch(1, best)


def _best_step(level: int, size: int, weights: Array) -> float:
    """Return the largest sum of weights from a leaf up to a node with `size` leaves, its own weight left out."""
    if level == 0:
        return 0.0
    half = 1 << (level - 1)

    def child(leaves: int, kind: int) -> float:
        own = weights[level - 1, kind if leaves == half else 2]
        return float(own) + _best_step(level - 1, leaves, weights)

    left = child(min(size, half), 0)
    return left if size <= half else max(left, child(size - half, 1))


def _own(stretch: Stretch, weight: float) -> Stretch:
    """Add a node's own weight times the squared count."""
    counts = np.arange(1.0, len(stretch.best) + 1)
    return Stretch(stretch.steps, stretch.best + (weight * counts**2)[:, None, None])


def _join(left: Stretch, right: Stretch, most: int) -> Stretch:
    """Put two neighbouring stretches together."""
    from factorize.structures.kernels.tree import join

    separation = left.best.shape[2]
    steps = left.steps + right.steps
    begins, ends = left.best.shape[1], right.best.shape[2]
    out = np.full((min(most, math.ceil(steps / separation)), begins, ends), -np.inf)
    ahead = np.maximum(np.arange(ends) - right.steps, 0)
    behind = np.maximum(np.arange(begins) - left.steps, 0)
    out[: len(left.best)] = left.best[:, :, ahead]
    only_right = out[: len(right.best)]
    np.maximum(only_right, right.best[:, behind, :], out=only_right)
    join(left.best, right.best, out)
    return Stretch(steps, out)

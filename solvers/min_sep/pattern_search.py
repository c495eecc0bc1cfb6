"""`min_sep` with many steps: the best X for absolute sums over patterns, by descent on a smooth sum over some of them.

With X_ij = 0 for steps 3 b or more apart, b = `min_sep`, a step of a pattern overlaps with the two before it alone;
with three participations nothing has to vanish. Then the largest sum of |X_ij| over a pattern is that of a longest path
over pairs of neighbours (`Chains`), and what is minimised is convex:

    tr(T^T T X^-1) + t log sum over listed patterns of exp(sum of X_ii and 2 |X_ij| / t).

Where a spec allows more than three participations, but fewer than fit, steps further apart overlap at the optimum, and
nothing has to vanish. Patterns of up to six steps are then searched by bounds, as for the certificate. With more, and
fewer than half as many as fit, a search is too long: in the place of |X_ij| of steps further apart stands the largest
one of all j that may come so late.

Patterns are listed when a longest path shows that X breaks their constraint. Their shares of the sum are the dual's
weights. The temperature t falls by stages, each of which begins where the last one ended: half a power of ten at once,
since whole ones take two to three times as many steps.

Many steps begin with X and the patterns of half as many cells (cells.py), found in the same way: the long descents are
then those of few cells.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from factorize.errors import SolveFailed
from factorize.factors.plain_sensitivity import Chains, memory_of
from factorize.participation import few_participations
from factorize.solvers.methods.compiled import Array
from factorize.solvers.methods.quasi_newton import descend
from factorize.solvers.methods.search import End, Iterate
from factorize.solvers.min_sep.cells import Cells
from factorize.solvers.min_sep.patterns import Places, disjoint_patterns
from factorize.solvers.problem import StepReport
from factorize.solvers.single.dense import triangle

MAX_DUAL_STEPS = 256
"""Up to this many steps or cells the listed patterns are searched for a dual."""
_TEMPERATURES = tuple(10.0 ** (-power / 2) for power in range(4, 15))  # temperatures over the squared sensitivity
_SHORT_STEPS = 192  # descents of so few steps end late
_MIN_CELLS = 64  # this many cells begin without fewer cells, as MAX_DUAL_STEPS steps do
_LAST_TEMPERATURES = ((_SHORT_STEPS, 0.0), (MAX_DUAL_STEPS, 3e-6), (512, 1e-4), (math.inf, 3e-4))
"""The last temperature of up to this many steps."""
_FIRST_TEMPERATURE, _CELLS_END, _DUAL_END = 1e-3, 1e-3, 3e-5
"""The first temperature after cells, and the last one of a search in cells and in cells searched for a dual."""
_BRIEF_STEPS = 0.04  # over the temperature, the steps from X of cells until the next look for patterns
_COUNTING_SHARE = 1e-3  # a pattern of cells is taken over above this part of the largest share
_MIN_GAIN, _MIN_GAIN_OF_LONG, _MIN_GAIN_OF_CELLS = 0.003, 0.01, 0.05
"""A window of steps has to gain this part of the temperature."""
_WINDOW_STEPS = 10
_MAX_STEPS = 2000  # the limit of one descent
_ROUNDS, _ROUNDS_OF_BOUNDS = 30, 6
_MAX_SEARCHED_PARTICIPATIONS = 6
_SEARCHES: tuple[tuple[int, float, int, tuple[int, ...]], ...] = (
    (64, 1e-6, 12, (1 << 7, 1 << 16)),
    (_SHORT_STEPS, 1e-5, 12, (1 << 7, 1 << 16)),
    (MAX_DUAL_STEPS, 1e-4, 6, (1 << 7,)),
)
"""Where patterns are searched, of up to so many steps: the last temperature, the rounds of one, and of how many
patterns of each number of steps the search goes on, at first and then if it finds none."""
_LAST_OF_BOUNDS = 3e-5, 1e-4  # their last temperature, of few and of many steps
_BOUNDS_SHARE = 0.1  # of the temperature, the scale of smooth bounds
_MAX_NEW_PATTERNS = 8  # at most this many patterns are listed at once, for each step
_MIN_SHARE = 1e-9  # a pattern is dropped between two stages below this part of the largest share


def searches_patterns(n: int, separation: int, most: int) -> bool:
    """Return whether all steps of a pattern may overlap, so that the worst patterns have to be searched."""
    return n <= MAX_DUAL_STEPS and 3 < most <= _MAX_SEARCHED_PARTICIPATIONS and most < -(-n // separation)


class ListedOptimum(NamedTuple):
    """The end of a search.

    Attributes:
        gram: X, of any sensitivity.
        steps: taken.
        patterns: the patterns that count, filled up with n.
        shares: the share of each, which sum to 1.
        target: T.
        separation: the least distance of two steps of a pattern.
        cells: what it began with.
    """

    gram: Array
    steps: int
    patterns: Places
    shares: Array
    target: Array
    separation: int
    cells: ListedOptimum | None

    def for_dual(self) -> ListedOptimum:
        """Return this, or the cells that are few enough for a dual."""
        return self if self.cells is None or len(self.gram) <= MAX_DUAL_STEPS else self.cells.for_dual()


class PatternSearch:
    """The entries of X that may differ from zero, and what is minimised over them.

    Args:
        target: T, shape (m, n), of full rank.
        separation: least distance of two steps of a pattern.
        most: steps of one.
    """

    def __init__(self, target: Array, separation: int, most: int) -> None:
        self._target, self._separation, self._most = np.asfortranarray(target.T), separation, most
        n = target.shape[1]
        self._last = next(last for most_steps, last in _LAST_TEMPERATURES if n <= most_steps)
        self._enough = _MIN_GAIN if n <= _SHORT_STEPS else _MIN_GAIN_OF_LONG
        self._brief, self._temperatures = math.inf, list(_TEMPERATURES)
        few = n <= MAX_DUAL_STEPS and few_participations(n, separation, most)
        self._searches = searches_patterns(n, separation, most)
        wide = n if most <= 3 or few or self._searches else min(3 * separation, n)
        self._memory = memory_of(n, separation, most, wide) or 1
        self.bands = wide if self._memory > 1 else n if most == 2 else min(2 * separation, n)
        lags = np.subtract.outer(np.arange(n), np.arange(n))
        self._rows, self._columns = np.nonzero((lags >= 0) & (lags < self.bands))
        lags = self._rows - self._columns
        self._own, self._met = lags == 0, lags >= separation
        self._twice = np.where(self._own, 1.0, 2.0)
        later, earlier = np.tril_indices(most)
        near = (later - earlier <= self._memory) | self._searches
        self._near, self._apart = (later[near], earlier[near]), (later[~near], earlier[~near])
        self._bounds_far = self.bands == n and len(self._apart[0]) > 0
        self._rounds, self._kept = _ROUNDS, tuple[int, ...]()
        if self._bounds_far:
            self._last, self._rounds = _LAST_OF_BOUNDS[n > _SHORT_STEPS], _ROUNDS_OF_BOUNDS
        elif self._searches:
            _, self._last, self._rounds, self._kept = next(each for each in _SEARCHES if n <= each[0])
        self._fewest = _MIN_CELLS if self._bounds_far or self._searches else MAX_DUAL_STEPS
        self._place = np.full((n + 1, n + 1), -1)
        self._place[self._rows, self._columns] = np.arange(len(lags))
        start = disjoint_patterns(n, separation, most)
        self._patterns = np.where(start < 0, n, start)

    def best(self, report: StepReport) -> ListedOptimum:
        """Return X, and the patterns that count.

        Raises:
            SolveFailed: the numbers leave the range of double precision.
        """
        from threadpoolctl import threadpool_limits

        with threadpool_limits(1, user_api="blas"):  # decompositions this small lose more to waiting than they gain
            return self._search(report)

    def _search(self, report: StepReport) -> ListedOptimum:
        x, cells = self._start(report)
        steps = 0 if cells is None else cells.steps
        for temperature in (each for each in self._temperatures if each > 0.99 * self._last):
            most = int(min(self._brief / temperature, _MAX_STEPS))
            for _ in range(self._rounds):
                self._list()
                end, scale = self._descend(x, temperature, report, steps, most)
                x, steps = end.best.z * scale, steps + end.steps
                new = self._broken(self._whole(x), 1 + temperature)
                if not len(new) and end.steps < most:
                    break
                listed, self._patterns = self._patterns, np.concatenate([self._patterns, new])
            if len(new):  # all rounds found some, beside which the others would seem not to count
                self._patterns, new = listed, self._patterns[len(listed) :]
                self._list()
            self(x)
            counting = self._patterns[self._shares > _MIN_SHARE * self._shares.max()]
            self._patterns = np.concatenate([counting, new])
        self._list()
        self(x)
        gram, target = self._whole(x), self._target.T
        return ListedOptimum(gram, steps, self._patterns, self._shares, target, self._separation, cells)

    def _start(self, report: StepReport) -> tuple[Array, ListedOptimum | None]:
        """Return the first entries of X, and the cells that they come from; list the first patterns."""
        n, fewer = len(self._target), -(-self._separation // 2)
        if n <= self._fewest or fewer == self._separation:
            return np.sqrt(np.einsum("ij,ij->i", self._target, self._target))[self._rows] * self._own, None
        cells = Cells(n, self._separation, fewer)
        search = PatternSearch(triangle(cells.sums(self._target.T)), fewer, self._most)
        search._fewest, search._last = _MIN_CELLS, _DUAL_END if cells.count <= MAX_DUAL_STEPS < n else _CELLS_END
        found = search._search(report)
        counting = found.patterns[found.shares > _COUNTING_SHARE * found.shares.max()]
        self._patterns = np.unique(np.concatenate([self._patterns, cells.patterns(counting)]), axis=0)
        self._brief, self._enough = _BRIEF_STEPS, _MIN_GAIN_OF_CELLS
        self._temperatures = [each for each in _TEMPERATURES if each < 1.01 * _FIRST_TEMPERATURE]
        x = cells.gram(self._target.T, found.target, found.gram)[self._rows, self._columns]
        while self._loss(x)[1] is None:  # without its entries far from the diagonal it need not be definite
            x = np.where(self._own, x, x / 2)
        return x, found

    def _descend(
        self, x: Array, temperature: float, report: StepReport, before: int, most: int
    ) -> tuple[End[Iterate], Array]:
        """Return the end of a descent in entries of X over a scale, and that scale."""
        size = self._largest_sum(x)
        factor = float(np.sqrt(self._loss(x)[0] / size))
        x, self._temperature = x * factor, temperature * size * factor
        roots = np.sqrt(x[self._own])
        scale = roots[self._rows] * roots[self._columns]

        def function(z: Array) -> tuple[float, Array]:
            value, gradient = self(z * scale)
            return value, gradient * scale

        start = Iterate(x / scale, *function(x / scale))
        if not np.isfinite(start.value):
            raise SolveFailed("the loss is not finite; rescale the workload so that its entries lie near 1")
        end = descend(
            function,
            start,
            tolerance=0.0,
            enough=temperature * self._enough,
            window=_WINDOW_STEPS,
            most=most,
            report=lambda step, _: report(before + step, None),
        )
        return end, scale

    def _largest_sum(self, x: Array) -> float:
        """Return the largest sum of |X| over a listed pattern."""
        sizes = np.abs(x)
        if self._bounds_far:
            largest = np.maximum.accumulate(self._upper(sizes)[:, ::-1], axis=1)[:, ::-1]
            sizes = np.append(sizes, largest)
        return float((self._sum @ sizes).max())

    def _upper(self, sizes: Array) -> Array:
        """Return entries of steps that may meet, earlier ones as rows; others are zero."""
        upper = np.zeros((len(self._target),) * 2)
        upper[self._columns[self._met], self._rows[self._met]] = sizes[self._met]
        return upper

    def _whole(self, x: Array) -> Array:
        gram = np.zeros((len(self._target),) * 2)
        gram[self._rows, self._columns] = gram[self._columns, self._rows] = x
        return gram

    def _list(self) -> None:
        """Set the matrix that takes entries of X to sums over the listed patterns."""
        from scipy.sparse import csr_array

        some, n, entries = self._patterns, len(self._target), len(self._rows)
        later, earlier = self._near
        places, values, columns = self._place[some[:, later], some[:, earlier]], self._twice, entries
        if self._bounds_far:
            later, earlier = self._apart
            after = some[:, earlier + self._memory]
            first = after + (later - earlier - self._memory) * self._separation
            bounds = np.where((after < n) & (first < n), entries + some[:, earlier] * n + first, -1)
            places, values, columns = (
                np.hstack([places, bounds]),
                np.append(values, np.full(n * n, 2.0)),
                entries + n * n,
            )
        seen = places >= 0
        ends = np.concatenate([[0], np.cumsum(seen.sum(axis=1))])
        self._sum = csr_array((values[places[seen]], places[seen], ends), shape=(len(some), columns))
        self._spread = self._sum.T.tocsr()

    def __call__(self, x: Array) -> tuple[float, Array]:
        """Return what is minimised and its gradient in the entries of X; infinite where X is not positive definite."""
        loss, w = self._loss(x)
        if w is None:
            return np.inf, np.zeros_like(x)
        t, sizes, slopes = self._temperature, x.copy(), np.ones_like(x)
        ways = 2 * np.abs(x[self._met]) / t
        sizes[self._met] = t / 2 * (ways + np.log1p(np.exp(-2 * ways)) - np.log(2.0))
        slopes[self._met] = np.sign(x[self._met]) * np.tanh(ways)
        bounds = _Bounds(self._upper(sizes), t * _BOUNDS_SHARE) if self._bounds_far else None
        sums = self._sum @ (sizes if bounds is None else np.append(sizes, bounds.values))
        shares = np.exp((sums - sums.max()) / t)
        total = float(shares.sum())
        self._shares = shares / total
        gradient = self._spread @ self._shares
        if bounds is not None:
            own = bounds.spread(gradient[len(x) :])[self._columns, self._rows]
            gradient = gradient[: len(x)] + np.where(self._met, own, 0.0)
        gradient = gradient * slopes - self._twice * w[self._rows, self._columns]
        return loss + float(sums.max()) + t * float(np.log(total)), gradient

    def _loss(self, x: Array) -> tuple[float, Array | None]:
        """Return tr(T^T T X^-1) and X^-1 T^T T X^-1."""
        from scipy.linalg.lapack import dpotrf, dpotrs

        lower = np.zeros((len(self._target),) * 2, order="F")
        lower[self._rows, self._columns] = x
        root, failed = dpotrf(lower, lower=1)
        if failed:
            return np.inf, None
        solved, _ = dpotrs(root, self._target, lower=1)
        return float(np.vdot(solved, self._target)), solved @ solved.T

    def _broken(self, gram: Array, most: float) -> Places:
        """Return patterns that are above a multiple of the worst listed one, the worst through neighbours."""
        limit = most * self._largest_sum(gram[self._rows, self._columns])
        find = self._search_patterns if self._searches else self._worst_patterns
        new, known = find(np.abs(gram), limit), {row.tobytes() for row in self._patterns}
        return new[[row.tobytes() not in known for row in new]]

    def _worst_patterns(self, sizes: Array, limit: float) -> Places:
        return worst_patterns(sizes, self._separation, self._most, self._memory, limit)

    def _search_patterns(self, sizes: Array, limit: float) -> Places:
        """Return patterns above a limit: of those that a search finds, the worst with each two first or last steps."""
        n, chains = len(sizes), Chains(sizes, self._separation, self._most, self._memory)
        found = (chains.above_by_first(limit, kept) for kept in self._kept)
        new, sums = next((each for each in found if len(each[0])), (self._patterns[:0], np.zeros(0)))
        new = new[np.argsort(-sums)]
        ends = (np.unique(new[:, pair] @ [n + 1, 1], return_index=True)[1] for pair in ([0, 1], [-1, -2]))
        return np.asarray(new[np.unique(np.concatenate(list(ends)))][: _MAX_NEW_PATTERNS * n])


class _Bounds:
    """The largest entries of each row from a place on, smooth, and where their slopes go.

    Args:
        sizes: shape (n, n), at least 0.
        scale: a bound is above the largest of m entries by log m of this at most.

    Attributes:
        values: shape (n, n), at [i, q] of entries q and later.
    """

    def __init__(self, sizes: Array, scale: float) -> None:
        self._sizes = sizes / scale
        self._logs = np.logaddexp.accumulate(self._sizes[:, ::-1], axis=1)[:, ::-1]
        self.values = self._logs * scale

    def spread(self, slopes: Array) -> Array:
        """Return the slopes in the sizes from those in the values."""
        slopes = slopes.reshape(self._sizes.shape).copy()
        passed = np.exp(np.diff(self._logs, axis=1))
        for q in range(len(slopes) - 1):
            slopes[:, q + 1] += slopes[:, q] * passed[:, q]
        return np.asarray(slopes * np.exp(self._sizes - self._logs))


def worst_patterns(sizes: Array, separation: int, most: int, memory: int, limit: float) -> Places:
    """Return the worst patterns through two neighbours, of those above a limit, filled up with n: (patterns, most).

    The arguments are those of `Chains`.
    """
    n = len(sizes)
    onward, back = (Chains(some, separation, most, memory) for some in (sizes, sizes[::-1, ::-1]))
    rows = slice(memory - 1, n + memory - 1)
    late, early = (each.tables[: max(most - 1, 1), rows] for each in (onward, back))
    sums = late + early[::-1, ::-1, ::-1].swapaxes(1, 2) + onward.ways + onward.own[:, None] + onward.own
    if np.any(onward.rests[: most - 2]):
        sums[:-1] = -np.inf  # bounds of the steps before are none for those after
    worst = sums.max(axis=0)
    first, second = np.nonzero(worst > limit)
    chosen = np.argsort(-worst[first, second])[: _MAX_NEW_PATTERNS * n]
    first, second = first[chosen], second[chosen]
    later = sums[:, first, second].argmax(axis=0)
    after = _follow(onward, separation, first, second, later, most)
    before = n - 1 - _follow(back, separation, n - 1 - second, n - 1 - first, len(sums) - 1 - later, most)
    found = np.column_stack([np.where(before < 0, n, before), first, second, after])
    return np.unique(np.sort(found, axis=1)[:, :most], axis=0)


def _follow(chains: Chains, separation: int, first: Places, second: Places, left: Places, most: int) -> Places:
    """Return the steps that follow neighbours, at most `left` if numbers are limited, n for none, shape (.., most)."""
    n, found = len(chains.own), []
    near = np.arange(n) if chains.limited else np.arange(separation, 2 * separation)
    for _ in range(most):
        runs = (second < n) & (left > 0 if chains.limited else True)
        i, j, left = np.where(runs, first, 0), np.where(runs, second, 0), np.maximum(left - 1, 0)
        nexts = near[None] if chains.limited else np.minimum(j[:, None] + near, n - 1)
        rows = (np.stack([i, j]) + 1)[:, :, None] * (chains.memory - 1)
        seen = np.minimum(left, len(chains.earlier) - 1)[:, None]
        gains = chains.earlier[seen, rows[0], nexts] + chains.ways[j[:, None], nexts] + chains.own[nexts]
        gains += chains.tables[left[:, None], rows[1], nexts]
        best = gains.argmax(axis=1)
        reached = np.broadcast_to(nexts, gains.shape)[np.arange(len(gains)), best]
        step = np.where(runs & (gains.max(axis=1) > 0), reached, n)
        found.append(step)
        first, second = second, step
    return np.array(found).T

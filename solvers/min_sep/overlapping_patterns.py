"""The dual over patterns that overlap, for more steps than an interior point method reaches: a bound, no strategy.

The power step of the dual of fixed epochs (class_blocks.py) does not need patterns to be disjoint: with
U = sum_p F_p F_p^T and X = T^T (T U T^T)^-1/2 T, the rows of X_p F_p, each divided by its norm, are the factors most
aligned with the gradient of ||T U^1/2||_*, which is convex in F, so that no step lowers it. A pattern is added when X
breaks its constraint: dynamic programming finds the worst through each step, on paths that count |X| of neighbours.

With very many steps the factors are those of cells (cells.py), one for all the patterns of steps that a pattern of
cells becomes. Power steps do as well with factors that are shared: F is linear in them.
"""

import numpy as np

from factorize.solvers.methods.anderson import Anderson
from factorize.solvers.methods.compiled import Array
from factorize.solvers.min_sep.cells import Cells
from factorize.solvers.min_sep.patterns import Places, blocks_of
from factorize.solvers.problem import StepReport

MAX_COLUMNS = 1 << 13
"""The most columns of all factors together: the certificate multiplies with a matrix of this many columns."""
MAX_BLOCK_WORK = 1 << 22
"""The most multiplications of all blocks of X with their factors, a millisecond or two."""
_ROUNDS = 12
_STEPS = 8  # this many power steps lie between two looks for patterns
_FIRST_SHARE = 0.3  # the first new patterns get this part of the weights, later ones less, so that the ascent settles
_LISTED_FACTOR = 4  # patterns that are given may have this many times the columns and the work
_WINDOW_STEPS, _MIN_GAIN = 10, 3e-7  # on given patterns the ascent ends when this many steps gain less than this part
_MIN_STEPS, _MAX_STEPS = 3, 400  # given patterns get this many steps: those of many steps take long
_STEPS_SCALE = 2560  # the number of these steps is the square of this over n
_MIN_VIOLATION = 1e-3  # X has to break the constraint of a new pattern by this
_MIN_WEIGHT = 1e-4  # a pattern is dropped below this part of the largest weight
_RIDGE = 1e-13


def dual_of_patterns(
    target: Array, start: Places, separation: int, most: int, report: StepReport
) -> tuple[Array, Places]:
    """Return factors, shape (patterns, most, most), and their patterns, filled up with -1.

    Args:
        target: T, shape (m, n).
        start: disjoint patterns that cover the steps, filled up with -1.
        separation: the least distance of two steps of a pattern.
        most: steps of one.
        report: told after each step; what it raises ends the ascent.
    """
    n = target.shape[1]
    largest = min(MAX_COLUMNS // most, MAX_BLOCK_WORK // most**3)
    patterns = np.where(start < 0, n, start)
    factors = _even(patterns, n)
    best, highest = (factors, patterns), 0.0
    for number in range(_ROUNDS):
        for _ in range(_STEPS):
            gram, norm = _gram(target, factors, patterns)
            cost = float(np.einsum("pij,pij->pi", factors, factors).max(axis=1).sum())
            if norm**2 / cost > highest:
                best, highest = (factors, patterns), norm**2 / cost
            factors = _power_step(gram, factors, patterns)
            report(number + 1, None)
        weights = np.einsum("pij->p", factors**2)
        kept = weights > _MIN_WEIGHT * weights.max()
        new = _worst_paths(np.abs(gram) * (cost / norm), separation, most)
        new = new[~(new[:, None] == patterns[None]).all(axis=2).any(axis=1)]
        new = new[: max(largest - int(kept.sum()), 0)]
        patterns = np.concatenate([patterns[kept], new])
        share = _FIRST_SHARE / (1 + number) if len(new) else 0.0
        factors = np.concatenate([factors[kept] * np.sqrt(1 - share), _even(new, n) * np.sqrt(share)])
    factors, patterns = best
    return factors, np.where(patterns == n, -1, patterns)


def dual_of_listed(
    target: Array, gram: Array, patterns: Places, shares: Array, report: StepReport
) -> tuple[Array, Places]:
    """Return factors of the patterns that a search has listed, and these, filled up with -1.

    Args:
        target: T, shape (m, n).
        gram: X, near the optimum.
        patterns: filled up with n.
        shares: shares of the patterns in the dual.
        report: told after each step; what it raises ends the ascent.
    """
    n, most = len(gram), patterns.shape[1]
    heaviest = np.argsort(-shares)[: _LISTED_FACTOR * min(MAX_COLUMNS // most, MAX_BLOCK_WORK // most**3)]
    patterns, shares = patterns[heaviest], shares[heaviest]
    solved = np.linalg.solve(gram, target.T)
    blocks = blocks_of(np.pad(solved @ solved.T, ((0, 1), (0, 1))), patterns)
    blocks += (_RIDGE * blocks.max() + (blocks == 0)) * np.eye(most)
    rows = _normed(np.asarray(np.linalg.cholesky(blocks) * (patterns < n)[:, :, None]))
    factors = _ascend(target, rows * np.sqrt(shares / shares.sum())[:, None, None], patterns, report)
    return factors, np.where(patterns == n, -1, patterns)


def ascents(n: int) -> int:
    """Return the most steps of power that given patterns get."""
    return int(min(max((_STEPS_SCALE / n) ** 2, _MIN_STEPS), _MAX_STEPS))


def _ascend(target: Array, start: Array, patterns: Places, report: StepReport) -> Array:
    """Return better factors: power steps with Anderson's extrapolation, or as they are where that loses ground."""
    n, factors, plain, best = target.shape[1], start, start, start
    highest, before, mixer = 0.0, 0.0, Anderson()
    for number in range(ascents(n)):
        if number % _WINDOW_STEPS == 0:
            if highest < before * (1 + _MIN_GAIN):
                break
            before = highest
        gram, norm = _gram(target, factors, patterns)
        bound = norm**2 / float(np.einsum("pij,pij->pi", factors, factors).max(axis=1).sum())  # times how often used
        report(number + 1, None)
        if bound < highest and factors is not plain:
            mixer.forget()
            factors = plain
            continue
        if bound > highest:
            best, highest = factors, bound
        plain = _power_step(gram, factors, patterns)
        mixed = mixer.mix(factors.ravel(), plain.ravel(), np.ones(factors.size))
        if mixed is None:
            factors = plain
        else:
            lengths = np.sqrt(np.einsum("pij,pij->pi", plain, plain).max(axis=1))
            factors = _normed(mixed.reshape(plain.shape)) * lengths[:, None, None]
    return best


def dual_carried(
    target: Array, cells: Cells, factors: Array, patterns: Places, report: StepReport
) -> tuple[Array, Places]:
    """Return factors and patterns of steps from those of cells; the patterns use all factors several times.

    Args:
        target: T, shape (m, n).
        cells: the cells of its steps.
        factors: shape (patterns, most, most).
        patterns: patterns of cells, filled up with -1.
        report: told after each step; what it raises ends the ascent.
    """
    n = target.shape[1]
    patterns = cells.patterns(np.where(patterns < 0, cells.count, patterns))
    return _ascend(target, factors, patterns, report), np.where(patterns == n, -1, patterns)


def _normed(factors: Array) -> Array:
    norms = np.sqrt(np.einsum("pij,pij->pi", factors, factors))
    return np.asarray(factors / np.where(norms > 0, norms, 1.0)[:, :, None])


def _even(patterns: Places, n: int) -> Array:
    """Return factors of equal weights that sum to 1, without correlations."""
    here = (patterns < n)[:, :, None] * np.eye(patterns.shape[1])
    return np.asarray(here / np.sqrt(max(len(patterns), 1)))


def _gram(target: Array, factors: Array, patterns: Places) -> tuple[Array, float]:
    """Return X and ||T U^1/2||_*."""
    n = target.shape[1]
    dual = np.zeros((n + 1) ** 2)
    squares = (factors @ factors.swapaxes(1, 2)).ravel()
    for some in _shared(patterns, factors):
        dual += np.bincount((some[:, :, None] * (n + 1) + some[:, None, :]).ravel(), squares, len(dual))
    dual = dual.reshape(n + 1, n + 1)[:n, :n]
    dual[np.diag_indices(n)] += _RIDGE * dual.trace() / n
    squares, left = np.linalg.eigh(target @ dual @ target.T)
    s = np.sqrt(np.maximum(squares, _RIDGE * squares[-1]))
    rows = (target.T @ left) / np.sqrt(s)
    return rows @ rows.T, float(s.sum())


def _shared(patterns: Places, factors: Array) -> Places:
    """Return the patterns, by times that the factors are used."""
    return patterns.reshape(-1, *factors.shape[:2])


def _power_step(gram: Array, factors: Array, patterns: Places) -> Array:
    padded = np.pad(gram, ((0, 1), (0, 1)))
    aligned = sum(blocks_of(padded, some) for some in _shared(patterns, factors)) @ factors
    norms = np.sqrt(np.einsum("pij,pij->pi", aligned, aligned))
    roots = norms.sum(axis=1) / np.sqrt((norms.sum(axis=1) ** 2).sum())
    return np.asarray(aligned * (roots[:, None] / np.where(norms > 0, norms, 1.0))[:, :, None])


def _worst_paths(sizes: Array, separation: int, most: int) -> Places:
    """Return the heaviest path through each step that weighs more than 1, filled up with n, shape (paths, most).

    A step weighs |X_ii|, a way from i to the next step j twice |X_ij|; paths have at most `most` steps.
    """
    n = len(sizes)
    ways = np.where(np.subtract.outer(np.arange(n), np.arange(n)) <= -separation, 2 * sizes, -np.inf)
    onward, before = (_best_ways(each, sizes.diagonal(), most) for each in (ways, ways.T))
    paths = []
    for i in range(n):
        counts = [(onward[0][a, i] + before[0][most - 1 - a, i] - sizes[i, i], a) for a in range(most)]
        weight, a = max(counts)
        if weight > 1 + _MIN_VIOLATION:
            path = [*_follow(before[1], i, most - 1 - a)[::-1], i, *_follow(onward[1], i, a)]
            paths.append(path + [n] * (most - len(path)))
    return np.unique(np.array(paths, dtype=np.intp).reshape(-1, most), axis=0)


def _best_ways(ways: Array, weights: Array, most: int) -> tuple[Array, Places]:
    """Return the weights of the best paths with up to a further steps, shape (most, n), and the next step or -1."""
    n = len(weights)
    best, following = np.tile(weights, (most, 1)), np.full((most, n), -1)
    for a in range(1, most):
        reach = ways + best[a - 1]
        places = reach.argmax(axis=1)
        longer = reach[np.arange(n), places] > 0
        best[a, longer] += reach[np.arange(n), places][longer]
        following[a, longer] = places[longer]
    return best, following


def _follow(following: Places, step: int, further: int) -> list[int]:
    path: list[int] = []
    while further > 0 and following[further, step] >= 0:
        step, further = int(following[further, step]), further - 1
        path.append(step)
    return path

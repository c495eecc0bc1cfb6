"""The optimum over patterns that overlap, by an interior point method on the dual.

For patterns p the dual maximises ||T U^1/2||_*^2 / sum v_p over U = sum_p U_p, U_p with the diagonal v_p on the steps
of p and zero elsewhere. What else U_p is tells what the sensitivity is:

- *vectors*: U_p is positive semidefinite. tr(U_p X) <= v_p for every X that is feasible for contributions of any
  dimension, so this bounds every matrix.
- *absolute sums*: entries of U_p are at most v_p. Then X is optimal among those with sum |X_ij| <= 1 over patterns,
  the sensitivity that is proved.

Newton's method follows the central path of (2 ||T U^1/2||_* - sum v) / mu + log det U + sum_p barrier(U_p). With
T^T T = G s^2 G^T, U^-1 = G G^T the matrix X = G s G^T is the gradient of 2 ||T U^1/2||_* in U and

    dX = -G (Phi o (G^T dU G)) G^T,    Phi_ab = s_a s_b / (s_a + s_b).

log det U is what makes a square root's Newton steps long. On the path X + mu U^-1 is feasible.

The barrier's second derivative has one small block for each pattern, and dU counts once for each pair of steps that
meet, so that a Newton step is a system of that size.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace

import numpy as np

from factorize.solvers.methods.compiled import Array
from factorize.solvers.methods.search import End, run
from factorize.solvers.min_sep.patterns import Places, blocks_of
from factorize.solvers.problem import StepReport
from factorize.solvers.single.dense import triangle

_MAX_STEPS = 200
_LAST_CENTRING = 0.01  # the path ends at this part of the tolerance
_FIRST_CENTRING = 1.0  # mu times the barrier's parameter begins at this part of the bound
_CENTRING_FALL = 0.1
_NEAR_DECREMENT = 0.1  # the path is near enough to follow it further below this Newton decrement
_SHRINKAGE = 0.6
_ROUNDING = 1e-12
_MIN_LENGTH = 1e-8
_SUFFICIENT_RISE = 1e-4
_RIDGE = 1e-14
_MIN_SINGULAR_VALUE = 1e-9  # T has lost the digits of a vector below this part of the largest singular value


class Cone(ABC):
    """The cone of the blocks U_p by their unknowns (v, entries below the diagonal), shape (patterns, 1 + pairs)."""

    def sensitivity(self, grams: Array) -> float:
        """Return the largest squared sensitivity of blocks of an X on the path, shape (patterns, steps, steps)."""
        return 1.0

    @abstractmethod
    def parameter(self, steps: int) -> int:
        """Return what one pattern adds to the gap on the central path, in units of mu."""

    @abstractmethod
    def barrier(self, unknowns: Array, steps: int) -> float:
        """Return the barrier, minus infinity outside the cone."""

    @abstractmethod
    def derivatives(self, unknowns: Array, steps: int) -> tuple[Array, Array]:
        """Return the gradient and the inverse of minus the second derivative, (patterns, d) and (patterns, d, d)."""


class AbsoluteSums(Cone):
    """|u| <= v for every entry: the sensitivity is the largest sum of |X_ij|."""

    def sensitivity(self, grams: Array) -> float:
        """Return the largest sum of absolute values."""
        return float(np.abs(grams).sum(axis=(1, 2)).max())

    def parameter(self, steps: int) -> int:
        """Return two for every pair, and one."""
        return steps * (steps - 1) + 1

    def barrier(self, unknowns: Array, steps: int) -> float:
        """Return the sum of log v, log(v - u) and log(v + u)."""
        v, u = unknowns[:, :1], unknowns[:, 1:]
        ends = np.concatenate([v, v - u, v + u], axis=1)
        return float(np.log(ends).sum()) if (ends > 0).all() else -np.inf

    def derivatives(self, unknowns: Array, steps: int) -> tuple[Array, Array]:
        """Return the derivatives by the entries; only v is coupled to all of them."""
        v, u = unknowns[:, :1], unknowns[:, 1:]
        low, high = 1 / (v - u), 1 / (v + u)
        gradient = np.concatenate([1 / v + (low + high).sum(axis=1, keepdims=True), high - low], axis=1)
        own = 1 / (low**2 + high**2)
        lone = 1 / (1 / v**2 + (4 * (low * high) ** 2 * own).sum(axis=1, keepdims=True))
        moved = np.concatenate([np.ones_like(v), (low**2 - high**2) * own], axis=1)
        inverse = lone[:, :, None] * moved[:, :, None] * moved[:, None, :]
        entries = np.arange(1, unknowns.shape[1])
        inverse[:, entries, entries] += own
        return gradient, inverse


class Vectors(Cone):
    """U_p is positive semidefinite: the sensitivity to contributions of any dimension."""

    def parameter(self, steps: int) -> int:
        """Return the parameter of a log-determinant."""
        return steps

    def barrier(self, unknowns: Array, steps: int) -> float:
        """Return the log-determinant."""
        try:
            roots = np.linalg.cholesky(blocks_from(unknowns, steps))
        except np.linalg.LinAlgError:
            return -np.inf
        return 2 * float(np.log(np.einsum("pii->pi", roots)).sum())

    def derivatives(self, unknowns: Array, steps: int) -> tuple[Array, Array]:
        """Return tr(U^-1 dU) and the covariance of x x^T, x Gaussian with that of U, whose diagonal is even."""
        blocks = blocks_from(unknowns, steps)
        inverse, (first, second) = np.linalg.inv(blocks), np.tril_indices(steps, -1)
        trace = np.einsum("pii->p", inverse)
        gradient = np.concatenate([trace[:, None], 2 * inverse[:, first, second]], axis=1)
        rows, columns = np.append(np.arange(steps), first), np.append(np.arange(steps), second)
        direct = blocks[:, rows[:, None], rows] * blocks[:, columns[:, None], columns]
        crossed = blocks[:, rows[:, None], columns] * blocks[:, columns[:, None], rows]
        covariance = (direct + crossed) / 2
        covariance[:, :steps] -= covariance[:, :1] * (np.arange(steps) > 0)[:, None]
        covariance[:, :, :steps] -= covariance[:, :, :1] * (np.arange(steps) > 0)
        kept, gone = np.r_[0, steps : len(rows)], slice(1, steps)
        across = covariance[:, gone][:, :, kept]
        given = np.linalg.solve(covariance[:, gone, gone], across) if steps > 1 else across
        return gradient, covariance[:, kept[:, None], kept] - across.swapaxes(1, 2) @ given


def blocks_from(unknowns: Array, steps: int) -> Array:
    """Return U_p of v and the entries below the diagonal, shape (patterns, steps, steps)."""
    blocks, (first, second) = np.empty((len(unknowns), steps, steps)), np.tril_indices(steps, -1)
    np.einsum("pii->pi", blocks)[:] = unknowns[:, :1]
    blocks[:, first, second] = blocks[:, second, first] = unknowns[:, 1:]
    return blocks


@dataclass(frozen=True)
class PathPoint:
    """U, decomposed.

    Attributes:
        unknowns: unknowns of the blocks, one array for each number of steps.
        mu: mu of the barrier.
        s: singular values of T U^1/2, shape (n,).
        g: G, shape (n, n).
        log_determinant: log det U.
        cost: sum of v.
        gap: relative, to the loss of X made feasible; infinite away from the path.
    """

    unknowns: list[Array]
    mu: float
    s: Array
    g: Array
    log_determinant: float
    cost: float
    gap: float = np.inf

    @property
    def gram(self) -> Array:
        """X + mu U^-1, shape (n, n), which is feasible on the path."""
        return np.asarray((self.g * (self.s + self.mu)) @ self.g.T)

    @property
    def lower(self) -> float:
        """The dual bound."""
        return float(self.s.sum()) ** 2 / self.cost


class InteriorPoint:
    """Newton steps along the central path.

    Args:
        target: T, shape (m, n).
        patterns: the patterns by their number of steps, see `maximal_patterns`.
        cone: what the blocks may be.
        tolerance: gap to the loss of X to aim at.
    """

    def __init__(self, target: Array, patterns: list[Places], cone: Cone, tolerance: float) -> None:
        n = target.shape[1]
        self._target, self._patterns, self._cone = triangle(np.vstack([target, np.zeros((n, n))])), patterns, cone
        self._tolerance = tolerance
        meet = np.zeros((n, n), dtype=bool)
        for some in patterns:
            meet[some[:, :, None], some[:, None, :]] = True
        rows, columns = np.nonzero(np.tril(meet, -1))
        self._rows, self._columns = np.append(np.arange(n), rows), np.append(np.arange(n), columns)
        self._twice = np.where(self._rows == self._columns, 1.0, 2.0)
        numbers = np.zeros((n, n), dtype=np.intp)
        numbers[self._rows, self._columns] = numbers[self._columns, self._rows] = np.arange(len(self._rows))
        self._entries, self._locals = [], []
        for some in patterns:
            first, second = np.tril_indices(some.shape[1], -1)
            pairs = numbers[some[:, first], some[:, second]]
            self._entries.append(np.concatenate([numbers[some, some], pairs], axis=1))
            self._locals.append(np.append(np.zeros(some.shape[1], dtype=np.intp), np.arange(1, 1 + len(first))))
        self._parameter = n + sum(cone.parameter(some.shape[1]) * len(some) for some in patterns)

    def start(self) -> PathPoint:
        """Return U with equal v and no other entries, at the best scale."""
        unknowns = [np.zeros((len(some), 1 + some.shape[1] * (some.shape[1] - 1) // 2)) for some in self._patterns]
        for part in unknowns:
            part[:, 0] = 1.0
        point = self._at(unknowns, 0.0)
        assert point is not None  # U is diagonal
        scale = (point.s.sum() / point.cost) ** 2
        first = self._at([part * scale for part in unknowns], _FIRST_CENTRING * point.lower / self._parameter)
        assert first is not None
        return first

    def climb(self, report: StepReport) -> End[PathPoint]:
        """Follow the path until the gap is below the tolerance, or rounding hides any progress."""
        return run(self, self.start(), enough=self._tolerance, most=_MAX_STEPS, report=report)

    def gap(self, at: PathPoint) -> float:
        """The gap."""
        return at.gap

    def _at(self, unknowns: list[Array], mu: float) -> PathPoint | None:
        from scipy.linalg import solve_triangular

        sums = np.zeros(len(self._rows))
        for part, entries, places in zip(unknowns, self._entries, self._locals, strict=True):
            sums += np.bincount(entries.ravel(), part[:, places].ravel(), len(sums))
        dual = np.zeros_like(self._target)
        dual[self._rows, self._columns] = dual[self._columns, self._rows] = sums
        try:
            root = np.linalg.cholesky(dual)
            left, s, rows = np.linalg.svd(self._target @ root)
        except np.linalg.LinAlgError:
            return None
        s = np.maximum(s, _RIDGE * s[0])
        # L^-T times the right vectors is the same; U is nearly singular more often than T
        large = s > _MIN_SINGULAR_VALUE * s[0]
        g = solve_triangular(root, rows.T, trans="T", lower=True)
        g[:, large] = self._target.T @ (left[:, large] / s[large])
        cost = float(sum(part[:, 0].sum() for part in unknowns))
        return PathPoint(unknowns, mu, s, g, 2 * float(np.log(root.diagonal()).sum()), cost)

    def _merit(self, at: PathPoint) -> float:
        return (2 * float(at.s.sum()) - at.cost) / at.mu + at.log_determinant + self._barrier(at.unknowns)

    def step(self, at: PathPoint, _number: int) -> PathPoint | None:
        """Return the point after a Newton step, with a smaller mu where it was near the path."""
        mu = at.mu * _CENTRING_FALL if at.gap < np.inf else at.mu
        if mu * self._parameter < _LAST_CENTRING * self._tolerance * at.lower:
            return None
        at = replace(at, mu=mu, gap=np.inf)
        try:
            change, decrement = self._newton(at)
        except np.linalg.LinAlgError:
            return None
        merit, length = self._merit(at), 1.0
        while length > _MIN_LENGTH:
            moved = [part + length * step for part, step in zip(at.unknowns, change, strict=True)]
            trial = self._at(moved, mu) if self._barrier(moved) > -np.inf else None
            aim = merit + _SUFFICIENT_RISE * length * decrement - _ROUNDING * abs(merit)
            if trial is not None and self._merit(trial) >= aim:
                return replace(trial, gap=self._distance(trial)) if decrement < _NEAR_DECREMENT else trial
            length *= _SHRINKAGE
        return None

    def _distance(self, at: PathPoint) -> float:
        worst = max(self._cone.sensitivity(blocks_of(at.gram, some)) for some in self._patterns)
        return max(worst * float((at.s**2 / (at.s + at.mu)).sum()) / at.lower - 1, 0.0)

    def _barrier(self, unknowns: list[Array]) -> float:
        sizes = (some.shape[1] for some in self._patterns)
        return sum(self._cone.barrier(part, size) for part, size in zip(unknowns, sizes, strict=True))

    def _newton(self, at: PathPoint) -> tuple[list[Array], float]:
        """Return the changes of the unknowns, and the decrement."""
        q = len(self._rows)
        slope = at.gram[self._rows, self._columns] * self._twice / at.mu
        moves, seen, gradients, inverses = np.zeros(q), np.zeros(q * q), [], []
        for part, some, entries, places in zip(at.unknowns, self._patterns, self._entries, self._locals, strict=True):
            gradient, inverse = self._cone.derivatives(part, some.shape[1])
            gradient[:, 0] += slope[entries[:, : some.shape[1]]].sum(axis=1) - 1 / at.mu
            gradient[:, 1:] += slope[entries[:, some.shape[1] :]]
            step = (inverse @ gradient[:, :, None])[:, :, 0]
            moves += np.bincount(entries.ravel(), step[:, places].ravel(), q)
            both = entries[:, :, None] * q + entries[:, None, :]
            seen += np.bincount(both.ravel(), inverse[:, places[:, None], places].ravel(), q * q)
            gradients.append(gradient)
            inverses.append(inverse)
        root = self._root_of_curvature(at)
        system = root.T @ seen.reshape(q, q) @ root
        system[np.diag_indices(q)] += 1.0
        pull = root @ _solve_above_one(system, root.T @ moves)
        change, decrement = [], 0.0
        for gradient, inverse, entries, some in zip(gradients, inverses, self._entries, self._patterns, strict=True):
            left = gradient.copy()
            left[:, 0] -= pull[entries[:, : some.shape[1]]].sum(axis=1)
            left[:, 1:] -= pull[entries[:, some.shape[1] :]]
            change.append((inverse @ left[:, :, None])[:, :, 0])
            decrement += float(np.vdot(gradient, change[-1]))
        return change, decrement

    def _root_of_curvature(self, at: PathPoint) -> Array:
        """Return a root of minus the second derivative of 2 ||T U^1/2||_* / mu in the entries of U."""
        q, n = len(self._rows), len(at.s)
        phi = at.s[:, None] * at.s / (at.s[:, None] + at.s) + at.mu
        left, right, curvature = at.g[self._rows], at.g[self._columns], np.empty((q, q))
        size = max((1 << 21) // (n * n), 1)
        for start in range(0, q, size):
            some = slice(start, start + size)
            turned = left[some, :, None] * right[some, None, :]
            turned = at.g @ (phi * (turned + turned.swapaxes(1, 2))) @ at.g.T
            curvature[some] = turned[:, self._rows, self._columns] * (self._twice * self._twice[some, None] / 2)
        scale = np.sqrt(curvature.diagonal())
        curvature /= scale[:, None] * scale
        curvature[np.diag_indices(q)] += _RIDGE * q
        return np.asarray(scale[:, None] * np.linalg.cholesky(curvature) / np.sqrt(at.mu))


def _solve_above_one(system: Array, right: Array) -> Array:
    """Return the solution of a system whose eigenvalues are 1 and more, which rounding may hide."""
    from scipy.linalg import LinAlgError, cho_factor, cho_solve

    try:
        return np.asarray(cho_solve(cho_factor(system), right))
    except LinAlgError:
        values, vectors = np.linalg.eigh((system + system.T) / 2)
        return np.asarray(vectors @ ((vectors.T @ right) / np.maximum(values, 1.0)))

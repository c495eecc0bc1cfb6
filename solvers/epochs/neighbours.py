"""`min_sep` with many steps: the best X of which only neighbours in a pattern overlap, by descent on a smooth sum.

With X_ij = 0 for steps 2 b or more apart, b = `min_sep`, of the steps of a pattern only neighbours overlap; with two
participations nothing has to vanish. Then the squared sensitivity is the largest sum of X_ii and 2 |X_ij| along a path,
exactly (docs/sensitivity.md), and what is minimised is convex:

    tr(T^T T X^-1) + t log sum over paths and signs of exp((sum of X_ii + 2 sum of sign X_ij) / t).

The sum is a dynamic programme (path_kernels.py), and its derivative is a probability of paths: the dual. The
temperature t falls by stages, each of which begins where the last one ended. What is left at the end is about 20 t.
"""

import numpy as np

from factorize.certificate.plain_sensitivity import best_neighbours
from factorize.errors import SolveFailed
from factorize.solvers.epochs.path_kernels import share_paths, sum_paths
from factorize.solvers.methods.compiled import Array
from factorize.solvers.methods.quasi_newton import descend
from factorize.solvers.methods.search import End, Iterate
from factorize.solvers.problem import StepReport

_TEMPERATURES = tuple(10.0**-power for power in range(1, 8))  # of the squared sensitivity
_ENOUGH, _WINDOW = 0.003, 20  # of the temperature: what so many steps have to gain
_MOST_STEPS = 2000  # of one stage


class Neighbours:
    """The entries of X that may differ from zero, and what is minimised over them.

    Args:
        target: T, shape (m, n), of full rank.
        separation: least distance of two steps of a pattern.
        most: steps of one.
    """

    def __init__(self, target: Array, separation: int, most: int) -> None:
        self._target, self._separation, self._most = np.asfortranarray(target.T), separation, most
        n = target.shape[1]
        self.bands = n if most == 2 else min(2 * separation, n)
        lags = np.subtract.outer(np.arange(n), np.arange(n))
        self._rows, self._columns = np.nonzero((lags >= 0) & (lags < self.bands))
        lags = self._rows - self._columns
        self._own, self._met = lags == 0, lags >= separation
        self._pairs = self._columns[self._met], lags[self._met] - separation
        self._twice = np.where(self._own, 1.0, 2.0)
        self._back = int(most < -(-n // separation))
        self._layers = (most if self._back else 1) + 1

    def best(self, report: StepReport) -> tuple[Array, int]:
        """Return X, shape (n, n), of any sensitivity, and the number of steps taken.

        Raises:
            SolveFailed: the numbers leave the range of double precision.
        """
        n = len(self._target)
        x = np.diag(np.sqrt(np.einsum("ij,ij->i", self._target, self._target)))
        steps = 0
        for temperature in _TEMPERATURES:
            x *= np.sqrt(self._loss(x)[0] / best_neighbours(np.abs(x), self._separation, self._most))
            size = float(best_neighbours(np.abs(x), self._separation, self._most))
            end = self._descend(x, temperature * size, temperature * _ENOUGH, report, steps)
            x = np.zeros((n, n))
            x[self._rows, self._columns] = x[self._columns, self._rows] = end.best.z * self._scale
            steps += end.steps
        return x, steps

    def _descend(self, x: Array, temperature: float, enough: float, report: StepReport, before: int) -> End[Iterate]:
        roots = np.sqrt(x.diagonal())
        self._scale = roots[self._rows] * roots[self._columns]

        def function(z: Array) -> tuple[float, Array]:
            value, gradient = self(z * self._scale, temperature)
            return value, gradient * self._scale

        first = x[self._rows, self._columns] / self._scale
        start = Iterate(first, *function(first))
        if not np.isfinite(start.value):
            raise SolveFailed("the loss is not finite; rescale the workload so that its entries lie near 1")
        return descend(
            function,
            start,
            tolerance=0.0,
            enough=enough,
            window=_WINDOW,
            most=_MOST_STEPS,
            report=lambda step, _: report(before + step, None),
        )

    def __call__(self, entries: Array, temperature: float) -> tuple[float, Array]:
        """Return what is minimised and its gradient in the entries of X; infinite where X is not positive definite."""
        lower = np.zeros((len(self._target),) * 2, order="F")
        lower[self._rows, self._columns] = entries
        loss, w = self._loss(lower)
        if w is None:
            return np.inf, np.zeros_like(entries)
        gradient = -self._twice * w[self._rows, self._columns]
        sensitivity, steps, slopes = self._smooth_sensitivity(lower.diagonal(), entries[self._met], temperature)
        gradient[self._own] += steps
        gradient[self._met] += slopes
        return loss + sensitivity, gradient

    def _loss(self, lower: Array) -> tuple[float, Array | None]:
        """Return tr(T^T T X^-1) and X^-1 T^T T X^-1, of the lower half of X."""
        from scipy.linalg.lapack import dpotrf, dpotrs

        root, failed = dpotrf(lower, lower=1)
        if failed:
            return np.inf, None
        solved, _ = dpotrs(root, self._target, lower=1)
        return float(np.vdot(solved, self._target)), solved @ solved.T

    def _smooth_sensitivity(self, diagonal: Array, met: Array, temperature: float) -> tuple[float, Array, Array]:
        """Return the smooth sum, and its derivatives by X_ii and by the X_ij of steps that meet."""
        n, ways = len(diagonal), 2 * np.abs(met) / temperature
        nodes, edges = diagonal / temperature, np.zeros((n, max(self.bands - self._separation, 0)))
        edges[self._pairs] = ways + np.log1p(np.exp(-2 * ways)) - np.log(2.0)
        starts, free = np.full((self._layers, n), -np.inf), np.zeros((self._layers, n + 1))
        sum_paths(nodes, edges, self._separation, self._back, starts, free)
        reached, taken, steps, pairs = np.zeros_like(free), np.zeros_like(starts), np.zeros(n), np.zeros_like(edges)
        reached[-1, 0] = 1.0
        share_paths(nodes, edges, self._separation, self._back, starts, free, reached, taken, steps, pairs)
        slopes = 2 * np.sign(met) * np.tanh(ways) * pairs[self._pairs]
        return temperature * float(free[-1, 0]), steps, slopes

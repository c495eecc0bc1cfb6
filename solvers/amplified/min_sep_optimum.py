"""The best banded strategy under b-min-sep sampling: alternate between sigma's derivative and the loss that it defines.

As under balls in bins (bins_optimum.py), at fixed forms D the loss error x <D, C^T C> is smooth. It is minimised over
the entries of C, none of them negative, since the law counts |C|; then D is taken again at the new C. What is kept is
the C with the smallest estimated error at the privacy asked for. Derivation: docs/notes/amplified-optimum.md.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from factorize.accounting.min_sep_law import MinSepEstimate, MinSepLaw
from factorize.format.bins_claims import MAX_MIN_SEP_STEPS
from factorize.mechanisms import Banded
from factorize.solution import Outcome, ProgressCallback, Solution
from factorize.solvers.amplified.spread_sensitivity import largest_form
from factorize.solvers.banded import banded_optimum as banded
from factorize.solvers.banded.gram_descent import GramPoint, Landscape
from factorize.solvers.methods.compiled import Array
from factorize.solvers.problem import Estimate, Problem, Reporter, estimate_of, mechanism_of
from factorize.spec import Spec
from factorize.structures.banded import BandedMatrix

_ROUNDS = 4  # forms that are taken
_STEPS = 100  # of L-BFGS at each
_LEAST = 1e-6  # of an entry within the bands, so that they stay as many
_SAMPLES = 8192  # candidates of an estimate
_CLOSE = 1e-3  # relative, of sigma
_WINDOW = 12  # parts of the steps, over one of which a form is averaged along its diagonals


def supports(spec: Spec) -> str | None:
    """Return why a spec is outside this solver, or None."""
    if not isinstance(spec.mechanism, Banded) or spec.mechanism.bands < 2:
        return (
            f"mechanism {spec.mechanism.kind!r} is not optimised under sampling 'b_min_sep'; use banded with 2 bands "
            "or more, or leave the sampling out and calibrate with it"
        )
    n = (spec.optimize_for or spec.workload).n
    if n > MAX_MIN_SEP_STEPS:
        return f"n={n} is above {MAX_MIN_SEP_STEPS}, up to which b-min-sep has claims; use balls_in_bins"
    return banded.supports(spec)


def estimate(spec: Spec) -> Estimate:
    """Return the cost: estimates of sigma and of its derivative for each form."""
    n, bands = float((spec.optimize_for or spec.workload).n), mechanism_of(spec, Banded).bands
    drawn, tables, steps = 400 * _SAMPLES * n * (bands + 40), 480 * n**2 * (bands + 10), _STEPS * 400 * n * bands**2
    return estimate_of(entries=12 * n**2 + 4 * _SAMPLES * n, multiplications=_ROUNDS * (drawn + tables + steps))


def solve(problem: Problem, progress: ProgressCallback) -> Solution:
    """Return the best strategy found; a local optimum."""
    from scipy.ndimage import uniform_filter1d

    report, sampling, n = Reporter(progress), problem.spec.sampling, problem.n
    assert sampling is not None
    bands, epoch = mechanism_of(problem.spec, Banded).bands, sampling.bins(problem.participation, n)
    landscape = SpreadLandscape(banded.recursion(problem), n, bands, np.zeros(n, dtype=np.intp))
    near, strategy = None, landscape.strategy(banded.start(problem, landscape, report))
    best = math.inf, strategy
    for seed in range(_ROUNDS + 1):
        report(seed, None)
        estimated = MinSepEstimate(MinSepLaw.of(strategy, epoch, 1), seed=seed, samples=_SAMPLES)
        near = estimated.sigma(sampling.epsilon, sampling.delta, near=near, tolerance=_CLOSE)
        point = Landscape.__call__(landscape, unknowns_of(strategy.bands)[0])
        assert point is not None
        squares = float(strategy.column_norms_squared().sum())
        best = min(best, (near**2 * point.loss / squares, strategy), key=lambda one: one[0])
        form = uniform_filter1d(estimated.pair_weights(near, sampling.epsilon), max(n // _WINDOW, 1), mode="nearest")
        spread = spread_of(form, point)[0]
        if seed == _ROUNDS or not spread > 0:
            break
        landscape.forms += (form * (near**2 / squares / spread),)
        strategy = landscape.improve(best[1])
    return Solution(strategy=best[1], outcome=Outcome.LOCAL_OPTIMUM, iterations=seed)


class SpreadLandscape(Landscape):
    """The error times nearly the largest <D, X> of the forms, where there are any; else the error.

    Attributes:
        forms: D[t + d, t], each of shape (bands, n).
    """

    forms: tuple[Array, ...] = ()

    def __call__(self, unknowns: Array) -> GramPoint | None:
        """Return the loss and its gradient, or None where X is not positive definite."""
        point = super().__call__(unknowns)
        if point is None or not self.forms:
            return point
        spreads, slopes = zip(*(spread_of(form, point) for form in self.forms), strict=True)
        spread, slope = largest_form(np.array(spreads), np.stack([one.ravel() for one in slopes]))
        gradient = point.gradient * spread + slope.reshape(unknowns.shape) * point.loss
        return replace(point, loss=point.loss * spread, gradient=gradient)

    def improve(self, strategy: BandedMatrix) -> BandedMatrix:
        """Return the strategy of positive entries where the loss is least.

        Args:
            strategy: to start from.
        """
        from scipy.optimize import minimize

        bands, n = strategy.bands.shape
        with np.errstate(all="ignore"):
            end = minimize(
                lambda entries: self.of_entries(entries.reshape(bands, n)),
                strategy.bands.ravel(),
                jac=True,
                method="L-BFGS-B",
                bounds=[(_LEAST, None) if t + d < n else (0.0, 0.0) for d in range(bands) for t in range(n)],
                options={"maxiter": _STEPS},
            )
        return BandedMatrix(end.x.reshape(bands, n))

    def of_entries(self, entries: Array) -> tuple[float, Array]:
        """Return the logarithm of the loss at C[t + d, t], shape (bands, n), and its derivative."""
        unknowns, roots = unknowns_of(entries)
        point, n = self(unknowns), self.n
        if point is None:
            return math.inf, np.zeros(entries.size)
        slope, by_entry = point.gradient / point.loss, np.zeros_like(entries)
        for d in range(1, len(entries)):
            through = slope[d] * unknowns[d] / 2
            slope[0] -= through
            slope[0, d:] -= through[: n - d]
            slope[d, : n - d] /= roots[: n - d] * roots[d:]
        slope[0] /= roots**2
        for d, some in enumerate(slope):
            for k in range(len(entries) - d):
                by_entry[k, d:] += some[: n - d] * entries[k + d, : n - d]
                by_entry[k + d, : n - d] += some[: n - d] * entries[k, d:]
        return math.log(point.loss), by_entry.ravel()


def unknowns_of(entries: Array) -> tuple[Array, Array]:
    """Return the unknowns of C^T C, as `GramPoint` has them, and the columns' norms."""
    n, unknowns = entries.shape[1], np.zeros_like(entries)
    roots = np.sqrt((entries**2).sum(axis=0))
    unknowns[0] = 2 * np.log(roots)
    for d in range(1, len(entries)):
        inner = (entries[d:, : n - d] * entries[: len(entries) - d, d:]).sum(axis=0)
        unknowns[d, : n - d] = inner / (roots[: n - d] * roots[d:])
    return unknowns, roots


def spread_of(form: Array, point: GramPoint) -> tuple[float, Array]:
    """Return <D, X> of the columns with their shares, and its derivative by the unknowns, shape (bands, n)."""
    n, roots = len(point.shares), np.sqrt(point.shares)
    slope, parts = np.zeros_like(form), form[0] * point.shares
    for d in range(1, len(form)):
        slope[d, : n - d] = 2 * form[d, : n - d] * roots[: n - d] * roots[d:]
        pairs = slope[d] * point.unknowns[d] / 2
        parts += pairs
        parts[d:] += pairs[: n - d]
    spread = float(parts.sum())
    slope[0] = parts - point.shares * spread
    return spread, slope

"""The best banded strategy under b-min-sep sampling: alternate between sigma's derivative and the loss that it defines.

As under balls in bins (bins_optimum.py), at fixed forms D the loss error x <D, C^T C> is smooth. It is minimised over
the entries of C, none of them negative, since the law counts |C|; then D is taken again at the new C. What is kept is
the C with the smallest estimated error at the privacy asked for. Derivation: docs/notes/amplified-optimum.md.
"""

import math
from dataclasses import dataclass

import numpy as np

from factorize.accounting.min_sep_estimate import MinSepEstimate
from factorize.accounting.min_sep_law import MinSepLaw
from factorize.errors import SolveFailed
from factorize.factors.solution import Outcome, ProgressCallback, Solution
from factorize.format.bins_claims import MAX_STAR_STEPS
from factorize.solvers.amplified.spread_sensitivity import largest_form
from factorize.solvers.banded import banded_optimum as banded
from factorize.solvers.banded.gram_descent import Landscape
from factorize.solvers.methods.compiled import Array
from factorize.solvers.problem import Estimate, Problem, Reporter, estimate_of, mechanism_of
from factorize.spec import Spec
from factorize.spec.mechanisms import Banded
from factorize.structures.banded import BandedMatrix

_ROUNDS = 4  # the search takes this many forms
_STEPS = 100  # L-BFGS takes at most this many steps with each form
_MIN_ENTRY = 1e-6  # an entry within the bands is at least this, so that no band is lost
_SAMPLES = 8192  # an estimate draws this many candidates
_SIGMA_ERROR = 1e-3  # the relative accuracy of sigma
_WINDOWS = 12  # a form is averaged along its diagonals over one of this many parts of the steps


def supports(spec: Spec) -> str | None:
    """Return why a spec is outside this solver, or None."""
    if not isinstance(spec.mechanism, Banded) or spec.mechanism.bands < 2:
        return (
            f"mechanism {spec.mechanism.kind!r} cannot be optimised for sampling 'b_min_sep'; use banded with 2 bands "
            "or more, or leave the sampling out and calibrate with it"
        )
    n = (spec.optimize_for or spec.workload).n
    if n > MAX_STAR_STEPS:
        return f"n={n} is above {MAX_STAR_STEPS}, the limit of an optimum for b_min_sep; leave the sampling out"
    if spec.mechanism.bands >= n:
        remedy = f"use bands from 2 to {n - 1}" if n > 2 else "use more steps"
        return (
            f"b_min_sep needs fewer bands than steps, but bands={spec.mechanism.bands} and n={n}; {remedy}, or leave "
            "the sampling out"
        )
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
    landscape = Landscape(banded.recursion(problem), n, bands, np.zeros(n, dtype=np.intp))
    near, forms, start = None, [], landscape.strategy(banded.start(problem, landscape, report))
    strategy = BandedMatrix(np.maximum(start.bands, least_entries(bands, n)))
    best, alone = (math.inf, strategy), SpreadLoss(landscape, np.eye(bands)[:1, :, None] * np.ones(n))
    for seed in range(_ROUNDS + 1):
        report(seed, None)
        law = MinSepLaw.of(strategy, epoch, 1)
        estimated = MinSepEstimate(law, seed=seed, samples=_SAMPLES)
        near = estimated.sigma(sampling.epsilon, sampling.delta, near=near, tolerance=_SIGMA_ERROR)
        if law.at(near) is None:
            raise SolveFailed(
                f"epsilon={sampling.epsilon:g} needs so little noise that b_min_sep cannot estimate it; use a smaller "
                "epsilon, or leave the sampling out"
            )
        gram = gram_of(strategy.bands)
        log_error = alone(strategy.bands.ravel())[0] - math.log(gram[0].sum())
        best = min(best, (2 * math.log(near) + log_error, strategy), key=lambda one: one[0])
        form = uniform_filter1d(estimated.pair_weights(near, sampling.epsilon), max(n // _WINDOWS, 1), mode="nearest")
        form[1:] *= 2
        spread = float((form * gram).sum())
        if seed == _ROUNDS or not spread > 0:
            break
        forms.append(form * (near**2 / spread))
        strategy = SpreadLoss(landscape, np.stack(forms)).improve(best[1])
    return Solution(strategy=best[1], outcome=Outcome.LOCAL_OPTIMUM, iterations=seed)


@dataclass(frozen=True, eq=False)
class SpreadLoss:
    """The logarithm of the error times nearly the largest <D, C^T C> of some forms.

    Attributes:
        landscape: the error's.
        forms: D[t, t], and 2 D[t + d, t] below it, shape (forms, bands, n).
    """

    landscape: Landscape
    forms: Array

    def __call__(self, flat: Array) -> tuple[float, Array]:
        """Return the loss at C[t + d, t] and its derivative, shape (bands n,); infinity where C is singular."""
        entries = flat.reshape(self.forms.shape[1:])
        gram, n = gram_of(entries), self.landscape.n
        roots, squares = np.sqrt(gram[0]), gram[0].sum()
        unknowns = np.stack([2 * np.log(roots), *(_over_roots(some, roots, d) for d, some in enumerate(gram[1:], 1))])
        point = self.landscape(unknowns)
        if point is None:
            return math.inf, np.zeros(len(flat))
        spread, slope = largest_form((self.forms * gram).sum(axis=(1, 2)), self.forms.reshape(len(self.forms), -1))
        by_gram, by_entry = point.gradient / point.loss, np.zeros_like(entries)
        for d in range(1, len(entries)):
            through = by_gram[d] * unknowns[d] / 2
            by_gram[0] -= through
            by_gram[0, d:] -= through[: n - d]
            by_gram[d] = _over_roots(by_gram[d], roots, d)
        by_gram[0] = by_gram[0] / gram[0] - 1 / squares
        by_gram += slope.reshape(entries.shape) / spread
        for d, some in enumerate(by_gram):
            for k in range(len(entries) - d):
                by_entry[k, d:] += some[: n - d] * entries[k + d, : n - d]
                by_entry[k + d, : n - d] += some[: n - d] * entries[k, d:]
        return math.log(point.loss / squares * spread), by_entry.ravel()

    def improve(self, strategy: BandedMatrix) -> BandedMatrix:
        """Return the strategy of positive entries where the loss is least, from another one on."""
        from scipy.optimize import minimize

        bands, n = strategy.bands.shape
        bounds = [(least, None if least else 0.0) for least in least_entries(bands, n).ravel()]
        with np.errstate(all="ignore"):
            options = {"maxiter": _STEPS}
            end = minimize(self, strategy.bands.ravel(), jac=True, method="L-BFGS-B", bounds=bounds, options=options)
        return BandedMatrix(end.x.reshape(bands, n))


def least_entries(bands: int, n: int) -> Array:
    """Return the least C[t + d, t] that is searched, shape (bands, n), which is 0 below the last row."""
    return np.where(np.add.outer(np.arange(bands), np.arange(n)) < n, _MIN_ENTRY, 0.0)


def gram_of(entries: Array) -> Array:
    """Return (C^T C)[t + d, t] of C[t + d, t], both of shape (bands, n)."""
    bands, n = entries.shape
    gram = np.zeros_like(entries)
    for d in range(bands):
        gram[d, : n - d] = (entries[d:, : n - d] * entries[: bands - d, d:]).sum(axis=0)
    return gram


def _over_roots(pairs: Array, roots: Array, d: int) -> Array:
    """Return numbers of the steps t and t + d over the norms of both columns, shape (n,)."""
    return np.asarray(pairs / (roots * np.append(roots[d:], np.full(d, np.inf))))

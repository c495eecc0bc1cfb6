"""The best Toeplitz strategy under balls in bins: alternate between sigma's derivative and the loss that it defines.

At a strategy C the star sampler estimates sigma and its derivative D by the Gram matrix of the bins. With D fixed the
loss error x <D, G(C)> is smooth and is minimised by L-BFGS; then D is taken again at the new C, averaged with the last
one. What is kept is the C with the smallest estimated error at the privacy asked for. It is a local optimum, and the
estimates prove nothing: a calibration claims sigma, and its test proves it (accounting/claim_search.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from factorize.accounting.claim_search import claimable
from factorize.accounting.gram_matrix import bin_gram, gram_of_column
from factorize.errors import CertificateError, InvalidParameter, SolveFailed
from factorize.factors.solution import Outcome, ProgressCallback, Solution
from factorize.numbers.blas_threads import one_blas_thread
from factorize.solvers.amplified.column_factors import FIT_ROUNDS, ColumnFit
from factorize.solvers.amplified.families import AllTaps, BufferedTaps, Family, InverseTaps, starting_taps
from factorize.solvers.amplified.spread_sensitivity import SAMPLES, Amplified, amplify
from factorize.solvers.blt.solver import MAX_BUFFERS
from factorize.solvers.epochs.fitted_columns import MAX_N_FITTED
from factorize.solvers.methods.compiled import Array
from factorize.solvers.problem import Estimate, Problem, Reporter, estimate_of, mechanism_of
from factorize.solvers.toeplitz import toeplitz_optimum as toeplitz
from factorize.solvers.toeplitz.gradients import ErrorForm
from factorize.spec import BinsSampling, Spec
from factorize.spec.mechanisms import BandedInverseToeplitz, Blt, BufferedLinear, Mechanism, Toeplitz
from factorize.spec.objective import MaxError
from factorize.structures.base import Matrix
from factorize.structures.scaled import ColumnScaled
from factorize.structures.toeplitz import ToeplitzMatrix

MAX_STEPS = 2**17
MAX_TAPS = 256
MAX_WORK = 2**27  # the limit of n x bins
_FIRST_SAMPLES = 1024  # an estimate of a start draws this many samples; the search goes on from the best start
_ROUNDS = 12
_STEPS = 50  # L-BFGS takes at most this many steps in a round
QUICK_TOLERANCE = 1e-2
"""From this tolerance on, one start, from a table where it has one, is improved in a few steps of few samples."""
_QUICK_SAMPLES, _MIN_SAMPLES, _QUICK_ROUNDS, _QUICK_STEPS = 1024, 512, 4, 20
_MIN_QUICK_BINS = 128  # above this many bins, samples and rounds shrink in proportion
_QUICK_SIGMA_ERROR = 2e-3  # the relative accuracy of sigma in a quick search
_MIN_GAIN = 3e-4  # a smaller fall of the logarithm of the error is below what the estimate sees
_BACKTRACKS = 6
_FORMS = 8  # the search keeps this many of the last forms
_PATIENCE = 3  # the search ends after this many rounds without a gain
_BUFFERS = 2  # the other search has this many buffers; it runs where all taps are hard to claim
_FIT_SEED = 100  # the seed of the first estimate of the columns' factors; the search uses none like it

_FAMILIES: dict[type[Mechanism], Callable[[Spec, int, ErrorForm, int, int], Family]] = {
    Toeplitz: lambda _, *of: AllTaps(*of),
    Blt: lambda spec, *of: BufferedTaps(*of, buffers=mechanism_of(spec, Blt).buffers),
    BandedInverseToeplitz: lambda spec, *of: InverseTaps(*of, taps=mechanism_of(spec, BandedInverseToeplitz).bands),
}
_ALTERNATIVES: dict[type[Mechanism], str] = {
    BufferedLinear: ": its search needs a sensitivity that is one sum for each class, and sigma depends on all pairs "
    "of bins; use blt with normalization 'fitted', whose noise keeps as many vectors and varies in time too"
}


def supports(spec: Spec) -> str | None:
    """Return why a spec is outside this solver, or None."""
    workload, mechanism, sampling = spec.optimize_for or spec.workload, spec.mechanism, spec.sampling
    if sampling is None:
        return (
            f"mechanism {mechanism.kind!r} needs a sampling; give one, or use banded_inverse_square_root, which needs "
            "none"
        )
    if type(mechanism) not in _FAMILIES:
        instead = _ALTERNATIVES.get(type(mechanism), "; use toeplitz, blt or banded_inverse_toeplitz")
        return (
            f"mechanism {mechanism.kind!r} cannot be optimised for sampling {sampling.kind!r}{instead}, or leave the "
            "sampling out and calibrate with it"
        )
    buffers, bands = mechanism.buffer_count, mechanism.diagonals
    if mechanism.columns in ("columns", "auto"):
        return (
            f"normalization {mechanism.columns!r} cannot be optimised for sampling; use 'fitted', which finds the "
            "best factors of the columns, or 'none'"
        )
    if mechanism.fitted and workload.n > MAX_N_FITTED:
        return f"n={workload.n} is above {MAX_N_FITTED}, the limit for fitted columns; use normalization 'none'"
    if buffers is not None and buffers > MAX_BUFFERS:
        return f"buffers={buffers} exceeds {MAX_BUFFERS}; two or three are enough under sampling"
    if bands is not None and not 2 <= bands <= min(MAX_TAPS, workload.n):
        return f"bands={bands} must be from 2 to {min(MAX_TAPS, workload.n)}; use 4 to 64, as far as n allows"
    if isinstance(spec.objective, MaxError):
        return "objective 'max' cannot be optimised for sampling; use 'mean'"
    bins = sampling.bins(spec.participation, workload.n)
    if workload.n > MAX_STEPS or workload.n * bins > MAX_WORK:
        return (
            f"n={workload.n} with {bins} bins is above n={MAX_STEPS} or n x bins = {MAX_WORK}; use larger "
            "batches, or optimise a shorter run with as many epochs and take its decays"
        )
    return toeplitz.supports(spec)


def estimate(spec: Spec) -> Estimate:
    """Return the cost: 150 evaluations of 8192 samples, ten tables of their pairs, and those of the loss.

    A quick search has fewer of each.
    The search holds each of the last forms D as it was found, in their stack, and summed along its diagonals.
    """
    assert spec.sampling is not None
    n = float((spec.optimize_for or spec.workload).n)
    squares = n * n if spec.mechanism.fitted else 0.0
    bins = spec.sampling.bins(spec.participation, int(n))
    quick = is_quick(spec)
    rounds, samples = _quick(bins) if quick else (_ROUNDS, SAMPLES)
    evaluations, tables = (20 * rounds, 2 * rounds + 1) if quick else (150, 10)
    steps = rounds * (_QUICK_STEPS if quick else 60)
    pace = 3.0 if quick else 1.0  # few samples at a time take longer
    fitting = 1.0 if not spec.mechanism.fitted else 2.5 if quick else 1.5
    sampled = pace * fitting * (evaluations * 14.0 * samples * bins * 16 + tables * 2.0 * samples * bins**2)
    sampled += (rounds + 1) * 3.0 * bins**3  # each estimate solves a system of the bins
    return estimate_of(
        entries=float(SAMPLES) * bins + (3 * _FORMS + 4) * bins**2 + 5 * _FORMS * (n + bins) + 60 * n + 6 * squares,
        multiplications=sampled + steps * (4 * n * bins + 2e3 * n) + (2000 + n) * squares,
    )


def solve(problem: Problem, progress: ProgressCallback) -> Solution:
    """Return the best strategy found of the mechanism's family; a local optimum."""
    with one_blas_thread(problem.n, largest=MAX_STEPS):  # its products have b columns, whatever n is
        return _solved(problem, Reporter(progress))


def _solved(problem: Problem, report: Reporter) -> Solution:
    assert problem.spec.sampling is not None
    best = search_for(problem, report)
    strategy: Matrix = best.family.matrix(best.variables)
    if problem.spec.mechanism.fitted:
        fit = ColumnFit(problem, problem.spec.sampling, best.family.column(best.variables))
        most = _quick(fit.bins) if is_quick(problem.spec) else (FIT_ROUNDS, SAMPLES)
        strategy = ColumnScaled(strategy, fit.best(_FIT_SEED, *most)[1])
    return Solution(strategy=strategy, outcome=Outcome.LOCAL_OPTIMUM, iterations=best.steps)


def is_quick(spec: Spec) -> bool:
    """Return whether a spec's tolerance asks for a start and little more."""
    return spec.tolerance >= QUICK_TOLERANCE


def _quick(bins: int) -> tuple[int, int]:
    """Return the rounds and samples of a quick search."""
    more = max(bins, _MIN_QUICK_BINS)
    return max(1, _QUICK_ROUNDS * _MIN_QUICK_BINS // more), max(_MIN_SAMPLES, _QUICK_SAMPLES * _MIN_QUICK_BINS // more)


def search_for(problem: Problem, report: Reporter) -> Found:
    """Return the strategy found, before its columns are fitted."""
    assert problem.spec.sampling is not None
    search = _Search(problem, problem.spec.sampling, report)
    best = search.run()
    return search.claimed_with_less(best) if isinstance(best.family, AllTaps) else best


@dataclass(frozen=True, eq=False)
class Found:
    """The end of a search.

    Attributes:
        family: family of the strategy.
        variables: its variables in the family.
        value: logarithm of the estimated error at the privacy.
        steps: steps of the search.
    """

    family: Family
    variables: Array
    value: float
    steps: int


class _Search:
    """One search."""

    def __init__(self, problem: Problem, sampling: BinsSampling, report: Reporter) -> None:
        self.sampling, self.report, self.steps = sampling, report, 0
        self.bins = sampling.bins(problem.participation, problem.n)
        self.family = family_of(problem, self.bins)
        self.quick = is_quick(problem.spec)
        self.rounds, self.samples = _quick(self.bins) if self.quick else (_ROUNDS, SAMPLES)
        self.most_steps = _QUICK_STEPS if self.quick else _STEPS

    def run(self) -> Found:
        """Alternate until nothing is gained."""
        starts = list(self._starts())
        first_samples = min(_FIRST_SAMPLES, self.samples)
        seen = [self._value(start, seed, samples=first_samples) for seed, start in enumerate(starts)]
        forms = [form for _, form in seen if form is not None][1 - _FORMS :]
        if not forms:
            raise SolveFailed(
                f"no start has an error that can be estimated at epsilon={self.sampling.epsilon:g}; use a smaller "
                "epsilon, or leave the sampling out and calibrate with it"
            )
        first = starts[min(range(len(seen)), key=lambda i: seen[i][0])]
        if len(starts) == 1:
            value = seen[0][0]
        else:
            value, form = self._value(first, len(starts), np.stack(forms))
            forms = forms if form is None else [*forms, form]
        best, idle = Found(self.family, first, value, 0), 0
        for seed in range(len(starts) + 1, len(starts) + 1 + self.rounds):
            value, form, variables = self._step(best.variables, np.stack(forms), seed)
            if form is None:
                break
            forms = [*forms[1 - _FORMS :], form]
            idle = 0 if value < best.value - _MIN_GAIN else idle + 1
            if value < best.value:
                best = Found(self.family, variables, value, self.steps)
            if idle == _PATIENCE:
                break
        return Found(best.family, best.variables, best.value, self.steps)

    def _starts(self) -> Iterator[Array]:
        """Yield what is tried first: all starts of the family, or, quickly, the one that the table has."""
        family, known = self.family, None
        if self.quick and isinstance(family, BufferedTaps):
            known = starting_taps(family.parameters.buffers, self.bins, family.count, self.sampling.epsilon)
        yield from family.starts() if known is None else [known]

    def claimed_with_less(self, best: Found) -> Found:
        """Return all taps; where estimates see them poorly, those of two buffers if a claim of these needs less."""
        noise, poorly = self._claimable(best)
        if not poorly:
            return best
        arguments = (self.family.n, self.family.error, self.family.separation, self.family.count)
        buffered = BufferedTaps(*arguments, buffers=_BUFFERS)
        self.family, own = buffered, self.family
        other = self.run()
        self.family = own
        less, _ = self._claimable(other)
        column = buffered.column(other.variables)
        if less >= noise or not column.min() > 0:
            return best
        return Found(own, np.log(column[1:]), other.value, other.steps)

    def _claimable(self, best: Found) -> tuple[float, bool]:
        """Return the logarithm of the error that a claim would have, and whether estimates see it poorly."""
        column = best.family.column(best.variables)
        held = bin_gram(ToeplitzMatrix(column, self.family.n), self.bins)
        noise, poorly = claimable(held, epsilon=self.sampling.epsilon, delta=self.sampling.delta)
        return math.log(noise) + best.family.log_error(column) / 2, poorly

    def _step(self, start: Array, forms: Array, seed: int) -> tuple[float, Array | None, Array]:
        """Minimise the loss of the forms, and go half of the way back while the estimate loses its hold."""
        variables, value, form = self._descend(start, forms), math.inf, None
        for _ in range(_BACKTRACKS):
            value, form = self._value(variables, seed, forms)
            if form is not None:
                break
            variables = (variables + start) / 2
        return value, form, variables

    def _value(
        self, variables: Array, seed: int, forms: Array | None = None, samples: int | None = None
    ) -> tuple[float, Array | None]:
        """Return the logarithm of the error at the privacy, and sigma's form; infinity where nothing can be told."""
        column = self.family.column(variables)
        try:
            here = self._at(column, seed, forms, samples or self.samples)
        except (SolveFailed, CertificateError, InvalidParameter):
            return math.inf, None
        return math.log(here.multiplier) + self.family.log_error(column) / 2, here.form

    def _at(self, column: Array, seed: int, forms: Array | None, samples: int) -> Amplified:
        gram = gram_of_column(np.pad(np.abs(column), (0, self.family.n - len(column))), self.bins)
        tolerance = _QUICK_SIGMA_ERROR if self.quick else None
        return amplify(gram, self.family.n, self.sampling, seed=seed, forms=forms, samples=samples, tolerance=tolerance)

    def _descend(self, start: Array, forms: Array) -> Array:
        from scipy.optimize import minimize

        form = self.family.sensitivity(forms)
        with np.errstate(all="ignore"):
            minimum = minimize(
                self.family.loss_at,
                start,
                args=(form,),
                jac=True,
                method="L-BFGS-B",
                callback=lambda _: self._count(),
                options={"maxiter": self.most_steps, "maxcor": 20},
            )
        return minimum.x

    def _count(self) -> None:
        self.steps += 1
        self.report(self.steps, None)


def family_of(problem: Problem, bins: int) -> Family:
    """Return the family that the mechanism names."""
    make = _FAMILIES[type(problem.spec.mechanism)]
    return make(problem.spec, problem.n, toeplitz.error_form(problem), bins, -(-problem.n // bins))

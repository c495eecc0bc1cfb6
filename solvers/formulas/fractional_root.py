"""Noise that takes back the last draws by one parameter: gamma-BIFR and DP-lambda-CGD, with it given or the best.

gamma-BIFR keeps the first `bands` coefficients of a(x)^(-gamma) for C^-1, a(x) being the series of A (Kalinin, Rehn,
Andersson, Honkela, Lampert, arXiv 2605.18379); DP-lambda-CGD is 1 - lambda x (Kalinin, McKenna, Pagh, Lampert,
arXiv 2601.22334), whatever the workload.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from factorize.certificate.sensitivity import sensitivity_of
from factorize.mechanisms import BandedInverseFractionalRoot, LambdaCgd
from factorize.solution import Outcome, ProgressCallback, Solution
from factorize.solvers.budget import Estimate, estimate_of, refuse_beyond_dense
from factorize.solvers.formulas.closed_form import (
    PASSES,
    lowest,
    needs_decoder,
    normalised,
    recursion_cost,
    refuse_bands,
    strategy_of_noising,
    workload_series,
)
from factorize.solvers.methods.arrays import Array
from factorize.solvers.problem import Problem, Reporter, plain_loss
from factorize.solvers.single.dense import refuse_weights
from factorize.spec import Spec
from factorize.structures.base import Matrix
from factorize.structures.blt import BltMatrix

_GRID = np.concatenate([np.geomspace(1e-6, 0.1, 11), np.arange(0.2, 1.0, 0.1), [1.0]])
"""Of 1 - parameter: the best one approaches 1 as n grows and as the bands get fewer."""
_EVALUATIONS = 60
LONGEST_POWER = 1 << 14
"""Diagonals of the power of a workload other than prefix sums, which take a quadratic recursion."""


def supports(spec: Spec) -> str | None:
    """Return why a spec is outside these formulas, or None: every participation and objective is certified."""
    if _tuned(spec) and spec.optimize_for is not None and (refusal := refuse_weights(spec)) is not None:
        return refusal
    if not isinstance(spec.mechanism, BandedInverseFractionalRoot):
        return None
    workload, bands = spec.optimize_for or spec.workload, spec.mechanism.bands
    if (refusal := refuse_bands(spec)) is None and bands > LONGEST_POWER and workload.kind != "prefix":
        return (
            f"bands={bands} of a workload other than prefix exceeds {LONGEST_POWER}; use fewer, or "
            "banded_inverse_square_root"
        )
    return refusal


def estimate(spec: Spec) -> Estimate:
    """Return the cost: of a formula once, or for each parameter that is tried."""
    n, m = spec.workload.n, max(spec.workload.m, spec.workload.n)
    tries = _EVALUATIONS if _tuned(spec) else 1
    if needs_decoder(spec):
        return refuse_beyond_dense(estimate_of(entries=8.0 * n * m, multiplications=tries * 2.0 * n * n * m), n, m)
    entries, work = recursion_cost(spec)
    bands = getattr(spec.mechanism, "bands", 2)
    return estimate_of(
        entries=40.0 * n + entries, multiplications=tries * (500.0 * n + work + PASSES * float(n) * bands)
    )


def _tuned(spec: Spec) -> bool:
    return "tune" in (getattr(spec.mechanism, "gamma", None), getattr(spec.mechanism, "correlation", None))


def solve_fractional_root(problem: Problem, progress: ProgressCallback) -> Solution:
    """Return C by the first `bands` coefficients of a(x)^(-gamma), for the given gamma or that of the smallest loss."""
    mechanism = problem.spec.mechanism
    assert isinstance(mechanism, BandedInverseFractionalRoot)
    series = workload_series(problem)[: mechanism.bands]

    def noising(gamma: float) -> Array:
        return negative_power(series, gamma)

    report = Reporter(progress)
    gamma = mechanism.gamma
    if isinstance(gamma, str):
        gamma = _best(problem, noising, lambda g: _strategy(noising(g), problem.n), report)
    report(1, None)
    strategy = normalised(problem.spec, _strategy(noising(gamma), problem.n))
    return Solution(strategy, Outcome.CLOSED_FORM, 1)


def _strategy(noising: Array, n: int) -> Matrix:
    """Return C; by one buffer where C^-1 has two diagonals, so that powers of 1 are seen not to rise."""
    second = -float(noising[1]) if len(noising) > 1 else 0.0
    if not noising[2:].any() and 0 <= second <= 1:
        return _powers(second, n)
    return strategy_of_noising(noising, n)


def _powers(kept: float, n: int) -> Matrix:
    """Return C with coefficients kept^t: a buffered Toeplitz matrix with one buffer, and stored as that."""
    return BltMatrix(np.array([kept + 0.0]), np.array([kept + 0.0]), n)


def solve_lambda_cgd(problem: Problem, progress: ProgressCallback) -> Solution:
    """Return C with coefficients correlation^t, for the given correlation or that of the smallest loss."""
    mechanism = problem.spec.mechanism
    assert isinstance(mechanism, LambdaCgd)
    report = Reporter(progress)
    kept = mechanism.correlation
    if isinstance(kept, str):
        kept = _best(
            problem, lambda part: np.array([1.0, -part])[: problem.n], lambda part: _powers(part, problem.n), report
        )
    report(1, None)
    return Solution(_powers(kept, problem.n), Outcome.CLOSED_FORM, 1)


def negative_power(series: Array, gamma: float) -> Array:
    """Return the coefficients of (a(x) / a_0)^(-gamma), shape (bands,), beginning with 1.

    Prefix sums have a formula, m_t = m_{t-1} (t - 1 - gamma) / t. Of others, from a m' = -gamma a' m:
    t m_t = -sum_{0 < s <= t} (gamma s + t - s) (a_s / a_0) m_{t-s}.

    Args:
        series: of a, shape (bands,), first entry positive.
        gamma: in [0, 1].
    """
    bands = len(series)
    if (series == 1.0).all():
        steps = np.arange(1, bands)
        with np.errstate(under="ignore"):
            return np.asarray(np.cumprod(np.concatenate([[1.0], (steps - 1 - gamma) / steps])) + 0.0)
    ratios = series / series[0]
    coefficients = np.zeros(bands)
    coefficients[0] = 1.0
    for t in range(1, bands):
        s = np.arange(1, t + 1)
        coefficients[t] = -(((gamma - 1.0) * s + t) * ratios[1 : t + 1]) @ coefficients[t - 1 :: -1] / t
    return coefficients + 0.0


def _best(
    problem: Problem, noising: Callable[[float], Array], strategy: Callable[[float], Matrix], report: Reporter
) -> float:
    """Return the parameter in [0, 1] of the smallest loss."""
    loss, tried = _loss(problem, noising, strategy), 0

    def of_rest(rest: float) -> float:
        nonlocal tried
        tried += 1
        report(tried, None)
        return loss(1.0 - rest)

    return 1.0 - lowest(of_rest, _GRID)


def _loss(
    problem: Problem, noising: Callable[[float], Array], strategy: Callable[[float], Matrix]
) -> Callable[[float], float]:
    """Return the objective as a function of the parameter: O(n bands) where decoder rows nest, else as certified."""
    from scipy.signal import lfilter

    series = problem.workload.coefficients
    if series is None or not problem.objective.by_row_errors(problem.workload.m) or needs_decoder(problem.spec):
        own = problem.spec.model_copy(update={"workload": problem.workload, "optimize_for": None})
        return lambda parameter: plain_loss(own, normalised(own, strategy(parameter)))

    def loss(parameter: float) -> float:
        sensitivity = sensitivity_of(strategy(parameter), problem.participation)
        decoder = lfilter(noising(parameter), [1.0], series)
        return sensitivity.value**2 * problem.objective.of_row_errors(np.cumsum(decoder**2))

    return loss

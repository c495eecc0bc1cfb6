"""Noise that takes back the last draws by one parameter: gamma-BIFR and DP-lambda-CGD, with it given or the best.

gamma-BIFR keeps the first `bands` coefficients of a(x)^(-gamma) for C^-1, a(x) being the series of A (Kalinin, Rehn,
Andersson, Honkela, Lampert, arXiv 2605.18379); DP-lambda-CGD is 1 - lambda x (Kalinin, McKenna, Pagh, Lampert,
arXiv 2601.22334), whatever the workload.
"""

from collections.abc import Callable

import numpy as np

from factorize.factors.solution import ProgressCallback, Solution
from factorize.solvers.formulas.closed_form import estimate as estimate
from factorize.solvers.formulas.closed_form import (
    finish,
    powers,
    refuse_bands,
    strategy_of_noising,
    tune,
    workload_series,
)
from factorize.solvers.methods.compiled import Array
from factorize.solvers.problem import Problem, Reporter, mechanism_of
from factorize.solvers.single.dense import refuse_weights
from factorize.spec import Spec
from factorize.spec.mechanisms import BandedInverseFractionalRoot, LambdaCgd
from factorize.structures.base import Matrix

_GRID = np.concatenate([np.geomspace(1e-6, 0.1, 11), np.arange(0.2, 1.0, 0.1), [1.0]])
"""The values of 1 - parameter that are tried: the best parameter approaches 1 as n grows and as the bands get fewer."""
MAX_POWER_DIAGONALS = 1 << 14
"""The most diagonals of the power of a workload other than prefix sums, which takes a quadratic recursion."""


def supports(spec: Spec) -> str | None:
    """Return why a spec is outside these formulas, or None: every participation and objective is certified."""
    if spec.mechanism.tuned and spec.optimize_for is not None and (refusal := refuse_weights(spec)) is not None:
        return refusal
    if not isinstance(spec.mechanism, BandedInverseFractionalRoot):
        return None
    workload, bands = spec.optimize_for or spec.workload, spec.mechanism.bands
    if (refusal := refuse_bands(spec)) is None and bands > MAX_POWER_DIAGONALS and not workload.running_sums:
        return (
            f"bands={bands} exceeds {MAX_POWER_DIAGONALS}, the limit of workloads other than prefix; use fewer, or "
            "banded_inverse_square_root"
        )
    return refusal


def solve_fractional_root(problem: Problem, progress: ProgressCallback) -> Solution:
    """Return C by the first `bands` coefficients of a(x)^(-gamma), for the given gamma or that of the smallest loss."""
    mechanism = mechanism_of(problem.spec, BandedInverseFractionalRoot)
    series = workload_series(problem)[: mechanism.bands]
    return _solution(problem, mechanism.gamma, lambda gamma: negative_power(series, gamma), progress)


def solve_lambda_cgd(problem: Problem, progress: ProgressCallback) -> Solution:
    """Return C with coefficients correlation^t, for the given correlation or that of the smallest loss."""
    mechanism = mechanism_of(problem.spec, LambdaCgd)
    return _solution(problem, mechanism.correlation, lambda kept: np.array([1.0, -kept])[: problem.n], progress)


def _solution(
    problem: Problem, parameter: float | str, noising: Callable[[float], Array], progress: ProgressCallback
) -> Solution:
    """Return C of a parameter, or of the best one in [0, 1], from the column of its inverse."""

    def decoder(workload: Array, rest: float) -> Array:
        from scipy.signal import lfilter

        return np.asarray(lfilter(noising(1.0 - rest), [1.0], workload))

    report = Reporter(progress)
    if isinstance(parameter, str):
        parameter = 1.0 - tune(problem, _GRID, lambda rest: _strategy(noising(1.0 - rest), problem.n), decoder, report)
    return finish(problem, _strategy(noising(parameter), problem.n), report)


def _strategy(noising: Array, n: int) -> Matrix:
    """Return C; by one buffer where C^-1 has two diagonals, so that powers of 1 are seen not to rise."""
    second = -float(noising[1]) if len(noising) > 1 else 0.0
    if not noising[2:].any() and 0 <= second <= 1:
        return powers(second, n)
    return strategy_of_noising(noising, n)


def negative_power(series: Array, gamma: float) -> Array:
    """Return the coefficients of (a(x) / a_0)^(-gamma), shape (bands,), beginning with 1.

    Prefix sums have a formula, m_t = m_{t-1} (t - 1 - gamma) / t. Of others, from a m' = -gamma a' m:
    t m_t = -sum_{0 < s <= t} (gamma s + t - s) (a_s / a_0) m_{t-s}.

    Args:
        series: series of a, shape (bands,), first entry positive.
        gamma: the exponent, in [0, 1].
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

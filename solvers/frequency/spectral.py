"""Strategies designed in the frequency domain, for training without a fixed end (C24).

For given Hessian eigenvalues the best filter is |B|^2 = 1 / sqrt(h) (predict/asymptotic.py); for one eigenvalue l it
is nu-Toeplitz noise with nu = eta l. For a class of strongly convex losses it comes from a cone program
(strongly_convex.py). C is the causal series of minimum phase with |C|^2 = 1 / |B|^2, cut to n coefficients,
and is certified with its finite-n losses like any other strategy; what it was designed for, the loss in the long run,
is reported beside them under `solver.asymptotic`.

The causal series with a given power spectrum whose inverse is causal too comes by spectral factorisation. With l the
Fourier coefficients of log(power) / 2 (the cepstrum), c = exp(l_0 + 2 sum_{t > 0} l_t x^t) has |c(e^{iw})|^2 = power(w)
and neither zeros nor poles in the open disc. On a grid of N frequencies both transforms wrap around, so N is doubled
until what can wrap is small: the second half of the cepstrum and the second half of c.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from factorize.errors import ConditionNotMet, SolveFailed
from factorize.factors.solution import Outcome, ProgressCallback, Solution
from factorize.predict.asymptotic import quadratic_power
from factorize.predict.filters import stationary_losses
from factorize.solvers.formulas.closed_form import needs_decoder, strategy_coefficients
from factorize.solvers.frequency.cone import Plant
from factorize.solvers.frequency.strongly_convex import design, nu_bound, white_bound
from factorize.solvers.methods.compiled import Array
from factorize.solvers.problem import Estimate, Problem, Reporter, estimate_of, mechanism_of
from factorize.spec import Spec
from factorize.spec.mechanisms import Spectral
from factorize.structures.toeplitz import ToeplitzMatrix

_PHASE_TOLERANCE = 1e-12
_FFT_NOISE = 1e-13  # the factorisation's FFTs leave this part of the first coefficient in the others


@dataclass(frozen=True)
class Filter:
    """A designed filter.

    Attributes:
        coefficients: coefficients of C, shape (n,).
        asymptotic: what it is worth in the long run, for the manifest.
        outcome: how the design stopped.
        steps: rounds of the design.
    """

    coefficients: Array
    asymptotic: dict[str, object]
    outcome: Outcome
    steps: int


def supports(spec: Spec) -> str | None:
    """Return why a spec is outside this solver, or None; any workload, participation and objective is certified."""
    mechanism = mechanism_of(spec, Spectral)
    bounds = (mechanism.strong_convexity, mechanism.smoothness)
    if mechanism.eigenvalues is not None and bounds == (None, None):
        return _refusal(lambda: quadratic_power(mechanism.eigenvalues or [], mechanism.learning_rate))
    if mechanism.eigenvalues is None and None not in bounds:
        return _refusal(_plant(mechanism).check)
    return "spectral needs either eigenvalues, or strong_convexity and smoothness; give one of the two forms"


def _refusal(check: Callable[[], object]) -> str | None:
    try:
        check()
    except ConditionNotMet as refused:
        return str(refused)
    return None


def estimate(spec: Spec) -> Estimate:
    """Return the cost: the design, one factorisation by FFT, and the certificate."""
    n, m = float(spec.workload.n), float(max(spec.workload.m, spec.workload.n))
    if needs_decoder(spec):
        return estimate_of(entries=8 * n * m, multiplications=2 * n * n * m + 3e10)
    return estimate_of(entries=80 * n + 1e7, multiplications=3e3 * n + 3e10)


def solve(problem: Problem, progress: ProgressCallback) -> Solution:
    """Return the strategy of a learning rate with eigenvalues, or with strong convexity and smoothness.

    Raises:
        SolveFailed: the spectrum is too narrow to be factored, or the bound cannot be verified.
    """
    report = Reporter(progress)
    mechanism = mechanism_of(problem.spec, Spectral)
    designer = for_eigenvalues if mechanism.eigenvalues is not None else for_strong_convexity
    solution = designer(mechanism, problem.n, problem.tolerance, report)
    return Solution(
        strategy=ToeplitzMatrix(tidied(solution.coefficients), problem.n),
        outcome=solution.outcome,
        iterations=solution.steps,
        provenance={"asymptotic": solution.asymptotic},
    )


def for_eigenvalues(mechanism: Spectral, n: int, tolerance: float, report: Reporter) -> Filter:
    """Return the filter |C|^2 = sqrt(h) of a Hessian spectrum; a closed form for a single eigenvalue below 1 / eta."""
    eigenvalues, eta = mechanism.eigenvalues or [], mechanism.learning_rate
    power = quadratic_power(eigenvalues, eta)
    losses = stationary_losses(eigenvalues, eta)
    report(1, None)
    asymptotic = {
        "objective": losses["optimum"],
        "kind": "exact",
        "rule": "stationary loss of a quadratic",
        "unit": "G^2 / (2 rho)",
        "dp_sgd": losses["dp_sgd"],
        "nu_toeplitz": losses.get("nu_toeplitz"),
    }
    if len(set(eigenvalues)) == 1 and eta * eigenvalues[0] < 1:
        coefficients = strategy_coefficients(n, eta * eigenvalues[0])
    else:
        coefficients = minimum_phase(lambda w: 0.5 * np.log(power(w)), n, tolerance=_PHASE_TOLERANCE).coefficients
    return Filter(coefficients, asymptotic, Outcome.CLOSED_FORM, 1)


def for_strong_convexity(mechanism: Spectral, n: int, tolerance: float, report: Reporter) -> Filter:
    """Return the filter that lowers the proven bound for strongly convex and smooth losses."""
    plant = _plant(mechanism)
    if plant.strong_convexity == plant.smoothness:
        # The class holds only quadratics with a single eigenvalue where there is one curvature.
        single = mechanism.model_copy(update={"eigenvalues": [plant.smoothness]})
        exact = for_eigenvalues(single, n, tolerance, report)
        return Filter(exact.coefficients, {**exact.asymptotic, "unit": "d G^2 / (2 rho)"}, exact.outcome, exact.steps)
    optimum = design(plant, tolerance=tolerance, report=lambda step, gain: report(step, None, gain))
    asymptotic = {
        "objective": optimum.bound.upper,
        "kind": "upper_bound",
        "rule": "cone program, verified between grid points",
        "unit": "d G^2 / (2 rho)",
        "dp_sgd": white_bound(plant).upper,
        "nu_toeplitz": nu_bound(plant, plant.width).upper if plant.width < 1 else None,
    }
    phase = minimum_phase(lambda w: 0.5 * np.log(optimum.multiplier.gain(plant, w)), n, tolerance=_PHASE_TOLERANCE)
    return Filter(phase.coefficients, asymptotic, optimum.outcome, optimum.rounds)


def _plant(mechanism: Spectral) -> Plant:
    return Plant(mechanism.learning_rate, mechanism.strong_convexity or 0.0, mechanism.smoothness or 0.0)


def tidied(coefficients: Array) -> Array:
    """Return the column with first coefficient 1 and, if it falls up to rounding, exactly non-increasing.

    Rounding of the FFTs would else turn an exact sensitivity under several participations into an upper bound.
    """
    from scipy.optimize import isotonic_regression

    column = coefficients / coefficients[0]
    falling = np.maximum(isotonic_regression(column, increasing=False).x, 0.0)
    falling[falling < 1e-300] = 0.0
    close = falling[0] > 0 and float(np.abs(falling - column).max()) <= _FFT_NOISE
    return falling / falling[0] if close else column


_MIN_GRID = 256
_MAX_GRID = 2**23


@dataclass(frozen=True)
class MinimumPhase:
    """A causal series of minimum phase.

    Attributes:
        coefficients: shape (count,), the first one positive.
        grid: number of frequencies used.
        error: estimated relative error in mean square over the circle: the energy of the outer half of the cepstrum
            plus that of the outer half of the series. An estimate, because it takes for granted that both go on
            falling beyond the grid as they fall inside it.
    """

    coefficients: Array
    grid: int
    error: float


def minimum_phase(log_power: Callable[[Array], Array], count: int, *, tolerance: float) -> MinimumPhase:
    """Return the series c with |c(e^{iw})|^2 = exp(log_power(w)), to a relative error in mean square.

    A power spectrum with features of width d needs about 32 / d frequencies; one that reaches zero or infinity (the
    prefix sum's, at w = 0) has a cepstrum that falls like 1 / t and is refused.

    Args:
        log_power: logarithm of the power spectrum on frequencies in [0, pi]; taken as even.
        count: number of coefficients wanted.
        tolerance: tolerance on the error.

    Raises:
        SolveFailed: the largest grid does not resolve the spectrum, or a value is not finite.

    Reference:
        C24, Appendix F; Oppenheim and Schafer, Discrete-Time Signal Processing, on the complex cepstrum.
    """
    grid = max(_MIN_GRID, 1 << (2 * count - 1).bit_length())
    while True:
        coefficients, error = _factor(log_power, grid)
        if error <= tolerance:
            return MinimumPhase(coefficients[:count].copy(), grid, error)
        if grid >= _MAX_GRID or not np.isfinite(error):
            raise SolveFailed(
                f"the power spectrum is not resolved by {grid} frequencies (error {error:.1e}, tolerance "
                f"{tolerance:.1e}); its narrowest feature should be wider than 32 divided by that number"
            )
        grid *= 2


def _factor(log_power: Callable[[Array], Array], grid: int) -> tuple[Array, float]:
    from scipy.fft import irfft, rfft

    half = grid // 2
    cepstrum = irfft(0.5 * log_power(np.pi * np.arange(half + 1) / half), grid)
    folded = np.zeros(grid)
    folded[0], folded[1:half], folded[half] = cepstrum[0], 2 * cepstrum[1:half], cepstrum[half]
    with np.errstate(over="ignore", invalid="ignore"):
        series = irfft(np.exp(rfft(folded)), grid)
        error = np.linalg.norm(folded[half // 2 : half + 1]) + np.linalg.norm(series[half:]) / np.linalg.norm(series)
    return series, float(error)

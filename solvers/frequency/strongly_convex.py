"""Noise filters for strongly convex losses: proven bounds on the stationary loss, and the filter that lowers them.

A multiplier (cone.py) turns a noise spectrum into a bound on E|x - x*|^2. For a filter B with limiting
sensitivity gamma^2 = mean(1 / |B|^2), per unit of d G^2 / (2 rho) and with F - F* <= (L / 2) |x - x*|^2,

    F <= (L / 2) gamma^2 mean(psi |B|^2),    which |B|^2 = 1 / sqrt(psi) makes (L / 2) mean(sqrt(psi))^2.

Taking the best filter for a multiplier and the best multiplier for a filter in turns never raises the bound; where it
ends is a local optimum, since the two together are no convex problem. The grid is only where the multiplier is sought:
the bound that is stated is the integral over all frequencies, enclosed by enclosure.py.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from factorize.factors.solution import Outcome
from factorize.predict.asymptotic import distance_squared, limiting_sensitivity_squared, warped_grid
from factorize.solvers.frequency.cone import ConeProgram, Multiplier, Plant
from factorize.solvers.frequency.enclosure import Arcs, Enclosure, Jet, mean_enclosure
from factorize.solvers.methods.compiled import Array

FREQUENCIES = 1024
LAGS = 50
_MAX_ROUNDS = 100
_ENCLOSURE_WIDTH = 1e-6  # relative width of the proven interval
_FIRST_CELLS = 1024


@dataclass(frozen=True)
class Design:
    """A filter with its bound.

    Attributes:
        multiplier: certifies the bound; |B|^2 = 1 / sqrt(psi) is its best filter.
        bound: bound of F, per unit of d G^2 / (2 rho).
        rounds: alternations done.
        outcome: whether the last one still gained.
    """

    multiplier: Multiplier
    bound: Enclosure
    rounds: int
    outcome: Outcome


def gain_jet(multiplier: Multiplier, plant: Plant, cells: Arcs) -> Jet:
    """Return the jet of psi over cells; infinite where p may not be positive."""
    eta, mu, smooth = plant.learning_rate, plant.strong_convexity, plant.smoothness
    nothing = np.zeros(len(multiplier.even) + 1)
    real = cells.series(np.concatenate([[multiplier.centre], -multiplier.even]), nothing)
    imaginary = cells.series(nothing, np.concatenate([[0.0], multiplier.odd]))
    bend = (2 / eta - mu - smooth) / eta
    alpha = cells.series(np.array([bend + mu * smooth, -bend]), np.zeros(2))
    beta = cells.series(np.zeros(2), np.array([0.0, -(smooth - mu) / eta]))
    numerator = (real.square() + imaginary.square()) * (smooth - mu) ** 2 + real * 2.0
    p = ((alpha * real - beta * imaginary) * 2.0).shifted(-1.0)
    return numerator * p.reciprocal()


def first_edges(plant: Plant, count: int = _FIRST_CELLS) -> Array:
    """Return the edges of a partition of (0, pi) that is fine near 0, as `warped_grid` is."""
    theta = np.pi * np.arange(count + 1) / count
    edges = 2 * np.arctan2(math.sqrt(min(plant.width, 1.0)) * np.sin(theta / 2), np.cos(theta / 2))
    edges[0], edges[-1] = 0.0, np.pi
    return edges


def white_bound(plant: Plant) -> Enclosure:
    """Return a proven bound of F for DP-SGD, B = 1."""
    return _bound_for(plant, lambda w: np.ones_like(w), lambda cells: None, 1.0)


def nu_bound(plant: Plant, nu: float) -> Enclosure:
    """Return a proven bound of F for nu-Toeplitz noise, |B|^2 = |1 - nu - e^{iw}|.

    Args:
        plant: eta, mu, L.
        nu: damping in (0, 1).
    """
    q = 1 - nu

    def jet(cells: Arcs) -> Jet:
        return cells.series(np.array([1 + q * q, -2 * q]), np.zeros(2)).root()

    return _bound_for(plant, lambda w: np.sqrt(distance_squared(nu, w)), jet, limiting_sensitivity_squared(nu))


def _bound_for(
    plant: Plant, power: Callable[[Array], Array], jet: Callable[[Arcs], Jet | None], sensitivity_squared: float
) -> Enclosure:
    w, weights = warped_grid(FREQUENCIES, plant.width)
    multiplier = ConeProgram(plant, w, weights, lags=LAGS).solve(power(w)).multiplier

    def integrand(cells: Arcs) -> Jet:
        gain, filtered = gain_jet(multiplier, plant, cells), jet(cells)
        return gain if filtered is None else gain * filtered

    mean = mean_enclosure(integrand, first_edges(plant), tolerance=_ENCLOSURE_WIDTH)
    # the limiting sensitivity comes from an elliptic integral that errs by some units in the last place
    return _scaled(mean, plant.smoothness / 2 * sensitivity_squared)


def _scaled(mean: Enclosure, factor: float) -> Enclosure:
    return Enclosure(mean.lower * factor * (1 - 2.0**-40), mean.upper * factor * (1 + 2.0**-40), mean.cells)


def best_bound(multiplier: Multiplier, plant: Plant) -> Enclosure:
    """Return a proven bound of F for the best filter of a multiplier: (L / 2) mean(sqrt(psi))^2."""
    mean = mean_enclosure(
        lambda cells: gain_jet(multiplier, plant, cells).root(), first_edges(plant), tolerance=_ENCLOSURE_WIDTH / 2
    )
    return _scaled(Enclosure(mean.lower**2, mean.upper**2, mean.cells), plant.smoothness / 2)


def design(plant: Plant, *, tolerance: float, report: Callable[[int, float], None]) -> Design:
    """Alternate between multiplier and filter, from nu-Toeplitz noise with nu = eta mu.

    Args:
        plant: eta, mu, L, with mu < L.
        tolerance: relative decrease of the bound below which to stop.
        report: called with (round, relative decrease); what it raises ends the design.

    Raises:
        ConditionNotMet: eta >= 2 / L or mu > L.
        SolveFailed: the bound could not be verified between the grid's frequencies.
    """
    plant.check()
    w, weights = warped_grid(FREQUENCIES, plant.width)
    program = ConeProgram(plant, w, weights, lags=LAGS)
    solution = program.solve(np.sqrt(distance_squared(min(plant.width, 1.0), w)))
    previous, outcome = math.inf, Outcome.ITERATION_LIMIT
    for rounds in range(1, _MAX_ROUNDS + 1):
        root = np.sqrt(solution.multiplier.gain(plant, w))
        value = float(weights @ root) ** 2
        gain = previous / value - 1
        report(rounds, gain)
        if gain <= max(tolerance, 1e-9):
            outcome = Outcome.LOCAL_OPTIMUM
            break
        previous = value
        solution = program.solve(math.sqrt(value) / root, start=solution.interior)
    bound = best_bound(solution.multiplier, plant)
    return Design(solution.multiplier, bound, rounds, outcome)

"""Accelerated-DP-SRGD and the two methods that it is compared with (S24, algorithm 1, sections 4.3 and 4.4.3).

Indices begin at 0: eta_t = t + 1, eta_{0:t} = (t+1)(t+2)/2, tau_t = eta_t / eta_{0:t} = 2/(t+2), x_0 = z_0 = start.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from factorize.errors import ConditionNotMet, InvalidParameter
from factorize.training.orders import Order
from papers.algorithms.differences import combined
from papers.algorithms.machines import mean_divisor
from papers.algorithms.projections import Projection
from papers.training.clip import Contributions, GradientFunction, contributions_at
from papers.training.ftrl import Observer, Run, guarantee, unobserved
from papers.training.private_sums import Sums


def accelerated_dp_srgd(
    gradient: GradientFunction,
    start: np.ndarray,
    order: Order,
    sums: Sums,
    *,
    beta: float,
    project: Projection,
    z_step_factor: float = 1.0,
    observe: Observer = unobserved,
) -> Run:
    """Minimise a convex smooth loss over one pass with large batches.

        v_e = clip(eta_t grad f(x_t, e) - eta_{t-1} grad f(x_{t-1}, e), R)
        S += (1/B) sum_e v_e + (C^-1 Z)[t]                  the running sum with its noise: all that is released
        z_{t+1} = Proj(z_t - S / beta);   y_{t+1} = Proj(x_t - S / (beta eta_t))
        x_{t+1} = (1 - tau_{t+1}) y_{t+1} + tau_{t+1} z_{t+1}

    The difference is clipped to R (the calibration's clip norm), so the guarantee holds without convexity, smoothness,
    a bound on the noise or one on the dimension; under the assumptions of claim 4.2 with M b_max <= L + 2 M D nothing
    is ever clipped at R = 4L + 8MD (`accelerated_recipe`). Any factorization of running sums takes the place of the
    tree.

    Args:
        gradient: a function of (weights, batch) to one gradient per example.
        start: x_0 = z_0, inside the constraint set.
        order: the batches, each example in one of them for the paper's guarantee of utility.
        sums: clipping and noise of means over the fixed batch size B.
        beta: scaling, at least the smoothness; see `accelerated_recipe`.
        project: onto the constraint set.
        z_step_factor: 1 as printed; the paper's proof needs 1/4 (with its potential 2 beta |z - x*|^2).
        observe: called after each step with (step, y_{t+1}, released increment).

    Returns:
        A run whose weights are y_T.

    Raises:
        InvalidParameter: beta or z_step_factor not above 0, or a calibration for sums.
        InvalidParticipation: the order is not what the sensitivity was computed for.

    Reference:
        S24, algorithm 1; the printed sum over i < t in line 4 is one over i <= t.
    """

    def increment(t: int, batch: np.ndarray, x: np.ndarray, previous: np.ndarray) -> Contributions:
        here = contributions_at(gradient, x, batch)
        if t == 0:
            return here
        return combined(here, t + 1.0, contributions_at(gradient, previous, batch), float(t))

    running = np.zeros(np.shape(start))

    def directions(t: int, released: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        running[...] += released
        return z_step_factor * running, running / (t + 1.0)

    _refuse(beta, z_step_factor)
    return _accelerate(increment, directions, start, order, sums, beta=beta, project=project, observe=observe)


def accelerated_dp_sgd(
    gradient: GradientFunction,
    start: np.ndarray,
    order: Order,
    sums: Sums,
    *,
    beta: float,
    project: Projection,
    z_step_factor: float = 1.0,
    observe: Observer = unobserved,
) -> Run:
    """Minimise with the same acceleration and an independent gradient in each step: the baseline of theorem 4.11.

        nabla_t = (1/B) sum_e clip(grad f(x_t, e), L) + (C^-1 Z)[t]
        z_{t+1} = Proj(z_t - (eta_t / beta) nabla_t);   y_{t+1} = Proj(x_t - nabla_t / beta)

    Arguments, result and errors are those of `accelerated_dp_srgd`; the clip norm is the Lipschitz constant. What
    enters z is the sum of eta_t nabla_t: a factorization for it has the workload `schedule` with rates t + 1.

    Reference:
        S24, section 4.4.3, theorem 4.11.
    """

    def increment(t: int, batch: np.ndarray, x: np.ndarray, previous: np.ndarray) -> Contributions:
        return contributions_at(gradient, x, batch)

    def directions(t: int, released: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return z_step_factor * (t + 1.0) * released, released

    _refuse(beta, z_step_factor)
    return _accelerate(increment, directions, start, order, sums, beta=beta, project=project, observe=observe)


def unaccelerated_dp_srgd(
    gradient: GradientFunction,
    start: np.ndarray,
    order: Order,
    sums: Sums,
    *,
    learning_rate: float,
    project: Projection,
    observe: Observer = unobserved,
) -> Run:
    """Minimise by plain SGD on recursive gradients, which needs batches of O(1): the variant of section 4.3.

        v_e = clip(w_t grad f(x_t, e) - w_{t-1} grad f(x_{t-1}, e), R),   w_t = t+1 (called c_t in the paper)
        S += (1/B) sum_e v_e + (C^-1 Z)[t];   x_{t+1} = Proj(x_t - learning_rate S / w_t)

    The other arguments, the result (x_T) and the errors are as for `accelerated_dp_srgd`.

    Args:
        gradient: a function of (weights, batch) to one gradient per example.
        start: x_0.
        order: the batches.
        sums: clipping and noise of means over the fixed batch size B.
        learning_rate: fixed step.
        project: onto the constraint set.
        observe: called after each step with (step, x_{t+1}, released increment).

    Reference:
        S24, section 4.3.
    """
    sums.check(order)
    mean_divisor(sums, "unaccelerated DP-SRGD")
    _refuse(learning_rate, 1.0)
    x = previous = np.array(start, dtype=np.float64)
    running = np.zeros_like(x)
    for t, batch in enumerate(order):
        change = contributions_at(gradient, x, batch)
        if t:
            before = contributions_at(gradient, previous, batch)
            change = combined(change, t + 1.0, before, float(t))
        released = sums.release(change)
        running += released
        previous, x = x, project(x - learning_rate * running / (t + 1.0))
        observe(t, x, released)
    return Run(x, len(order), guarantee(sums))


def _accelerate(
    increment: Callable[[int, np.ndarray, np.ndarray, np.ndarray], Contributions],
    directions: Callable[[int, np.ndarray], tuple[np.ndarray, np.ndarray]],
    start: np.ndarray,
    order: Order,
    sums: Sums,
    *,
    beta: float,
    project: Projection,
    observe: Observer,
) -> Run:
    """Run the coupled recursion of x, y and z; what is summed and where it goes is the caller's."""
    sums.check(order)
    mean_divisor(sums, "Accelerated-DP-SRGD")
    x = previous = y = z = np.array(start, dtype=np.float64)
    for t, batch in enumerate(order):
        released = sums.release(increment(t, batch, x, previous))
        for_z, for_y = directions(t, released)
        z, y = project(z - for_z / beta), project(x - for_y / beta)
        tau = 2.0 / (t + 3.0)
        previous, x = x, (1.0 - tau) * y + tau * z
        observe(t, y, released)
    return Run(y, len(order), guarantee(sums))


@dataclass(frozen=True)
class AcceleratedRecipe:
    """Parameters of Accelerated-DP-SRGD.

    Attributes:
        steps: T.
        batch_size: B.
        clip_norm: R = 4L + 8MD, what the difference is clipped to and the noise calibrated for.
        beta: the scaling.
        paper_sigma: standard deviation of a tree's node noise on the scale of b_t (divided by beta), as printed, for
            comparison: calibrate exactly instead.
    """

    steps: int
    batch_size: int
    clip_norm: float
    beta: float
    paper_sigma: float


def accelerated_recipe(
    examples: int,
    *,
    lipschitz: float,
    smoothness: float,
    diameter: float,
    batch_size: int | None = None,
    epsilon: float,
    delta: float,
) -> AcceleratedRecipe:
    """Return the parameters of theorem 4.10, with T rounded before anything depends on it.

    T = floor(n / B),  beta = M + (8L + 16MD) n^1.5 / (D B^2),  R = 4L + 8MD.

    Args:
        examples: n.
        lipschitz: L.
        smoothness: M.
        diameter: D of the constraint set.
        batch_size: B; by default floor(sqrt(n) min(1, M)) (theorem 4.6).
        epsilon: epsilon of the printed noise.
        delta: delta of the printed noise.

    Raises:
        InvalidParameter: a constant not above 0, or no full batch.
        ConditionNotMet: beta < 2 M T, so that claim 4.2 does not bound the difference; use smaller batches.

    Reference:
        S24, claim 4.2, theorems 4.6 and 4.10.
    """
    if min(lipschitz, smoothness, diameter, epsilon, delta) <= 0:
        message = "lipschitz, smoothness, diameter, epsilon and delta must be above 0"
        raise InvalidParameter(message, field="lipschitz")
    size = max(1, math.floor(math.sqrt(examples) * min(1.0, smoothness))) if batch_size is None else batch_size
    if not 1 <= size <= examples:
        message = f"batch_size={size} makes no full batch of {examples} examples; use 1 to {examples}"
        raise InvalidParameter(message, field="batch_size")
    steps = examples // size
    clip_norm = 4 * lipschitz + 8 * smoothness * diameter
    beta = smoothness + 2 * clip_norm * examples**1.5 / (diameter * size**2)
    if beta < 2 * smoothness * steps:
        raise ConditionNotMet(
            f"beta={beta:g} is below 2 M T={2 * smoothness * steps:g}, so claim 4.2 does not bound the difference; use "
            f"batch_size <= sqrt(n)={math.isqrt(examples)}",
            field="batch_size",
        )
    logs = math.log2(max(steps, 2)) * math.log(2.5 / delta)
    paper_sigma = 2 * math.sqrt(2) * clip_norm * math.sqrt(logs) / (epsilon * size * beta)
    return AcceleratedRecipe(steps, size, clip_norm, beta, paper_sigma)


def _refuse(scale: float, factor: float) -> None:
    if not (math.isfinite(scale) and scale > 0 and factor > 0):
        message = f"beta or learning rate {scale} and z_step_factor={factor} must be finite and above 0"
        raise InvalidParameter(message, field="beta")

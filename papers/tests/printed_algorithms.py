"""Algorithms as they are printed, errors included: the audit has to find what is wrong with them."""

from __future__ import annotations

import numpy as np

from factorize.privacy import Calibration
from factorize.training.orders import Order
from papers.algorithms.differences import combined
from papers.training.clip import GradientFunction, Rows, clipped_sum, contributions_at


def printed_trusted_mu2(
    gradient: GradientFunction, order: Order, dimension: int, noise: Calibration, *, learning_rate: float, seed: int
) -> np.ndarray:
    """R24, algorithm 2: the second gradient is at the *previous* sample, z_{t-1}. Returns q~_1 .. q~_T.

    The noise is the paper's, independent with standard deviation 2 S sqrt(T) / rho, for contributions that obey the
    Lipschitz constant.
    """
    generator = np.random.default_rng(seed)
    x = previous = w = np.zeros(dimension)
    d = np.zeros(dimension)
    messages = []
    for t in range(1, len(order) + 1):
        here = clipped_sum(contributions_at(gradient, x, order[t - 1]), np.inf)
        before = np.zeros(dimension)
        if t > 1:
            before = clipped_sum(contributions_at(gradient, previous, order[t - 2]), np.inf)
        d = here + (1 - 1 / t) * (d - before)
        messages.append(t * d + noise.sigma_of_sums * generator.standard_normal(dimension))
        w = w - learning_rate * messages[-1]
        previous, x = x, (t * x + 2 * w) / (t + 2)
    return np.array(messages)


def printed_srg(
    gradient: GradientFunction,
    order: Order,
    dimension: int,
    noise: np.ndarray,
    *,
    clip_norm: float,
    decay: float,
    learning_rate: float,
) -> np.ndarray:
    """S24, algorithm 3: line 7 adds the step's noise once more. Returns what the optimizer gets in each step.

    Args:
        gradient: from (weights, batch) to one gradient per example.
        order: the batches, of equal size.
        dimension: of the weights.
        noise: C^-1 Z, shape (steps, dimension), without the factor clip / B.
        clip_norm: of the differences.
        decay: c.
        learning_rate: of plain SGD.
    """
    x = previous = nabla = np.zeros(dimension)
    used = []
    for t, batch in enumerate(order):
        change = contributions_at(gradient, x, batch)
        if t:
            change = combined(change, 1.0, contributions_at(gradient, previous, batch), decay)
        noisy = clipped_sum(change, clip_norm) / len(batch) + noise[t]
        nabla = (decay if t else 0.0) * nabla + noisy
        used.append(nabla + noise[t])
        previous, x = x, x - learning_rate * used[-1]
    return np.array(used)


def printed_memf(
    gradient: GradientFunction, order: Order, dimension: int, noise: np.ndarray, *, clip_norm: float
) -> np.ndarray:
    """S24, algorithm 2: noise for contributions of norm 1, whatever clip norm and batch size. Returns the gradients.

    The noise of batch j in epoch i of k is row i k + j, as printed, which is another step's row for some.
    """
    x = np.zeros(dimension)
    used = []
    batches = len(order) // order.epochs
    for t, batch in enumerate(order):
        epoch, j = divmod(t, batches)
        total = clipped_sum(contributions_at(gradient, x, batch), clip_norm)
        used.append(total / len(batch) + noise[epoch * order.epochs + j])
        x = x - 0.1 * used[-1]
    return np.array(used)


def printed_skgd(partial: np.ndarray, bound: float, noise: Calibration, steps: int, *, seed: int) -> np.ndarray:
    """M24, algorithm 1, with full sketches: N(0, sigma_S I), the standard deviation in place of the variance."""
    generator = np.random.default_rng(seed)
    mean = clipped_sum(Rows(partial), bound) / len(partial)
    spread = np.sqrt(bound * noise.sigma_of_sums)
    return np.array([mean + spread * generator.standard_normal(len(mean)) for _ in range(steps)])

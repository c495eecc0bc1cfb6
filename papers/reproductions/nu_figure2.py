"""C24, Figure 2: stationary loss of linear regression on Gaussian inputs against d, effective dimension and step size.

The paper simulates; here second moments are exact (docs/notes/frequency-domain.md), and only the check of them is
sampled. What the paper leaves open: the values of d and of the learning rate. With x x^T replaced by its mean, as in
the paper's analysis, the slope 0.18 would be 0.00 and 0.94 would be 0.77.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from factorize.predict.asymptotic import limiting_sensitivity_squared
from papers.predictions import ask
from papers.reproductions.comparison import Comparison, mean_and_error

TITLE = "Choquette-Choo et al. 2024, Figure 2: linear regression, d = 128, eigenvalues 1/k, learning rate 0.02"

DIMENSION, RATE = 128, 0.02
DIMENSIONS = (8, 16, 32, 64, 128, 256, 512)
POWERS = (0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
LOWEST_RATES = (0.003, 0.01, 0.02)
NOISES: dict[str, dict[str, Any]] = {"Noisy-SGD": {"kind": "independent"}, "nu-Noisy-FTRL": {"kind": "nu"}}


@dataclass(frozen=True)
class Sweep:
    """One panel: the horizontal axis, and by method the exact loss and that with inputs averaged."""

    at: np.ndarray
    exact: dict[str, np.ndarray]
    averaged: dict[str, np.ndarray]


def loss(eigenvalues: Sequence[float], rate: float, method: str) -> tuple[float, float]:
    """Return F per G^2 / (2 rho), exact and with x x^T replaced by H; nu is learning rate times smallest eigenvalue."""
    question = {"kind": "gaussian_regression", "eigenvalues": list(eigenvalues), "learning_rate": rate, "rho": 0.5}
    answer = ask({**question, "noise": NOISES[method]})
    return answer.value, answer.terms["inputs_averaged"]


def spectrum(dimension: int, power: float = 1.0) -> np.ndarray:
    """Return k^-power."""
    return np.arange(1.0, dimension + 1) ** -power


def sweep(at: Sequence[float], problems: Sequence[tuple[np.ndarray, float]]) -> Sweep:
    """Return a panel of (eigenvalues, learning rate)."""
    found = {name: np.array([loss(values.tolist(), rate, name) for values, rate in problems]) for name in NOISES}
    return Sweep(
        np.asarray(at, dtype=float),
        {name: values[:, 0] for name, values in found.items()},
        {name: values[:, 1] for name, values in found.items()},
    )


def slope(at: np.ndarray, values: np.ndarray) -> float:
    """Return the least-squares slope in logarithms."""
    return float(np.polyfit(np.log(at), np.log(values), 1)[0])


def rates_up_to(lowest: float, highest: float) -> Sweep:
    """Return the panel over eight learning rates, evenly spaced in logarithms."""
    rates = np.geomspace(lowest, highest, 8)
    return sweep(rates.tolist(), [(spectrum(DIMENSION), rate) for rate in rates.tolist()])


def highest_rate(lowest: float, wanted: float) -> float:
    """Return the end of the range of learning rates for which Noisy-SGD's slope is `wanted`."""
    from scipy.optimize import brentq

    def excess(logarithm: float) -> float:
        panel = rates_up_to(lowest, math.exp(logarithm))
        return slope(panel.at, panel.exact["Noisy-SGD"]) - wanted

    return math.exp(brentq(excess, math.log(2 * lowest), math.log(0.3), xtol=1e-4))


def run(comparison: Comparison) -> None:
    """Print the slopes, check the moments by simulation, and draw."""
    dimensions = DIMENSIONS[:4] if comparison.quick else DIMENSIONS
    powers = POWERS[::3] if comparison.quick else POWERS
    left = sweep(dimensions, [(spectrum(d), RATE) for d in dimensions])
    spectra = [spectrum(DIMENSION, power) for power in powers]
    middle = sweep([values.sum() for values in spectra], [(values, RATE) for values in spectra])
    comparison.remark("no noise multiplier: losses per G^2 / (2 rho); nu = learning rate x smallest eigenvalue")
    comparison.heading("slopes in logarithms; rounding and unstated grids: tolerance 0.015")
    comparison.row("Noisy-SGD, d", 1.00, slope(left.at, left.exact["Noisy-SGD"]), tolerance=0.015)
    comparison.row("Noisy-SGD, effective d", 0.18, slope(middle.at, middle.exact["Noisy-SGD"]), tolerance=0.015)
    comparison.row("nu-Noisy-FTRL, effective d", 0.94, slope(middle.at, middle.exact["nu-Noisy-FTRL"]), tolerance=0.015)
    right = by_rate(comparison, LOWEST_RATES[-1:] if comparison.quick else LOWEST_RATES)
    comparison.heading("the same with x x^T replaced by its mean, which the paper's analysis starts from")
    for name, panel in (("d", left), ("effective d", middle), ("learning rate", right)):
        for method, values in panel.averaged.items():
            comparison.row(f"{method}, {name}", None, slope(panel.at, values))
    check(comparison)
    draw(comparison, (left, middle, right))


def by_rate(comparison: Comparison, lowest_rates: Sequence[float]) -> Sweep:
    """Print the slopes in the learning rate: the range that gives the first published one also gives the other."""
    comparison.heading("slopes in the learning rate, over ranges that end where Noisy-SGD's slope is 1.27")
    for lowest in lowest_rates:
        highest = highest_rate(lowest, 1.27)
        panel = rates_up_to(lowest, highest)
        name = f"{lowest:g} to {highest:.3g}"
        comparison.row(f"Noisy-SGD, {name} (fitted)", 1.27, slope(panel.at, panel.exact["Noisy-SGD"]), tolerance=1e-3)
        ours = slope(panel.at, panel.exact["nu-Noisy-FTRL"])
        comparison.row(f"nu-Noisy-FTRL, {name}", 2.03, ours, tolerance=0.02)
    comparison.remark("wider ranges fit less: one from 0.001 would give 2.05")
    comparison.claim("Noisy-FTRL depends better on the learning rate than Noisy-SGD", ours > 1.27)
    return panel


def check(comparison: Comparison) -> None:
    """Simulate d = 16 at learning rate 0.1, where Gaussian inputs add a fifth to the loss."""
    values, rate = spectrum(16), 0.1
    chains = 100 if comparison.quick else 4000
    comparison.heading(f"simulated, d = 16, learning rate {rate}, {chains} runs: exact value in brackets")
    for method in NOISES:
        exact, averaged = loss(values.tolist(), rate, method)
        found = simulate(values, rate, method, chains)
        mean, error = mean_and_error(found.tolist())
        comparison.row(f"{method}, Gaussian inputs", None, mean, check=exact, error=error)
        comparison.row(f"{method}, inputs averaged (formula)", None, averaged)


def simulate(eigenvalues: np.ndarray, rate: float, method: str, chains: int) -> np.ndarray:
    """Return each run's loss per G^2 / (2 rho), averaged over its second half, shape (chains,)."""
    steps, random = 4000, np.random.default_rng(2024)
    nu = rate * float(eigenvalues.min()) if method == "nu-Noisy-FTRL" else None
    taps, gamma = (np.ones(1), 1.0) if nu is None else (noising(nu, steps), limiting_sensitivity_squared(nu))
    losses = [_batch(eigenvalues, rate, taps, random, min(250, chains - done)) for done in range(0, chains, 250)]
    return gamma * np.concatenate(losses)


def noising(nu: float, steps: int) -> np.ndarray:
    """Return the coefficients of (1 - (1 - nu) x)^(1/2)."""
    t = np.arange(1, steps)
    return np.cumprod(np.concatenate([[1.0], (1 - nu) * (t - 1.5) / t]))


def _batch(
    eigenvalues: np.ndarray, rate: float, taps: np.ndarray, random: np.random.Generator, chains: int
) -> np.ndarray:
    from scipy.fft import irfft, next_fast_len, rfft

    steps, d = 4000, len(eigenvalues)
    noise = random.standard_normal((steps, chains, d))
    if len(taps) > 1:
        length = next_fast_len(2 * steps, real=True)
        response = rfft(taps, length)[:, None]
        for chain in range(chains):
            noise[:, chain] = irfft(rfft(noise[:, chain], length, axis=0) * response, length, axis=0)[:steps]
    theta, total, roots = np.zeros((chains, d)), np.zeros(chains), np.sqrt(eigenvalues)
    for step in range(steps):
        inputs = random.standard_normal((chains, d)) * roots
        theta -= rate * (np.einsum("ij,ij->i", inputs, theta)[:, None] * inputs + noise[step])
        if step >= steps // 2:
            total += theta**2 @ eigenvalues / 2
    return total / (steps - steps // 2)


def draw(comparison: Comparison, panels: Sequence[Sweep]) -> None:
    """Write the three panels."""
    with comparison.picture((12, 3.8), 3) as figure:
        labels = ("dimension d", "effective dimension Tr H / |H|", "learning rate")
        marks = ((10, 30, 100, 300), (6, 10, 20, 30), (0.02, 0.05, 0.1, 0.15))
        for place, panel, label, ticks in zip(figure.axes, panels, labels, marks, strict=True):
            for (method, values), colour in zip(panel.exact.items(), ("#c1440e", "#1f5fa8"), strict=True):
                text = f"{method}, slope {slope(panel.at, values):.2f}"
                place.loglog(panel.at, values, "o-", color=colour, markersize=4, label=text)
                place.loglog(panel.at, panel.averaged[method], ":", color=colour, linewidth=1)
            place.set(xlabel=label, ylabel="stationary loss per $G^2/2\\rho$")
            place.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
            place.minorticks_off()
            place.legend(frameon=False, fontsize=9)
        figure.suptitle("Gaussian inputs, exact (dotted: inputs' outer product replaced by its mean)", fontsize=10)

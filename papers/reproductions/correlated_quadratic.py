"""K23, Figure 2: DP-MF against DP-MF+ on a random quadratic that is not strongly convex, by exact second moments.

f(x) = |A x - b|^2 / 2 in 100 dimensions, singular values of A evenly spaced from 0 to sqrt(L), L = 10, b standard
normal, T = 5000, tau over the paper's grid. Expectations over noise and b are exact: nothing is sampled. The paper
starts at a point that it does not state; here it is 0. Its text says that "the variance of the noise sigma" is 20, and
elsewhere sigma^2 is the expected squared norm of a step's noise: both readings are run, variance 20 and sigma = 20.
"""

from __future__ import annotations

import math

import numpy as np

from factorize.factors.factorization import Factorization
from factorize.predict.quadratic import QuadraticRun
from papers.reproductions.comparison import Comparison
from papers.reproductions.kept_results import prefix_sums

TITLE = "Koloskova et al. 2023, Figure 2: average and last gradient norms on a quadratic, L = 10, T = 5000"

SMOOTHNESS, STEPS, DIMENSION = 10.0, 5000, 100
VARIANCES = {"variance 20": 20.0, "sigma 20 (variance 400)": 400.0}
"""The readings of the text, to the expected squared norm of the noise of one step."""
TAUS = (1, 2, 10, 50, 100, 200, 500, 1000, 5000)
RATES = (1e-4, 3e-4, 1e-3, 3e-3, 0.01, 0.02, 0.03, 0.05, 0.1, 0.15)

Parts = dict[int | None, dict[float, tuple[np.ndarray, np.ndarray]]]
"""The parts of `norms`, by tau (None: DP-MF) and learning rate."""


def run(comparison: Comparison) -> None:
    """Print the norms by learning rate and draw the three panels, for both readings of the noise."""
    steps = 200 if comparison.quick else STEPS
    taus = (2, 50, 200) if comparison.quick else TAUS
    rates = (0.003, 0.01, 0.1) if comparison.quick else RATES
    comparison.remark("noise multiplier: the noise per step is given, no privacy target; sens(C) = 1 for all")
    parts = {}
    for tau in (None, *taus):
        factorization = factorized(steps, tau)
        parts[tau] = {rate: norms(factorization, rate, steps) for rate in rates}
    for reading, variance in VARIANCES.items():
        one_reading(comparison, reading, variance, parts, rates)


def one_reading(comparison: Comparison, reading: str, variance: float, parts: Parts, rates: tuple[float, ...]) -> None:
    """Print, judge and draw one reading of the noise."""
    taus = [tau for tau in parts if tau is not None]
    comparison.heading(f"{reading}; {'learning rate':>14}: average |grad f|^2 of DP-MF, of DP-MF+ at its best tau")
    averages, lasts, best_taus, paths = [], [], [], {}
    for rate in rates:
        base = with_noise(parts[None][rate], variance)
        found = {tau: with_noise(parts[tau][rate], variance) for tau in taus}
        if rate == 0.01:
            paths = {"DP-MF": base, "DP-MF+, tau = 50": found[50]}
        tau = min(found, key=lambda tau: found[tau].mean())
        averages.append((float(base.mean()), float(found[tau].mean())))
        lasts.append((float(base[-1]), float(min(path[-1] for path in found.values()))))
        best_taus.append(tau)
        comparison.row(f"{rate:g}: average, DP-MF", None, averages[-1][0])
        comparison.row(f"{rate:g}: average, DP-MF+ (tau = {tau})", None, averages[-1][1])
        comparison.row(f"{rate:g}: last, DP-MF", None, lasts[-1][0])
        comparison.row(f"{rate:g}: last, DP-MF+ at its best tau", None, lasts[-1][1])
        ratios = [plain / plus for plain, plus in (averages[-1], lasts[-1])]
        comparison.remark(f"    DP-MF / DP-MF+: average {ratios[0]:.4g}, last {ratios[1]:.4g}")
    claims(comparison, reading, averages, lasts, best_taus, (paths["DP-MF"], paths["DP-MF+, tau = 50"]))
    draw(comparison, reading, rates, averages, lasts, paths)


def factorized(steps: int, tau: int | None) -> Factorization:
    """Return the optimum for plain sums, or that of one block of Lambda_tau's restarts, which are all alike."""
    objective = {"kind": "mean"} if tau is None else {"kind": "lambda_tau", "tau": tau}
    return prefix_sums(tau or steps, {"kind": "dense"}, objective=objective, tolerance=1e-6)


def norms(factorization: Factorization, rate: float, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the parts of the expected squared gradient norm: without noise, and of noise of variance 1.

    A factorization of fewer steps is restarted until there are enough.
    """
    singular = np.linspace(0, math.sqrt(SMOOTHNESS), DIMENSION)
    # x* - x_0 is (u . b) / singular value, of variance 1 / singular^2; a zero singular value has no gradient
    start = np.divide(1.0, singular, out=np.zeros(DIMENSION), where=singular > 0)
    question = QuadraticRun(
        kind="quadratic",
        eigenvalues=(singular**2).tolist(),
        learning_rate=rate,
        sigma=math.sqrt(1 / DIMENSION),
        initial=start.tolist(),
    )
    signal, noise = question.second_moments(factorization)
    shrink = (1 - rate * singular**2) ** 2
    signal, noise = signal[0] * shrink ** np.arange(steps + 1)[:, None], restarted(noise, shrink, steps)
    return signal @ singular**4, noise @ singular**4


def restarted(block: np.ndarray, shrink: np.ndarray, steps: int) -> np.ndarray:
    """Return second moments of noise over all steps, from those of one block: what was there shrinks, a block is added.

    Args:
        block: shape (tau + 1, d), 0 first.
        shrink: shrinkage of a second moment in a step, shape (d,).
        steps: a multiple of tau.
    """
    tau = len(block) - 1
    left = shrink ** np.arange(tau + 1)[:, None]
    found = np.zeros((steps + 1, len(shrink)))
    for first in range(0, steps, tau):
        found[first : first + tau + 1] = left * found[first] + block
    return found


def with_noise(parts: tuple[np.ndarray, np.ndarray], variance: float) -> np.ndarray:
    """Return the expected squared gradient norm at every step, shape (T + 1,)."""
    return parts[0] + variance * parts[1]


def claims(
    comparison: Comparison,
    reading: str,
    averages: list[tuple[float, float]],
    lasts: list[tuple[float, float]],
    best_taus: list[int],
    paths: tuple[np.ndarray, np.ndarray],
) -> None:
    """Judge what the text says of the figure."""
    gains = [base / plus for base, plus in averages]
    comparison.claim(
        f"{reading}: for all learning rates DP-MF+ matches or outperforms DP-MF on average",
        all(gain > 0.999 for gain in gains),
    )
    comparison.claim(f"{reading}: its advantage grows with the learning rate", gains[-1] == max(gains))
    comparison.claim(f"{reading}: the larger the learning rate, the smaller the best tau", best_taus[-1] < best_taus[0])
    comparison.claim(
        f"{reading}: the last iterate improves also where the average does not",
        all(plus < base for (base, plus), gain in zip(lasts, gains, strict=True) if gain < 1.02),
    )
    comparison.claim(
        f"{reading}: at learning rate 0.01, tau = 50, DP-MF+ ends below DP-MF", paths[1][-1] < paths[0][-1]
    )
    if not comparison.quick:
        comparison.claim(f"{reading}: there DP-MF+ oscillates with a period of exactly tau", period(paths[1]) == 50)


def period(path: np.ndarray) -> int:
    """Return the lag, 10 to 99, at which the second half of a path is most like itself, its trend removed."""
    late = np.log(path[len(path) // 2 : -1])
    late = late[50:-50] - np.convolve(late, np.ones(101) / 101, "valid")
    return max(range(10, min(100, len(late) - 1)), key=lambda lag: float(np.mean(late[lag:] * late[:-lag])), default=0)


def draw(
    comparison: Comparison,
    reading: str,
    rates: tuple[float, ...],
    averages: list[tuple[float, float]],
    lasts: list[tuple[float, float]],
    paths: dict[str, np.ndarray],
) -> None:
    """Write the three panels."""
    suffix = ".png" if reading == next(iter(VARIANCES)) else "-sigma.png"
    with comparison.picture((12, 3.6), 3, suffix=suffix) as figure:
        panels = figure.axes
        for panel, values, name in zip(panels, (averages, lasts), ("average", "last"), strict=False):
            for column, label in enumerate(("DP-MF", "DP-MF+, best tau")):
                panel.loglog(
                    rates, [value[column] for value in values], "-o" if column else "--s", markersize=3, label=label
                )
            panel.set(xlabel="learning rate", ylabel=f"{name} squared gradient norm", title=f"({name})")
            panel.legend(frameon=False)
        for (label, values), style in zip(paths.items(), ("--", "-"), strict=True):
            first = len(values) - 1 - min(500, len(values) // 2)
            panels[2].semilogy(range(first, len(values)), values[first:], style, label=label, linewidth=1)
        panels[2].set(xlabel="step", ylabel="squared gradient norm", title="(last 500 steps, learning rate 0.01)")
        panels[2].legend(frameon=False)
        figure.suptitle(reading, fontsize=9)

"""M24 has no experiment: its first, on least squares with a steep coordinate whose feature is rare and large.

f(w) = |X w - y|^2 / (2 n) with orthogonal features, so that M = diag(M_j) is exact. One coordinate is 30 times steeper
than the rest and holds most of f(0) - f*; a share of the examples has its feature, so that its partial gradients are
the larger the rarer it is. Table 1 then predicts, for importance sampling, a gain over uniform sampling (DP-CD), over
the full gradient with step sizes 1 / M_j, and over the full gradient with one step size (DP-SGD); the last only where
L_j^2 / M_j differs between coordinates, that is where the feature is rare. Every method has the same guarantee and runs
T = 1 with the K that minimises its own bound, and beside it the best K of a grid around that: chosen by f(w) - f*, the
training objective, on half of the seeds, and stated for the other half. Bounds L_U are given, from |targets| <= `BOUND`
and the known length of each feature; they are not measured on the data.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import numpy as np

from factorize.privacy import PrivacyTarget
from papers.algorithms import (
    BlockSketch,
    Lengths,
    convex_lengths,
    dp_skgd,
    full_sketch,
    importance,
    single_coordinates,
    sketch_calibration,
)
from papers.reproductions.comparison import Comparison, mean_and_error

TITLE = "DP-SkGD (M24), no published experiment: where Table 1 predicts a gain from importance sampling"

EPSILON, DELTA = 1.0, 1e-5
DIMENSION, EXAMPLES = 20, 20_000
STEEPER, FLAT = 30.0, 0.5
SHARES = (1.0, 0.1, 0.01)
GRID = (0.25, 0.5, 1.0, 2.0, 4.0)
BOUND = 3.0
"""On |target|: residuals at the start are targets, and longer contributions are clipped."""

METHODS = ("importance", "uniform (DP-CD)", "full, 1 / M_j", "full, one rate (DP-SGD)")

Means = dict[str, list[tuple[float, float]]]
"""Of each method: mean and standard error for each share."""


@dataclass(frozen=True)
class Problem:
    """Least squares with orthogonal features of different lengths.

    Attributes:
        features: shape (n, d); their Gram matrix / n is diag(smoothness).
        targets: shape (n,).
        smoothness: M_j, shape (d,).
        optimum: shape (d,).
    """

    features: np.ndarray
    targets: np.ndarray
    smoothness: np.ndarray
    optimum: np.ndarray

    def partial_gradient(self, weights: np.ndarray, coordinates: np.ndarray) -> np.ndarray:
        """Return every example's partial derivatives."""
        return self.features[:, coordinates] * (self.features @ weights - self.targets)[:, None]

    def gap(self, weights: np.ndarray) -> float:
        """Return f(w) - f*, exactly."""
        return float((self.smoothness * (weights - self.optimum) ** 2).sum() / 2)


def problem(share: float, *, dimension: int, examples: int) -> Problem:
    """Return the problem in which this share of the examples has the steep feature (1: normal, dense)."""
    generator = np.random.default_rng(7)
    raw = generator.standard_normal((examples, dimension + 1))
    if share < 1:
        raw[:, 0] = np.arange(examples) < share * examples
    basis, _ = np.linalg.qr(raw)
    smoothness = np.full(dimension, 1 / STEEPER)
    smoothness[0] = 1.0
    features = math.sqrt(examples) * basis[:, :dimension] * np.sqrt(smoothness)
    optimum = np.full(dimension, FLAT)
    optimum[0] = 1.0
    noise = 0.1 * math.sqrt(examples) * basis[:, dimension]  # orthogonal to the features: the optimum is exact
    return Problem(features, features @ optimum + noise, smoothness, optimum)


def laws(case: Problem) -> dict[str, tuple[BlockSketch, np.ndarray]]:
    """Return each method's sampling law and the smoothness that gives its step sizes."""
    d = len(case.smoothness)
    bounds = BOUND * np.abs(case.features).max(axis=0)  # features are public here: they are the experiment's
    singles = [np.array([j]) for j in range(d)]
    full = full_sketch(d, BOUND * float(np.linalg.norm(case.features, axis=1).max()))
    steepest = np.full(d, case.smoothness.max())
    by_importance = single_coordinates(bounds, importance(singles, case.smoothness))
    sketches = (by_importance, single_coordinates(bounds), full, full)
    steps = (case.smoothness, case.smoothness, case.smoothness, steepest)
    return dict(zip(METHODS, zip(sketches, steps, strict=True), strict=True))


def run(comparison: Comparison) -> None:
    """Print gaps and predicted bounds over the share of examples with the steep feature, and draw them."""
    quick = comparison.quick
    seeds = range(3 if quick else 20)
    shares = (1.0, 0.1) if quick else SHARES
    make = partial(problem, dimension=5 if quick else DIMENSION, examples=1000 if quick else EXAMPLES)
    target = PrivacyTarget(epsilon=EPSILON, delta=DELTA)
    multiplier = target.noise_multiplier
    comparison.remark(
        f"(1, 1e-5)-DP, replace-one, {len(seeds)} seeds; noise multiplier {multiplier:.4f} times sensitivity sqrt(K)"
    )
    recipes: Means = {name: [] for name in METHODS}
    best: Means = {name: [] for name in METHODS}
    bounds: dict[str, list[float]] = {name: [] for name in METHODS}
    for share in shares:
        case = make(share)
        comparison.heading(
            f"{share:.0%} of the examples have the steep feature: f(w) - f*, at first {case.gap(0 * case.optimum):.3g}"
        )
        for name, (sketch, steps) in laws(case).items():
            bound, swept = sweep(case, sketch, steps, target, seeds)
            bounds[name].append(bound)
            recipe, (winner, alike) = list(swept)[0], best_of(swept)
            recipes[name].append(mean_and_error(swept[recipe]))
            best[name].append(mean_and_error(swept[winner][1::2]))
            for label, value in ((f"K = {recipe} by the recipe", recipes), (f"K = {winner}, best ({alike})", best)):
                comparison.row(f"{name}: {label}", None, value[name][-1][0], error=value[name][-1][1])
            comparison.remark(f"    noise multiplier {multiplier * math.sqrt(recipe):.4g}, bound {bound:.3g}")
    claims(comparison, recipes, best, bounds)
    draw(comparison, recipes, best, bounds, shares)


def sweep(
    case: Problem, sketch: BlockSketch, steps: np.ndarray, target: PrivacyTarget, seeds: range
) -> tuple[float, dict[int, list[float]]]:
    """Return the theorem's bound at its K, and every seed's gap for each K, the recipe's first."""
    start, examples = np.zeros(len(steps)), len(case.targets)
    squared = float((steps / sketch.probabilities * (start - case.optimum) ** 2).sum())
    constant = sketch.noise_constant(steps)
    recipe = convex_lengths(
        examples=examples, epsilon=EPSILON, delta=DELTA, radius=math.sqrt(squared), noise_constant=constant
    ).inner
    per_step = 12 * math.log(1 / DELTA) * constant / (examples * EPSILON) ** 2
    counts = dict.fromkeys([recipe, *(max(1, round(factor * recipe)) for factor in GRID)])
    return squared / recipe + per_step * recipe, {
        count: [gap(case, sketch, steps, Lengths(count), target, seed) for seed in seeds] for count in counts
    }


def best_of(swept: dict[int, list[float]]) -> tuple[int, str]:
    """Return the best K by the seeds of even place, and the K that two errors of the pairs do not tell from it."""
    chosen = min(swept, key=lambda k: float(np.mean(swept[k][::2])))
    alike = []
    for count, gaps in swept.items():
        mean, error = mean_and_error([one - other for one, other in zip(gaps, swept[chosen], strict=True)])
        if mean <= 2 * error:
            alike.append(count)
    return chosen, f"{min(alike)} to {max(alike)} alike" if len(alike) > 1 else "no other alike"


def gap(
    case: Problem, sketch: BlockSketch, steps: np.ndarray, lengths: Lengths, target: PrivacyTarget, seed: int
) -> float:
    """Train once and return f(w) - f*."""
    noise = sketch_calibration(lengths, target, examples=len(case.targets))
    start = np.zeros(len(steps))
    done = dp_skgd(case.partial_gradient, start, sketch, steps, lengths, noise, seed=seed, sampling_seed=seed)
    return case.gap(done.weights)


def claims(comparison: Comparison, recipes: Means, best: Means, bounds: dict[str, list[float]]) -> None:
    """Judge Table 1's predictions, where the feature is rarest."""
    means = {name: np.array([mean for mean, _ in found]) for name, found in recipes.items()}
    comparison.claim(
        "every mean is below the bound of its theorem", all((means[name] < bounds[name]).all() for name in METHODS)
    )
    own = METHODS[0]
    for name in METHODS[1:]:
        measured, predicted = means[name] / means[own], np.array(bounds[name]) / np.array(bounds[own])
        comparison.remark(f"{name} / importance, by share: {listed(measured)}; of the bounds: {listed(predicted)}")
        comparison.claim(f"by the recipes, importance beats {name}", below(recipes[own][-1], recipes[name][-1]))
    for name in METHODS[1:]:
        ratio = np.array([mean for mean, _ in best[name]]) / np.array([mean for mean, _ in best[own]])
        comparison.remark(f"at the best K, {name} / importance, by share: {listed(ratio)}")


def below(one: tuple[float, float], other: tuple[float, float]) -> bool:
    """Return whether one mean is below another by two standard errors."""
    return one[0] + 2 * math.hypot(one[1], other[1]) < other[0]


def listed(values: np.ndarray) -> str:
    """Return numbers with commas."""
    return ", ".join(f"{value:.2f}" for value in values)


def draw(
    comparison: Comparison, recipes: Means, best: Means, bounds: dict[str, list[float]], shares: tuple[float, ...]
) -> None:
    """Draw gaps with standard errors, dashed at the best K, and bounds dotted."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, panel = plt.subplots(figsize=(6, 4.2), layout="constrained")
    for name, colour in zip(METHODS, ("C0", "C1", "C2", "C3"), strict=True):
        for found, style in ((recipes, "o-"), (best, "s--")):
            means, errors = zip(*found[name], strict=True)
            label = name if found is recipes else None
            panel.errorbar(shares, means, errors, fmt=style, color=colour, label=label, capsize=2, markersize=4)
        panel.plot(shares, bounds[name], ":", color=colour)
    panel.set(xscale="log", yscale="log", xlabel="share of examples with the steep feature", ylabel="f(w) - f*")
    panel.set_title("solid: K of the recipe, dashed: best K, dotted: bound", fontsize=9)
    panel.grid(alpha=0.3)
    panel.legend(frameon=False, fontsize=8)
    figure.savefig(comparison.path(".png"), dpi=150)
    plt.close(figure)
    comparison.remark(f"picture: {comparison.path('.png')}")

"""M24's title, block sampling, at work: block-diagonal least squares, and categorical features of real images.

Made: every example has one feature, in one of b blocks of s coordinates, so that the Hessian is diagonal; the first
block's features are long and rare (its share of the examples is that of 1 / length), the others' short. A block's
gradient is no longer than one coordinate's, L_A = L_j, which is where blocks gain over coordinates (DP-CD): by sqrt(s)
in Table 1. Short features that are not rare are where they gain over one step size and one bound for all (DP-SGD).

Real: scikit-learn's digits, each of 64 pixels one of 17 grey levels, one-hot: 64 blocks of 17, least squares on
whether the digit is even. Bounds are given in both: targets within 1, features of known length. Every method runs T = 1
with the K that minimises its own bound, and the best K of a grid around it: chosen by f(w) - f*, the training
objective, on half of the seeds, and stated for the other half.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from factorize.noise.normals import MIN_SEED
from factorize.privacy import PrivacyTarget
from papers.algorithms import (
    BlockSketch,
    Lengths,
    NiceSketch,
    convex_lengths,
    dp_skgd,
    full_sketch,
    importance,
    sketch_calibration,
)
from papers.reproductions.comparison import Comparison, mean_and_error

TITLE = "DP-SkGD (M24), no published experiment: block sampling against DP-CD and DP-SGD"

EPSILON, DELTA = 1.0, 1e-5
BLOCKS, SIZE, EXAMPLES, LONG_FEATURE = 10, 20, 50_000, 30.0
GRID = (0.25, 0.5, 1.0, 2.0, 4.0)


@dataclass(frozen=True)
class OneHot:
    """Least squares whose examples have one entry in some blocks.

    Attributes:
        features: shape (n, d).
        targets: shape (n,), within 1.
        optimum: shape (d,).
        sizes: sizes of the blocks, side by side.
        lengths: lengths of each block's features.
    """

    features: np.ndarray
    targets: np.ndarray
    optimum: np.ndarray
    sizes: tuple[int, ...]
    lengths: np.ndarray

    @property
    def blocks(self) -> list[np.ndarray]:
        """Coordinates by block."""
        return np.split(np.arange(sum(self.sizes)), np.cumsum(self.sizes)[:-1])

    @property
    def smoothness(self) -> np.ndarray:
        """M_j: the mean square of each feature, exact within a block since no example has two of its coordinates."""
        return np.asarray(np.maximum((self.features**2).mean(axis=0), 1e-6))

    @cached_property
    def entries(self) -> tuple[np.ndarray, np.ndarray]:
        """Columns and values of each example's entries, shape (n, most); examples with fewer repeat a zero."""
        most = int((self.features != 0).sum(axis=1).max())
        columns = np.argsort(self.features == 0, axis=1, kind="stable")[:, :most]
        return columns, np.take_along_axis(self.features, columns, axis=1)

    def residuals(self, weights: np.ndarray) -> np.ndarray:
        """Return predictions minus targets."""
        columns, values = self.entries
        return np.asarray((values * weights[columns]).sum(axis=1) - self.targets)

    def partial_gradient(self, weights: np.ndarray, coordinates: np.ndarray) -> np.ndarray:
        """Return every example's partial derivatives."""
        return self.features[:, coordinates] * self.residuals(weights)[:, None]

    def gap(self, weights: np.ndarray) -> float:
        """Return f(w) - f*."""
        losses = [float(np.mean(self.residuals(one) ** 2)) / 2 for one in (weights, self.optimum)]
        return losses[0] - losses[1]


def made(*, blocks: int, size: int, examples: int) -> OneHot:
    """Return the block-diagonal problem; every target is 1."""
    lengths = np.ones(blocks)
    lengths[0] = LONG_FEATURE
    shares = (1 / lengths) / (1 / lengths).sum()
    block = np.searchsorted(np.cumsum(shares), (np.arange(examples) + 0.5) / examples)
    coordinate = block * size + np.arange(examples) % size
    features = np.zeros((examples, blocks * size), order="F")
    features[np.arange(examples), coordinate] = lengths[block]
    optimum = np.repeat(1 / lengths, size)
    return OneHot(features, features @ optimum, optimum, (size,) * blocks, lengths)


def digits() -> OneHot:
    """Return the digits' grey levels, one-hot, with the parity of the digit as target."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    features = (x[:, :, None] == np.arange(17)).astype(np.float64).reshape(len(x), -1)
    targets = np.where(y % 2 == 0, 1.0, -1.0)
    optimum = np.linalg.lstsq(features, targets, rcond=None)[0]
    return OneHot(features, targets, optimum, (17,) * 64, np.ones(64))


def laws(case: OneHot) -> dict[str, tuple[BlockSketch | NiceSketch, np.ndarray]]:
    """Return each method's sampling law and the smoothness that gives its step sizes; |residual| <= 1 at the start."""
    smoothness, blocks = case.smoothness, case.blocks
    by_coordinate = np.repeat(case.lengths, case.sizes)
    d = len(smoothness)
    several = float((case.features != 0).sum(axis=1).max())  # the number of features of one example
    whole = float(np.sqrt((case.features**2).sum(axis=1).max()))
    steepest = np.full(d, float(np.linalg.eigvalsh(case.features.T @ case.features / len(case.targets))[-1]))
    singles = [np.array([j]) for j in range(d)]
    return {
        "blocks, importance": (BlockSketch(blocks, case.lengths, importance(blocks, smoothness)), smoothness),
        "blocks, uniform": (BlockSketch(blocks, case.lengths), smoothness),
        "nice": (NiceSketch(by_coordinate, len(blocks), total=whole), smoothness * several),
        "DP-CD": (BlockSketch(singles, by_coordinate), smoothness),
        "DP-SGD": (full_sketch(d, whole), steepest),
    }


def sweep(
    case: OneHot, sketch: BlockSketch | NiceSketch, steps: np.ndarray, target: PrivacyTarget, seeds: range
) -> dict[int, list[float]]:
    """Return every seed's gap for each K, T = 1: that of the theorem's recipe first, then a grid around it."""
    examples, constant = len(case.targets), sketch.noise_constant(steps)
    radius = math.sqrt(float((steps / sketch.probabilities * case.optimum**2).sum()))
    recipe = convex_lengths(
        examples=examples, epsilon=EPSILON, delta=DELTA, radius=radius, noise_constant=constant
    ).inner
    counts = dict.fromkeys([recipe, *(max(1, round(factor * recipe)) for factor in GRID)])
    start = np.zeros(len(steps))

    def gap(count: int, seed: int) -> float:
        lengths = Lengths(count)
        noise = sketch_calibration(lengths, target, examples=examples)
        done = dp_skgd(
            case.partial_gradient, start, sketch, steps, lengths, noise, seed=MIN_SEED + seed, sampling_seed=seed
        )
        return case.gap(done.weights)

    return {count: [gap(count, seed) for seed in seeds] for count in counts}


def best_of(swept: dict[int, list[float]]) -> tuple[int, str]:
    """Return the best K by the seeds of even place, and the K that two errors of the pairs do not tell from it."""
    chosen = min(swept, key=lambda k: float(np.mean(swept[k][::2])))
    alike = []
    for count, gaps in swept.items():
        mean, error = mean_and_error([one - other for one, other in zip(gaps, swept[chosen], strict=True)])
        if mean <= 2 * error:
            alike.append(count)
    return chosen, f"{min(alike)} to {max(alike)} alike" if len(alike) > 1 else "no other alike"


def report(comparison: Comparison, name: str, swept: dict[int, list[float]]) -> tuple[float, float]:
    """Print the gap at the recipe's K and at the best; return the latter, over the seeds of odd place."""
    recipe, (winner, alike) = next(iter(swept)), best_of(swept)
    results = mean_and_error(swept[recipe]), mean_and_error(swept[winner][1::2])
    labels = f"K = {recipe} by the recipe", f"K = {winner}, best ({alike})"
    for label, (mean, error) in zip(labels, results, strict=True):
        comparison.row(f"{name}: {label}", None, mean, error=error)
    return results[1]


def run(comparison: Comparison) -> None:
    """Print gaps of all methods on both problems, and how many times smaller block sampling's is."""
    quick = comparison.quick
    size = (
        {"blocks": 4, "size": 5, "examples": 1000} if quick else {"blocks": BLOCKS, "size": SIZE, "examples": EXAMPLES}
    )
    problems = {"block-diagonal": made(**size)} | ({} if quick else {"digits, one-hot": digits()})
    seeds, target = range(4 if quick else 10), PrivacyTarget(epsilon=EPSILON, delta=DELTA)
    comparison.remark(
        f"({EPSILON:g}, {DELTA:g})-DP, replace-one, {len(seeds)} seeds (best K: chosen on half, stated on the others); "
        f"noise multiplier {target.noise_multiplier:.4f} times sensitivity sqrt(K)"
    )
    for title, case in problems.items():
        start = case.gap(0 * case.optimum)
        comparison.heading(
            f"{title}: {len(case.targets)} examples, {len(case.optimum)} coordinates; at first {start:.3g}"
        )
        found = {}
        for name, (sketch, steps) in laws(case).items():
            found[name] = report(comparison, name, sweep(case, sketch, steps, target, seeds))
        own = found["blocks, uniform"]
        for other in ("DP-CD", "DP-SGD"):
            margin = 2 * float(np.hypot(own[1], found[other][1]))
            text = f"{title}: uniform blocks are below {other}, {found[other][0] / own[0]:.2f} times at the best K"
            lead = found[other][0] - own[0]
            comparison.claim(text, lead > margin, tied=abs(lead) <= margin)

"""DP-SkGD: sampling laws, noise scales, recipes, and its special cases."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from factorize.errors import ConditionNotMet, InvalidParameter
from factorize.privacy import PrivacyTarget, calibrate
from factorize.solvers import solve
from factorize.spec import parse_spec
from papers.algorithms import (
    BlockSketch,
    Lengths,
    convex_lengths,
    dp_skgd,
    full_sketch,
    paper_target,
    single_coordinates,
    sketch_calibration,
    strongly_convex_lengths,
)
from papers.training import method_spec, ones

EXACT = PrivacyTarget(epsilon=1.0, delta=1e-5)
CURVATURE = np.array([4.0, 1.0, 1.0, 0.5])
OPTIMUM = np.array([0.3, -0.2, 0.1, 0.4])
EXAMPLES = 50


def quadratic(weights: np.ndarray, coordinates: np.ndarray) -> np.ndarray:
    return np.tile((CURVATURE * (weights - OPTIMUM))[coordinates], (EXAMPLES, 1))


def loss(weights: np.ndarray) -> float:
    return float((CURVATURE * (weights - OPTIMUM) ** 2).sum() / 2)


def run(
    sketch: Any, lengths: Lengths, target: PrivacyTarget | None = None, *, seed: int = 1 << 70, **options: Any
) -> np.ndarray:
    noise = None if target is None else sketch_calibration(lengths, target, examples=EXAMPLES)
    return dp_skgd(quadratic, np.zeros(4), sketch, CURVATURE, lengths, noise, seed=seed, **options).weights


# Noise


def test_the_noise_of_the_paper_and_the_exact_one(vectors: dict[str, Any]) -> None:
    """Theorem 4.1 at (1, 1e-5), K T = 100, n = 1000; exact is 1.575 times smaller at the same guarantee."""
    expected, lengths = vectors["K.noise"], Lengths(100)
    paper = sketch_calibration(lengths, paper_target(1.0, 1e-5), examples=1000)
    exact = sketch_calibration(lengths, EXACT, examples=1000)
    assert paper.sigma_of_means == pytest.approx(expected["sigma"], rel=1e-9)
    assert exact.sigma_of_means == pytest.approx(expected["sigma_exact_replace_one"], rel=1e-9)
    assert paper.sigma_of_sums / exact.sigma_of_sums == pytest.approx(1.575, abs=1e-3)
    assert paper.epsilon is not None
    assert paper.epsilon < 1.0


def test_noise_for_another_run_is_refused() -> None:
    """Of other lengths, of correlated releases (an optimal C has sensitivity 1, not sqrt(K T)), of other examples."""
    factors = solve(parse_spec(method_spec("dp_memf", ones(6), epochs=6)))
    for lengths, noise, match in (
        (Lengths(11), sketch_calibration(Lengths(10), EXACT, examples=EXAMPLES), "K T = 11"),
        (Lengths(6), calibrate(factors.certificate.sensitivity, EXACT, divisor=EXAMPLES), "6 independent releases"),
        (Lengths(1), sketch_calibration(Lengths(1), EXACT, examples=EXAMPLES - 1), "one row per"),
    ):
        with pytest.raises(InvalidParameter, match=match):
            dp_skgd(quadratic, np.zeros(4), full_sketch(4, 1.0), CURVATURE, lengths, noise, seed=1 << 70)
    with pytest.raises(ConditionNotMet, match="proved for epsilon <= 1"):
        paper_target(1.5, 1e-5)
    with pytest.raises(InvalidParameter, match="round before calibrating"):
        Lengths(2.5)  # type: ignore[arg-type]


# The recursion


def test_full_sketches_are_gradient_descent() -> None:
    """Smoothness 4 everywhere and K = 1: x_T - x* = (1 - l/4)^T (x_0 - x*)."""
    found = dp_skgd(quadratic, np.zeros(4), full_sketch(4, 100.0), np.full(4, 4.0), Lengths(1, 6), None, seed=1 << 70)
    np.testing.assert_allclose(found.weights, OPTIMUM * (1 - (1 - CURVATURE / 4) ** 6), rtol=1e-12)
    assert found.calibration is None


def test_the_inner_iterates_are_averaged() -> None:
    """Step 1/M_j = 1/l_j reaches the optimum at once, so th_1 = th_2 = x*; from there the mean stays."""
    np.testing.assert_allclose(run(full_sketch(4, 100.0), Lengths(2)), OPTIMUM, rtol=1e-12)
    slow = dp_skgd(quadratic, np.zeros(4), full_sketch(4, 100.0), 2 * CURVATURE, Lengths(2), None, seed=1 << 70).weights
    np.testing.assert_allclose(slow, OPTIMUM * (1 / 2 + 3 / 4) / 2, rtol=1e-12)  # th_1 = x*/2, th_2 = 3 x*/4


def test_single_coordinates_are_coordinate_descent() -> None:
    """Every step moves one coordinate, and to its optimum: after all were drawn the last iterate is x*."""
    points: list[np.ndarray] = [np.zeros(4)]
    run(
        single_coordinates([10.0] * 4),
        Lengths(60),
        observe=lambda step, weights, release: points.append(weights.copy()),
    )
    changes = np.diff(points, axis=0)
    assert (np.count_nonzero(changes, axis=1) <= 1).all()
    assert np.count_nonzero(changes) == 4
    np.testing.assert_allclose(points[-1], OPTIMUM, rtol=1e-12)


def test_partial_gradients_are_clipped_per_example() -> None:
    """The gradient of coordinate 0 is -1.2 for every example; the bound 0.5 lets 0.5 through."""
    assert run(single_coordinates([0.5, 9, 9, 9], [0.97, 0.01, 0.01, 0.01]), Lengths(1))[0] == pytest.approx(
        0.5 / 4, rel=1e-12
    )


# Sampling laws


@pytest.mark.parametrize(
    ("blocks", "bounds", "law"),
    [
        ([[0], [0, 1]], [1.0, 1.0], None),
        ([[0], []], [1.0, 1.0], None),
        ([[0], [2]], [1.0, 1.0], None),
        ([[0], [1]], [1.0, 0.0], None),
        ([[0], [1]], [1.0, 1.0], [1.0, 0.0]),
        ([[0], [1]], [1.0, 1.0], [0.3, 0.3]),
        ([], [], None),
    ],
)
def test_a_law_that_is_none_is_refused(blocks: Any, bounds: list[float], law: list[float] | None) -> None:
    with pytest.raises(InvalidParameter):
        BlockSketch([np.array(block, dtype=int) for block in blocks], bounds, law)


# Recipes


def test_the_convex_recipe_and_the_one_that_minimises_the_bound(vectors: dict[str, Any]) -> None:
    expected = vectors["K.recipe"]
    common: dict[str, Any] = {"examples": 10_000, "epsilon": 1.0, "delta": 1e-5, "radius": 2.0, "noise_constant": 9.0}
    assert convex_lengths(**common, paper=True) == Lengths(round(expected["K_paper"]))
    assert convex_lengths(**common) == Lengths(round(expected["K_opt"]))


def test_the_strongly_convex_recipe_by_hand() -> None:
    """Kappa = 1 + (4/0.5)/2 = 5, K = 10; ratio = 1 x 10^6 / (5 x 2 x 10) = 10^4, log2 = 13.3."""
    lengths = strongly_convex_lengths(
        examples=1000,
        epsilon=1.0,
        delta=math.exp(-10),
        strong_convexity=2.0,
        smoothness=np.array([4.0, 1.0]),
        probabilities=np.array([0.5, 0.5]),
        initial_gap=1.0,
        noise_constant=2.0,
    )
    assert lengths == Lengths(10, 14)


def test_the_mean_loss_is_below_the_bound() -> None:
    """R^2/(2K) + (N1 + N2)/2 (M24, theorem 4.2), over 60 runs; clipping does not act."""
    sketch = BlockSketch([np.array([0]), np.array([1, 2, 3])], [2.0, 2.0], [0.4, 0.6])
    lengths = Lengths(40)
    sigma = sketch_calibration(lengths, EXACT, examples=EXAMPLES).sigma_of_means
    p = sketch.probabilities
    first = sigma**2 * sketch.noise_constant(CURVATURE)
    second = sigma**2 * (4.0 * p / CURVATURE).sum()
    bound = (CURVATURE / p * OPTIMUM**2).sum() / (2 * 40) + (first + second) / 2
    losses = [loss(run(sketch, lengths, EXACT, seed=(1 << 70) + seed, sampling_seed=seed)) for seed in range(60)]
    assert 0.02 * bound < np.mean(losses) < bound

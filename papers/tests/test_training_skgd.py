"""DP-SkGD: sampling laws, noise scales, recipes, and its special cases."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest

from factorize.errors import ConditionNotMet, InvalidParameter
from factorize.privacy import PrivacyTarget, calibrate
from factorize.solvers import solve
from factorize.spec import parse_spec
from factorize.training import method_spec, ones
from papers.algorithms import (
    BlockSketch,
    Lengths,
    NiceSketch,
    convex_lengths,
    dp_skgd,
    full_sketch,
    importance,
    paper_target,
    single_coordinates,
    sketch_calibration,
    strongly_convex_lengths,
)

EXACT = PrivacyTarget(epsilon=1.0, delta=1e-5)
CURVATURE = np.array([4.0, 1.0, 1.0, 0.5])
OPTIMUM = np.array([0.3, -0.2, 0.1, 0.4])
EXAMPLES = 50


def quadratic(weights: np.ndarray, coordinates: np.ndarray) -> np.ndarray:
    return np.tile((CURVATURE * (weights - OPTIMUM))[coordinates], (EXAMPLES, 1))


def loss(weights: np.ndarray) -> float:
    return float((CURVATURE * (weights - OPTIMUM) ** 2).sum() / 2)


def run(
    sketch: Any, lengths: Lengths, target: PrivacyTarget | None = None, *, seed: int = 0, **options: Any
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


def test_zero_out_needs_half_of_it() -> None:
    """12 = 3 x 2^2."""
    lengths = Lengths(7, 3)
    whole, half = (sketch_calibration(lengths, EXACT, examples=10, adjacency=a) for a in ("replace_one", "zero_out"))
    assert whole.sigma_of_sums == pytest.approx(2 * half.sigma_of_sums, rel=1e-12)
    paper = sketch_calibration(lengths, paper_target(0.5, 1e-4), examples=10, adjacency="zero_out")
    assert paper.sigma_of_means == pytest.approx(math.sqrt(3 * 21 * math.log(1e4)) / (10 * 0.5), rel=1e-9)


@pytest.mark.parametrize(("epsilon", "delta"), [(1.5, 1e-5), (0.0, 1e-5), (1.0, 0.4)])
def test_the_formula_of_the_paper_is_refused_outside_its_theorem(epsilon: float, delta: float) -> None:
    with pytest.raises(ConditionNotMet):
        paper_target(epsilon, delta)


def test_the_noise_on_a_block_has_its_own_scale() -> None:
    """sigma_U = sigma L_U, on the drawn coordinates and nowhere else."""
    sketch = BlockSketch([np.array([0, 1]), np.array([2, 3])], bounds=[0.1, 5.0])
    lengths = Lengths(1500)
    noise = sketch_calibration(lengths, EXACT, examples=EXAMPLES)
    drawn: dict[float, list[np.ndarray]] = {0.1: [], 5.0: []}
    points = [np.zeros(4)]

    def watch(step: int, weights: np.ndarray, release: np.ndarray) -> None:
        moved = np.flatnonzero(weights - points[0])
        drawn[0.1 if moved[0] == 0 else 5.0].append(release)
        assert len(moved) == 2
        points[0] = weights.copy()

    def zero(weights: np.ndarray, coordinates: np.ndarray) -> np.ndarray:
        return np.zeros((EXAMPLES, len(coordinates)))

    dp_skgd(zero, np.zeros(4), sketch, np.ones(4), lengths, noise, seed=3, observe=watch)
    for bound, releases in drawn.items():
        assert np.std(releases) == pytest.approx(bound * noise.sigma_of_means, rel=0.08)


def test_a_calibration_for_other_lengths_is_refused() -> None:
    noise = sketch_calibration(Lengths(10), EXACT, examples=EXAMPLES)
    with pytest.raises(InvalidParameter, match="K T = 11"):
        dp_skgd(quadratic, np.zeros(4), full_sketch(4, 1.0), CURVATURE, Lengths(11), noise, seed=0)
    with pytest.raises(InvalidParameter, match="shape"):
        dp_skgd(quadratic, np.zeros(3), full_sketch(4, 1.0), CURVATURE, Lengths(10), noise, seed=0)


def test_a_calibration_for_correlated_noise_is_refused() -> None:
    """An optimal C has sensitivity 1 under the same participation; independent releases have sqrt(K T)."""
    factors = solve(parse_spec(method_spec("dp_memf", ones(6), epochs=6)))
    noise = calibrate(factors.certificate.sensitivity, EXACT, divisor=EXAMPLES)
    with pytest.raises(InvalidParameter, match="6 independent releases"):
        dp_skgd(quadratic, np.zeros(4), full_sketch(4, 1.0), CURVATURE, Lengths(6), noise, seed=0)


def test_partial_gradients_of_another_number_of_examples_are_refused() -> None:
    noise = sketch_calibration(Lengths(1), EXACT, examples=EXAMPLES - 1)
    with pytest.raises(InvalidParameter, match="one row per"):
        dp_skgd(quadratic, np.zeros(4), full_sketch(4, 1.0), CURVATURE, Lengths(1), noise, seed=0)


@pytest.mark.parametrize("lengths", [(0, 1), (1, 0), (2.5, 1)])
def test_lengths_are_counts(lengths: tuple[Any, Any]) -> None:
    with pytest.raises(InvalidParameter, match="round before calibrating"):
        Lengths(*lengths)


# The recursion


def test_full_sketches_are_gradient_descent() -> None:
    """Smoothness 4 everywhere and K = 1: x_T - x* = (1 - l/4)^T (x_0 - x*)."""
    found = dp_skgd(quadratic, np.zeros(4), full_sketch(4, 100.0), np.full(4, 4.0), Lengths(1, 6), None, seed=0)
    np.testing.assert_allclose(found.weights, OPTIMUM * (1 - (1 - CURVATURE / 4) ** 6), rtol=1e-12)
    assert found.calibration is None


def test_the_inner_iterates_are_averaged() -> None:
    """Step 1/M_j = 1/l_j reaches the optimum at once, so th_1 = th_2 = x*; from there the mean stays."""
    np.testing.assert_allclose(run(full_sketch(4, 100.0), Lengths(2)), OPTIMUM, rtol=1e-12)
    slow = dp_skgd(quadratic, np.zeros(4), full_sketch(4, 100.0), 2 * CURVATURE, Lengths(2), None, seed=0).weights
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


def test_a_run_repeats_with_its_two_seeds() -> None:
    sketch, lengths = NiceSketch([1.0] * 4, 2), Lengths(9, 2)
    one = run(sketch, lengths, EXACT, seed=1, sampling_seed=2)
    np.testing.assert_array_equal(one, run(sketch, lengths, EXACT, seed=1, sampling_seed=2))
    assert not np.array_equal(one, run(sketch, lengths, EXACT, seed=2, sampling_seed=2))
    assert not np.array_equal(one, run(sketch, lengths, EXACT, seed=1, sampling_seed=3))


# Sampling laws


SKETCHES = {
    "single": single_coordinates([0.5, 1.0, 2.0, 1.5], [0.1, 0.2, 0.3, 0.4]),
    "blocks": BlockSketch([np.array([0, 3]), np.array([1]), np.array([2])], [1.0, 0.5, 2.0], [0.5, 0.25, 0.25]),
    "full": full_sketch(4, 2.0),
    "nice": NiceSketch([0.5, 1.0, 2.0, 1.5], 2),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SKETCHES)
def test_probabilities_and_noise_constants_are_those_of_the_draws(name: str) -> None:
    """P(j in U) and E[L_U^2 sum 1/(p_j M_j)], from 20,000 draws."""
    sketch: Any = SKETCHES[name]
    generator = np.random.default_rng(4)
    counts, constants = np.zeros(4), []
    for _ in range(20_000):
        draw = sketch.draw(generator)
        counts[draw.coordinates] += 1
        constants.append(draw.bound**2 * (1 / (sketch.probabilities * CURVATURE)[draw.coordinates]).sum())
    np.testing.assert_allclose(counts / 20_000, sketch.probabilities, atol=0.02)
    assert np.mean(constants) == pytest.approx(sketch.noise_constant(CURVATURE), rel=0.03)


def test_the_noise_constant_of_nice_sampling_by_enumeration() -> None:
    bounds, size = np.array([0.5, 1.0, 2.0, 1.5]), 3
    total = 0.0
    sets = list(itertools.combinations(range(4), size))
    for chosen in map(list, sets):
        total += (bounds[chosen] ** 2).sum() * (4 / size / CURVATURE[chosen]).sum()
    assert NiceSketch(bounds, size).noise_constant(CURVATURE) == pytest.approx(total / len(sets), rel=1e-12)


def test_the_noise_constant_of_blocks_does_not_depend_on_their_probabilities() -> None:
    """sum_i L_i^2 sum_{j in A_i} 1/M_j = 1 (1/4 + 2) + 0.25 + 4."""
    assert SKETCHES["blocks"].noise_constant(CURVATURE) == pytest.approx(6.5, rel=1e-12)


def test_importance_sampling_follows_the_largest_smoothness_of_a_block() -> None:
    assert importance([np.array([0, 3]), np.array([1, 2])], CURVATURE) == [0.8, 0.2]


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


@pytest.mark.parametrize("size", [0, 3])
def test_a_nice_sketch_of_another_size_is_refused(size: int) -> None:
    with pytest.raises(InvalidParameter):
        NiceSketch([1.0, 1.0], size)


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
    losses = [loss(run(sketch, lengths, EXACT, seed=seed, sampling_seed=seed)) for seed in range(60)]
    assert 0.02 * bound < np.mean(losses) < bound

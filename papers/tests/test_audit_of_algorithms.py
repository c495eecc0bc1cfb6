"""The guarantee of every algorithm, measured; and printed versions whose errors an audit has to find."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from audit_cases import (
    DIRECTION,
    LONG,
    TARGET,
    TRIALS,
    D,
    difference,
    door_of,
    holds_and_is_tight,
    one_by_one,
    planted,
    releases_of,
)
from printed_algorithms import printed_memf, printed_skgd, printed_srg, printed_trusted_mu2
from training_cases import nothing

from factorize.factors.factorization import Factorization
from factorize.solvers import solve
from factorize.spec import parse_spec
from papers.algorithms import (
    DIFFERENCED,
    Ball,
    BlockSketch,
    FilteredNoise,
    Lengths,
    Machine,
    accelerated_dp_sgd,
    accelerated_dp_srgd,
    dp_skgd,
    dp_srg,
    everywhere,
    mu2_workload,
    sketch_calibration,
    srg_workload,
    trusted_mu2,
    unaccelerated_dp_srgd,
    untrusted_mu2,
)
from papers.training import FactorizationNoise, PrivateSums, Sgd, dp_ftrl, method_spec, ones
from papers.training.audit import audit, likelihood_ratio
from papers.training.neighbours import neighbours


@pytest.fixture(scope="module")
def optimum() -> Factorization:
    return solve(parse_spec(method_spec("dp_mf", ones(6))))


@pytest.mark.slow
@pytest.mark.parametrize(("adjacency", "factor"), [("zero_out", 1), ("replace_one", 2)])
def test_dp_ftrl_with_the_optimal_factorization(adjacency: str, factor: int, optimum: Factorization) -> None:
    worlds, optimizer = planted(2, adjacency), Sgd(learning_rate=0.1, momentum=0.5)
    score = likelihood_ratio(optimum.rows("C", 0, 6), difference([2], 6, clip_norm=0.5, factor=factor))

    def trial(world: int, seed: int) -> float:
        door = door_of(optimum, seed, clip_norm=0.5, adjacency=adjacency)
        return score(releases_of(dp_ftrl, worlds[world], np.zeros(D), one_by_one(6), door, optimizer=optimizer))

    holds_and_is_tight(trial, door_of(optimum, 1 << 70, clip_norm=0.5, adjacency=adjacency).calibration, 1)


@pytest.mark.slow
def test_dp_memf_over_three_epochs() -> None:
    factors = solve(parse_spec(method_spec("dp_memf", ones(6), epochs=3)))
    worlds, order, optimizer = planted(1, "zero_out"), one_by_one(2, epochs=3), Sgd(learning_rate=0.1)
    score = likelihood_ratio(factors.rows("C", 0, 6), difference([1, 3, 5], 6, clip_norm=2.0))

    def trial(world: int, seed: int) -> float:
        door = door_of(factors, seed, clip_norm=2.0)
        return score(releases_of(dp_ftrl, worlds[world], np.zeros(D), order, door, optimizer=optimizer))

    holds_and_is_tight(trial, door_of(factors, 1 << 70, clip_norm=2.0).calibration, 2)


@pytest.mark.slow
@pytest.mark.parametrize(("decay", "epochs"), [(0.5, 1), (0.5, 2), (3.0, 1)])
def test_dp_srg_clips_the_difference_and_adds_the_noise_once(decay: float, epochs: int) -> None:
    """Also with c > 1, where the printed line 7 fails (below)."""
    factors = solve(parse_spec(method_spec("dp_memf", srg_workload(6, momentum=0.5, decay=0.5), epochs=epochs)))
    worlds, order = planted(0, "zero_out"), one_by_one(6 // epochs, epochs=epochs)
    steps = [epoch * 6 // epochs for epoch in range(epochs)]
    score = likelihood_ratio(factors.rows("C", 0, 6), difference(steps, 6, clip_norm=4.0))

    def trial(world: int, seed: int) -> float:
        door = door_of(factors, seed, clip_norm=4.0)
        optimizer = Sgd(learning_rate=0.1)
        return score(releases_of(dp_srg, worlds[world], np.zeros(D), order, door, decay=decay, optimizer=optimizer))

    holds_and_is_tight(trial, door_of(factors, 1 << 70, clip_norm=4.0).calibration, 3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "options"),
    [
        (accelerated_dp_srgd, {"beta": 10.0}),
        (accelerated_dp_sgd, {"beta": 10.0}),
        (unaccelerated_dp_srgd, {"learning_rate": 0.1}),
    ],
)
def test_accelerated_dp_srgd_and_its_baselines(
    optimum: Factorization, method: Callable[..., object], options: dict[str, float]
) -> None:
    worlds, project = planted(3, "zero_out"), Ball(1.0)
    score = likelihood_ratio(optimum.rows("C", 0, 6), difference([3], 6))

    def trial(world: int, seed: int) -> float:
        begin = (worlds[world], np.zeros(D), one_by_one(6), door_of(optimum, seed))
        return score(releases_of(method, *begin, project=project, **options))

    holds_and_is_tight(trial, door_of(optimum, 1 << 70).calibration, 4)


@pytest.mark.slow
def test_dp_skgd_releases_blocks_with_noise_of_their_own_scale() -> None:
    examples, lengths = 4, Lengths(inner=4, outer=2)
    sketch = BlockSketch([np.array([0]), np.array([1, 2])], bounds=[0.3, 2.0])
    noise = sketch_calibration(lengths, TARGET, examples=examples)

    def trial(world: int, seed: int) -> float:
        total = 0.0

        def gradient(weights: np.ndarray, coordinates: np.ndarray) -> np.ndarray:
            partial = np.zeros((examples, len(coordinates)))
            partial[0, 0] = 200.0 * world - 100.0
            return partial

        def watch(step: int, weights: np.ndarray, release: np.ndarray) -> None:
            nonlocal total
            total += float(release[0]) / {1: 0.3, 2: 2.0}[len(release)]

        dp_skgd(gradient, np.zeros(3), sketch, np.ones(3), lengths, noise, seed=seed, observe=watch)
        return total

    holds_and_is_tight(trial, noise, 5)


def mu2_door(noise: tuple[float, ...], steps: int, seed: int, *, samples: int = 1) -> PrivateSums:
    return PrivateSums(
        FilteredNoise(noise, TARGET, D, steps=steps, clip_norm=1.0, divisor=samples, adjacency="replace_one", seed=seed)
    )


@pytest.mark.slow
@pytest.mark.parametrize("server", ["untrusted", "trusted", "untrusted, optimum for q"])
def test_dp_mu2_with_independent_noise_and_with_a_factorization_of_its_own(server: str) -> None:
    """C = S: fresh noise for each q_t. The first sample is in all of them; with a trusted server one of two machines'."""
    steps, trusted, factors = 8, server == "trusted", None
    strategy, order = np.tri(steps), one_by_one(steps)
    if "optimum" in server:
        factors = solve(parse_spec(method_spec("dp_mf", mu2_workload(steps, "q"))))
        strategy = factors.rows("C", 0, steps)
    worlds, start = planted(0, "replace_one"), np.zeros(D)
    score = likelihood_ratio(strategy, difference([0], steps, factor=2))

    def door(seed: int) -> PrivateSums:
        if factors is not None:
            return door_of(factors, seed, adjacency="replace_one")
        return mu2_door(DIFFERENCED, steps, seed, samples=1 + trusted)

    def trial(world: int, seed: int) -> float:
        options: dict[str, Any] = {"learning_rate": 0.01, "project": everywhere}
        if trusted:
            machines = [Machine(nothing, order), Machine(worlds[world], order)]
            return score(releases_of(trusted_mu2, machines, start, door(seed), **options))
        return score(releases_of(untrusted_mu2, [Machine(worlds[world], order, door(seed))], start, **options))

    holds_and_is_tight(trial, door(1 << 70).calibration, 6)


@pytest.mark.slow
def test_the_printed_sample_index_of_the_trusted_server_fails() -> None:
    """R24, algorithm 2: with L = 0 the bound is S = G, but the last sample changes q_T by 2 G T: 16 / sqrt(16) too much."""
    steps = 16
    linear = [neighbours(nothing, steps - 1, sign * DIRECTION, "zero_out")[1] for sign in (-1.0, 1.0)]
    claim = mu2_door(DIFFERENCED, steps, 1 << 70).calibration

    def trial(world: int, seed: int) -> float:
        messages = printed_trusted_mu2(linear[world], one_by_one(steps), D, claim, learning_rate=0.01, seed=seed)
        return float(messages[-1] @ DIRECTION)

    report = audit(trial, claim, trials=TRIALS, seed=7)
    assert report.refutes
    assert report.mu > 2 * report.claimed_mu
    assert report.epsilon_direct > report.claimed_epsilon / 3


@pytest.mark.slow
def test_the_printed_line_7_of_srg_fails_for_a_decay_above_1(optimum: Factorization) -> None:
    n, decay = 6, 3.0
    door = door_of(optimum, 1 << 70)
    inverse = np.eye(n) - decay * np.eye(n, k=-1)
    effective = optimum.rows("C", 0, n) @ np.linalg.inv(np.eye(n) + inverse)
    assert np.linalg.norm(effective, axis=0).max() > 1.3 * optimum.certificate.sensitivity.value
    worst = int(np.linalg.norm(effective, axis=0).argmax())
    worlds = planted(worst, "zero_out")
    score = likelihood_ratio(effective, difference([worst], n))

    def trial(world: int, seed: int) -> float:
        drawn = FactorizationNoise(optimum, TARGET, D, divisor=1, seed=seed)
        noise = np.array([drawn.next() for _ in range(n)])
        used = printed_srg(worlds[world], one_by_one(n), D, noise, clip_norm=1.0, decay=decay, learning_rate=0.1)
        return score(inverse @ used)

    report = audit(trial, door.calibration, trials=3 * TRIALS, seed=8)
    assert report.refutes, report


@pytest.mark.slow
def test_the_printed_noise_without_clip_over_batch_size_fails(optimum: Factorization) -> None:
    """S24, algorithms 2 and 3: noise for contributions of norm 1, used with clip = 3 and B = 1."""
    worlds = planted(2, "zero_out")
    claim = FactorizationNoise(optimum, TARGET, D, seed=1 << 70).calibration
    score = likelihood_ratio(optimum.rows("C", 0, 6), difference([2], 6, clip_norm=3.0))

    def trial(world: int, seed: int) -> float:
        drawn = FactorizationNoise(optimum, TARGET, D, seed=seed)
        noise = np.array([drawn.next() for _ in range(6)])
        return score(printed_memf(worlds[world], one_by_one(6), D, noise, clip_norm=3.0))

    report = audit(trial, claim, trials=TRIALS, seed=9)
    assert report.refutes
    assert report.mu > 2 * report.claimed_mu


@pytest.mark.slow
def test_the_printed_index_uses_a_row_of_noise_twice() -> None:
    """S24, algorithm 2, line 4: with 2 epochs of 3 batches, steps 2 and 3 share their noise: the difference has none."""
    factors = solve(parse_spec(method_spec("dp_memf", ones(6), epochs=2)))
    worlds = planted(2, "zero_out")
    claim = FactorizationNoise(factors, TARGET, D, divisor=1, seed=1 << 70).calibration

    def trial(world: int, seed: int) -> float:
        drawn = FactorizationNoise(factors, TARGET, D, divisor=1, seed=seed)
        noise = np.array([drawn.next() for _ in range(6)])
        used = printed_memf(worlds[world], one_by_one(3, epochs=2), D, noise, clip_norm=1.0)
        return float((used[2] - used[3]) @ DIRECTION)

    report = audit(trial, claim, trials=TRIALS, seed=14)
    assert report.refutes
    assert report.mu > 3 * report.claimed_mu


def test_the_printed_noise_of_sketched_descent_fails_where_it_is_above_1() -> None:
    """M24, algorithm 1, line 6: sigma as a variance is less noise than sigma as a standard deviation."""
    lengths, bound = Lengths(4), 20.0
    claim = sketch_calibration(lengths, TARGET, examples=1)
    assert bound * claim.sigma_of_sums > 16

    def trial(world: int, seed: int) -> float:
        releases = printed_skgd((2.0 * world - 1.0) * LONG[None], bound, claim, lengths.total, seed=seed)
        return float(releases.sum(axis=0) @ DIRECTION)

    report = audit(trial, claim, trials=TRIALS, seed=15)
    assert report.refutes
    assert report.mu > 2 * report.claimed_mu

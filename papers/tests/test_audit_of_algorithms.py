"""The guarantee of every algorithm, measured; and printed versions whose errors an audit has to find."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from printed_algorithms import printed_memf, printed_skgd, printed_srg, printed_trusted_mu2
from training_cases import nothing

from factorize.factorization import Factorization
from factorize.privacy import Calibration, PrivacyTarget
from factorize.solvers import solve
from factorize.spec import parse_spec
from factorize.training import (
    DIFFERENCED,
    INDEPENDENT,
    FactorizationNoise,
    FilteredNoise,
    Order,
    PrivateSums,
    Sgd,
    method_spec,
    mu2_workload,
    ones,
    srg_workload,
)
from factorize.training.audit import (
    AuditReport,
    audit,
    likelihood_ratio,
    neighbours,
)
from factorize.training.clip import GradientFunction
from papers.algorithms import (
    Ball,
    BlockSketch,
    Lengths,
    Machine,
    accelerated_dp_sgd,
    accelerated_dp_srgd,
    dp_skgd,
    dp_srg,
    everywhere,
    sketch_calibration,
    trusted_mu2,
    unaccelerated_dp_srgd,
    untrusted_mu2,
)

TARGET = PrivacyTarget(epsilon=6.0, delta=1e-5)  # mu = 1.24: told apart often enough for few trials
TRIALS = 600
D = 2
LONG = np.array([60.0, 80.0])  # longer than every clip norm here: all of it is clipped away but the direction
DIRECTION = LONG / 100


def one_by_one(steps: int, *, epochs: int = 1) -> Order:
    return Order([np.array([i]) for i in range(steps)], epochs=epochs)


def collected(train: Callable[..., object]) -> np.ndarray:
    """Run with an observer and return all releases, shape (steps, d)."""
    releases: list[np.ndarray] = []
    train(observe=lambda step, weights, release: releases.append(np.array(release)))
    return np.array(releases)


def holds_and_is_tight(report: AuditReport) -> None:
    """Below the claim, and above a third of it: the attack is the best there is, so the audit has teeth."""
    assert not report.refutes, report
    assert report.claimed_epsilon / 3 < report.epsilon < report.claimed_epsilon, report


@pytest.fixture(scope="module")
def optimum() -> Factorization:
    return solve(parse_spec(method_spec("dp_mf", ones(6))))


def planted(example: int, adjacency: str) -> tuple[GradientFunction, GradientFunction]:
    return neighbours(nothing, example, LONG, adjacency)


def difference(steps: list[int], n: int, *, clip_norm: float, batch_size: int = 1, factor: int = 1) -> np.ndarray:
    """What world 1 contributes minus what world 0 does: the clipped contribution in these steps."""
    rows = np.zeros((n, D))
    rows[steps] = factor * clip_norm / batch_size * DIRECTION
    return rows


@pytest.mark.slow
@pytest.mark.parametrize(("decay", "epochs"), [(0.5, 1), (0.5, 2), (3.0, 1)])
def test_dp_srg_clips_the_difference_and_adds_the_noise_once(decay: float, epochs: int) -> None:
    """Also with c > 1, where the printed line 7 fails (below)."""
    factors = solve(parse_spec(method_spec("dp_memf", srg_workload(6, momentum=0.5, decay=0.5), epochs=epochs)))
    worlds = planted(0, "zero_out")
    steps = [epoch * 6 // epochs for epoch in range(epochs)]
    score = likelihood_ratio(factors.rows("C", 0, 6), difference(steps, 6, clip_norm=4.0))

    def door(seed: int) -> PrivateSums:
        return PrivateSums(FactorizationNoise(factors, TARGET, D, clip_norm=4.0, divisor=1, seed=seed))

    def trial(world: int, seed: int) -> float:
        return score(
            collected(
                lambda observe: dp_srg(
                    worlds[world],
                    np.zeros(D),
                    one_by_one(6 // epochs, epochs=epochs),
                    door(seed),
                    decay=decay,
                    optimizer=Sgd(learning_rate=0.1),
                    observe=observe,
                )
            )
        )

    holds_and_is_tight(audit(trial, door(0).calibration, trials=TRIALS, seed=3))


@pytest.mark.slow
@pytest.mark.parametrize("method", ["recursive", "independent gradients", "unaccelerated"])
def test_accelerated_dp_srgd_and_its_baselines(optimum: Factorization, method: str) -> None:
    worlds = planted(3, "zero_out")
    score = likelihood_ratio(optimum.rows("C", 0, 6), difference([3], 6, clip_norm=1.0))

    def door(seed: int) -> PrivateSums:
        return PrivateSums(FactorizationNoise(optimum, TARGET, D, divisor=1, seed=seed))

    def train(world: int, seed: int, observe: object) -> object:
        begin = (worlds[world], np.zeros(D), one_by_one(6), door(seed))
        if method == "unaccelerated":
            return unaccelerated_dp_srgd(*begin, learning_rate=0.1, project=Ball(1.0), observe=observe)
        run = accelerated_dp_srgd if method == "recursive" else accelerated_dp_sgd
        return run(*begin, beta=10.0, project=Ball(1.0), observe=observe)

    def trial(world: int, seed: int) -> float:
        return score(collected(lambda observe: train(world, seed, observe)))

    holds_and_is_tight(audit(trial, door(0).calibration, trials=TRIALS, seed=4))


@pytest.mark.slow
def test_dp_skgd_releases_blocks_with_noise_of_their_own_scale() -> None:
    examples, lengths = 4, Lengths(inner=4, outer=2)
    sketch = BlockSketch([np.array([0]), np.array([1, 2])], bounds=[0.3, 2.0])
    noise = sketch_calibration(lengths, TARGET, examples=examples)

    def gradient(sign: float) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
        def function(weights: np.ndarray, coordinates: np.ndarray) -> np.ndarray:
            partial = np.zeros((examples, len(coordinates)))
            partial[0, 0] = sign * 100.0
            return partial

        return function

    def trial(world: int, seed: int) -> float:
        releases: list[np.ndarray] = []
        dp_skgd(
            gradient(2.0 * world - 1.0),
            np.zeros(3),
            sketch,
            np.ones(3),
            lengths,
            noise,
            seed=seed,
            observe=lambda step, weights, release: releases.append(release),
        )
        return sum(float(release[0]) / {1: 0.3, 2: 2.0}[len(release)] for release in releases)

    holds_and_is_tight(audit(trial, noise, trials=TRIALS, seed=5))


def mu2_door(noise: tuple[float, ...], steps: int, seed: int, *, samples: int = 1) -> PrivateSums:
    return PrivateSums(
        FilteredNoise(noise, TARGET, D, steps=steps, clip_norm=1.0, divisor=samples, adjacency="replace_one", seed=seed)
    )


@pytest.mark.slow
@pytest.mark.parametrize("trusted", [False, True])
def test_dp_mu2_with_independent_noise(trusted: bool) -> None:
    """C = S: fresh noise for each q_t. The first sample is in all of them; with a trusted server one of two machines'."""
    steps = 8
    worlds = planted(0, "replace_one")
    score = likelihood_ratio(np.tril(np.ones((steps, steps))), difference([0], steps, clip_norm=1.0, factor=2))

    def trial(world: int, seed: int) -> float:
        order, door = one_by_one(steps), mu2_door(DIFFERENCED, steps, seed, samples=1 + trusted)

        def train(observe: object) -> object:
            start = np.zeros(D)
            if trusted:
                machines = [Machine(nothing, order), Machine(worlds[world], order)]
                return trusted_mu2(machines, start, door, learning_rate=0.01, project=everywhere, observe=observe)
            machines = [Machine(worlds[world], order, door)]
            return untrusted_mu2(machines, start, learning_rate=0.01, project=everywhere, observe=observe)

        return score(collected(train))

    holds_and_is_tight(audit(trial, mu2_door(DIFFERENCED, steps, 0).calibration, trials=TRIALS, seed=6))


@pytest.mark.slow
def test_dp_mu2_with_a_factorization_of_its_own() -> None:
    """The theorem of papers/pages/algorithms.md: increments with the noise of the optimum for q."""
    steps = 8
    factors = solve(parse_spec(method_spec("dp_mf", mu2_workload(steps, "q"))))
    worlds = planted(2, "replace_one")
    score = likelihood_ratio(factors.rows("C", 0, steps), difference([2], steps, clip_norm=1.0, factor=2))

    def door(seed: int) -> PrivateSums:
        return PrivateSums(
            FactorizationNoise(factors, TARGET, D, clip_norm=1.0, divisor=1, adjacency="replace_one", seed=seed)
        )

    def trial(world: int, seed: int) -> float:
        machines = [Machine(worlds[world], one_by_one(steps), door(seed))]
        return score(
            collected(
                lambda observe: untrusted_mu2(
                    machines, np.zeros(D), learning_rate=0.01, project=everywhere, observe=observe
                )
            )
        )

    holds_and_is_tight(audit(trial, door(0).calibration, trials=TRIALS, seed=13))


@pytest.mark.slow
def test_the_printed_sample_index_of_the_trusted_server_fails() -> None:
    """R24, algorithm 2: with L = 0 the bound is S = G, but the last sample changes q_T by 2 G T: 16 / sqrt(16) too much."""
    steps = 16
    linear = [neighbours(nothing, steps - 1, sign * DIRECTION, "zero_out")[1] for sign in (-1.0, 1.0)]
    claim = mu2_door(DIFFERENCED, steps, 0).calibration

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
    worlds = planted(0, "zero_out")
    door = FactorizationNoise(optimum, TARGET, D, divisor=1, seed=0)
    inverse = np.eye(n) - decay * np.eye(n, k=-1)
    effective = optimum.rows("C", 0, n) @ np.linalg.inv(np.eye(n) + inverse)
    assert np.linalg.norm(effective, axis=0).max() > 1.3 * optimum.certificate.sensitivity.value
    worst = int(np.linalg.norm(effective, axis=0).argmax())
    worlds = planted(worst, "zero_out")
    score = likelihood_ratio(effective, difference([worst], n, clip_norm=1.0))

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
    claim = FactorizationNoise(optimum, TARGET, D, seed=0).calibration
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
    claim = FactorizationNoise(factors, TARGET, D, divisor=1, seed=0).calibration

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


def gaussian(mu: float) -> Callable[[int, int], float]:
    return lambda world, seed: float(np.random.default_rng(seed).standard_normal() + mu * world)


def claim_of(mu: float) -> Calibration:
    return FilteredNoise(INDEPENDENT, PrivacyTarget(mu=mu, delta=1e-5), 1, steps=1, seed=0).calibration

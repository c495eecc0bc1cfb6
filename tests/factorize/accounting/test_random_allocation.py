"""Random allocation at C = I: moments against enumeration and quadrature, the law itself, claims and their checker."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import CommandLine
from dp_accounting.pld import privacy_loss_distribution as pld
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import roots_hermitenorm
from specs import solved

from factorize.accounting import calibrate_bins, loss_distribution
from factorize.accounting.allocation_law import AllocationLaw
from factorize.accounting.allocation_moments import InverseMoments, log_moments
from factorize.accounting.laws.sampling_scheme import SamplingOptions
from factorize.accounting.schemes import SCHEMES
from factorize.errors import ConditionNotMet, InvalidParameter
from factorize.exact.sampling.allocation import Blocks
from factorize.exact.sampling.calibrations import check_calibration
from factorize.factorization import Factorization
from factorize.training.bins_audit import BinsAuditor
from factorize.training.orders import balls_in_bins, random_allocation

TARGET = {"epsilon": 2.0, "delta": 1e-5}
calibrate_allocation = partial(calibrate_bins, sampling="random_allocation")


@settings(max_examples=25, deadline=None)
@given(bins=st.integers(1, 5), order=st.integers(2, 6), variance=st.sampled_from([0.1, 1.0, 4.0]))
def test_moments_are_means_over_all_tuples(bins: int, order: int, variance: float) -> None:
    tuples = itertools.product(range(bins), repeat=order)
    pairs = [sum(one[i] == one[j] for i in range(order) for j in range(i)) for one in tuples]
    mean = float(np.mean(np.exp(variance * np.array(pairs))))
    found = float(log_moments(variance, bins)[order])
    assert math.log(mean) <= found <= math.log(mean) + 1e-8 * (1 + math.log(mean))
    checked = float(Blocks(Fraction(variance), 1.0, bins, 1).moment(order).ln())
    assert math.log(mean) <= checked + 1e-14 and checked <= found


NODES, WEIGHTS = roots_hermitenorm(80)
WEIGHTS = WEIGHTS / WEIGHTS.sum()


@pytest.mark.parametrize(("variance", "eta"), [(0.001, 1), (0.2, 1), (1.0, 3), (1.0, 12), (3.0, 2), (6.0, 1)])
def test_inverse_moments_are_above_quadrature_and_close(variance: float, eta: int) -> None:
    grown = np.exp(math.sqrt(variance) * NODES - variance / 2)
    exact = {
        1: math.exp(eta * variance / 2 + eta * eta * variance / 2),
        2: float(WEIGHTS @ ((grown[:, None] + grown) / 2) ** -float(eta) @ WEIGHTS),
    }
    for bins, value in exact.items():
        made = math.exp(InverseMoments(variance, bins).log(eta))
        checked = float(Blocks(Fraction(variance), 1.0, bins, 1).inverse_moment(eta))
        assert value * (1 - 1e-6) <= checked <= made  # quadrature is good to some digits
        if eta <= 3:  # with fewer than three steps and a large eta, what is below the grid of Y counts
            assert made <= value * 1.005


def deltas(sets: list[tuple[int, ...]], n: int, sigma: float, epsilon: float) -> tuple[float, float]:
    """Both directions of the mixture over sets of steps, by quadrature in n dimensions."""
    nodes, weights = roots_hermitenorm(34)
    grid = np.stack(np.meshgrid(*[nodes / sigma] * n, indexing="ij"))
    mass = weights / weights.sum()
    for _ in range(n - 1):
        mass = np.multiply.outer(mass, weights / weights.sum())
    ratio = np.mean([np.exp(grid[list(one)].sum(axis=0) - len(one) / (2 * sigma**2)) for one in sets], axis=0)
    t = math.exp(epsilon)
    return float((mass * np.maximum(ratio - t, 0)).sum()), float((mass * np.maximum(1 - t * ratio, 0)).sum())


@pytest.mark.parametrize(("n", "k"), [(2, 1), (3, 1), (4, 2)])
@pytest.mark.parametrize(("sigma", "epsilon"), [(0.7, 1.0), (1.5, 0.3)])
def test_both_directions_are_above_the_law_itself(n: int, k: int, sigma: float, epsilon: float) -> None:
    """Every choice of k of n steps is as likely as any other; blocks leak at least as much, and the bounds more."""
    b = n // k
    chosen = list(itertools.combinations(range(n), k))
    blocks = [tuple(e * b + j for e, j in enumerate(draw)) for draw in itertools.product(range(b), repeat=k)]
    law, less = deltas(blocks, n, sigma, epsilon), deltas(chosen, n, sigma, epsilon)
    bounds = AllocationLaw(n, b, 1.0, signed=False).bounds(sigma, epsilon)
    for uniform, blocked, above in zip(less, law, bounds, strict=True):
        assert uniform <= blocked * (1 + 1e-2) and blocked <= math.exp(above.log_delta) * (1 + 1e-2)


@pytest.fixture(scope="module")
def plain() -> Factorization:
    return solved({"kind": "prefix", "n": 64}, "identity", 4)


def test_it_is_near_poisson_sampling(plain: Factorization) -> None:
    """Not a bound either way: with as many steps on average, Poisson sampling is nearly the same law."""
    held = calibrate_allocation(plain, **TARGET)
    step = pld.from_gaussian_mechanism(held.sigma_of_sums, sampling_prob=1 / 16, value_discretization_interval=1e-3)
    assert 0.2e-5 < step.self_compose(64).get_delta_for_epsilon(2.0) < 5e-5
    less = pld.from_gaussian_mechanism(
        held.sigma_of_sums / 1.25, sampling_prob=1 / 16, value_discretization_interval=1e-3
    )
    assert less.self_compose(64).get_delta_for_epsilon(2.0) > 1e-5


def test_a_claim_is_checked_from_the_bytes_and_a_false_one_refused(plain: Factorization, tmp_path: Path) -> None:
    held = calibrate_allocation(plain, **TARGET, divisor=9, clip_norm=0.5)
    plain.save(path := tmp_path / "identity.safetensors")
    data = path.read_bytes()
    report = check_calibration(data, held.document())
    assert report.supported, report.failed
    claim = held.claim.document()
    false: list[dict[str, Any]] = [
        {"sigma": (0.99 * held.sigma_of_sums).hex()},
        {"delta": (0.95e-5).hex()},
        {"epsilon": (1.99).hex()},
        {"clip_norm": (0.51).hex()},
        {"sampling": "balls_in_bins"},
        {"mechanism": {**claim["mechanism"], "bins": 32, "epochs": 2}},
        {"mechanism": {**claim["mechanism"], "bins": 17}},
        {"pq": {"rule": "star_bound", "m": 4}},
        {"pq": {"rule": "moment", "m": 129}},
        {"qp": {"rule": "moment", "eta": (2.5).hex()}},
        {"qp": {"rule": "closed_form"}},
    ]
    for change in false[:5] + false[6:]:
        assert not check_calibration(data, {**claim, **change}).supported, change
    other = tmp_path / "other.safetensors"
    solved({"kind": "prefix", "n": 64}, "square_root", 4).save(other)
    assert not check_calibration(other.read_bytes(), claim).supported


def test_more_bands_and_uneven_blocks_are_refused_with_the_reason(plain: Factorization) -> None:
    with pytest.raises(ConditionNotMet, match="random allocation is for C = I"):
        calibrate_allocation(solved({"kind": "prefix", "n": 64}, "square_root", 4), **TARGET)
    with pytest.raises(InvalidParameter, match="do not divide"):
        calibrate_allocation(plain, **TARGET, bins=12)
    with pytest.raises(InvalidParameter, match="bins=0"):
        calibrate_allocation(plain, **TARGET, bins=0)
    with pytest.raises(InvalidParameter, match="too small for any delta"):
        calibrate_allocation(plain, sigma=1e-3, epsilon=1.0)


def test_what_a_given_noise_is_worth_and_what_composes(plain: Factorization) -> None:
    there = calibrate_allocation(plain, **TARGET)
    epsilon = calibrate_allocation(plain, sigma=there.sigma_of_sums, delta=1e-5).epsilon
    assert epsilon == pytest.approx(2.0, abs=1e-4)
    run = loss_distribution(plain, sigma=there.sigma_of_sums, sampling="random_allocation", interval=1e-2, points=60)
    assert 2.0 - 1e-2 <= run.get_epsilon_for_delta(1e-5) < 2.2
    one = calibrate_allocation(plain, **TARGET, bins=1)  # every step: the Gaussian mechanism
    assert one.claim.pq.rule == one.claim.qp.rule == "gaussian" and one.noise_multiplier * one.mu == pytest.approx(1)


def test_with_one_epoch_it_has_the_claim_of_balls_in_bins(tmp_path: Path) -> None:
    """The same batches: at epsilon 0.1 the moments give several times the noise of a tested claim."""
    once, key = solved({"kind": "prefix", "n": 16}, "identity", 1), bytes(range(32))
    target = {"epsilon": 0.1, "delta": 1e-6}
    bounds = calibrate_allocation(once, **target, method="deterministic")
    held = calibrate_allocation(once, **target)
    moments = AllocationLaw(16, 16, 1.0, signed=False).sigma(**target)
    assert held.method == "verified" and held.sigma_of_sums < bounds.sigma_of_sums < 0.5 * moments
    worth = calibrate_allocation(once, sigma=bounds.sigma_of_sums, delta=1e-6, method="deterministic")
    assert worth.epsilon == pytest.approx(0.1, rel=1e-3)
    options = SamplingOptions()
    anew, kept = (
        SCHEMES[name].deltas(once, 2.0, [0.1, 1.0], options) for name in ("random_allocation", "balls_in_bins")
    )
    assert all(first <= second for first, second in zip(anew, kept, strict=True))
    once.save(path := tmp_path / "identity.safetensors")
    assert check_calibration(path.read_bytes(), held.document()).supported
    for order in (random_allocation(160, 16, 1, key), balls_in_bins(160, 16, 1, key)):
        for scale in (held, bounds):
            order.check_calibration(scale, 16)
            assert scale.sampling in BinsAuditor.of(order).covered


def test_its_order_is_covered_and_that_of_kept_bins_is_not(plain: Factorization) -> None:
    held, key = calibrate_allocation(plain, **TARGET), bytes(range(32))
    random_allocation(640, 16, 4, key).check_calibration(held, 64)
    with pytest.raises(InvalidParameter, match="random_allocation"):
        balls_in_bins(640, 16, 4, key).check_calibration(held, 64)


def test_the_command_line_calibrates_and_verifies(plain: Factorization, tmp_path: Path) -> None:
    plain.save(path := tmp_path / "identity.safetensors")
    options = ("--epsilon", 2, "--delta", 1e-5, "--sampling", "random_allocation", "--output", "json")
    answer = (command := CommandLine(tmp_path))("calibrate", path, *options)
    assert answer.code == 0, answer.err
    (told := tmp_path / "answer.json").write_text(answer.out)
    assert command("verify", path, "--calibration", told).code == 0

"""Random allocation at C = I: loss distributions against quadrature and convolution, claims and their checker."""

from __future__ import annotations

import itertools
import math
import tracemalloc
from fractions import Fraction
from functools import partial, reduce
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import ndtr, roots_hermitenorm
from specs import solved

from factorize.accounting import calibrate_bins, loss_distribution
from factorize.accounting.loss_laws import AllocationLaw
from factorize.checker.sampling import losses as allocation
from factorize.checker.sampling.calibrations import check_calibration
from factorize.checker.sampling.losses import losses_of_blocks
from factorize.errors import ConditionNotMet, InvalidParameter
from factorize.factors.factorization import Factorization
from factorize.numbers.gaussian import gaussian_delta

TARGET = {"epsilon": 2.0, "delta": 1e-5}
calibrate_allocation = partial(calibrate_bins, sampling="random_allocation")


def priced(mean: np.ndarray, deviation: float, strike: np.ndarray) -> np.ndarray:
    """E (e^(mean + deviation Z) - strike)_+, in closed form."""
    with np.errstate(divide="ignore", invalid="ignore"):
        d = (mean - np.log(np.maximum(strike, 0))) / deviation
        grown = np.exp(mean + deviation**2 / 2)
        return np.where(strike > 0, grown * ndtr(d + deviation) - strike * ndtr(d), grown - strike)


def exact(bins: int, blocks: int, variance: float, level: float) -> tuple[float, float]:
    """Both directions by quadrature in all normals but one; the last has a closed form."""
    z = np.linspace(-8.5, 8.5, 161 if bins * blocks < 4 else 101)
    width = math.sqrt(variance)
    grids = np.meshgrid(*[z] * (bins * blocks - 1), indexing="ij", sparse=True)
    mass = np.ones(())
    for grid in grids:
        mass = mass * np.exp(-grid * grid / 2) / np.exp(-z * z / 2).sum()
    terms = [np.exp(width * grid - variance / 2) for grid in grids]
    factor = sum(terms[:bins]) / bins if blocks > 1 else 1.0
    rest, t = sum(terms[bins if blocks > 1 else 0 :]) + 0.0 * factor, math.exp(level)
    share = factor / bins
    over = share * priced(np.full_like(rest, -variance / 2), width, t / share - rest)
    mean = share * (1.0 + rest) - t
    put = over - mean  # (t - L)_+ = (L - t)_+ - (L - t)
    return float((mass * over).sum()), float((mass * put).sum() / t) if level <= 0 else math.nan


@pytest.mark.parametrize(("bins", "blocks"), [(2, 1), (3, 1), (2, 2)])
@pytest.mark.parametrize(("sigma", "level"), [(0.7, 1.0), (1.5, 0.3), (3.0, 0.05)])
def test_both_directions_are_just_above_quadrature(bins: int, blocks: int, sigma: float, level: float) -> None:
    checked = losses_of_blocks(Fraction(1), sigma, bins, blocks)
    removal, _ = exact(bins, blocks, sigma**-2, level)
    _, addition = exact(bins, blocks, sigma**-2, -level)
    bounds = AllocationLaw(bins * blocks, bins, 1.0, signed=False).bounds(sigma, level)
    proved = float(checked.removal(level)), float(checked.addition(level))
    for value, proof, bound in zip((removal, addition), proved, bounds, strict=True):
        assert value * (1 - 1e-6) <= proof <= math.exp(bound.log_delta) <= 1.01 * value


def convolved(bins: int, sigma: float, level: float, step: float, *, up: bool) -> tuple[float, float]:
    """Both directions with each term on an even grid, rounded up or down, and powers of its Fourier transform."""
    size = 1 << 21
    edges = np.arange(size // 2) * step
    below = ndtr(sigma * np.log(np.maximum(edges, 1e-300)) + 0.5 / sigma)
    masses = np.append(np.diff(below), 0.0)
    masses = np.append(0.0, masses[:-1]) if up else masses
    law = np.maximum(np.fft.irfft(np.fft.rfft(masses, size) ** bins, size), 0.0)
    ratio = np.arange(size) * step / bins
    t = math.exp(level)
    return float(law @ np.maximum(ratio - t, 0)), float(law @ np.maximum(1 - t * ratio, 0))


@pytest.mark.parametrize(("sigma", "level", "step"), [(4.74, 0.1, 2.0**-12), (1.1, 1.0, 2.0**-9), (0.8, 0.3, 2.0**-8)])
def test_many_steps_agree_with_convolutions_of_an_even_grid(sigma: float, level: float, step: float) -> None:
    down, up = (convolved(60, sigma, level, step, up=up) for up in (False, True))
    checked = losses_of_blocks(Fraction(1), sigma, 60, 1)
    assert down[0] < float(checked.removal(level)) < 1.02 * up[0]
    assert up[1] < float(checked.addition(level)) < 1.02 * down[1]


def test_one_step_to_choose_from_is_the_gaussian_mechanism() -> None:
    checked = losses_of_blocks(Fraction(1), 2.0, 1, 9)
    for value in (checked.removal(1.0), checked.addition(1.0)):
        assert gaussian_delta(1.0, 1.5) * (1 - 1e-9) <= float(value) <= 1.002 * gaussian_delta(1.0, 1.5)


def test_each_choice_of_steps_as_likely_as_any_other_leaks_no_more() -> None:
    nodes, weights = roots_hermitenorm(34)
    grid = np.stack(np.meshgrid(*[nodes] * 4, indexing="ij"))
    mass = reduce(np.multiply.outer, [weights / weights.sum()] * 4)
    terms = np.exp(grid / 1.2 - 0.5 / 1.2**2)
    chosen = np.mean([terms[i] * terms[j] for i, j in itertools.combinations(range(4), 2)], axis=0)
    checked = losses_of_blocks(Fraction(1), 1.2, 2, 2)
    assert float((mass * np.maximum(chosen - math.e, 0)).sum()) < float(checked.removal(1.0))
    assert float((mass * np.maximum(1 - math.e * chosen, 0)).sum()) < float(checked.addition(1.0))


@pytest.mark.parametrize(("epochs", "most"), [(1, 5.0), (4, 9.6), (16, 19.1)])
def test_small_epsilons_need_no_more_than_poisson_sampling(epochs: int, most: float) -> None:
    """Poisson sampling with as many steps on average is nearly the same law: 4.96, 9.5 and 18.8 by dp_accounting."""
    sigma = AllocationLaw(60 * epochs, 60, 1.0, signed=False).sigma(0.1, 1e-6)
    assert 0.94 * most < sigma < most
    for less, holds in ((1.0, True), (0.999, False)):
        checked = losses_of_blocks(Fraction(1), sigma * less, 60, epochs)
        assert (max(checked.removal(0.1), checked.addition(0.1)) <= 1e-6) == holds


def test_more_noise_than_the_grid_is_for_counts_as_less(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allocation, "MIN_WIDTH", 0.25)
    much, less = (losses_of_blocks(Fraction(1), sigma, 3, 1) for sigma in (1e30, 4.0))
    assert float(much.removal(0.1)) == float(less.removal(0.1)) > 0


def test_much_noise_takes_no_more_memory() -> None:
    """The grid has steps of about 2^-27 here; no array has an entry for each place below log 2."""
    tracemalloc.start()
    try:
        law = losses_of_blocks(Fraction(1), 1e5, bins=4096, blocks=1)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1 << 22
    # A sum of 4,096 likelihood ratios is nearly normal: one Gaussian step with a deviation of 1 / (64 sigma).
    assert float(law.removal(0.0)) == pytest.approx(1 / (64e5 * math.sqrt(2 * math.pi)), rel=1e-2)


def test_so_little_noise_that_nothing_is_private() -> None:
    with pytest.raises(InvalidParameter, match="sigma is so small"):
        losses_of_blocks(Fraction(1), 0.099, 60, 1)
    assert AllocationLaw(60, 60, 1.0, signed=False).removal(0.099, 1.0).log_delta == 0.0


@pytest.fixture(scope="module")
def plain() -> Factorization:
    return solved({"kind": "prefix", "n": 64}, "identity", 4)


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
        {"mechanism": {**claim["mechanism"], "bins": 8, "epochs": 8}},
        {"mechanism": {**claim["mechanism"], "bins": 17}},
        {"pq": {"rule": "star_bound", "m": 4}},
        {"pq": {"rule": "loss_distribution", "m": 2}},
        {"qp": {"rule": "closed_form"}},
        {"qp": {"rule": "gaussian"}},
    ]
    for change in false:
        assert not check_calibration(data, {**claim, **change}).supported, change
    other = tmp_path / "other.safetensors"
    solved({"kind": "prefix", "n": 64}, "square_root", 4).save(other)
    assert not check_calibration(other.read_bytes(), claim).supported


def test_more_bands_and_uneven_blocks_are_refused_with_the_reason(plain: Factorization) -> None:
    with pytest.raises(ConditionNotMet, match="random_allocation needs C = I"):
        calibrate_allocation(solved({"kind": "prefix", "n": 64}, "square_root", 4), **TARGET)
    with pytest.raises(InvalidParameter, match="does not divide"):
        calibrate_allocation(plain, **TARGET, bins=12)
    with pytest.raises(InvalidParameter, match="bins=0"):
        calibrate_allocation(plain, **TARGET, bins=0)
    with pytest.raises(InvalidParameter, match="too small for any delta"):
        calibrate_allocation(plain, sigma=1e-3, epsilon=1.0)


def test_what_a_given_noise_is_worth_and_what_composes(plain: Factorization) -> None:
    there = calibrate_allocation(plain, **TARGET)
    epsilon = calibrate_allocation(plain, sigma=there.sigma_of_sums, delta=1e-5).epsilon
    assert epsilon == pytest.approx(2.0, rel=1e-3)
    run = loss_distribution(plain, sigma=there.sigma_of_sums, sampling="random_allocation", interval=1e-2, points=60)
    assert 2.0 - 1e-2 <= run.get_epsilon_for_delta(1e-5) < 2.2
    one = calibrate_allocation(plain, **TARGET, bins=1)  # every step: the Gaussian mechanism
    assert one.claim.pq.rule == one.claim.qp.rule == "gaussian" and one.noise_multiplier * one.mu == pytest.approx(1)

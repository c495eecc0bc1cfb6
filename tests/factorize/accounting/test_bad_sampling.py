"""What users get wrong with random batches: each case is answered soundly, or refused with the way out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from specs import solved

from factorize.accounting import BinsLaw, calibrate_bins, calibrate_sampling
from factorize.accounting.gram_matrix import BinGram
from factorize.errors import InvalidParameter, UnsupportedAdjacency
from factorize.factors.factorization import Factorization
from factorize.numbers.gaussian import noise_multiplier_for_epsilon
from factorize.privacy import PrivacyTarget, calibrate
from factorize.samplings import SAMPLINGS

TARGET = PrivacyTarget(epsilon=4.0, delta=1e-5)


@pytest.fixture(scope="module")
def base() -> Factorization:
    return solved(48, "square_root", 4)


def test_a_signed_c_is_taken_by_its_absolute_values_and_says_so() -> None:
    """The dense optimum of momentum has negative entries; its bound is never below the one without signs counted."""
    signed = solved({"kind": "momentum", "n": 24, "momentum": 0.9}, "dense", 3)
    assert (signed.strategy.finite().dense() < 0).any()
    held = calibrate_sampling(signed, TARGET, sampling="balls_in_bins", method="deterministic").document()
    assert held["signed"] is True and held["absolute_cost"] >= 1


REFUSED: list[tuple[str, Any, str]] = [
    ("adjacency", "replace_one", "use zero_out"),
    *(("adjacency", name, "divisor is a fixed public number, your relation is zero_out")
      for name in ("add_or_remove_one", "ADD_REMOVE", "remove")),
    *((name, value, name) for name, value in (("epsilon", 0.0), ("epsilon", -1.0), ("delta", 1.0), ("clip_norm", -1.0),
                                              ("divisor", 0), ("batch_size", 1.5))),
]  # fmt: skip


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_what_no_sampling_covers_is_refused(base: Factorization, sampling: str) -> None:
    """A fixed order alone covers replace_one."""
    factors = base if sampling in ("fixed", "balls_in_bins") else solved(48, "identity", 4)
    sizes: dict[str, Any] = (
        {"dataset_size": 4800, "batch_size": 100} if "dataset_size" in SAMPLINGS[sampling].takes else {}
    )
    asked = {"epsilon": 4.0, "delta": 1e-5, "sampling": sampling, **sizes}
    for name, value, message in REFUSED[sampling == "fixed" :]:
        with pytest.raises((InvalidParameter, UnsupportedAdjacency), match=message):
            factors.calibrate(**{**asked, name: value})


def test_a_spent_budget_and_what_is_no_name_are_refused_by_name(base: Factorization) -> None:
    with pytest.raises(InvalidParameter, match="and spent_mu describe a Gaussian mechanism"):
        base.calibrate(epsilon=4.0, delta=1e-5, spent_mu=0.1, sampling="balls_in_bins")
    for sampling in (["fixed"], None, "none"):
        with pytest.raises(InvalidParameter, match="is not supported: use one of fixed, "):
            base.calibrate(epsilon=4.0, delta=1e-5, sampling=sampling)  # type: ignore[arg-type]


def test_n_need_not_be_a_multiple_of_b(base: Factorization) -> None:
    """13 bins in 48 steps: four epochs, the last one short; never more than four whole epochs take."""
    held = calibrate_sampling(base, TARGET, sampling="balls_in_bins", bins=13, method="deterministic")
    longer = calibrate_sampling(
        solved(52, "square_root", 4), TARGET, sampling="balls_in_bins", bins=13, method="deterministic"
    )
    assert held.document()["epochs"] == 4 and held.sigma_of_sums <= longer.sigma_of_sums


def test_one_epoch_is_random_allocation_under_either_name() -> None:
    plain = solved(32, "identity", 1)
    held = calibrate_bins(plain, epsilon=4.0, delta=1e-5, method="deterministic")
    assert held.epochs == 1
    anew = calibrate_sampling(plain, TARGET, sampling="random_allocation")
    assert 0.7 * held.sigma_of_sums < anew.sigma_of_sums < held.sigma_of_sums


@pytest.mark.parametrize(("epsilon", "delta"), [(0.05, 0.2), (0.01, 0.05), (0.2, 0.4)])
def test_where_the_bounds_are_useless_the_answer_is_the_mechanism_without_amplification(
    epsilon: float, delta: float
) -> None:
    """Weak correlation, many bins, small epsilon, large delta: never more noise than without sampling."""
    gram = BinGram(np.eye(512) * 4 + 1e-9, 2048)
    plain = noise_multiplier_for_epsilon(epsilon, delta) * gram.sensitivity
    assert BinsLaw(gram).sigma(epsilon, delta) <= plain * (1 + 1e-8)


def test_sampling_never_costs_noise(base: Factorization) -> None:
    for epsilon, delta in ((0.05, 0.2), (20.0, 1e-9)):
        target = PrivacyTarget(epsilon=epsilon, delta=delta)
        held = calibrate_sampling(base, target, sampling="balls_in_bins", method="deterministic")
        plain = calibrate(held.sensitivity, target)
        assert held.sigma_of_sums <= plain.sigma_of_sums * (1 + 1e-6)

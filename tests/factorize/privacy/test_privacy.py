"""Calibration: from a certified sensitivity and a target to the noise, and what is refused on the way."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import Any
from unittest import mock

import dp_accounting
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from factorize.accounting import BinGram, BinsLaw
from factorize.accounting.loss_laws import PoissonLaw
from factorize.errors import InvalidParameter, UnsupportedAdjacency
from factorize.factors.sensitivity import Sensitivity
from factorize.numbers.gaussian import gaussian_epsilon, noise_multiplier_for_epsilon
from factorize.privacy import BestOf, Calibration, PrivacyTarget, calibrate
from factorize.privacy.adjacency import Adjacency
from factorize.privacy.question import GivenNoise
from factorize.training.receipt import Receipt
from factorize.training.statement import PrivacyStatement


@dataclass(frozen=True)
class Certified(Sensitivity):
    """A sensitivity as a certificate states it, or as none does."""

    value: Any = 2.0
    kind: Any = "exact"
    rule: str = "column norms"
    participation: Any = field(default_factory=lambda: {"kind": "single"})

    def __post_init__(self) -> None:
        """Believe any value."""


TARGET = PrivacyTarget(epsilon=1.0, delta=1e-5)


# ---- the noise --------------------------------------------------------------------------------------------


def test_sigma_is_noise_multiplier_times_clip_times_sensitivity() -> None:
    answer = calibrate(Certified(1.5), PrivacyTarget(mu=0.5), clip_norm=4.0)
    assert (answer.noise_multiplier, answer.sigma_of_sums) == (2.0, 12.0)
    assert (answer.mu, answer.rho, answer.epsilon, answer.delta) == (0.5, 0.125, None, None)


def test_noise_for_means_without_a_divisor_is_refused() -> None:
    sums = calibrate(Certified(), PrivacyTarget(mu=1))
    for ask in (sums.divisor_of_means, lambda: sums.check_mean(0.1)):
        with pytest.raises(
            InvalidParameter, match=r"sigma_of_sums=2 is for sums.*add the noise to sums, or calibrate with div"
        ):
            ask()


@pytest.mark.parametrize("divisor", [1, 10, 600, 10**6])
def test_a_sum_that_is_called_a_mean_is_refused_and_no_batch_that_can_be_drawn(divisor: int) -> None:
    """Chernoff's bound for sums of independent draws with the mean B: P(m >= x) <= exp(x - B - x ln(x / B))."""
    means = calibrate(Certified(), PrivacyTarget(mu=1), clip_norm=0.5, divisor=divisor)
    largest = 1 + math.sqrt(178 / divisor) + 60 / divisor  # by hand, over the divisor
    means.check_mean(0.5 * largest)
    with pytest.raises(InvalidParameter, match="it is a sum"):
        means.check_mean(0.5001 * largest)
    with pytest.raises(InvalidParameter, match="it is a sum"):
        means.check_mean(math.nan)
    count = largest * divisor
    assert count - divisor - count * math.log(count / divisor) < -128 * math.log(2)


def test_an_epsilon_target_is_answered_with_all_of_its_equivalents() -> None:
    answer = calibrate(Certified(1.0), TARGET)
    assert answer.noise_multiplier == noise_multiplier_for_epsilon(1.0, 1e-5)
    assert answer.noise_multiplier == pytest.approx(3.730631634815945, rel=2e-12)
    assert answer.sigma_of_sums == answer.noise_multiplier
    assert (answer.epsilon, answer.delta) == (1.0, 1e-5)
    assert answer.mu == pytest.approx(1 / answer.noise_multiplier, rel=1e-15)
    assert answer.rho == pytest.approx(answer.mu**2 / 2, rel=1e-15)


@pytest.mark.parametrize("target", [PrivacyTarget(rho=0.125, delta=1e-5), PrivacyTarget(mu=0.5, delta=1e-5)])
def test_a_delta_beside_rho_or_mu_adds_the_exact_epsilon(target: PrivacyTarget) -> None:
    answer = calibrate(Certified(), target)
    assert answer.noise_multiplier == 2.0
    assert answer.delta == 1e-5
    assert answer.epsilon == gaussian_epsilon(1e-5, 0.5) == pytest.approx(1.9930914044151793, rel=1e-11)


@pytest.mark.parametrize("adjacency", ["zero_out", "replace_one"])
def test_the_printed_words_to_dp_accounting_name_the_relation_and_give_the_epsilon(adjacency: str) -> None:
    text = (Path(__file__).parents[3] / "docs" / "privacy.md").read_text()
    (printed,) = [code for code in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "GaussianDpEvent" in code]
    assert "NeighboringRelation.REPLACE_SPECIAL" in printed and "(`REPLACE_SPECIAL`)" in text
    noise = calibrate(Certified(1.7), PrivacyTarget(epsilon=3.0, delta=1e-6), adjacency=adjacency)
    names: dict[str, Any] = {"noise": noise}
    *lines, last = printed.strip().splitlines()
    exec("\n".join(lines), names)
    assert names["accountant"]._neighboring_relation is dp_accounting.NeighboringRelation.REPLACE_SPECIAL
    assert 3.0 <= eval(last, names) <= 3.0 + 1e-2


@given(
    sensitivity=st.floats(1e-6, 1e6),
    clip=st.floats(1e-6, 1e6),
    mu=st.floats(1e-6, 1e6),
    batch=st.integers(1, 10**6),
    adjacency=st.sampled_from(Adjacency),
)
def test_sigma_is_rounded_up_and_never_wasteful(
    sensitivity: float, clip: float, mu: float, batch: int, adjacency: Adjacency
) -> None:
    """Twice as large where one is replaced, and worth the same."""
    answer = calibrate(
        Certified(sensitivity),
        PrivacyTarget(mu=mu),
        clip_norm=clip,
        divisor=batch,
        adjacency=adjacency,
    )
    assert answer.adjacency is adjacency and answer.noise_multiplier * answer.mu == pytest.approx(1, rel=1e-15)
    needed = (2 if adjacency is Adjacency.REPLACE_ONE else 1) * Fraction(sensitivity) * Fraction(clip) / Fraction(mu)
    assert needed <= Fraction(answer.sigma_of_sums) <= needed * (1 + Fraction(1, 2**51))
    assert answer.sigma_of_means is not None
    assert needed / batch <= Fraction(answer.sigma_of_means) <= needed / batch * (1 + Fraction(1, 2**50))


# ---- the documents ----------------------------------------------------------------------------------------


def test_the_document_is_plain_json() -> None:
    document = calibrate(Certified(1.25, "upper_bound", "two stage"), TARGET, divisor=10).document()
    assert json.loads(json.dumps(document, allow_nan=False)) == document
    assert document["adjacency"] == "zero_out"
    assert document["sensitivity"] == 1.25
    assert document["sensitivity_kind"] == "upper_bound"
    assert document["sensitivity_rule"] == "two stage"
    assert document["participation"] == {"kind": "single"}
    assert document["divisor"] == 10


# ---- adjacency --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "adjacency"),
    [
        ("zero_out", Adjacency.ZERO_OUT),
        ("replace_one", Adjacency.REPLACE_ONE),
        ("REPLACE_SPECIAL", Adjacency.ZERO_OUT),
        ("REPLACE_ONE", Adjacency.REPLACE_ONE),
        (Adjacency.REPLACE_ONE, Adjacency.REPLACE_ONE),
        (Adjacency.ZERO_OUT, Adjacency.ZERO_OUT),
        (dp_accounting.NeighboringRelation.REPLACE_SPECIAL, Adjacency.ZERO_OUT),
        (dp_accounting.NeighboringRelation.REPLACE_ONE, Adjacency.REPLACE_ONE),
    ],
)
def test_adjacency_names(name: Any, adjacency: Adjacency) -> None:
    assert Adjacency.parse(name) is adjacency


# ---- refusals ---------------------------------------------------------------------------------------------


ODD = [0, -1, math.nan, math.inf, "1"]
REFUSED: list[tuple[dict[str, Any], str, str]] = [
    *(({"sensitivity": bare}, r"plain .* without a certificate; pass certificate.sensitivity", "sensitivity")
      for bare in (1.0, 1, True, None, "1.0", {"value": 1.0}, Adjacency.ZERO_OUT)),
    *(({"sensitivity": Certified(kind=kind)}, r"proves no privacy \(it must be exact or upper_bound", "sensitivity")
      for kind in ("lower_bound", "estimate", "", None)),
    *(({"sensitivity": Certified(participation=given)}, r"for participation (None|\{\}) proves no", "sensitivity")
      for given in (None, {})),
    *(({"sensitivity": Certified(value)}, "^sensitivity", "sensitivity") for value in ODD),
    *(({"clip_norm": clip}, r"^clip_norm.*clipped to", "clip_norm") for clip in (*ODD, True)),
    *(({"divisor": batch}, r"divisor=.* is not an integer >= 1.*or leave it out", "divisor")
      for batch in (*ODD, 2.0, True)),
    ({"sensitivity": Certified(1e300), "clip_norm": 1e30}, "sigma would exceed the largest double", "sigma"),
    # A sigma of 5e-324 was handed out, and noise in float32 is then exactly zero.
    *(({"sensitivity": Certified(value), "clip_norm": clip}, "neither zero nor infinite", field)
      for value, clip, field in ((1.0, 1e-31, "clip_norm"), (1.0, 1e31, "clip_norm"), (1e-40, 1.0, "sigma"),
                                 (1e40, 1.0, "sigma"))),
    *(({"adjacency": name}, r"moves later ones to other steps.*null record.*use zero_out", "adjacency")
      for name in ("add_remove", "add/remove", "ADD_OR_REMOVE_ONE", dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE)),
    *(({"adjacency": name}, r"is not known; use zero_out .*replace_one", "adjacency")
      for name in ("", "substitute", None, 1)),
]  # fmt: skip


@pytest.mark.parametrize(("given", "words", "field"), REFUSED)
def test_what_is_no_calibration_is_refused(given: dict[str, Any], words: str, field: str) -> None:
    options = {"sensitivity": Certified(), **given}
    with pytest.raises((InvalidParameter, UnsupportedAdjacency), match=words) as caught:
        calibrate(options.pop("sensitivity"), TARGET, **options)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("given_target", "message"),
    [
        ({}, r"0 privacy targets given \(none\), but exactly one"),
        ({"delta": 1e-5}, r"0 privacy targets given \(none\), but exactly one"),
        ({"epsilon": 1.0, "delta": 1e-5, "rho": 0.1}, r"2 privacy targets given \(epsilon, rho\)"),
        ({"rho": 1.0, "mu": 1.0}, r"2 privacy targets given \(rho, mu\)"),
        ({"epsilon": 1.0}, r"epsilon=1.0 needs a delta"),
        ({"epsilon": 0.0, "delta": 1e-5}, r"epsilon=0.0 must be"),
        ({"epsilon": 1.0, "delta": 0.0}, r"delta=0.0 must be"),
        ({"epsilon": 1.0, "delta": 1.0}, r"delta=1.0 must be"),
        ({"mu": 1.0, "delta": 2.0}, r"delta=2.0 must be"),
        ({"rho": -1.0}, r"rho=-1.0 must be"),
        ({"mu": math.nan}, r"mu=nan must be"),
        ({"mu": 1e-9}, r"mu=1e-09 needs a noise multiplier above the limit 1e\+08; ask for a larger one"),
    ],
)
def test_a_target_that_is_none_is_refused_when_it_is_made(given_target: dict[str, float], message: str) -> None:
    with pytest.raises(InvalidParameter, match=message):
        PrivacyTarget(**given_target)


def test_the_page_on_privacy_names_every_field_of_the_answer() -> None:
    page = (Path(__file__).parents[3] / "docs" / "privacy.md").read_text()
    listed = page.split("The answer has the fields `")[1].split("`")[0].split(", ")
    assert listed == list(calibrate(Certified(), TARGET).document())


@pytest.mark.parametrize("mu", [0.01, 0.5, 1.0, 6.0, 60.0])
@pytest.mark.parametrize("rate", [1e-9, 0.01, 0.3, 0.5, 0.97])
def test_the_rates_of_an_attack_are_those_of_the_normal_laws(mu: float, rate: float) -> None:
    """The likelihood-ratio test between N(0, 1) and N(mu, 1), which no attack beats."""
    plain = calibrate(Certified(), PrivacyTarget(mu=mu, delta=1e-6))
    at_noise = plain.mu
    most = float(norm.cdf(norm.ppf(rate) + at_noise))
    assert most * (1 - 1e-9) <= plain.true_positive_rate(rate) <= min(most * (1 + 1e-8), 1.0)
    assert plain.attack_advantage == pytest.approx(2 * norm.cdf(at_noise / 2) - 1, rel=1e-8)


@pytest.mark.parametrize(
    "change",
    [
        {"sigma_of_sums": 1.0},
        {"clip_norm": 2.0},
        {"adjacency": Adjacency.REPLACE_ONE},
        {"sensitivity": Sensitivity(3.0, "exact", "by hand", {"kind": "single"})},
        {"noise_multiplier": 9.0},
        {"epsilon": 0.5},
        {"delta": 1e-9},
        {"mu": 0.1},
        {"rho": 0.01},
    ],
)
def test_a_calibration_whose_numbers_are_replaced_is_refused(change: dict[str, Any]) -> None:
    made = calibrate(Certified(), PrivacyTarget(epsilon=1.0, delta=1e-5))
    assert replace(made, divisor=7).sigma_of_means == pytest.approx(made.sigma_of_sums / 7)
    assert calibrate(Certified(), GivenNoise(sigma=2e8, delta=1e-5)).epsilon == 0.0  # at the limit of what is served
    with pytest.raises(InvalidParameter, match="calibrate again"):
        replace(made, **change)


def test_under_a_sampling_epsilon_and_delta_bound_an_attack() -> None:
    plain = calibrate(Certified(), PrivacyTarget(mu=3.0))
    with mock.patch.object(Calibration, "_level_holds", return_value=True):  # as that of a sampling, by its own law
        weak = replace(plain, epsilon=0.5, delta=1e-5)
    assert weak.attack_advantage == pytest.approx(math.tanh(0.25) + 2e-5 / (1 + math.exp(0.5)))
    assert weak.true_positive_rate(0.01) == pytest.approx(0.01 * math.exp(0.5) + 1e-5)
    assert weak.true_positive_rate(0.9) == pytest.approx(1 - (1 - 0.9 - 1e-5) / math.exp(0.5))
    for rate in (0.0, 1.0, -1.0, math.nan):
        with pytest.raises(InvalidParameter):
            weak.true_positive_rate(rate)


@pytest.mark.parametrize("noise", [0.4, 1.0, 3.0])
def test_a_sampling_bounds_an_attack_by_its_total_variation(noise: float) -> None:
    """One sampled step differs by q times as much as a step; of two bins a mixture of normals on the plane does."""
    apart = 2 * norm.cdf(0.5 / noise) - 1
    assert 0.01 * apart <= PoissonLaw(1, 1, 1.0, 0.01).total_variation(noise) <= 0.01 * apart * 1.01
    points = np.random.default_rng(3).standard_normal((100_000, 2)) / noise - 0.5 / noise**2
    seen = np.maximum(np.exp(points).mean(axis=1) - 1, 0.0).mean()
    assert 0.97 * seen <= BinsLaw(BinGram(np.eye(2), 2)).total_variation(noise) <= apart * (1 + 1e-8)
    weak = replace(calibrate(Certified(), PrivacyTarget(mu=3.0)), total_variation=0.02)
    assert weak.attack_advantage == 0.02 and weak.true_positive_rate(0.01) == pytest.approx(0.03)


def test_a_statement_says_what_a_search_and_other_runs_cost() -> None:
    one = Sensitivity(1.0, "exact", "by hand", {"kind": "single"})
    calibration = calibrate(one, PrivacyTarget(epsilon=2.0, delta=1e-5))
    made = PrivacyStatement(calibration, "0" * 64, steps=8, examples=8, used=8, sampling="fixed", unit="example")
    assert made == PrivacyStatement(calibration, "0" * 64, 8, 8, 8, "fixed", "example"), (
        "programs give them by position"
    )
    assert made.together is None and "together" not in made.document() and "is not covered" in str(made)
    four = replace(made, trials=4)
    assert four.together is not None and four.document()["together"]["mu"] == pytest.approx(2 * calibration.mu)
    search = replace(made, others={"pilot": 0.3}, trials=BestOf(10.0))
    expected = BestOf(10.0).epsilon(1e-5, calibration.mu, math.hypot(calibration.mu, 0.3))
    assert search.together is not None and search.together["epsilon"] == pytest.approx(expected)
    assert "as the best of 10 runs on average with pilot" in str(search)
    for changes, named in (
        ({"trials": 0}, "trials"),
        ({"trials": 2.5}, "trials"),
        ({"trials": BestOf(2.0), "sampling": "balls_in_bins"}, "trials"),
        ({"others": {"pilot": 0.3}, "sampling": "cyclic_poisson"}, "others"),
        ({"others": [0.3]}, "others"),
        ({"others": {"pilot": -0.3}}, "mu"),
        ({"others": {1: 0.3, "1": 0.4}}, "others"),
        ({"others": {"3 more trials": 0.3}, "trials": 4}, "others"),
    ):
        with pytest.raises(InvalidParameter) as refusal:
            replace(made, **changes)
        assert refusal.value.field == named
    for others in ([1], 0.3, "pilot"):
        with pytest.raises(InvalidParameter, match="run's mu by name"):
            Receipt("receipt.json", others=others)  # type: ignore[arg-type]
    with pytest.raises(InvalidParameter, match="trials=True is not an integer"):
        Receipt("receipt.json", trials=True)


def test_a_statement_rounds_its_bounds_up_and_says_nothing_of_what_is_absent() -> None:
    one = Sensitivity(1.0, "exact", "by hand", {"kind": "single"})
    for target, divisor, words in (
        (PrivacyTarget(epsilon=2.0000004, delta=1e-5), 4, ("(2.00001, 1e-05)-differential privacy", "divisor 4,")),
        (PrivacyTarget(mu=0.5), None, ("0.5-Gaussian differential privacy", "no divisor,")),
    ):
        calibration = calibrate(one, target, divisor=divisor)
        said = str(
            PrivacyStatement(calibration, "0" * 64, steps=8, examples=8, used=8, sampling="fixed", unit="example")
        )
        assert all(word in said for word in words) and "None" not in said

"""Plans: counts first, noise for those counts, and a spec that the solvers take."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from factorize.accounting.amplification import calibrate_amplified
from factorize.errors import ConditionNotMet, InvalidParameter, InvalidSpec
from factorize.plan import SYSTEMS, PlanRequest, plan
from factorize.predict import ask
from factorize.privacy import PrivacyTarget, calibrate
from factorize.solvers import budget, choose, estimate, solve
from factorize.spec import parse_spec
from factorize.training import (
    DIFFERENCED,
    Box,
    FilteredNoise,
    Machine,
    PrivateSums,
    fixed_order,
    untrusted_mu2,
)

VECTORS: dict[str, Any] = json.loads((Path(__file__).parents[2] / "data" / "vectors.json").read_text())
TARGET = {"epsilon": 1.0, "delta": 1e-6}
EXAMPLES: dict[str, dict[str, Any]] = {
    "dp_ftrl": {"examples": 1000, "batch_size": 100, **TARGET},
    "dp_srg": {"examples": 1000, "batch_size": 100, **TARGET},
    "accelerated_srgd": {"examples": 10000, "lipschitz": 1, "smoothness": 1, "diameter": 2, "dimension": 50, **TARGET},
    "dp_skgd": {
        "examples": 10000,
        "smoothness": [1, 4],
        "block_bounds": [1, 2],
        "initial_distances": [1],
        "initial_gap": 2.5,
        **TARGET,
    },
    "mu2": {"examples": 600, "lipschitz": 1, "smoothness": 1, "diameter": 1, "dimension": 10, **TARGET},
}


def request(system: str, **changes: Any) -> dict[str, Any]:
    return {"system": system, **EXAMPLES[system], **changes}


@pytest.mark.parametrize("system", SYSTEMS)
def test_every_system_has_a_plan_whose_spec_is_one(system: str) -> None:
    assert SYSTEMS[system].plan is not PlanRequest.plan
    found = plan(request(system))
    document = found.document()
    assert json.loads(json.dumps(document)) == document
    assert found.noise["noise_multiplier"] == PrivacyTarget(**TARGET).noise_multiplier
    if found.spec is not None:
        choose(parse_spec(dict(found.spec)))


@pytest.mark.parametrize("method", ["dp_sgd", "dp_mf", "dp_mf_plus", "nu_dp_ftrl", "tree", "anti_pgd"])
def test_every_method_of_dp_ftrl_has_a_spec(method: str) -> None:
    found = plan(request("dp_ftrl", method=method, smoothness=10.0, strong_convexity=0.1, momentum=0.9))
    assert found.parameters["steps"] == 10
    assert found.parameters["learning_rate"] == 1 / 80
    assert found.spec is not None
    spec = parse_spec(dict(found.spec))
    assert spec.workload.kind == "momentum"
    if method == "dp_mf_plus":
        assert found.spec["objective"] == {"kind": "lambda_tau", "tau": 8}
    if method == "nu_dp_ftrl":
        assert found.spec["mechanism"]["nu"] == pytest.approx(0.1 / 80)


def test_counts_are_rounded_before_the_noise_and_said() -> None:
    found = plan(request("dp_ftrl", examples=1050, epochs=3))
    assert found.parameters["steps"] == 30
    assert found.spec is not None and found.spec["participation"] == {"kind": "fixed_epochs", "epochs": 3}
    assert any("50 of 1050" in note for note in found.notes)
    multiplier = found.noise["noise_multiplier"]
    assert found.noise["sigma_at_sensitivity_1"] == pytest.approx(multiplier / 100)
    doubled = plan(request("dp_ftrl", adjacency="replace_one"))
    assert doubled.noise["sigma_at_sensitivity_1"] == pytest.approx(2 * multiplier / 100)


def test_the_accelerated_recipe_is_the_published_one() -> None:
    vector = VECTORS["J.recipe.n10000.B100.d50"]
    found = plan(request("accelerated_srgd"))
    assert found.parameters["steps"] == vector["T"]
    assert found.parameters["beta"] == pytest.approx(vector["beta"])
    assert found.parameters["paper_sigma"] == pytest.approx(vector["sigma_printed"])
    scaled = found.noise["sigma_at_sensitivity_1"] / found.parameters["beta"] * math.sqrt(1 + math.ceil(math.log2(100)))
    assert scaled < vector["sigma_needed"]  # the tree's sensitivity with exact in place of classic calibration
    assert found.parameters["clip_norm"] / 100 / found.parameters["beta"] == pytest.approx(vector["Cinc"])


def test_sketched_noise_is_for_the_steps_that_are_run() -> None:
    found = plan(request("dp_skgd"))
    steps = found.parameters["inner"] * found.parameters["outer"]
    multiplier = found.noise["noise_multiplier"]
    assert found.noise["sigma"] == pytest.approx(2 * multiplier * math.sqrt(steps) / 10000, rel=1e-9)
    assert found.noise["sigma_of_block"] == pytest.approx([found.noise["sigma"], 2 * found.noise["sigma"]])
    assert found.predictions["utility"].value > 0
    assert found.spec is None
    strong = plan(request("dp_skgd", strong_convexity=1.0))
    assert strong.parameters["inner"] == 18  # 2 (1 + 4 / (1/2))


def test_nice_sampling_is_planned_for_its_own_constants() -> None:
    changes = {"smoothness": [1, 4, 2], "block_bounds": [1, 2, 1], "sampling": "nice", "size": 2}
    found = plan(request("dp_skgd", **changes))
    assert found.parameters["size"] == 2 and found.predictions["utility"].terms["R2"] == pytest.approx(10.5)
    one = plan(request("dp_skgd", **{**changes, "size": 1}))
    same = plan(request("dp_skgd", smoothness=[1, 4, 2], block_bounds=[1, 2, 1]))
    assert one.parameters["inner"] == same.parameters["inner"] and one.noise["sigma"] == same.noise["sigma"]


def test_mu2_has_its_two_noises() -> None:
    independent, factorized = (plan(request("mu2", noise_kind=kind)) for kind in ("independent", "factorized"))
    assert independent.spec is None
    assert factorized.spec == {"workload": {"kind": "mu2", "n": 600, "output": "q"}}
    assert factorized.parameters["learning_rate"] == pytest.approx(1 / 2400)
    assert independent.noise["adjacency"] == "replace_one"
    trusted = plan(request("mu2", machines=10, trusted=True))
    assert trusted.noise["sigma_at_sensitivity_1"] == pytest.approx(independent.noise["sigma_at_sensitivity_1"] / 10)


def test_the_bound_of_a_factorized_mu2_is_asked_of_its_factorization() -> None:
    """The bound of independent noise does not hold for correlated noise, and none is stated before C is known."""
    found = plan(request("mu2", examples=32, noise_kind="factorized"))
    assert not found.predictions
    assert found.document()["questions"]["risk"]["kind"] == "factorized_federated_risk"
    assert found.spec is not None
    factors = solve(parse_spec(dict(found.spec)))
    answer = ask(found.questions["risk"], factors)
    independent = plan(request("mu2", examples=32)).predictions["risk"]
    decoder = np.cumsum(factors.rows("C_inv", 0, 32), axis=0)
    gbar = factors.certificate.sensitivity.value * np.linalg.norm(decoder, axis=1).mean()
    assert answer.terms["privacy"] == pytest.approx(gbar * independent.terms["privacy"], rel=1e-9)
    assert answer.value > independent.value


def test_the_bound_of_mu2_covers_its_own_run() -> None:
    """f(x; z) = z x, P(z = 1) = 0.55, P(z = -1) = 0.45, on [-1, 1]: F(x) = 0.1 x is smallest at -1.

    The mean of 200 runs is 0.046; with sigma, sigma_L and G* taken as 0 the bound would be 0.024.
    """
    privacy = {"epsilon": 50.0, "delta": 1e-5}
    asked = request(
        "mu2", examples=100, lipschitz=1.0, smoothness=1e-3, diameter=2.0, dimension=1, noise_kind="independent"
    )
    found = plan(asked | privacy)
    target = PrivacyTarget(**privacy)
    risks = []
    for seed in range(200):
        signs = np.where(np.random.default_rng([7, seed]).random(100) < 0.55, 1.0, -1.0)[:, None]
        noise = FilteredNoise(
            DIFFERENCED,
            target,
            1,
            steps=100,
            batch_size=1,
            seed=seed,
            clip_norm=found.parameters["clip_norm"],
            adjacency="replace_one",
        )
        machine = Machine(lambda weights, batch, z=signs: z[batch], fixed_order(100, 1), PrivateSums(noise))
        run = untrusted_mu2([machine], np.zeros(1), learning_rate=found.parameters["learning_rate"], project=Box(1.0))
        risks.append(0.1 * (float(run.weights[0]) + 1.0))
    assert np.mean(risks) <= found.predictions["risk"].value
    assert np.mean(risks) > 0.03  # what a bound with sigma = sigma_L = G* = 0 would have denied
    known = plan(asked | privacy | {"gradient_noise": 0.995, "smoothness_noise": 0.0, "optimal_gradient": 0.1})
    assert np.mean(risks) <= known.predictions["risk"].value < found.predictions["risk"].value


GRID: dict[str, tuple[dict[str, Any], ...]] = {
    "dp_ftrl": tuple(
        {"examples": examples, "batch_size": batch, "epochs": epochs, "method": method, "momentum": momentum, **extra}
        for examples, batch, epochs in ((60_000, 128, 127), (60_000, 1, 1), (9000, 1, 1), (20_000, 2, 1), (4, 2, 1))
        for method, extra in (
            ("dp_mf", {"remainder": "pad"}),
            ("dp_mf_plus", {"smoothness": 10.0}),
            ("dp_sgd", {}),
            ("nu_dp_ftrl", {}),
            ("tree", {}),
        )
        for momentum in (0.0, 0.9)
    ),
    "dp_srg": tuple(
        {"examples": examples, "batch_size": batch, "epochs": epochs, "momentum": 0.9}
        for examples, batch, epochs in ((60_000, 128, 127), (60_000, 1, 1), (10_000, 100, 127), (60_000, 500, 1))
    ),
    "accelerated_srgd": tuple(
        {"examples": examples, "smoothness": smoothness}
        for examples in (100, 60_000, 10**6)
        for smoothness in (1e-6, 1.0)
    ),
    "mu2": tuple(
        {"examples": examples, "noise_kind": "factorized", "output": output}
        for examples, output in ((600, "x"), (8192, "x"), (60_000, "w"), (60_000, "q"))
    ),
}


@pytest.mark.parametrize("system", GRID)
def test_every_spec_of_a_plan_is_accepted_by_its_solver(system: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """60,000 examples one by one, and 469 x 127 steps, among them; the machine has 16 GiB."""
    monkeypatch.setattr(budget, "machine_memory", lambda: 2**34)
    for changes in GRID[system]:
        found = plan(request(system, **changes))
        assert found.spec is not None
        assert estimate(parse_spec(dict(found.spec))).bytes <= 2**34, changes


def test_passes_can_be_padded() -> None:
    found = plan(request("dp_ftrl", examples=60_000, batch_size=128, epochs=127, remainder="pad"))
    assert found.parameters["steps"] == 469 * 127
    assert found.spec is not None and found.spec["participation"] == {"kind": "fixed_epochs", "epochs": 127}
    assert any("96 of 128" in note for note in found.notes)
    order = fixed_order(60_000, 128, epochs=127, remainder=found.parameters["remainder"])
    assert len(order) == found.parameters["steps"]


def test_poisson_sampling_is_calibrated_for_what_is_run() -> None:
    found = plan(request("dp_ftrl", method="dp_sgd", sampling="poisson", epochs=2))
    assert found.spec is not None and found.noise["sampling_probability"] == 0.1
    solved = solve(parse_spec(dict(found.spec)))
    own = calibrate_amplified(solved, **TARGET, dataset_size=1000, batch_size=100)
    assert found.noise["sigma"] == pytest.approx(own.sigma, rel=1e-9)
    assert found.noise["noise_multiplier"] == pytest.approx(own.noise_multiplier, rel=1e-9)
    in_order = plan(request("dp_ftrl", method="dp_sgd", epochs=2)).noise
    assert found.noise["sigma"] < 0.5 * in_order["sigma_at_sensitivity_1"] * math.sqrt(2)
    for changes in ({"method": "dp_mf"}, {"method": "dp_sgd", "adjacency": "replace_one"}):
        with pytest.raises(ConditionNotMet, match="planned for dp_sgd under zero_out"):
            plan(request("dp_ftrl", sampling="poisson", **changes))


def test_the_utility_of_a_plan_is_asked_of_its_factorization() -> None:
    facts = {"eigenvalues": [1.0, 0.1], "smoothness": 1.0, "initial_distance": 1.5, "dimension": 2}
    found = plan(request("dp_ftrl", method="nu_dp_ftrl", **facts))
    assert found.spec is not None
    solved = solve(parse_spec(dict(found.spec)))
    sigma = calibrate(solved.certificate.sensitivity, PrivacyTarget(**TARGET), batch_size=100).sigma
    for name in ("quadratic", "descent"):
        own = {key: value for key, value in found.questions[name].items() if key != "sigma_at"} | {"sigma": sigma}
        assert ask(found.questions[name], solved).value == pytest.approx(ask(own, solved).value, rel=1e-6)
    assert any("no utility is stated" in note for note in plan(request("dp_ftrl")).notes)
    fast = plan(request("dp_ftrl", learning_rate=0.5, **facts))
    assert list(fast.questions) == ["quadratic"] and any("above 1/(8L)" in note for note in fast.notes)


def test_the_utility_of_recursive_gradients_is_that_of_their_own_run() -> None:
    """dp_srg on a quadratic, by its own recursion on unit vectors of Z."""
    found = plan(request("dp_srg", learning_rate=0.3, momentum=0.5, decay=0.4, eigenvalues=[1.0], initial=[2.0]))
    assert found.spec is not None
    solved = solve(parse_spec(dict(found.spec)))
    answer = ask(found.questions["quadratic"], solved)
    inverse = solved.rows("C_inv", 0, 10)
    noise, signal = np.zeros(10), 0.0  # coefficients of x_n on Z, and x_n without noise
    for source in range(11):
        x = before = 2.0 if source == 10 else 0.0
        nabla = velocity = 0.0
        for t in range(10):
            nabla = 0.4 * nabla + (x - 0.4 * before if t else x) + (inverse[t, source] if source < 10 else 0.0)
            velocity = 0.5 * velocity + nabla
            x, before = x - 0.3 * velocity, x
        signal, noise = (x, noise) if source == 10 else (signal, np.append(np.delete(noise, 0), x))
    sigma = found.noise["sigma_at_sensitivity_1"] * solved.certificate.sensitivity.value
    assert answer.value == pytest.approx((signal**2 + sigma**2 * float(noise @ noise)) / 2, rel=1e-6)


@pytest.mark.parametrize(
    ("change", "pointer"),
    [
        ({"system": "dp_ftrl", "batch_size": 2000}, "/batch_size"),
        ({"system": "dp_ftrl", "method": "dp_mf_plus"}, "/tau"),
        ({"system": "dp_ftrl", "examples": 10**8, "batch_size": 1, "epochs": 2}, "/batch_size"),
        ({"system": "mu2", "examples": 9000, "noise_kind": "factorized", "output": "x"}, "/output"),
        ({"system": "accelerated_srgd", "batch_size": 5000}, "batch_size"),
    ],
)
def test_runs_that_nothing_covers_are_refused(change: dict[str, Any], pointer: str) -> None:
    with pytest.raises(InvalidParameter) as raised:
        plan(request(**change))
    assert isinstance(raised.value, ConditionNotMet)
    assert raised.value.field == pointer


@pytest.mark.parametrize(
    ("document", "pointer"),
    [
        ({"system": "sgd"}, ""),
        (request("mu2", epsilon=-1.0), "/epsilon"),
        (request("dp_ftrl", epochs=1.5), "/epochs"),
        (request("dp_skgd", block_bounds=[]), "/block_bounds"),
    ],
)
def test_what_is_no_request_is_refused_at_its_field(document: dict[str, Any], pointer: str) -> None:
    with pytest.raises(InvalidSpec) as raised:
        plan(document)
    assert raised.value.violations[0].pointer == pointer


@pytest.mark.parametrize(
    ("system", "changes"),
    [
        ("accelerated_srgd", {"lipschitz": 1e308}),
        ("accelerated_srgd", {"diameter": 5e-324}),
        ("dp_skgd", {"epsilon": 1e308, "strong_convexity": 3.0}),
        ("mu2", {"diameter": 1e308}),
    ],
)
def test_numbers_that_leave_double_precision_are_refused(system: str, changes: dict[str, Any]) -> None:
    with pytest.raises((InvalidParameter, ConditionNotMet)):
        plan(request(system, **changes))


def test_distances_are_one_or_one_for_each() -> None:
    with pytest.raises(InvalidParameter, match="3 entries for 2 coordinates") as caught:
        plan(request("dp_skgd", initial_distances=[1, 1, 1]))
    assert caught.value.field == "/initial_distances"


def test_a_plan_of_millions_of_releases_takes_no_longer() -> None:
    """C = I: its sensitivity is known, and nothing of that length is made."""
    found = plan(request("dp_skgd", strong_convexity=1e-6, smoothness=[2, 2]))
    total = found.parameters["inner"] * found.parameters["outer"]
    assert total > 10**6
    assert 0 <= found.noise["sensitivity"] ** 2 / total - 1 < 1e-15
    with pytest.raises(InvalidParameter, match="limit of 100000000 steps"):
        plan(request("dp_skgd", strong_convexity=1e-9))

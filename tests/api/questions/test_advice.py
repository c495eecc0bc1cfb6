"""Advice: the row is the comparison's best feasible one, and each answer is what that row says."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import factorize
from factorize import parse_spec
from factorize.api.commands.application import run
from factorize.api.questions.advice import advice_text, advise, request_of
from factorize.api.questions.comparison import comparison
from factorize.api.questions.training_job import FleetRequest, RecommendRequest, read_job
from factorize.errors import ConditionNotMet, InvalidParameter, InvalidSpec
from factorize.solvers.comparing.deadline import CALIBRATIONS, Deadline

FEW = [
    {"kind": "identity"},
    {"kind": "banded_square_root", "bands": 2},
    {"kind": "banded_inverse_square_root", "bands": 3},
    {"kind": "square_root"},
]


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four formulas in place of all mechanisms, whose searches would take their time here."""
    monkeypatch.setattr("factorize.solvers.comparing.plan.mechanisms", lambda *_: FEW)
    for name in ("optimised", "leads"):
        monkeypatch.setattr(f"factorize.solvers.comparing.plan.{name}", lambda *_: [])


def job(**changes: Any) -> RecommendRequest:
    usual = {"examples": 48, "batch_size": 6, "epochs": 2, "epsilon": 2.0, "delta": 1e-3, "memory": [2], "seconds": 600}
    asked = usual | {"samplings": ["fixed", "poisson", "cyclic_poisson"]} | changes
    return read_job({name: value for name, value in asked.items() if value is not None}, RecommendRequest)


def silent(*_: Any) -> None:
    """Take a report."""


@pytest.mark.parametrize("memory", [0, 1, 2])
@pytest.mark.parametrize("sampled", [True, False])
def test_the_row_is_the_best_feasible_row_of_the_comparison(memory: int, sampled: bool) -> None:
    asked = job(memory=[memory], **({} if sampled else {"samplings": ["fixed"]}))
    table = comparison(request_of(asked), None, silent)
    found = advise(asked, silent)
    feasible = [row for row in table["rows"] if row["noise_vectors"] <= memory]
    best = min(row["objective_at_privacy"] for row in feasible)
    assert found["row"]["objective_at_privacy"] == pytest.approx(best, rel=1e-3)  # 0.1 % may go for memory
    assert found["spec"]["objective"] == {"kind": "lambda_tau", "tau": 16}
    assert found["noise_vectors"] <= memory
    (note,) = found["notes"]
    assert "learning rate is constant" in note and "tau=16" in note
    assert request_of(job(objective={"kind": "mean"})).spec.document()["objective"] == {"kind": "mean"}
    assert {row["sampling"] for row in table["rows"]} == ({None, "poisson", "cyclic_poisson"} if sampled else {None})


def test_bands_under_b_min_sep_are_optimised_for_the_last_iterate_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `make_private` asks for them: by the mean alone models train worse (papers/pages/leaderboard.md)."""
    best = {"kind": "banded", "bands": 2}, {"kind": "b_min_sep", "epsilon": 2.0, "delta": 1e-3}
    monkeypatch.setattr("factorize.solvers.comparing.plan.optimised", lambda *_: [best])
    monkeypatch.setattr("factorize.solvers.comparing.plan.mechanisms", lambda *_: FEW[:1])
    table = comparison(request_of(job(samplings=["b_min_sep"])), None, silent)
    rows = [row for row in table["rows"] if row["spec"].get("sampling")]
    assert "b_min_sep" in {row["sampling"] for row in rows}
    assert all(row["spec"]["objective"] == {"kind": "lambda_tau", "tau": 16} for row in rows)


def test_the_answers_are_those_of_the_row() -> None:
    found = advise(job(), silent)
    again = factorize.solve(found["spec"])
    assert again.spec_digest == found["spec_digest"] == parse_spec(found["spec"]).digest
    assert f"--epsilon 2.0 --delta 0.001 --sampling {found['sampling']}" in found["next_command"]
    sizes = {"dataset_size": 48, "batch_size": 6, "divisor": 6}
    scale = again.calibrate(epsilon=2.0, delta=1e-3, sampling=found["sampling"], **sizes)
    assert scale.sigma_of_means == pytest.approx(found["sigma"]["means"], rel=1e-12)
    assert scale.sigma_of_sums == pytest.approx(found["sigma"]["sums"], rel=1e-12)
    # The error is sigma for sums times that of B = A C^-1, whose rows are the weights of Z in the iterates.
    error = np.sqrt((again.B**2).sum() / len(again.B))
    assert found["rmse_at_privacy"] == pytest.approx(found["sigma"]["sums"] * error, rel=1e-9)
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert found["job"]["steps"] == 16 and set(found["code"]) == {"torch", "jax", "numpy"}


def test_the_text_has_the_answers_and_the_code() -> None:
    found = advise(job(delta=0.03, examples=50, samplings=["fixed"]), silent)
    text = advice_text(found, ("numpy",))
    for told in (
        found["mechanism"],
        found["spec_digest"],
        found["next_command"],
        "for sums of contributions of norm 1",
    ):
        assert told in text
    text = advice_text({**found, "sigma": {**found["sigma"], "sums": 2.0000001, "means": 0.30000001}}, ("numpy",))
    assert "2.00001 for sums" in text and "0.300001 for means" in text  # with fewer digits no less noise
    assert "for means with the divisor 6" in text and "Secret:" in text and "--- numpy ---" in text
    assert "--- torch ---" not in text and "DP-SGD" in text
    assert any("2 of 50 examples are in no batch" in note for note in found["notes"])
    assert any("delta=0.03 is above 1 / examples = 0.02" in note for note in found["notes"])


def test_the_advice_is_kept_and_solved_again_from_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    store = ["--store", str(tmp_path / "store")]
    numbers = "--examples 50 --batch-size 6 --epochs 2 --epsilon 2 --delta 1e-3 --memory 2 --sampling fixed".split()
    words = ["momentum", "--momentum", "0.5", "--learning-rates", "cosine"]
    assert run(["recommend", *words, *numbers, "--output", "json", *store]) == 0
    out, err = capsys.readouterr()
    advice = json.loads(out)
    assert "2 of 50 examples are in no batch" in err  # at once, before anything is compared
    assert advice["spec"]["workload"]["learning_rates"] == {"kind": "cosine"}  # by its name, not as a list
    monkeypatch.setattr("factorize.solvers.solve", lambda *_, **__: pytest.fail("it is solved a second time"))
    _, _, command = advice["next_command"].partition("factorize ")
    assert run([*shlex.split(command.partition(" && ")[0].partition(" --to ")[0]), *store]) == 0
    assert "known before" in capsys.readouterr().out
    assert factorize.solve(advice["spec"]).spec_digest == advice["spec_digest"]  # as the printed code does
    names: dict[str, Any] = {"data": np.ones((50, 3)), "weights": np.zeros(3), "rate": 0.1, "gradients": np.subtract}
    exec(compile(advice["code"]["numpy"], "numpy", "exec"), names)
    expected = [(1 + np.cos(np.pi * step / 16)) / 2 for step in range(16)]
    assert names["rates"] == pytest.approx(expected) and np.isfinite(names["weights"]).all()


def test_a_data_set_has_more_examples_than_a_run_has_steps() -> None:
    """Sizes were bounded like steps, by 10^8, after everything had been solved."""
    found = advise(job(examples=10**10, batch_size=10**9, delta=1e-11), silent)
    assert found["row"]["sampling"] != "fixed"


def test_every_door_gives_one_advice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What HTTP posts, Python names and the command line types is one job, with one rate, basis and code."""
    numbers: dict[str, Any] = {"examples": 48, "batch_size": 6, "epochs": 2, "epsilon": 2.0, "delta": 1e-3}
    numbers |= {"memory": [2], "parameters": 900, "samplings": ["fixed"], "seconds": 600}
    posted = {**numbers, "workload": {"kind": "adamw", "learning_rates": {"kind": "cosine"}, "weight_decay": 0.5}}
    found = [advise(read_job(posted, RecommendRequest), silent)]
    found.append(factorize.recommend("adamw", learning_rates="cosine", weight_decay=0.5, **numbers).document)
    words = "--examples 48 --batch-size 6 --epochs 2 --epsilon 2 --delta 1e-3 --memory 2 --parameters 900 --seconds 600"
    words += " --sampling fixed --learning-rates cosine --weight-decay 0.5 --output json"
    assert run(["recommend", "adamw", *words.split(), "--store", str(tmp_path)]) == 0
    found.append(json.loads(capsys.readouterr().out))
    posted_advice, *others = found
    told = set(posted_advice) - {"row", "seconds_per_step", "budgets"}  # which have measured seconds
    for one in others:
        assert {name: one[name] for name in told} == {name: posted_advice[name] for name in told}
    rate = posted_advice["rate"]
    assert all(f"\nrate = {rate['value']!r} " in posted_advice["code"][name] for name in ("torch", "jax"))
    assert "docs/choose.md" in rate["basis"]


def test_a_fleet_gets_timers_and_the_lines_of_its_server() -> None:
    fleet = {"clients": 30, "clients_a_round": 6, "rounds": 16, "epsilon": 2.0, "delta": 1e-1, "memory": [2]}
    found = advise(read_job({**fleet, "seconds": 600}, FleetRequest), silent)
    spread = {"kind": "min_sep", "min_sep": 5, "max_participations": 4}  # four rounds of six others, and one's own
    assert (
        found["spec"]["participation"] == spread
        and {"min_sep": 5, "max_participations": 4}.items() <= found["job"].items()
    )
    assert found["sampling"] == "fixed" and found["secret"] == "nothing"
    assert found["sigma"]["means"] == pytest.approx(found["sigma"]["sums"] / 6)
    text = advice_text(found, tuple(found["code"]))
    assert "at most 4 of the rounds, at least 5 apart" in text and "FederatedRounds(" in text
    assert any("delta=0.1 is above 1 / clients" in note for note in found["notes"])
    with pytest.raises(InvalidParameter, match="of 5 clients, fewer than 6 can answer"):
        read_job({**fleet, "clients": 5}, FleetRequest)
    again = factorize.recommend(**{**fleet, "memory": 2}, seconds=600)
    assert again.spec == found["spec"]


def test_numbers_of_a_fleet_that_lack_one_are_refused_by_its_name() -> None:
    """As with the command, any field of a fleet makes it one: nobody is told that `examples` is missing."""
    with pytest.raises(InvalidSpec, match="^/clients: clients is required"):
        factorize.recommend(clients_a_round=6, rounds=16, epsilon=2.0, delta=1e-1)


def test_what_the_time_did_not_last_for_is_told_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Independent noise is tried, and calibrated under every sampling, however little time there is."""
    monkeypatch.setattr(Deadline, "over", lambda _self, share, *_: share == CALIBRATIONS)
    table = comparison(request_of(job(seconds=5)), None, silent)
    assert {row["mechanism"] for row in table["rows"] if row["sampling"]} == {"identity"}
    assert {row["mechanism"] for row in table["rows"]} >= {"banded_square_root", "square_root"}
    monkeypatch.setattr(Deadline, "over", lambda *_: True)
    found = advise(job(seconds=5), silent)
    _, note = found["notes"]
    assert found["mechanism"] == "identity" and found["converged"] and found["sampling"] == "poisson"
    assert "did not fit into 5 processor seconds" in note and "banded_square_root" in note
    assert note.endswith("give more: --seconds 30")
    table = comparison(request_of(job(seconds=5)), None, silent)
    late = [one["reason"] for one in table["refused"] if one["out_of_time"]]
    assert all(
        "the time for all, 5 processor seconds, is used up; give more (--seconds 30)" in reason for reason in late
    )


@pytest.mark.parametrize(
    "about",
    [
        {"workload": {"kind": "momentum", "momentum": 0.9, "learning_rates": {"kind": "cosine"}}},
        {"workload": {"kind": "schedule", "learning_rates": {"kind": "cosine"}}},
        {"objective": {"kind": "lambda_tau", "tau": 16}},
        {"workload": {"kind": "window", "width": 4}},
    ],
)
def test_who_names_a_schedule_or_an_objective_is_not_told_of_them(about: dict[str, Any]) -> None:
    assert job(**about).notes() == []
    assert "learning rate is constant" in job(workload={"kind": "momentum", "momentum": 0.9}).notes()[0]


@pytest.mark.parametrize(
    ("named", "stands_for"),
    [
        ({"kind": "adamw", "learning_rates": {"kind": "cosine"}}, {"kind": "momentum", "momentum": 0.9}),
        ({"kind": "adam", "beta": 0.8}, {"kind": "momentum", "momentum": 0.8}),
        ({"kind": "sgd", "weight_decay": 1e-3, "learning_rates": {"kind": "cosine"}}, {"kind": "schedule"}),
        ({"kind": "other"}, {"kind": "prefix"}),
    ],
)
def test_an_optimizer_is_answered_for_the_nearest_workload(named: dict[str, Any], stands_for: dict[str, Any]) -> None:
    asked = job(workload=named)
    rates = {"learning_rates": named["learning_rates"]} if "learning_rates" in named else {}
    assert asked.sums == {**stands_for, **rates}
    assert any("privacy is proved" in note and "error is an estimate" in note for note in asked.notes())
    assert request_of(asked).spec == request_of(job(workload=asked.sums)).spec


def test_optimizers_are_said_in_words_and_their_code_is_their_own() -> None:
    numbers: dict[str, Any] = {"examples": 48, "batch_size": 6, "epochs": 2, "epsilon": 2.0, "delta": 1e-3, "memory": 2}
    found = factorize.recommend(
        "AdamW", learning_rates="warmup_cosine", weight_decay=0.1, samplings=["fixed"], seconds=600, **numbers
    )
    assert found.spec["workload"]["learning_rates"] == {"kind": "warmup_cosine", "warmup": 1}
    assert "torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.999), weight_decay=0.1)" in found.code["torch"]
    assert "optax.adamw(" in found.code["jax"] and "the privacy is the same" in found.code["numpy"]
    assert any("1 of 16 steps" in note for note in found.document["notes"])
    with pytest.raises(InvalidSpec, match="'sophia' is not a known optimizer or workload; .*other takes any"):
        factorize.recommend("sophia", **numbers)
    with pytest.raises(InvalidSpec, match="/workload: write an object"):
        factorize.recommend("3", **numbers)
    with pytest.raises(InvalidSpec, match="/workload/beta1: Input should be less than 1"):
        factorize.recommend("adam", beta1=2, **numbers)
    with pytest.raises(InvalidParameter, match="epsilon, delta belongs to sampling, which is not set"):
        factorize.solve("prefix", n=8, epsilon=2.0, delta=1e-5)


def test_one_epoch_leaves_random_allocation_to_the_bins() -> None:
    request = request_of(job(epochs=1, samplings=None, objective={"kind": "max"}))
    assert request.samplings is not None and "random_allocation" not in request.samplings
    assert request.spec.participation.single and request.spec.objective.kind == "max"
    assert request_of(job(samplings=None)).samplings is None


def test_a_memory_that_nothing_fits_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("factorize.solvers.comparing.plan.mechanisms", lambda *_: FEW[3:])
    with pytest.raises(ConditionNotMet, match="no mechanism keeps 2 vectors or fewer; allow more memory"):
        advise(job(samplings=["fixed"]), silent)

"""Several memory budgets in one run, and the seconds of a step, by a count of operations and by hand."""

from __future__ import annotations

from typing import Any

import pytest

import factorize
from factorize.api.questions.advice import advice_text, advise
from factorize.api.questions.comparison import text
from factorize.api.questions.step_pace import StepPace, step_pace
from factorize.api.questions.training_job import RecommendRequest, read_job
from factorize.errors import InvalidParameter, InvalidSpec
from factorize.format.quantities import at_least


def few(_spec: Any, budget: int | None) -> list[dict[str, Any]]:
    """A formula for each budget, in place of all mechanisms."""
    bands = {"kind": "banded_inverse_square_root", "bands": 1 + (budget or 0)}
    return [{"kind": "identity"}, bands, {"kind": "square_root"}]


@pytest.fixture(autouse=True)
def formulas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("factorize.solvers.comparing.plan.mechanisms", few)


def test_one_run_answers_for_each_budget_what_a_run_of_its_own_does() -> None:
    both = factorize.compare("prefix", n=16, buffers=[3, 1, 1], progress=False).document
    assert [one["budget"] for one in both["recommendations"]] == [1, 3] and both["budget"] == 3
    for one in both["recommendations"]:
        alone = factorize.compare("prefix", n=16, buffers=one["budget"], progress=False)
        assert alone.recommended is not None
        assert both["rows"][one["row"]]["spec_digest"] == alone.recommended["spec_digest"]
    digests = [row["spec_digest"] for row in both["rows"]]
    assert len(digests) == len(set(digests)) == 4  # what both budgets ask for is solved once
    assert text(both).count("\n*") == 2 + 2 and "next, within 1: factorize solve" in text(both)


def test_the_seconds_of_a_step_are_normals_and_operations() -> None:
    pace = StepPace(normal=10e-9, operation=1e-9)
    row = {"redraws": 0.5, "flops": 8.0, "noise_vectors": 4}
    assert pace.seconds(row, 1000, 64) == pytest.approx(1000 * (15e-9 + 8e-9))
    whole = {"redraws": 0.0, "flops": 64.0, "noise_vectors": 64}
    assert pace.seconds(whole, 1000, 64) == pytest.approx(1000 * 74e-9)  # 512 kB of Z are kept
    # 5 GB of Z are not: rows are drawn again, 32 on average, for 16 steps at once.
    assert pace.seconds(whole, 10**7, 64) == pytest.approx(10**7 * (10e-9 * 3 + 64e-9))
    assert 0 < step_pace().operation and 0 < step_pace().normal < 1e-5


def test_rows_say_what_a_step_takes_and_what_the_loader_does() -> None:
    table = factorize.compare("prefix", n=8, buffers=1, parameters=1000, progress=False)
    assert table.document["step_pace"]["parameters"] == 1000
    rows = {row["mechanism"]: row for row in table}
    assert 0 < rows["identity"]["seconds_per_step"] < rows["square_root"]["seconds_per_step"]
    assert all("Keep to the spec's participation" in row["loader"] for row in table)
    assert "s/step: noise of a step for 1000 parameters" in repr(table)
    assert factorize.compare("prefix", n=8, progress=False).rows[0]["seconds_per_step"] is None


def test_advice_for_several_budgets_shows_each() -> None:
    usual: dict[str, Any] = {"examples": 48, "batch_size": 6, "epochs": 2, "epsilon": 2.0, "delta": 1e-3}
    asked = read_job(
        usual | {"memory": [0, 2], "samplings": ["fixed"], "parameters": 10**6, "seconds": 600}, RecommendRequest
    )
    found = advise(asked, lambda *_: None)
    assert [one["memory"] for one in found["budgets"]] == [0, 2]
    assert found["budgets"][0]["mechanism"] == "identity" and found["budgets"][1]["mechanism"] == found["mechanism"]
    assert found["budgets"][1]["rmse_at_privacy"] < found["budgets"][0]["rmse_at_privacy"]
    shown = advice_text(found, ())
    assert "memory 0    identity, fixed" in shown and "s a step for 1000000 parameters" in shown


def test_two_ways_to_say_the_memory_are_refused() -> None:
    from factorize.api.questions.comparison import read_request
    from factorize.solvers.comparing.compare import compare

    with pytest.raises(InvalidSpec, match="budgets replaces buffers"):
        read_request({"spec": {"workload": {"kind": "prefix", "n": 4}}, "buffers": 1, "budgets": [2]})
    with pytest.raises(InvalidParameter, match="give one or the other"):
        compare(factorize.Spec.of("prefix", n=4), budgets=[-1])


def test_no_sigma_or_sensitivity_of_a_table_is_rounded_down() -> None:
    asked: dict[str, Any] = {"epsilon": 2.0, "delta": 0.01, "dataset_size": 16, "batch_size": 2}
    table = factorize.compare("prefix", n=8, **asked, samplings=["poisson"], progress=False).document
    for row in table["rows"]:
        row["sigma_of_sums"] = 1.00001
    assert text(table).count("         1.0001  ") == len(table["rows"])
    plain = factorize.compare("prefix", n=8, progress=False).document
    for row in plain["rows"]:
        row["sensitivity"]["value"] = 1.0001
    plain["lower_bound"]["objective"] = 1.9999999999
    assert text(plain).count("    1.001  exact") == len(plain["rows"]) and "lower bound 1.99999999 (" in text(plain)


def test_only_the_mean_objective_bounds_the_error_that_rows_show() -> None:
    asked: dict[str, Any] = {"n": 4, "epochs": 2, "epsilon": 2.0, "delta": 0.01, "samplings": ["balls_in_bins"]}
    mean = factorize.compare("prefix", **asked, progress=False)
    summed = factorize.compare("prefix", **asked, weights=[1.0] * 4, progress=False)  # four times the mean
    bound = mean.document["sampled_bounds"]["balls_in_bins"]["objective"]
    assert f"at this privacy, rmse {at_least(bound**0.5, 5)}" in repr(mean)
    assert f"lower bound under balls_in_bins: {4 * bound:.5g}"[:-1] in repr(summed) and ", rmse" not in repr(summed)

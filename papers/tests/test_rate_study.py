"""The study of learning rates trains what it says: gradients, optimizers and batches by other routes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch: Any = pytest.importorskip("torch", reason="needs torch; `make test-frameworks` runs it")

from factorize.training.learning_rate import LIMITS, best_rate  # noqa: E402
from papers.leaderboard import layered_models as layered  # noqa: E402
from papers.leaderboard import rate_predictors as predictors  # noqa: E402
from papers.leaderboard import rate_study as study  # noqa: E402
from papers.leaderboard import trained_jobs  # noqa: E402

NETWORKS = {
    "logistic": (layered.logistic(9, 4), 1),
    "perceptron": (layered.perceptron(9, 4, 5), 1),
    "convolution": (layered.convolution(9, 4, 6), 5),
    "transformer": (layered.transformer(9, 4, 8, 5), 5),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_clipped_sums_are_those_of_gradients_made_example_by_example(name: str) -> None:
    network, positions = NETWORKS[name]
    luck = torch.Generator().manual_seed(1)
    weights = network.start() + 0.1 * torch.randn(2, 3, network.size, generator=luck)
    x, y = torch.randn(2, 7, positions, 9, generator=luck), torch.randint(0, 4, (2, 7), generator=luck)
    present = torch.ones(2, 7)
    present[1, 5:] = 0
    found = network.clipped_sum(weights, x, y, present, 0.5)
    expected = torch.zeros_like(weights)
    for seed, model, place in np.ndindex(2, 3, 7):
        own = weights[seed, model].clone().requires_grad_()
        scores = network.passed(own[None, None], x[seed, place][None, None, None])[1][0, 0]
        (gradient,) = torch.autograd.grad(torch.nn.functional.cross_entropy(scores, y[seed, place][None]), own)
        expected[seed, model] += present[seed, place] * gradient * min(1.0, 0.5 / float(gradient.norm()))
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(("kind", "momentum"), [("sgd", 0.0), ("sgd", 0.9), ("adam", 0.9), ("adamw", 0.9)])
def test_every_model_steps_as_by_the_optimizer_of_torch(kind: str, momentum: float) -> None:
    network, luck = layered.perceptron(9, 4, 5), np.random.default_rng(2)
    x = torch.as_tensor(luck.standard_normal((20, 1, 9), dtype=np.float32))
    y = torch.as_tensor(luck.integers(0, 4, 20))
    schedule, noise = np.linspace(1, 0.2, 4), luck.standard_normal((4, network.size)).astype(np.float32)
    batches = [luck.permutation(20)[:8] for _ in range(4)]
    rates = np.array([0.02, 0.3])
    mapped = layered.Mapped(kind, rates, schedule, momentum)
    found = layered.trained(network, (x, y), [batches], [noise], mapped, sigma=0.1, clip_norm=1.0, divisor=8)
    for model, rate in enumerate(rates):
        weights = torch.nn.Parameter(network.start())
        own = {"sgd": {"momentum": momentum}, "adam": {}, "adamw": {}}[kind]
        optimizer = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[kind](
            [weights], lr=rate, **own
        )
        for step, batch in enumerate(batches):
            optimizer.param_groups[0]["lr"] = rate * schedule[step]
            place = torch.as_tensor(batch)[None]
            total = network.clipped_sum(weights.detach()[None, None], x[place], y[place], torch.ones(1, 8), 1.0)
            weights.grad = total[0, 0] / 8 + 0.1 * torch.as_tensor(noise[step])
            optimizer.step()
        torch.testing.assert_close(found[0, model], weights.detach(), atol=1e-5, rtol=1e-4)


def test_rates_go_on_until_the_best_is_inside() -> None:
    assert study.more_rates({1.0: 90.0, 2.0: 95.0, 4.0: 80.0}).size == 0
    assert study.more_rates({1.0: 90.0, 2.0: 95.0}).tolist() == [4.0, 8.0, 16.0]
    assert study.more_rates({1.0: 90.0, 2.0: 85.0}).tolist() == [0.125, 0.25, 0.5]
    assert study.more_rates({1.0: 1.0, 2.0**14: 2.0}).size == 0


@pytest.fixture(scope="module")
def solved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("solved")


def test_errors_are_those_of_the_recursion_of_weights(solved: Path) -> None:
    job = study.QUICK_JOBS[0]
    factors = study.factors_of(job, "buffered_linear, public order", solved)
    found = study.errors_of(job, factors)
    workload = factors.spec.workload
    summed = workload.apply(factors.rows("C_inv", 0, job.steps))  # momentum sums gradients; averages are a tenth of it
    errors = 0.1 * np.linalg.norm(summed, axis=1)
    assert found["last"][0] == pytest.approx(errors[-1], abs=1e-4)
    assert found["mean"][0] == pytest.approx(np.sqrt(np.mean(errors**2)), abs=1e-4)
    assert found["last"] == sorted(found["last"], reverse=True)


def test_a_quick_run_has_all_rows_and_goes_on_where_it_was(
    solved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(study, "GRID", 2)
    monkeypatch.setattr(study, "SEEDS", 2)
    monkeypatch.setattr(study, "more_rates", lambda accuracies: np.array([]))
    path = tmp_path / "rates.jsonl"
    cells = list(study.run(study.QUICK_JOBS, path, None, solved))
    assert [cell["row"] for cell in cells] == list(study.ROWS) and study.cells(path) == cells
    assert all(len(cell["test"]) == len(cell["rates"]) == 2 and len(cell["test"][0]) == 2 for cell in cells)
    assert all(0 <= value <= 100 for cell in cells for values in cell["test"] for value in values)
    assert not list(study.run(study.QUICK_JOBS, path, None, solved)), "nothing is trained twice"
    assert study.told(cells[0]).startswith("adamw cosine perceptron digits 24 10 3 8.0 0.01: without privacy: ")
    (trained,) = trained_jobs.trained_jobs(study.QUICK_JOBS, path)
    verdict = predictors.Verdict.of(trained)
    assert (
        verdict.first == "blt, balls in bins"
        and verdict.own <= verdict.most
        and "| blt, balls in bins |" in verdict.line()
    )


def made_cell(job: study.RateJob, row: str, sigma: float, best: float, top: float) -> dict[str, Any]:
    """A cell whose accuracy falls by two points for each doubling away from a rate."""
    found = [[top - 2 * abs(np.log2(rate / best))] * 4 for rate in (best * 2.0 ** np.arange(-3, 4)).tolist()]
    noise = {"sigma": sigma, "single": 1.0, "last": [5.0] * 8, "mean": [4.0] * 8, "parameters": 100}
    rates = (best * 2.0 ** np.arange(-3, 4)).tolist()
    return {"job": vars(job), "row": row, **noise, "rates": rates, "train": found, "test": found}


def test_the_fit_finds_the_limits_that_made_the_rates(tmp_path: Path) -> None:
    job, other = (replace(study.SEEN_JOBS[3], epsilon=epsilon) for epsilon in (1.0, 2.0))
    limits = predictors.FIRST_LIMITS._replace(walk=12.0, reach=6.0)
    path, rows = tmp_path / "rates.jsonl", list(study.ROWS)[1:]
    cells = []
    for one, scale in ((job, 1.0), (other, 0.3)):
        cells.append(made_cell(one, study.NO_PRIVACY, 0.0, 1.0, 99.0))
        for place, row in enumerate(rows):
            sigma = scale * 0.02 * 2**place
            shape = {"steps": one.steps, "average": trained_jobs.mean_rate(one), "limits": limits, "checked": False}
            best = best_rate("sgd", 0.0, 100, 5 * sigma, sigma, **shape)
            cells.append(made_cell(one, row, sigma, best, 90.0 - place))
    path.write_text("".join(json.dumps(cell) + "\n" for cell in cells))
    found = trained_jobs.trained_jobs([job, other], path)
    assert [one.job for one in found] == [job, other] and list(found[0].rows) == rows
    assert found[0].rank(trained_jobs.ALL_STEPS) == pytest.approx(1.0)
    assert predictors.octaves(found, limits) == pytest.approx(np.zeros(12))
    fitted = predictors.fitted(found)
    assert (fitted.walk, fitted.reach) == pytest.approx((12.0, 6.0), rel=0.1)
    first = found[0].rows[rows[0]]
    assert first.lost_at(first.numbers["rates"][3] * 2**0.5) == pytest.approx(1)
    assert first.lost_at(first.numbers["rates"][-1] * 2) == pytest.approx(6 + 4)
    verdict = predictors.Verdict.of(found[0], limits)
    assert (verdict.first, verdict.best) == (rows[0], rows[0])
    assert verdict.own == verdict.most == verdict.public == 90 == pytest.approx(verdict.reached)
    assert verdict.dp_sgd == 90 - rows.index("independent, Poisson") and not verdict.near(89.6) and verdict.near(89.8)
    assert predictors.counts([verdict])["dp_sgd_ahead"] == 0


def test_the_results_that_are_shipped_are_of_the_jobs_that_are_named() -> None:
    there = {study.RateJob(**cell["job"]) for cell in study.cells(study.RESULTS)}
    lists = (study.SEEN_JOBS, study.HELD_OUT_JOBS, study.NEWEST_JOBS, *study.JUDGED_LISTS)
    assert there <= set(sum(lists, [])) and len(set(sum(lists, []))) == sum(map(len, lists))
    assert len(study.cells(study.RESULTS)) >= 80


def test_the_package_states_what_the_results_say() -> None:
    assert predictors.stated() == json.loads(predictors.STATED_FILE.read_text())
    again = predictors.fitted(trained_jobs.trained_jobs(study.SEEN_JOBS))
    assert again[:4] == pytest.approx(LIMITS[:4], rel=0.01)

"""The leaderboard trains what it says, chooses by training accuracy, and its page is made of the kept results."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from made import Replayed, made_images

from factorize.training import fixed_order
from papers.leaderboard import accuracy_predictors as predictors
from papers.leaderboard import leaderboard, many_models
from papers.leaderboard import leaderboard_page as page
from papers.leaderboard.__main__ import GRIDS, grid_for
from papers.leaderboard.made_table import made_table
from papers.leaderboard.systems import SYSTEMS
from papers.reproductions.kept_results import KeptResults
from papers.training import PlainSums, Sgd, SoftmaxRegression, dp_ftrl


@pytest.mark.parametrize("scheduled", [False, True])
@pytest.mark.parametrize("momentum", [0.0, 0.9, np.array([0.9, 0.0])])
def test_all_models_of_all_seeds_at_once_are_dp_ftrl(
    monkeypatch: pytest.MonkeyPatch, momentum: float | np.ndarray, scheduled: bool
) -> None:
    images = made_images()
    monkeypatch.setattr(many_models, "PIECE_EXAMPLES", 10)  # batches then come in pieces
    orders = [fixed_order(96, 24, epochs=2, seed=1), fixed_order(96, 24, epochs=2, seed=2)]
    uneven = [list(orders[0]), [batch[: 24 - 3 * step] for step, batch in enumerate(orders[1])]]
    noise = [np.random.default_rng(seed).standard_normal((8, 100)).astype(np.float32) for seed in (3, 4)]
    models = many_models.Models(np.array([0.0, 0.02]), np.array([0.5, 0.2]), momentum, 0.7, 24)
    falls = np.stack([np.linspace(1, 0.1, 8), np.ones(8)], axis=1) if scheduled else None
    models = replace(models, schedule=falls)
    found = many_models.trained(images, uneven, noise, models)
    assert found.shape == (2, 10, 2, 10)
    gradient = SoftmaxRegression(images.train.astype(float), images.train_labels, 10)
    for seed, batches in enumerate(uneven):
        for model in range(2):
            sums = PlainSums(divisor=24, clip_norm=0.7, noise=Replayed(noise[seed], models.sigmas[model], (10, 10)))
            own = float(np.broadcast_to(momentum, 2)[model])
            rates = None if falls is None else falls[:, model].tolist()
            optimizer = Sgd(learning_rate=float(models.rates[model]), momentum=own, schedule=rates)
            one = dp_ftrl(gradient, np.zeros((10, 10)), batches, sums, optimizer=optimizer)
            np.testing.assert_allclose(found[seed, :, model], one.weights, atol=2e-5)


@pytest.mark.slow
def test_a_run_has_a_row_for_each_system_at_its_own_noise(tmp_path: Path) -> None:
    names = ("DP-SGD, fixed order", "DP-GD, full batch", "tree, full Honaker")
    grid = leaderboard.Grid(24, (1.0, 8.0), (1, 2), rates=(0.0, 0.5), limits=(0.0, 1.0), seeds=2, systems=names)
    kept = KeptResults(tmp_path / "trials.json", {})
    leaderboard.run(made_images(), grid, kept, tmp_path / "solved")
    rows = leaderboard.results(grid, kept)
    assert [(row["system"], row["epochs"]) for row in rows if row["epsilon"] in (None, 8.0)] == [
        (name, epochs) for epochs in (1, 2) for name in (*names, "without privacy")
    ]
    by_point = {(row["system"], row["epochs"], row["epsilon"]): row for row in rows}
    whole, parts = (by_point[name, 2, 1.0] for name in (names[1], names[0]))
    assert whole["sigma"] == pytest.approx(
        parts["sigma"] * 24 / 96, rel=1e-5
    )  # both take two of each example, in means of more
    assert by_point[names[0], 2, 8.0]["sigma"] < parts["sigma"]
    assert by_point["without privacy", 2, None]["rate"] > 0  # 0 learns nothing
    assert all(row["tried"] in ([0.0, 0.5], [0.0, 1.0]) and row["rate"] <= row["tried"][1] for row in rows)
    assert any(row["tried"] == [0.0, 1.0] for row in rows)  # the best of 0 and 0.5 is at an end
    assert all(len(row["accuracies"]) == 2 and 0 <= row["mean"] <= 100 for row in rows)
    looks = page.LOOKS
    assert list(looks) == [system.name for system in SYSTEMS]
    assert all(len(set(kind)) == len(looks) for kind in zip(*looks.values(), strict=True))  # none shares one


def test_a_quick_run_has_every_system_of_its_data() -> None:
    images = made_images()
    for name, grid in GRIDS.items():
        quick = grid_for(name, images, quick=True)
        assert quick.systems == grid.systems, name
        assert quick.next_rate({0.3: 1.0, 1.0: 2.0}) is None  # no more rates
        assert (quick.epochs, quick.seeds, len(quick.epsilons)) == ((2,), 2, 1)


def test_rates_go_on_until_the_best_is_not_at_an_end() -> None:
    grid = leaderboard.Grid(8, (1.0,), (1,), limits=(0.01, 30.0))
    assert grid.next_rate({3.0: 80.0, 10.0: 90.0}) == 30.0
    assert grid.next_rate({10.0: 80.0, 30.0: 90.0}) is None  # the largest there is
    assert grid.next_rate({0.03: 90.0, 0.1: 80.0}) == 0.01
    assert grid.next_rate({0.03: 90.0, 0.1: 90.0, 0.3: 80.0}) is None  # no better than the next one: a plateau
    assert grid.next_rate({1.0: 70.0, 3.0: 90.0, 10.0: 80.0}) is None
    assert leaderboard.best_rate({3.0: 90.0, 1.0: 90.0, 0.3: 80.0}) == 1.0
    assert leaderboard.RATES == (1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)


def test_the_made_table_has_the_form_of_covertype() -> None:
    table = made_table()
    assert table.train.shape == (20_000, 55) and table.test.shape == (5_000, 55) and table.classes == 7
    categories = table.train[:, 10:54]
    np.testing.assert_array_equal(categories[:, :4].sum(axis=1), 1)
    np.testing.assert_array_equal(categories[:, 4:].sum(axis=1), 1)
    assert np.linalg.norm(table.train, axis=1).max() <= 6**0.5 + 1e-6
    assert 0.45 < (table.train_labels == 1).mean() < 0.5


def test_epochs_are_chosen_by_training_accuracy() -> None:
    rows = [
        {"system": "a", "epochs": 1, "epsilon": 2.0, "training": 80.0, "mean": 90.0, "error": 0.1},
        {"system": "a", "epochs": 4, "epsilon": 2.0, "training": 85.0, "mean": 70.0, "error": 0.2},
        {
            "system": "without privacy",
            "epochs": 4,
            "epsilon": None,
            "training": 99.0,
            "mean": 95.0,
            "error": 0.3,
        },
    ]
    rows = [{**row, "rate": 1.0, "tried": [0.3, 1.0]} for row in rows]
    grid = {"epsilons": [2.0], "epochs": [1, 4], "batch": 8, "delta": 1e-6, "clip_norm": 1.0, "rates": [1], "seeds": 2}
    grid["systems"] = ["a"]
    document = {"data": "digits", "date": "2026-11-21", "examples": 96, "processor_seconds": 60.0}
    text = page.measured([{**document, "grid": grid, "rows": rows}])
    assert "| a | **70.00 +- 0.20 (4)** |" in text and "| a | **90.00 +- 0.10** |" in text
    assert "| without privacy | 95.00 +- 0.30 (4) |" in text


@pytest.mark.slow
def test_the_page_is_that_of_the_kept_results(tmp_path: Path) -> None:
    found, text = page.documents(), page.PAGE.read_text()
    assert page.page(text, found) == text
    page.draw(found, tmp_path / "drawn.png")
    assert (tmp_path / "drawn.png").stat().st_size > 20_000
    with pytest.raises(ValueError, match="holds no results"):
        page.documents(tmp_path)


@pytest.mark.slow
def test_the_study_predicts_what_it_trains_and_reports_its_cells(tmp_path: Path) -> None:
    job = predictors.TrainingJob(96, 12, 2)
    images = made_images()
    kept = predictors.run(images, images, [job], 3, tmp_path)
    found = predictors.cells(kept, [job], 4)
    assert [one.optimizer for one in found] == 2 * list(predictors.OPTIMIZERS)
    names = list(predictors.STRATEGIES)
    for name, optimizer, objective in (
        ("buffered, prefix, mean", "SGD", "mean"),
        ("buffered, prefix, lambda_T", "SGD", "lambda_T"),
        ("blt, prefix, max", "SGD", "max"),
        ("blt, momentum and schedule, lambda_T", "momentum, cosine", "lambda_T"),
    ):
        factors = predictors.solved_once(tmp_path, predictors.spec(name, job))
        cell = next(one for one in found if one.optimizer == optimizer)
        sigma = predictors.sigma(name, factors, job, 4.0)
        rmse = sigma / factors.certificate.sensitivity.value * factors.certificate.loss.objective**0.5
        assert cell.predictions[f"its own optimizer, {objective}"][names.index(name)] == pytest.approx(rmse, rel=1e-6)
    for cell in found:
        assert cell.accuracies.shape == (12, 3) and np.all((cell.accuracies >= 0) & (cell.accuracies <= 100))
    trial = kept.found(f"0 {predictors.place(job, names[0])}").reshape(2, 2, 4, 7)
    assert found[0].accuracies[0, 0] in trial[1, 0, 0]
    told = predictors.report(found)
    assert "running sums, mean" in told and told.count("\n| ") == 12 + 1 + 1 + 12 + 1
    assert len(predictors.run(images, images, [job], 3, tmp_path)) == len(kept), "nothing is trained twice"

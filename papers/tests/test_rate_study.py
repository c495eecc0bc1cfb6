"""The study of learning rates trains what it says: gradients, optimizers and batches by other routes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch: Any = pytest.importorskip("torch", reason="needs torch; `make test-frameworks` runs it")

from papers.leaderboard import layered_models as layered  # noqa: E402
from papers.leaderboard import rate_study as study  # noqa: E402

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


def test_errors_are_those_of_the_recursion_of_weights(tmp_path: Path) -> None:
    job = study.QUICK[0]
    factors = study.factors_of(job, "buffered_linear, public order", tmp_path)
    found = study.errors_of(job, factors)
    workload = factors.spec.workload
    summed = workload.apply(factors.rows("C_inv", 0, job.steps))  # momentum sums gradients; averages are a tenth of it
    errors = 0.1 * np.linalg.norm(summed, axis=1)
    assert found["last"][0] == pytest.approx(errors[-1], abs=1e-4)
    assert found["mean"][0] == pytest.approx(np.sqrt(np.mean(errors**2)), abs=1e-4)
    assert found["last"] == sorted(found["last"], reverse=True)


def test_a_quick_run_has_all_rows_and_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study, "GRID", 2)
    monkeypatch.setattr(study, "SEEDS", 2)
    monkeypatch.setattr(study, "more_rates", lambda accuracies: np.array([]))
    path, rows = tmp_path / "rates.jsonl", ["independent, public order", "independent, Poisson"]
    monkeypatch.setattr(study, "ROWS", {name: study.ROWS[name] for name in rows})
    cells = list(study.run(study.QUICK, path, None, tmp_path))
    assert [cell["row"] for cell in cells] == rows and study.cells(path) == cells
    assert all(len(cell["test"]) == len(cell["rates"]) == 2 and len(cell["test"][0]) == 2 for cell in cells)
    assert all(0 <= value <= 100 for cell in cells for values in cell["test"] for value in values)
    assert not list(study.run(study.QUICK, path, None, tmp_path)), "nothing is trained twice"
    assert study.told(cells[0]).startswith("adamw cosine perceptron digits 24 10 3 8.0: independent, public order: ")

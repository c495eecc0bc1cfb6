"""The code of a recommendation: what is printed for numpy runs, and its noise is that of the calibration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from factorize.adapters.federated import FederatedRounds
from factorize.api.questions import job_code
from factorize.api.questions.job_code import codes
from factorize.api.questions.training_job import FleetRequest, RecommendRequest
from factorize.spec import parse_spec

JOB = RecommendRequest(examples=43, batch_size=10, epochs=2, epsilon=2.0, delta=1e-4)
BANDED = {"kind": "banded_square_root", "bands": 2}
IDENTITY = {"kind": "identity"}


def small_spec(mechanism: dict[str, Any], **workload: Any) -> dict[str, Any]:
    document = {"workload": {"kind": "prefix", "n": JOB.run.steps, **workload}, "mechanism": mechanism}
    return parse_spec({**document, "participation": {"kind": "fixed_epochs", "epochs": 2}}).canonical().document()


class Job:
    """The names that the code leaves to the job: a mean of points by gradient descent."""

    def __init__(self) -> None:
        self.batches: list[int] = []
        points = np.random.default_rng(0).normal(size=(JOB.examples, 3))
        self.names: dict[str, Any] = {"data": points, "weights": np.zeros(3), "rate": 0.1, "gradients": self.gradients}

    def gradients(self, weights: np.ndarray, points: np.ndarray) -> np.ndarray:
        self.batches.append(len(points))
        return weights - points


@pytest.mark.parametrize(
    ("sampling", "mechanism", "workload"),
    [
        ("fixed", BANDED, {}),
        ("fixed", BANDED, {"kind": "momentum", "momentum": 0.9}),
        ("fixed", BANDED, {"kind": "momentum", "momentum": 0.9, "nesterov": True}),
        ("cyclic_poisson", BANDED, {}),
        ("poisson", IDENTITY, {}),
        ("balls_in_bins", BANDED, {}),
        ("random_allocation", IDENTITY, {}),
        ("b_min_sep", BANDED, {}),
    ],
)
def test_the_code_for_numpy_runs(sampling: str, mechanism: dict[str, Any], workload: dict[str, Any]) -> None:
    job = Job()
    text = codes(JOB, small_spec(mechanism, **workload), sampling)["numpy"]
    exec(compile(text, "numpy", "exec"), job.names)
    assert len(job.batches) == JOB.run.steps == 8 and job.names["scale"].epsilon == 2.0
    assert job.names["weights"].shape == (3,) and np.isfinite(job.names["weights"]).all() and job.names["weights"].any()
    assert job.names["noise"].step == 8 if hasattr(job.names["noise"], "step") else True
    fixed = sampling == "fixed"
    assert (set(job.batches) == {10}) == fixed  # random batches of just these sizes: probability below 1e-6
    assert getattr(job.names["scale"], "sampling", "fixed") == sampling or fixed or sampling == "poisson"
    assert job.names["scale"].divisor is None and job.names["scale"].clip_norm == 1.0


def test_every_framework_has_some_twenty_lines_at_most_that_python_reads() -> None:
    for sampling in ("fixed", "cyclic_poisson", "balls_in_bins", "poisson", "random_allocation"):
        for framework, text in codes(JOB, small_spec(BANDED), sampling).items():
            compile(text, framework, "exec")
            body = [line for line in text.split("\n\n", 1)[1].splitlines() if line]
            assert 9 <= len(body) <= 21, (framework, sampling)


def test_a_long_spec_is_read_from_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_code, "MAX_SPEC_CHARACTERS", 10)
    text = codes(JOB, small_spec(BANDED), "fixed")["numpy"]
    assert 'json.loads(Path("spec.json").read_text())' in text and "import json" in text and "bands" not in text


RATES = {"kind": "momentum", "momentum": 0.5, "learning_rates": {"kind": "cosine"}}


@pytest.mark.parametrize("workload", [{"kind": "prefix"}, RATES, {**RATES, "nesterov": True}])
def test_the_code_for_a_server_of_federated_training_runs(
    workload: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every client sends ones, so that the model is the optimizer's own sum of ones, up to the noise."""
    monkeypatch.chdir(tmp_path)
    fleet = FleetRequest(clients=9, clients_a_round=2, rounds=6, epsilon=1e6, delta=1e-4)
    document = {"workload": {"n": 6, **workload}, "participation": fleet.run.participation, "mechanism": IDENTITY}
    spec = parse_spec(document).canonical()
    names: dict[str, Any] = {
        "model": [np.zeros(4)],
        "seed": 7 << 64,
        "connected": lambda: [f"client {i}" for i in range(9)],
        "update_of": lambda _client, model: [np.full_like(model[0], 0.25)],
    }
    (text,) = codes(fleet, document, "fixed").values()
    exec(compile(text, "federated", "exec"), names)
    rounds = names["rounds"]
    assert isinstance(rounds, FederatedRounds) and rounds.step == 6 and (tmp_path / "receipt.json").exists()
    expected = 0.25 * spec.workload.dense()[-1].sum()
    assert names["model"][0] == pytest.approx(np.full(4, expected), abs=0.05)

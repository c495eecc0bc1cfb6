"""The code that `factorize recommend` prints for torch and JAX runs as it is printed."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
import torch
from jax import numpy as jnp

from factorize.api.questions.job_code import codes
from factorize.api.questions.training_job import RecommendRequest
from factorize.spec import parse_spec

ASKED: dict[str, Any] = {"examples": 43, "batch_size": 10, "epochs": 2, "epsilon": 2.0, "delta": 1e-4}
JOB = RecommendRequest(**ASKED)
DECAYED = RecommendRequest(**ASKED, workload={"kind": "adamw", "weight_decay": 0.01})
CASES = [
    ("fixed", {"kind": "banded_square_root", "bands": 2}, {}),
    (
        "fixed",
        {"kind": "identity"},
        {"kind": "momentum", "momentum": 0.9, "learning_rates": {"kind": "cosine"}},
    ),
    ("cyclic_poisson", {"kind": "banded_square_root", "bands": 2}, {}),
    ("poisson", {"kind": "identity"}, {}),
    ("balls_in_bins", {"kind": "banded_square_root", "bands": 2}, {}),
    ("random_allocation", {"kind": "identity"}, {}),
]
X = np.random.default_rng(0).normal(size=(JOB.examples, 3)).astype(np.float32)
Y = X @ np.array([1.0, -1.0, 0.5], dtype=np.float32)


def code(
    framework: str, sampling: str, mechanism: dict[str, Any], workload: dict[str, Any], job: RecommendRequest = JOB
) -> Any:
    document = {"workload": {"kind": "prefix", "n": JOB.run.steps, **workload}, "mechanism": mechanism}
    spec = parse_spec({**document, "participation": {"kind": "fixed_epochs", "epochs": 2}}).canonical().document()
    return compile(codes(job, spec, sampling)[framework], framework, "exec")


@pytest.mark.parametrize(("sampling", "mechanism", "workload"), CASES)
def test_the_code_for_torch_runs(sampling: str, mechanism: dict[str, Any], workload: dict[str, Any]) -> None:
    data = torch.utils.data.TensorDataset(torch.from_numpy(X), torch.from_numpy(Y)[:, None])
    names: dict[str, Any] = {"model": torch.nn.Linear(3, 1), "data": data, "rate": 0.1, "loss": torch.nn.MSELoss()}
    before = [one.detach().clone() for one in names["model"].parameters()]
    exec(code("torch", sampling, mechanism, workload), names)
    after = list(names["model"].parameters())
    assert all(not torch.equal(a, b) and b.isfinite().all() for a, b in zip(before, after, strict=True))
    assert names["statement"].calibration.epsilon == 2.0 and names["statement"].delta <= 1e-4
    assert names["optimizer"].auditor.step == JOB.run.steps


@pytest.mark.parametrize(
    ("sampling", "mechanism", "workload", "job"),
    [*((*case, JOB) for case in CASES[1:3]), (*CASES[5], DECAYED)],
)
def test_the_code_for_jax_runs(
    sampling: str, mechanism: dict[str, Any], workload: dict[str, Any], job: RecommendRequest
) -> None:
    def loss(params: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.mean((x @ params - y) ** 2)

    names: dict[str, Any] = {
        "params": jnp.zeros(3),
        "x": jnp.asarray(X),
        "y": jnp.asarray(Y),
        "rate": 0.1,
        "loss": loss,
    }
    exec(code("jax", sampling, mechanism, workload, job), names)
    assert np.isfinite(names["params"]).all() and np.abs(names["params"]).min() > 0

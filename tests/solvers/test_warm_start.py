"""A start from a neighbour's dual weights: fewer steps, and the same certified optimum."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from specs import spec_of

from factorize import solvers
from factorize.factorization import Factorization
from factorize.solvers.warm_start import resampled, stretched

PREFIX = {"kind": "prefix"}
MOMENTUM = {"kind": "momentum", "momentum": 0.9}
COUPLED = {"kind": "weight_decay", "rate": 0.01, "mode": "coupled", "momentum": 0.9}


def counted(
    workload: dict[str, Any], n: int, k: int, near: Factorization | None = None, **parts: Any
) -> tuple[Factorization, int]:
    spec = spec_of(workload, "dense", k if k > 1 else "single", n=n, **parts)
    found = solvers.solve(spec, warm_start=near)
    return found, int(found.manifest["solver"]["iterations"])


@pytest.mark.parametrize(("workload", "k"), [(PREFIX, 8), (MOMENTUM, 8), (PREFIX, 1), (MOMENTUM, 1), (COUPLED, 1)])
@pytest.mark.parametrize("near", [136, 248, 384])
def test_a_neighbour_saves_steps(workload: dict[str, Any], k: int, near: int) -> None:
    neighbour, _ = counted(workload, near, k)
    cold, steps = counted(workload, 256, k)
    warm, fewer = counted(workload, 256, k, neighbour)
    assert fewer < steps
    assert warm.certificate.converged
    assert warm.certificate.loss.objective == pytest.approx(cold.certificate.loss.objective, rel=2e-9)
    assert warm.spec_digest == cold.spec_digest


def test_another_workload_is_a_neighbour_too() -> None:
    neighbour, _ = counted(MOMENTUM, 256, 8)
    similar = MOMENTUM | {"momentum": 0.91}
    _, steps = counted(similar, 256, 8)
    warm, fewer = counted(similar, 256, 8, neighbour)
    assert fewer < steps
    assert warm.certificate.converged


@pytest.mark.parametrize(
    ("workload", "k", "parts"),
    [
        (PREFIX, 4, {}),
        (PREFIX, 1, {"objective": {"kind": "max"}}),
        ({"kind": "schedule", "learning_rates": [1.0] * 60 + [0.0] * 8 + [1.0] * 60}, 1, {}),
        ({"kind": "window", "width": 4}, 8, {}),
    ],
)
def test_one_that_does_not_fit_is_ignored(workload: dict[str, Any], k: int, parts: dict[str, Any]) -> None:
    neighbour, _ = counted(PREFIX, 192, 8)
    single, _ = counted(PREFIX, 192, 1)
    cold, steps = counted(workload, 128, k, **parts)
    for near in (neighbour, single):
        warm, same = counted(workload, 128, k, near, **parts)
        assert same == steps
        assert warm.certificate.loss.objective == cold.certificate.loss.objective


def test_evidence_that_is_missing_or_zero_is_no_start() -> None:
    neighbour, _ = counted(PREFIX, 128, 8)
    spec = neighbour.spec
    without = Factorization(spec, neighbour.strategy, {}, neighbour.manifest)
    assert resampled(without, spec) is None
    broken = {"factors": np.zeros_like(neighbour.dual["factors"])}
    assert resampled(Factorization(spec, neighbour.strategy, broken, neighbour.manifest), spec) is None


@pytest.mark.parametrize(("old", "new"), [(2, 9), (9, 2), (5, 5), (16, 40), (40, 16), (3, 1)])
def test_blocks_are_stretched_to_blocks(old: int, new: int) -> None:
    roots = np.random.default_rng(old).standard_normal((old, 3, 5))
    products = roots @ roots.transpose(0, 2, 1)
    scale = np.sqrt(np.einsum("jss->js", products))
    blocks = products / scale[:, :, None] / scale[:, None, :] * np.linspace(1, 2, old)[:, None, None]
    found = stretched(blocks, new)
    assert found.shape == (new, 3, 3)
    assert found[:, 0, 0].sum() == pytest.approx(1.0)
    assert np.allclose(np.einsum("jss->js", found), found[:, :1, 0])
    assert np.linalg.eigvalsh(found).min() > 0
    if old == new:
        assert np.allclose(found, blocks / blocks[:, 0, 0].sum(), rtol=1e-6)

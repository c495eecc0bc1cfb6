"""Noise on a mesh of two dimensions, 2 by 2 ranks: rows and columns cut, tensor parallelism, and what clips on it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from handmade import handmade
from rank_jobs import on_ranks, refused, whole
from structure_cases import strategies
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from factorize.adapters.torch import NoiseGenerator
from factorize.privacy import PrivacyTarget, calibrate

pytestmark = pytest.mark.timeout(1200)  # the first test waits for all ranks, on whatever machine
WORLD, N = 4, 5
SHAPES = [(7, 9), (6, 5), (3,)]


def layers() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(6, 12), torch.nn.Tanh(), torch.nn.Linear(12, 4))


def rows_of(parameters: list[Any]) -> np.ndarray:
    made = handmade(strategies(N)["buffered"])
    noise = NoiseGenerator(
        made, calibrate(made.sensitivity, PrivacyTarget(mu=1.0)), parameters, seed=7 << 64, generator="sfc64"
    )
    return np.array([whole(step) for step in noise])


def everything(_rank: int) -> dict[str, Any]:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    ways = [(Shard(0), Shard(1)), (Shard(1), Shard(1)), (Replicate(), Shard(0))]
    cut = [distribute_tensor(torch.zeros(shape), mesh, way) for shape, way in zip(SHAPES, ways, strict=True)]
    both = parallelize_module(layers(), mesh["tensor"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    alone = refused(lambda: rows_of(list(both.parameters())))
    both = fully_shard(both, mesh=mesh["data"])
    hybrid = fully_shard(layers(), mesh=init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard")))
    return {
        "cut": rows_of(cut),
        "tensor alone": alone,
        "both": rows_of(list(both.parameters())),
        "hybrid": rows_of(list(hybrid.parameters())),
    }


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return on_ranks(WORLD, tmp_path_factory.mktemp("meshes"), everything)


def test_the_bits_are_those_of_one_process(ranks: list[dict[str, Any]]) -> None:
    alone = rows_of([torch.zeros(shape) for shape in SHAPES])
    unsharded = rows_of(list(layers().parameters()))
    for each in ranks:
        assert np.array_equal(each["cut"], alone)
        for kind in ("both", "hybrid"):
            assert np.array_equal(each[kind], unsharded), kind


def test_two_groups_that_do_not_know_of_each_other_are_refused(ranks: list[dict[str, Any]]) -> None:
    """Tensor parallelism on a part of the mesh, and nothing on the other: the groups might hold other values."""
    assert all("shard all parameters over meshes of all ranks" in each["tensor alone"] for each in ranks)

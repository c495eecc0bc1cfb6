"""Noise on several ranks: the bits of one process for every world size, placement and restart; what ranks must share."""

from __future__ import annotations

import os
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from handmade import Handmade, handmade
from rank_jobs import assert_refused, on_ranks, refused, whole
from structure_cases import strategies
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.placement_types import Placement

from factorize.adapters.ranks import agreement, placements
from factorize.adapters.torch import NoiseGenerator
from factorize.errors import InvalidParameter
from factorize.privacy import PrivacyTarget, calibrate

pytestmark = pytest.mark.timeout(1200)  # the first test waits for all ranks, on whatever machine
N, SEED = 6, 7 << 64
NAMES = ["banded", "buffered", "blt", "state_space", "redrawn", "tree", "dense"]
SHAPES = [(401, 200), (401,), (3, 401), (1,), (5, 2, 3)]
SIZE = sum(int(np.prod(shape)) for shape in SHAPES)


def factors(name: str) -> Handmade:
    return handmade(strategies(N)[name])


def calibration(made: Handmade):
    return calibrate(made.sensitivity, PrivacyTarget(mu=1.0), clip_norm=1.7)


def noise_for(name: str, parameters: Any, *, seed: int | None = SEED, **options: Any) -> NoiseGenerator:
    made = factors(name)
    return NoiseGenerator(made, calibration(made), list(parameters), seed=seed, **options)


class Model(torch.nn.Module):
    """Parameters of these shapes, each in a module of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = torch.nn.ParameterList([torch.nn.Parameter(torch.zeros(shape)) for shape in SHAPES])


def placed(kind: str, world: int) -> list[Any]:
    if kind == "fsdp":
        return list(fully_shard(Model()).parameters())
    if kind == "hybrid":
        mesh = init_device_mesh("cpu", (world, 1), mesh_dim_names=("replicate", "shard"))
        return list(fully_shard(Model(), mesh=mesh).parameters())
    mesh = init_device_mesh("cpu", (world,))
    if kind == "ddp":
        return [torch.zeros(shape) for shape in SHAPES]
    ways = [Shard(1), Shard(0), Shard(1), Replicate(), Shard(2)]
    return [distribute_tensor(torch.zeros(shape), mesh, [way]) for shape, way in zip(SHAPES, ways, strict=True)]


def flattened(**options: Any) -> list[Any]:
    return list(FullyShardedDataParallel(Model(), device_id=torch.device("cpu"), **options).parameters())


def drawer(kind: str, world: int, name: str, **options: Any) -> NoiseGenerator:
    mesh = {"mesh": init_device_mesh("cpu", (world,))} if kind == "ddp" else {}
    return noise_for(name, placed(kind, world), **mesh, **options)


def kept_here(noise: NoiseGenerator) -> int:
    vectors = noise._made.vectors
    return 0 if vectors is None else vectors.size


KINDS = ["fsdp", "hybrid", "columns", "ddp"]
GENERATORS = ["sfc64", "shake128"]


def names_of(kind: str) -> list[str]:
    return NAMES if kind == "columns" else ["buffered", "redrawn"]


def draw_everything(rank: int, world: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for kind in KINDS:
        for name in names_of(kind):
            generators = GENERATORS if name == "buffered" else ["sfc64"]
            for generator in generators:
                noise = drawer(kind, world, name, generator=generator)
                rows = np.array([whole(step) for step in noise])
                found[f"{kind} {name} {generator}"] = (rows if rank == 0 else None, kept_here(noise))
    return found


def save_midway(world: int, folder: str) -> None:
    for kind in KINDS:
        noise = drawer(kind, world, "buffered", generator="sfc64")
        noise.skip(3)
        dcp.save({"noise": noise.state_dict()}, checkpoint_id=f"{folder}/{kind}")


def go_on(world: int, folder: str) -> dict[str, Any]:
    found = {}
    for kind in KINDS:
        noise = drawer(kind, world, "buffered", generator="sfc64")
        state = {"noise": noise.state_dict()}
        dcp.load(state, checkpoint_id=f"{folder}/{kind}")
        noise.load_state_dict(state["noise"])
        found[kind] = (noise.step, np.array([whole(step) for step in noise]))
        again = drawer(kind, world, "buffered", generator="sfc64")
        again.load_state_dict({key: value for key, value in state["noise"].items() if not key.startswith("state")})
        found[f"{kind} made again"] = (again.step, np.array([whole(step) for step in again]))
    return found


ORDER = [int(size) for size in os.environ.get("RANKS", "2,3,1").split(",")]
"""World sizes, each of which goes on from a checkpoint of the one before; `python -m benchmarks.soak ranks` has 8."""


def everything(rank: int, world: int, folder: str) -> dict[str, Any]:
    before = ORDER.index(world) - 1
    found = {"drawn": draw_everything(rank, world)}
    if before >= 0:
        found["moved"] = go_on(world, f"{folder}/saved by {ORDER[before]}")
    save_midway(world, f"{folder}/saved by {world}")
    if world == 2:
        found["refused"] = refuse_all(rank, world, folder)
    return found


@pytest.fixture(scope="module")
def jobs(tmp_path_factory) -> dict[int, list[dict[str, Any]]]:
    """What the ranks of each world size found; a process of torch takes seconds to begin, so that each does it all."""
    folder = tmp_path_factory.mktemp("ranks")
    return {world: on_ranks(world, folder / str(world), everything, world, str(folder)) for world in ORDER}


def alone(name: str, generator: str) -> np.ndarray:
    noise = noise_for(name, [torch.zeros(shape) for shape in SHAPES], generator=generator)
    return np.array([whole(step) for step in noise])


@pytest.fixture(params=ORDER)
def ranks(request, jobs) -> list[dict[str, Any]]:
    return [each["drawn"] for each in jobs[request.param]]


@pytest.mark.parametrize("kind", KINDS)
class TestBits:
    @pytest.mark.parametrize("generator", ["sfc64", "shake128"])
    def test_are_those_of_one_process(self, ranks, kind, generator):
        for name in names_of(kind) if generator == "sfc64" else ["buffered"]:
            assert np.array_equal(ranks[0][f"{kind} {name} {generator}"][0], alone(name, generator)), name

    def test_each_rank_keeps_its_part_of_the_state(self, ranks, kind):
        kept = [each[f"{kind} buffered sfc64"][1] for each in ranks]
        whole_state = kept_here(noise_for("buffered", [torch.zeros(SIZE)]))
        replicas = 1 if kind != "hybrid" else len(ranks)
        assert whole_state <= sum(kept) / replicas <= whole_state + 3 * len(ranks)  # beside the replicated (1,)
        slices = sum(int(np.prod(shape)) // min(shape) for shape in SHAPES)  # where a dimension is not divisible
        assert max(kept) / replicas <= whole_state / len(ranks) + whole_state / SIZE * slices / replicas


class TestRestart:
    @pytest.mark.parametrize("world", ORDER[1:])
    def test_with_another_number_of_ranks_goes_on_with_the_same_bits(self, jobs, world):
        expected = alone("buffered", "sfc64")[3:]
        for each in jobs[world]:
            for kind, (step, rows) in each["moved"].items():
                assert step == 3
                assert np.array_equal(rows, expected), kind


def refuse_all(rank: int, world: int, folder: str) -> dict[str, str]:
    mesh = init_device_mesh("cpu", (world,))
    sharded = placed("fsdp", world)
    plain = [torch.zeros(shape) for shape in SHAPES]
    partial = [DTensor.from_local(torch.zeros(4), mesh, [Partial()])]
    lone = init_device_mesh("cpu", (2, 1), mesh_dim_names=("stage", "shard"))["shard"]
    staged = [distribute_tensor(torch.zeros(8), lone, [Shard(0)])]
    stages = [torch.full(shape, float(rank)) for shape in SHAPES]
    odd = handmade(strategies(N)["blt"])
    odd = Handmade(odd.strategy, odd.sensitivity, f"digest of rank {rank}")

    def seeds(seed: int | None) -> str:
        return refused(lambda: noise_for("blt", sharded, seed=seed))

    found = {
        "seeds": seeds(SEED + rank),
        "one seed": seeds(SEED if rank == 0 else None),
        "no seed": seeds(None),
        "digests": refused(lambda: NoiseGenerator(odd, calibration(odd), sharded, seed=SEED)),
        "partial": refused(lambda: noise_for("blt", partial)),
        "partial on one": refused(lambda: noise_for("blt", [partial, staged][rank])),
        "generators": refused(lambda: noise_for("blt", sharded, generator=["sfc64", "shake128"][rank])),
        "stages of other shapes": refused(lambda: noise_for("blt", plain[rank:], mesh=mesh)),
        "stages of the same shapes": refused(lambda: noise_for("blt", stages, mesh=mesh)),
        "stages that are sharded": refused(lambda: noise_for("blt", staged)),
        "FSDP1": refused(lambda: noise_for("blt", flattened(use_orig_params=False))),
        "FSDP1 with the model's own parameters": refused(lambda: noise_for("blt", flattened(use_orig_params=True))),
        "mesh and DTensors": refused(lambda: noise_for("blt", sharded, mesh=mesh)),
        "mesh and shard": refused(lambda: noise_for("blt", plain, mesh=mesh, shard=(0, 4))),
    }
    noise = noise_for("blt", sharded)
    states = [noise.state_dict()]
    noise.next()
    states.append(noise.state_dict())
    found["steps"] = refused(lambda: noise.load_state_dict(states[rank]))
    first = states[1]["state"]["0"]
    with torch.no_grad():
        first.to_local()[...] += 1 if rank == 1 else 0
    found["damaged on one"] = refused(lambda: noise.load_state_dict(states[1]))
    found["whole sums"] = refused(lambda: noise.add_to_sum([*plain]))
    found["partial sums"] = refused(
        lambda: noise.add_to_sum([DTensor.from_local(torch.zeros(shape), mesh, [Partial()]) for shape in SHAPES])
    )

    def sums_on(own: DeviceMesh) -> list[DTensor]:
        return [DTensor.from_local(p.to_local(), own, p.placements, shape=p.shape, stride=p.stride()) for p in sharded]

    noise.add_to_sum(sums_on(mesh))  # of the same ranks in the same order as the parameters' own
    found["sums on exchanged ranks"] = refused(lambda: noise.add_to_sum(sums_on(DeviceMesh("cpu", [1, 0]))))
    copies = [distribute_tensor(torch.zeros(4), mesh, [Replicate()])]
    twice = noise_for("blt", copies)
    twice.add_to_sum([torch.ones(4) * (1 + 1e-6 * rank)])
    found["sums of replicas"] = refused(lambda: twice.release([torch.full((4,), float(rank))]))
    twice.close()
    found["other names"] = refused(lambda: agreement.agree(f"call of rank {rank}", lambda: (None, {})))
    agreement.PATIENCE = 1.0
    found["one fails"] = refused(
        lambda: agreement.agree("x", lambda: (1 / (1 - rank), {})) if rank == 0 else _one(rank)
    )
    if rank == 0:
        found["one leaves"] = refused(lambda: noise_for("blt", sharded))
    return found


def _one(rank: int) -> None:
    try:
        agreement.agree("x", lambda: (1 / (1 - rank), {}))
    except ZeroDivisionError as reason:
        raise agreement.InvalidParameter(str(reason)) from None


EXPECTED = {
    "seeds": "seed is another .* on rank 1",
    "one seed": "seed=None",
    "no seed": "seed=None",
    "digests": "factorization is digest of rank 1 on rank 1",
    "partial": r"placement P.*redistribute",
    "partial on one": "rank 0 failed.*placement P|placement P",
    "generators": "generator is shake128 on rank 1|seed is .* on rank 1",
    "stages of other shapes": "pipeline",
    "stages of the same shapes": "stages of a pipeline",
    "stages that are sharded": "pipeline",
    "FSDP1": "a part that FSDP1 made",
    "FSDP1 with the model's own parameters": "a part that FSDP1 made",
    "mesh and DTensors": "give only one of them",
    "mesh and shard": "give only one of them",
    "steps": "step is 1 on rank 1, 0 on rank 0",
    "damaged on one": "damaged",
    "whole sums": "redistribute",
    "partial sums": "redistribute",
    "sums on exchanged ranks": r"on ranks \[1, 0\]\) does not match",
    "sums of replicas": "ranks that hold the same entries have different sums",
    "other names": "different places in the program",
    "one fails": "rank 1 failed|division",
    "one leaves": "rank 1 did not answer within 1 s",
}


class TestRefusals:
    def test_on_every_rank_and_none_hangs(self, jobs):
        assert_refused([each["refused"] for each in jobs[2]], EXPECTED)

    def test_a_placement_that_nobody_knows(self):
        with pytest.raises(InvalidParameter, match="redistribute it to Shard or Replicate"):
            placements._side(Placement(), 2)

    @pytest.mark.parametrize("mark", [{"ds_id": 0}, {"tensor_model_parallel": True}])
    def test_parts_of_other_libraries(self, mark):
        part = torch.nn.Parameter(torch.zeros(4))
        vars(part).update(mark)
        with pytest.raises(InvalidParameter, match="whose DTensors tell it"):
            noise_for("blt", [part])
        vars(part).update(dict.fromkeys(mark, False))  # as of a parameter that Megatron keeps whole
        noise_for("blt", [part]).close()

    def test_a_rank_whose_store_is_gone_says_so_or_keeps_its_own_reason(self, monkeypatch):
        gone = mock.Mock(set=mock.Mock(side_effect=torch.distributed.DistNetworkError("reset by peer")))
        monkeypatch.setattr(agreement, "world_size", lambda: 2)
        monkeypatch.setattr(agreement, "own_rank", lambda: 1)
        monkeypatch.setattr(torch.distributed.distributed_c10d, "_get_default_store", lambda: gone)
        with pytest.raises(InvalidParameter, match="rank 0 ended"):
            agreement.agree("x", lambda: (None, {}))
        with pytest.raises(ZeroDivisionError):
            agreement.agree("x", lambda: (1 // 0, {}))

    def test_torch_without_a_process_group(self):
        with pytest.raises(InvalidParameter, match="init_process_group"):
            noise_for("blt", [torch.zeros(4)], mesh=object())

    def test_torch_without_distributed(self, monkeypatch):
        monkeypatch.setattr(torch.distributed, "is_available", lambda: False)
        with pytest.raises(InvalidParameter, match=r"needs torch\.distributed"):
            noise_for("blt", [torch.zeros(4)], mesh=object())

"""A restart of data-parallel ranks: each rank goes on with its own share, its own part of the noise and one auditor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from handmade import handmade
from opacus.distributed import DifferentiallyPrivateDistributedDataParallel
from rank_jobs import on_ranks, refused, whole
from structure_cases import strategies
from torch.utils.data import TensorDataset

from factorize.adapters.private import Private, make_private

pytestmark = [pytest.mark.timeout(1200), pytest.mark.single_use]
ROWS, SIZE, EPOCHS, STOP = 12, 4, 2, 4  # the first process ends within the second epoch
N = EPOCHS * ROWS // SIZE
MADE = handmade(strategies(N)["buffered"], {"kind": "fixed_epochs", "epochs": EPOCHS})


def job() -> Private:
    torch.manual_seed(1)
    net = DifferentiallyPrivateDistributedDataParallel(torch.nn.Linear(5, 3))
    made = torch.Generator().manual_seed(3)
    x = torch.cat([torch.arange(float(ROWS))[:, None], torch.randn(ROWS, 4, generator=made)], dim=1)
    data = TensorDataset(x, torch.randint(3, (ROWS,), generator=made))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    asked = {"epsilon": 50.0, "delta": 1e-6, "epochs": EPOCHS, "batch_size": SIZE, "seed": 1 << 100}
    return make_private(net, optimizer, data, MADE, generator="sfc64", **asked)


def train(made: Private, last: int) -> list[tuple[list[float], np.ndarray]]:
    """Which examples this rank had, and the weights, of each step up to `last`."""
    seen = []
    while made.optimizer.noise.step < last:
        for x, y in made.loader:
            before = made.optimizer.noise.step
            torch.nn.functional.cross_entropy(made.model(x), y).backward()
            made.optimizer.step()
            made.optimizer.zero_grad()
            if made.optimizer.noise.step > before:  # a rehearsal takes no step
                seen.append((x[:, 0].tolist(), whole(made.model.parameters())))
            if made.optimizer.noise.step == last:
                break
    return seen


def ended(made: Private) -> dict[str, Any]:
    """This rank's part of the noise's state, and what its auditor counted."""
    state = made.optimizer.noise.state_dict()
    parts = [part.to_local().numpy() for part in state["state"].values()]
    counted = made.optimizer.auditor.state_dict()
    return {"parts": parts, "counted": {name: np.asarray(value).tolist() for name, value in counted.items()}}


def begun(rank: int, folder: str) -> dict[str, Any]:
    made = job()
    train(made, STOP)
    kept = made.optimizer.state_dict()
    torch.save({"model": made.model.state_dict(), "optimizer": kept}, f"{folder}/{rank}.checkpoint")
    dcp.save({"noise": made.optimizer.noise.state_dict()}, checkpoint_id=f"{folder}/noise")
    return {"rows": train(made, N), **ended(made)}


WAYS = ("own files", "cut anew", "without vectors", "the file of rank 0")


def resumed(rank: int, folder: str) -> dict[str, dict[str, Any]]:
    """Go on from the checkpoints of other processes, in each of the ways."""
    return {way: go_on(rank, folder, way) for way in WAYS}


def go_on(rank: int, folder: str, way: str) -> dict[str, Any]:
    made = job()
    kept = torch.load(f"{folder}/{0 if way == WAYS[3] else rank}.checkpoint", weights_only=False)
    if way == WAYS[3]:  # as many a training loop does
        return {"said": refused(lambda: made.optimizer.load_state_dict(kept["optimizer"]))}
    if way == "cut anew":
        fresh = {"noise": made.optimizer.noise.state_dict()}
        dcp.load(fresh, checkpoint_id=f"{folder}/noise")
        kept["optimizer"]["noise"] = fresh["noise"]
    if way == "without vectors":
        noise = kept["optimizer"]["noise"]
        kept["optimizer"]["noise"] = {name: noise[name] for name in noise if not name.startswith("state")}
    made.model.load_state_dict(kept["model"])
    made.optimizer.load_state_dict(kept["optimizer"])
    found = {"rows": train(made, N), **ended(made)}
    made.optimizer.close()
    return found


begun.single_use = resumed.single_use = True  # type: ignore[attr-defined]


def test_each_rank_goes_on_as_if_nothing_had_happened(tmp_path: Path) -> None:
    unbroken = on_ranks(2, tmp_path, begun, str(tmp_path))
    assert [len(each["rows"]) for each in unbroken] == [N - STOP] * 2
    for (own, _), (others, _) in zip(unbroken[0]["rows"], unbroken[1]["rows"], strict=True):
        assert len(own) == len(others) == SIZE // 2 and not set(own) & set(others)
    for before, restarts in zip(unbroken, on_ranks(2, tmp_path, resumed, str(tmp_path)), strict=True):
        for way in WAYS[:3]:
            after = restarts[way]
            assert [rows for rows, _ in before["rows"]] == [rows for rows, _ in after["rows"]], way
            assert all(np.array_equal(a, b) for (_, a), (_, b) in zip(before["rows"], after["rows"], strict=True)), way
            assert all(map(np.array_equal, before["parts"], after["parts"])), way
            assert before["counted"] == after["counted"], way
        assert "vectors" in restarts[WAYS[3]]["said"]

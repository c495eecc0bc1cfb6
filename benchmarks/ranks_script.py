"""Steps of several ranks with either noise, timed: what `benchmarks.ranks` runs where torch is."""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path

import torch
import torch.multiprocessing
from opacus.optimizers import DistributedDPOptimizer

from factorize.adapters.ranks.opacus_ranks import correlated_optimizer
from factorize.client import load

NAMES = ("buffered", "independent")


def rank_of(rank: int, folder: str, ranks: int, size: int, rounds: int) -> None:
    """Take the steps of one rank, and write its seconds, its numbers of state and its peak of memory in bytes."""
    torch.set_num_threads(1)
    meeting = f"file://{folder}/meeting"
    torch.distributed.init_process_group("gloo", init_method=meeting, rank=rank, world_size=ranks)
    weights, example = torch.nn.Parameter(torch.zeros(size)), torch.full((1, size), 1.0 / size)
    optimizers = {}
    for name in NAMES:
        factors = load(Path(folder) / f"{name}.safetensors")
        theirs = DistributedDPOptimizer(
            torch.optim.SGD([weights], lr=0.1), noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=ranks
        )
        calibration = factors.calibrate(mu=1.0, batch_size=ranks)
        optimizers[name] = correlated_optimizer(theirs, factors, calibration, seed=1 << 100)
    found: dict[str, list[float]] = {f"{name}{kind}": [] for name in NAMES for kind in ("", " processor")}
    for turn in range(rounds + 1):
        for name, optimizer in optimizers.items():
            weights.grad_sample = example.detach()  # type: ignore[attr-defined]  # where Opacus's hooks put it
            torch.distributed.barrier()
            began, spent = time.perf_counter(), time.process_time()
            optimizer.step()
            if turn:  # the first makes buffers
                found[name].append(time.perf_counter() - began)
                found[f"{name} processor"].append(time.process_time() - spent)
            optimizer.zero_grad()
    vectors = sum(part.to_local().numel() for part in optimizers["buffered"].noise.state_dict()["state"].values())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    (Path(folder) / f"{rank}.json").write_text(json.dumps({**found, "vectors": vectors, "peak": peak}))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    given = (asked["folder"], asked["ranks"], asked["size"], asked["rounds"])
    torch.multiprocessing.start_processes(rank_of, given, nprocs=asked["ranks"], start_method="spawn")

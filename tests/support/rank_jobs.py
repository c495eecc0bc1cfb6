"""Jobs of several ranks: real processes over gloo, started once for all the work that one world size does.

They are forked from a server that has imported the test's module, and nothing else: torch takes seconds to import.
"""

from __future__ import annotations

import multiprocessing
import re
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from factorize.errors import FactorizeError
from factorize.noise.single_use import NoiseUse


def on_ranks(world: int, folder: Path, work: Callable[..., Any], *given: Any) -> list[Any]:
    """Return what work(rank, *given) returned on each of `world` ranks.

    Raises:
        AssertionError: it failed on one, with that rank's trace.
    """
    folder.mkdir(parents=True, exist_ok=True)
    meeting = folder / "meeting"
    meeting.unlink(missing_ok=True)
    multiprocessing.set_forkserver_preload([work.__module__])
    mp.start_processes(_run, (world, str(meeting), str(folder), work, given), nprocs=world, start_method="forkserver")
    found = [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(world)]
    failed = [f"rank {rank}: {each['trace']}" for rank, each in enumerate(found) if "trace" in each]
    assert not failed, "\n".join(failed)
    return [each["made"] for each in found]


def whole(parts: Iterable[Any]) -> np.ndarray:
    """Return what the ranks hold together, flattened."""
    full = [part.full_tensor() if hasattr(part, "full_tensor") else part for part in parts]
    return torch.cat([part.detach().reshape(-1) for part in full]).numpy()


def refused(call: Callable[[], Any]) -> str:
    """Return the message with which our code refuses."""
    try:
        call()
    except FactorizeError as reason:
        return f"{type(reason).__name__}: {reason}"
    return "not refused"


def assert_refused(found: list[dict[str, str]], expected: dict[str, str]) -> None:
    """Hold what each rank was refused with against patterns; the first rank has tried all."""
    assert set(found[0]) == set(expected)
    wrong = {
        (name, rank): said
        for rank, each in enumerate(found)
        for name, said in each.items()
        if not re.search(expected[name], said)
    }
    assert not wrong


def _run(rank: int, world: int, meeting: str, folder: str, work: Callable[..., Any], given: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    if not getattr(work, "single_use", False):  # work that compares bits has two generators of one noise
        NoiseUse._others = lambda own: []  # type: ignore[method-assign]
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=world)
    try:
        kept = {"made": work(rank, *given)}
    except Exception:
        kept = {"trace": traceback.format_exc()}
    torch.save(kept, f"{folder}/{rank}.pt")
    dist.destroy_process_group()

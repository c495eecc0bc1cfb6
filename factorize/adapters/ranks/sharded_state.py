"""Sharded state: the checkpoint of noise on several ranks, DTensors that torch.distributed.checkpoint cuts anew."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from factorize.adapters.ranks.agreement import agreed, settle
from factorize.adapters.ranks.placements import Layout
from factorize.client.checkpoints import Checkpointed, refuse_vectors
from factorize.errors import InvalidParameter

_MASK = (1 << 64) - 1


def header_of(source: Checkpointed, layout: Layout) -> dict[str, Any]:
    """Return what a checkpoint of any layout says of the same noise."""
    return {**source.header(source.step), "shard": _shard(layout)}


def saved(source: Checkpointed, layout: Layout, *, arrays: bool) -> dict[str, Any]:
    """Return the state; all ranks call it.

    Args:
        source: of this rank's noise.
        layout: of the job's parameters.
        arrays: with the vectors, one DTensor for each tensor of the layout.
    """
    state, vectors = header_of(source, layout), source.vectors
    if not arrays or vectors is None:
        return state
    state["state_sum"] = f"{_sum(source.step, vectors, layout):016x}"
    columns = torch.from_numpy(vectors).split(layout.sizes, dim=1)
    state["state"] = {
        str(i): part.vectors(held) for i, (part, held) in enumerate(zip(layout.parts, columns, strict=True))
    }
    return state


def restore(source: Checkpointed, layout: Layout, state: Mapping[str, Any]) -> None:
    """Go to the position of a checkpoint; all ranks call it.

    Raises:
        InvalidParameter: it is damaged, of another noise, or not the same on all ranks.
    """
    step, kept = agreed("load_state_dict", lambda: _checked(source, layout, state))
    if kept is not None:
        total = f"{_sum(step, kept, layout):016x}"
        own = {"sum": total == state.get("state_sum")}
        if not settle("load_state_dict", own, lambda ranks: all(each.get("sum") for each in ranks)):
            refuse_vectors(step)
    source.restore(step, kept)


def _checked(
    source: Checkpointed, layout: Layout, state: Mapping[str, Any]
) -> tuple[tuple[int, np.ndarray | None], dict[str, Any]]:
    """Return a checkpoint's step and what is here of its vectors, and what must be the same on all ranks."""
    step = source.checked_step(state, shard=_shard(layout))
    given, own = state.get("state"), source.vectors
    common = {"step": step, "arrays": given is not None}
    if given is None or own is None:
        return (step, None), common
    parts = [part.vectors_here(given.get(str(i))).cpu().numpy() for i, part in enumerate(layout.parts)]
    if any(part.dtype != own.dtype or len(part) != len(own) for part in parts):
        raise InvalidParameter(f"the checkpoint's vectors are not {len(own)} of {own.dtype}", field="state")
    return (step, np.concatenate([part.reshape(len(own), -1) for part in parts], axis=1)), common


def _shard(layout: Layout) -> list[list[int]]:
    return [list(part.shape) for part in layout.parts]


def _sum(step: int, vectors: np.ndarray, layout: Layout) -> int:
    """Return the sum over the entries of all ranks."""
    own = layout.checksum(step, np.ascontiguousarray(vectors))

    def added(told: Sequence[dict[str, Any]]) -> int:
        return sum(int(each["sum"], 16) for each in told) & _MASK

    total: int = settle("checksum", {"sum": f"{own:x}"}, added)
    return total

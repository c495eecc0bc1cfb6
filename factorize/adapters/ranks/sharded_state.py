"""Sharded state: the checkpoint of noise on several ranks, DTensors that torch.distributed.checkpoint cuts anew."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch

from factorize.adapters.ranks.agreement import agreed, settle
from factorize.adapters.ranks.placements import Layout
from factorize.errors import InvalidParameter

_MASK = (1 << 64) - 1


class StateSource(Protocol):
    """What of a source of noise a checkpoint needs."""

    @property
    def step(self) -> int:
        """The step whose noise comes next."""

    @property
    def steps(self) -> int:
        """How many there are."""

    @property
    def vectors(self) -> torch.Tensor | None:
        """The state's own memory, shape (vectors, entries)."""

    def state_dict(self, *, arrays: bool) -> dict[str, Any]:
        """Return the state; without arrays plain data."""

    def restore(self, step: int, vectors: torch.Tensor | None) -> None:
        """Go to a step; None makes the vectors again."""


def header_of(source: StateSource, layout: Layout) -> dict[str, Any]:
    """Return what a checkpoint of any layout says of the same noise."""
    plain = source.state_dict(arrays=False)
    return {**plain, "shard": [list(part.shape) for part in layout.parts]}


def saved(source: StateSource, layout: Layout, *, arrays: bool) -> dict[str, Any]:
    """Return the state; all ranks call it.

    Args:
        source: of this rank's noise.
        layout: of the job's parameters.
        arrays: with the vectors, one DTensor for each tensor of the layout.
    """
    state = header_of(source, layout)
    if not arrays or source.vectors is None:
        return state
    state["state_sum"] = f"{_sum(source.step, source.vectors, layout):016x}"
    columns = source.vectors.split(layout.sizes, dim=1)
    state["state"] = {
        str(i): part.vectors(held) for i, (part, held) in enumerate(zip(layout.parts, columns, strict=True))
    }
    return state


def restore(source: StateSource, layout: Layout, state: Mapping[str, Any]) -> None:
    """Go to the position of a checkpoint; all ranks call it.

    Raises:
        InvalidParameter: it is damaged, of another noise, or not the same on all ranks.
    """
    step, kept = agreed("load_state_dict", lambda: _checked(source, layout, state))
    if kept is None:
        source.restore(step, None)
        return
    total = f"{_sum(step, kept, layout):016x}"
    told = {"sum": total == state.get("state_sum")}
    if not settle("load_state_dict", told, lambda ranks: all(each.get("sum") for each in ranks)):
        raise InvalidParameter(
            f"the checkpoint's vectors are not those of step {step}: damaged, or of another step; leave out `state` to "
            "have them made again",
            field="state",
        )
    source.restore(step, kept)


def _checked(
    source: StateSource, layout: Layout, state: Mapping[str, Any]
) -> tuple[tuple[int, torch.Tensor | None], dict[str, Any]]:
    """Return a checkpoint's step and what is here of its vectors, and what must be the same on all ranks."""
    step, mine = state.get("step"), header_of(source, layout)
    if isinstance(step, bool) or not isinstance(step, int) or not 0 <= step <= source.steps:
        raise InvalidParameter(f"the checkpoint's step {str(step)[:20]} is outside 0..{source.steps}", field="step")
    wrong = [key for key in mine if key != "step" and state.get(key) != mine[key]]
    if wrong:
        theirs, ours = str(state.get(wrong[0]))[:80], str(mine[wrong[0]])[:80]
        raise InvalidParameter(
            f"the checkpoint's {wrong[0]} is {theirs}, here it is {ours}; restore seed, factorization, parameters and "
            "library versions",
            field=wrong[0],
        )
    given, own = state.get("state"), source.vectors
    told = {"step": step, "arrays": given is not None}
    if given is None or own is None:
        return (step, None), told
    parts = [part.vectors_here(given.get(str(i))) for i, part in enumerate(layout.parts)]
    if any(part.dtype != own.dtype or len(part) != len(own) for part in parts):
        raise InvalidParameter(f"the checkpoint's vectors are not {len(own)} of {own.dtype}", field="state")
    return (step, torch.cat([part.reshape(len(own), -1) for part in parts], dim=1)), told


def _sum(step: int, vectors: torch.Tensor, layout: Layout) -> int:
    """Return the sum over the entries of all ranks."""
    own = layout.checksum(step, vectors.detach().cpu().contiguous().numpy())

    def added(told: Sequence[dict[str, Any]]) -> int:
        return sum(int(each["sum"], 16) for each in told) & _MASK

    found: int = settle("checksum", {"sum": f"{own:x}"}, added)
    return found

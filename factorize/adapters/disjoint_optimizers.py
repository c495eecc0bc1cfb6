"""Several optimizers of one model as one: Muon for its matrices and Adam for the rest, for example.

An example is clipped by its norm over all parameters, and one noise covers them together. What each optimizer makes of
its part of the released gradient is post-processing. So they may be any, as long as they step together.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from factorize.adapters.gradients.clipping import SCALED_LOSS
from factorize.errors import InvalidParameter


class DisjointOptimizers(torch.optim.Optimizer):
    """Optimizers over disjoint parameters that step together; the groups, and so their schedules, are their own.

    Args:
        parts: the optimizers.

    Raises:
        InvalidParameter: there is none, something is no optimizer of torch, or two have one parameter.
    """

    def __init__(self, parts: Sequence[torch.optim.Optimizer]) -> None:
        strange = next((each for each in parts if not isinstance(each, torch.optim.Optimizer)), None)
        if not parts or strange is not None:
            what = "is empty" if strange is None else f"holds a {type(strange).__name__}, which is no optimizer"
            raise InvalidParameter(f"the list of optimizers {what}; give optimizers of torch", field="optimizer")
        groups = [group for part in parts for group in part.param_groups]
        held = [id(p) for group in groups for p in group["params"]]
        if len(set(held)) < len(held):
            message = "two optimizers have one parameter, which would move twice in a step; give each to one of them"
            raise InvalidParameter(message, field="optimizer")
        super().__init__(groups, {})
        self.parts = list(parts)

    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Let each optimizer take a step."""
        value = None if closure is None else closure()
        for part in self.parts:
            part.step()
        return value

    def state_dict(self) -> dict[str, object]:
        """Return the states of all optimizers."""
        return {"parts": [part.state_dict() for part in self.parts]}

    def load_state_dict(self, state_dict: Mapping[str, list[dict[str, object]]]) -> None:
        """Restore the states of all optimizers.

        Raises:
            InvalidParameter: the state is not that of as many.
        """
        kept = state_dict.get("parts", [])
        if len(kept) != len(self.parts):
            message = f"the state is of {len(kept)} optimizers, not {len(self.parts)}; give the list that was saved"
            raise InvalidParameter(message, field="optimizer")
        for part, state in zip(self.parts, kept, strict=True):
            part.load_state_dict(state)
        self.param_groups = list(itertools.chain.from_iterable(part.param_groups for part in self.parts))


def as_one(optimizer: Any) -> Any:
    """Return one optimizer for a list of them, that inside Accelerate's wrapper, and any other as it is.

    The wrapper leaves out steps while its user accumulates gradients, which would drop what was released.

    Raises:
        InvalidParameter: the list is none of optimizers, or the wrapper scales losses.
    """
    if isinstance(optimizer, (list, tuple)):
        return DisjointOptimizers([as_one(each) for each in optimizer])
    if type(optimizer).__name__ != "AcceleratedOptimizer":  # the class belongs to accelerate
        return optimizer
    if optimizer.scaler is not None:
        raise InvalidParameter(SCALED_LOSS, field="optimizer")
    return optimizer.optimizer


def parts_of(optimizer: torch.optim.Optimizer) -> list[torch.optim.Optimizer]:
    """Return an optimizer and, where it is several, each of them."""
    return [optimizer, *getattr(optimizer, "parts", [])]

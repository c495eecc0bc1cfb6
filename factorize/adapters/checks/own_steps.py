"""Steps without the private job's knowledge: of the optimizer it was made of, or of any, by gradients without noise."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.weak import WeakTensorKeyDictionary

from factorize.adapters.gradients.raw_gradients import hide_gradients, is_raw
from factorize.errors import InvalidParameter


class Stepper(Protocol):
    """A private optimizer."""

    stepping: bool
    """Whether it is calling the optimizer that it was made of."""


_WATCHERS: list[Callable[[torch.optim.Optimizer], object]] = []
"""The functions that are called before any optimizer steps."""
_OWNERS: Any = WeakTensorKeyDictionary()
"""The private optimizer of each parameter, by a weak reference, since parameters are copied and pickled."""


def own_parameters(parameters: Sequence[torch.nn.Parameter], private: Stepper) -> None:
    """Hide gradients of these parameters that have no noise, and have every optimizer refuse them."""
    hide_gradients(parameters, private)
    for p in parameters:
        _OWNERS[p] = weakref.ref(private)


def has_owner(parameter: torch.Tensor) -> bool:
    """Return whether a private optimizer has this parameter."""
    owner = _OWNERS.get(parameter)
    return owner is not None and owner() is not None


def refuse_own_steps(optimizer: torch.optim.Optimizer, private: Stepper) -> None:
    """Let an optimizer step only for a private one, since a loop that still has its name would step without noise."""
    optimizer.private_one = weakref.ref(private)


def watch_steps(call: Callable[[torch.optim.Optimizer], object]) -> Callable[[], None]:
    """Have a function called with each optimizer that is about to step, and return one that ends that."""
    _WATCHERS.append(call)
    return partial(_WATCHERS.remove, call)


def _refuse_steps(optimizer: Any, arguments: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
    """Refuse a step without the private job's knowledge, by gradients that exist or that the closure makes."""
    private = getattr(optimizer, "private_one", lambda: None)()
    if private is not None and not private.stepping:
        raise InvalidParameter(
            f"step() of {type(optimizer).__name__} was called, but its gradients have no noise of this job; call "
            "step() of the private optimizer instead",
            field="optimizer",
        )
    _refuse_raw(optimizer)
    for watch in [*_WATCHERS]:
        watch(optimizer)

    def checked(argument: Any) -> Any:
        return _check_after(optimizer, argument) if callable(argument) else argument

    return (optimizer, *map(checked, arguments[1:])), {name: checked(value) for name, value in options.items()}


def _check_after(optimizer: Any, closure: Callable[[], Any]) -> Callable[[], Any]:
    def call() -> Any:
        loss = closure()
        _refuse_raw(optimizer)
        return loss

    return call


def _refuse_raw(optimizer: Any) -> None:
    for p in (p for group in optimizer.param_groups for p in group["params"]):
        owner = _OWNERS.get(p)
        private = None if owner is None else owner()
        if private is not None and not private.stepping and is_raw(p):
            raise InvalidParameter(
                f"step() of {type(optimizer).__name__} was called with gradients that have no noise; call step() of "
                "the private optimizer, before any other uses its gradients. An optimizer around another, such as "
                "Lookahead, is made private itself",
                field="optimizer",
            )


register_optimizer_step_pre_hook(_refuse_steps)

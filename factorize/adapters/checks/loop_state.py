"""The state that an iteration of a loop changes beside the private weights: buffers, and weights of other optimizers.

It feeds back into later gradients, or is released with the model, and no noise covers it: a centre that follows the
features, statistics of a teacher, a discriminator or a head that another optimizer trains. A rehearsal compares it, and
puts it back.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Hashable, Iterable, Iterator
from copy import deepcopy
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.lr_scheduler import LRScheduler

from factorize.adapters.checks.own_steps import has_owner, watch_steps
from factorize.errors import InvalidParameter


class HeldTensor:
    """A buffer or a weight that an iteration may change, and a copy of it from before.

    Args:
        name: its name for messages.
        owner: the object that has it.
        key: its attribute there.
        is_weight: whether only the loop itself changes it, as a teacher that follows, every few steps perhaps.
    """

    def __init__(self, name: str, owner: object, key: str, *, is_weight: bool = False) -> None:
        self.name, self.is_weight, self._owner, self._key = name, is_weight, owner, key
        self._tensor: torch.Tensor = getattr(owner, key)
        self.value = self._before = self._tensor.detach().clone()

    def differs(self, value: torch.Tensor) -> bool:
        """Return whether a tensor with other values is in this place now; versions do not count what C++ writes."""
        now = getattr(self._owner, self._key, None)
        return torch.is_tensor(now) and not _are_equal(now, value)

    def note(self) -> None:
        """Keep the present value."""
        if self.differs(self.value):
            self.value = getattr(self._owner, self._key).detach().clone()

    def put_back(self) -> None:
        """Put the tensor back, even if another one is in its place."""
        if not _are_equal(self._tensor, self._before):  # nothing may write to tensors of torch.inference_mode
            with torch.no_grad():
                self._tensor.copy_(self._before)
        if getattr(self._owner, self._key, None) is not self._tensor:
            setattr(self._owner, self._key, self._tensor)


def _are_equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    same = one.shape == other.shape and one.dtype == other.dtype
    return same and (torch.equal(one, other) or torch.equal(one.nan_to_num(), other.nan_to_num()))


class LoopState:
    """Buffers and weights as they are when an iteration begins: the model's, and those of what else the loop runs.

    Args:
        model: the private model.
        others: optimizers that stepped in an earlier iteration, whose gradients may be left from it.
        dropout: whether the model's dropout is as it was; otherwise it is off until the end, as far as layers without
            parameters do it, which are in eval mode.

    Attributes:
        others: the optimizers without noise that step.
        early: the buffers, and their values when the private step came.
        late: names and values of what the iteration changed after that step, and of all weights that it changed, with
            the state of their optimizers: a first step of Adam shows no more than the signs of gradients. The last
            entry tells weights that no optimizer changed.
    """

    def __init__(
        self, model: torch.nn.Module, others: Iterable[torch.optim.Optimizer] = (), *, dropout: bool = True
    ) -> None:
        self.others: list[torch.optim.Optimizer] = []
        self.early: list[tuple[HeldTensor, torch.Tensor]] = []
        self.late: dict[tuple[Hashable, ...], tuple[str, torch.Tensor, bool]] = {}
        self._held: dict[int, list[HeldTensor]] = {}
        self._weights: dict[int, list[HeldTensor]] = {}
        self._owners: list[object] = []  # keeps modules, so that no other object gets the id of one
        self._undo: list[Callable[[], object]] = []
        self._shapes = {p.shape for p in model.parameters() if p.requires_grad}
        for name, layer in model.named_modules():
            self._hold(layer, name, own=True)
            whole = layer is model or layer is getattr(model, "_module", None)
            if not (dropout or whole) and next(layer.parameters(recurse=False), None) is None:
                self._undo.append(partial(setattr, layer, "training", layer.training))
                layer.training = False
        for optimizer in others:
            self._hold_weights(optimizer)
            for p in _weights_of(optimizer):
                self._undo.append(partial(setattr, p, "grad", None if p.grad is None else p.grad.clone()))
        hook = register_module_forward_pre_hook(_weakly(self._see))
        watch = watch_steps(_weakly(self._hold_weights))
        self._ends = [weakref.finalize(self, each) for each in (hook.remove, watch)]

    def _see(self, module: torch.nn.Module) -> None:
        """Hold what a module has that is about to run."""
        if id(module) not in self._held:
            self._hold(module, type(module).__name__)

    def _hold(self, layer: torch.nn.Module, name: str, *, own: bool = False) -> None:
        """Hold buffers, and weights shaped like trained ones, as a teacher has them; others may be too large to copy.

        Weights of another private job are its own affair, and functorch traces some that are no parameters.
        """
        held = [(key, False) for key, _ in layer.named_buffers(recurse=False)]
        for key, p in layer.named_parameters(recurse=False):
            wanted = p.shape in self._shapes and isinstance(p, torch.nn.Parameter) and (own or not has_owner(p))
            held += [(key, True)] if wanted else []
        path = f"{name}.".removeprefix("_module.").removeprefix(".")
        self._held[id(layer)] = [HeldTensor(path + key, layer, key, is_weight=each) for key, each in held]
        self._owners.append(layer)

    def _hold_weights(self, optimizer: torch.optim.Optimizer) -> None:
        """Keep what a step of an optimizer is about to change, unless its gradients have noise."""
        weights = _weights_of(optimizer)
        noisy = hasattr(optimizer, "private_one") or any(getattr(p, "summed_grad", None) is not None for p in weights)
        if noisy or id(optimizer) in self._weights:
            return
        name = f"the weights that {type(optimizer).__name__} trains"
        self._weights[id(optimizer)] = [HeldTensor(name, SimpleNamespace(weight=p), "weight") for p in weights]
        self.others.append(optimizer)
        self.hold_schedules(optimizer)
        kept = {p: deepcopy(each) for p, each in optimizer.state.items()}
        self._undo += [optimizer.state.clear, partial(optimizer.state.update, kept)]

    def hold_schedules(self, optimizer: torch.optim.Optimizer) -> None:
        """Keep the learning rates of an optimizer and what its schedules remember."""
        self._undo += [partial(kept.update, {**kept}) for kept in _schedules(optimizer)]

    def note_step(self) -> None:
        """Note what the buffers are when the private step comes."""
        for held in (each for own in self._held.values() for each in own):
            held.note()
            self.early += [] if held.is_weight else [(held, held.value)]

    def end(self) -> None:
        """Note what the iteration has changed since, and put everything back."""
        for end in self._ends:
            end()
        for owner, own in (*self._weights.items(), *self._held.items()):
            for i, held in enumerate(own):
                if held.differs(held.value):
                    held.note()
                    self.late[owner, i] = held.name, held.value, held.is_weight
                held.put_back()
        for optimizer in self.others if self._weights else ():
            name = self._weights[id(optimizer)][0].name
            for i, p in enumerate(_weights_of(optimizer)):
                kept = {key: each for key, each in optimizer.state.get(p, {}).items() if torch.is_tensor(each)}
                self.late |= {(id(optimizer), i, key): (name, each.clone(), False) for key, each in kept.items()}
        for undo in self._undo:
            undo()
        self._held, self._weights, self._undo = {}, {}, []


def _weakly(method: Callable[[Any], object]) -> Callable[..., None]:
    """Return a function that gives its first argument to a method, as long as something else keeps its object."""
    kept = weakref.WeakMethod(method)

    def call(given: object, *_: object) -> None:
        alive = kept()
        if alive is not None:
            alive(given)

    return call


def difference_of_states(some: LoopState, others: LoopState) -> InvalidParameter | None:
    """Return the error if two iterations have left something with other values after their steps, or None."""
    for place in {**some.late, **others.late}:
        found = [each.late[place] for each in (some, others) if place in each.late]
        seldom = len(found) == 1 and found[0][2]
        if not seldom and (len(found) == 1 or not _are_equal(found[0][1], found[1][1])):
            return InvalidParameter(
                f"the loop changes {found[0][0]} by the examples of a batch, beside step() of the private optimizer. "
                "No noise covers that, and it changes later gradients or is released with the model; train these "
                "weights in the same make_private, compute from released values or public data, or leave it out of "
                "the loop",
                field="model",
            )
    return None


def _weights_of(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def _schedules(optimizer: torch.optim.Optimizer) -> Iterator[dict[str, Any]]:
    """Yield the attributes of every scheduler of an optimizer, and of its groups, that their steps change."""
    yield from optimizer.param_groups
    if hasattr(optimizer.step, "_wrapped_by_lr_sched"):
        for each in gc.get_objects():
            if issubclass(type(each), LRScheduler) and getattr(each, "optimizer", None) is optimizer:
                yield vars(each)

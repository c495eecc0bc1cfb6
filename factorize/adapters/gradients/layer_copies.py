"""Gradients of each example of a whole layer, by a copy of it that runs again for one example at a time.

So a layer may have parameters of its own, be of a kind for which Opacus has no rule, take several tensors, by name or
none, and draw random numbers: the copy draws the same. Opacus's copies take one tensor, and leave out all others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from copy import deepcopy
from typing import NamedTuple, TypeAlias, TypeVar

import torch
from torch.func import functional_call, grad, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten
from torch.utils.hooks import RemovableHandle

from factorize.adapters.gradients.drawn_numbers import DrawnNumbers, RepeatedMasks
from factorize.adapters.gradients.example_axes import RowLayout

Output: TypeAlias = torch.Tensor | Sequence[torch.Tensor]
Result = TypeVar("Result")
TOLERANCE = 1e-2
"""The part of an output's norm by which a second run may differ: bfloat16 differs by less, another mask by more."""


class LayerCall(NamedTuple):
    """What a layer got in one call.

    Attributes:
        given: what it got, by position and by name, as leaves of a tree.
        form: the form of this tree.
        numbers: the numbers that it drew, None where it drew none.
        precision: the type that autocast gives products, None where it is off.
        layout: where it has the examples.
        output: what it returned first.
    """

    given: Sequence[object]
    form: TreeSpec
    numbers: DrawnNumbers | None
    precision: torch.dtype | None
    layout: RowLayout
    output: torch.Tensor


class LayerCopy:
    """A layer as a function of its parameters.

    Args:
        layer: a layer.
    """

    def __init__(self, layer: torch.nn.Module) -> None:
        self._layer = layer
        # Its parameters take no memory, and each run brings its own.
        empty: dict[int, object] = {id(p): torch.nn.Parameter(torch.empty(0)) for p in layer.parameters()}
        self._copy = deepcopy(layer, empty)
        self._deep = any(True for _ in layer.children())
        attention = [each for each in layer.modules() if isinstance(each, torch.nn.MultiheadAttention)]
        self._drops_attention = any(each.dropout for each in attention)
        self._running = ExitStack()  # what holds while the layer runs
        self._numbers: DrawnNumbers
        self._buffers = list[tuple[int, int]]()  # the buffers before a call, and their versions
        self._drew_the_same = False  # whether a call was compared that drew numbers
        self._rows: tuple[int | None, ...] = ()  # the examples' axis in each of what the last call got, if it had one

    def add_hooks(self, capture: Callable[..., Output | None]) -> list[RemovableHandle]:
        """Have the layer keep what its copy needs of a call, and run a hook with what it got and returned."""
        handles = [
            self._layer.register_forward_pre_hook(self._begin),
            self._layer.register_forward_hook(self._leave, always_call=True),
        ]
        return [*handles, self._layer.register_forward_hook(capture, with_kwargs=True)]

    def _begin(self, *_: object) -> None:
        if not (self._layer.training and torch.is_grad_enabled()):
            return
        self._buffers = _versions_of(self._layer)
        self._numbers = DrawnNumbers(next(self._layer.parameters()).device)
        if self._deep:
            self._running.enter_context(self._numbers)
            if self._drops_attention:  # in the fused kernels of a GPU, by numbers that no other kernel draws
                self._running.enter_context(sdpa_kernel(SDPBackend.MATH))

    def _leave(self, *_: object) -> None:
        self._running.close()

    def end(
        self, inputs: Sequence[object], options: Mapping[str, object], output: Output, layout: RowLayout
    ) -> LayerCall:
        """Return what the layer got in the call that has ended.

        Raises:
            TypeError: it has changed a buffer, or returns a number for all examples.
        """
        if _versions_of(self._layer) != self._buffers:
            raise TypeError(
                "it changes a buffer, such as running statistics, those of spectral_norm (call eval() on "
                "parametrizations.weight[0] after train()), or a cache (call the model once before)"
            )
        first = first_of(output).detach().clone()  # a later layer may change it in place
        if not first.dim():
            raise TypeError("it returns one number for all examples first, such as a mean loss")
        device = first.device.type
        precision = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
        leaves, form = tree_flatten((tuple(inputs), dict(options)))
        leaves = [each.detach() if isinstance(each, torch.Tensor) else each for each in leaves]
        return LayerCall(leaves, form, self._numbers if self._numbers.any() else None, precision, layout, first)

    def rows(self, call: LayerCall, gradient: torch.Tensor) -> dict[torch.nn.Parameter, torch.Tensor]:
        """Return the gradients of examples by parameter, shapes (examples, *shape).

        Args:
            call: what the layer got.
            gradient: the gradient of its output, its axis of examples first, shape (examples * parts, ...).

        Raises:
            TypeError: none of it has the axis of examples, or others or other random numbers decide what it returns.
        """
        for mine, own in zip(self._copy.modules(), self._layer.modules(), strict=True):
            mine.training = own.training
            mine._buffers = dict(own._buffers)
        named = dict(self._layer.named_parameters())
        trained = [name for name, p in named.items() if p.requires_grad]
        values, axis = [named[name].detach() for name in trained], call.layout.axis
        if not len(gradient):  # not all of torch's functions can be mapped over no example
            return {named[name]: one.new_zeros(0, *one.shape) for name, one in zip(trained, values, strict=True)}

        def run_again(values: Sequence[torch.Tensor], place: torch.Tensor | None, *own: torch.Tensor) -> torch.Tensor:
            mine = iter(own)
            pairs = zip(call.given, self._rows, strict=True)
            given = [each if found is None else _turn(next(mine), found) for each, found in pairs]
            inputs, options = tree_unflatten(given, call.form)
            parameters = {**named, **dict(zip(trained, values, strict=True))}
            with RepeatedMasks(call.numbers, place) if call.numbers and place is not None else nullcontext():
                return _turn(first_of(functional_call(self._copy, parameters, inputs, options)), axis)

        def weighted_sum(
            values: Sequence[torch.Tensor], place: torch.Tensor | None, weights: torch.Tensor, *own: torch.Tensor
        ) -> torch.Tensor:
            return (run_again(values, place, *own) * weights).sum()

        choices = self._choose_rows(call, len(gradient))
        if len(choices) > 1 or (call.numbers is not None and not self._drew_the_same):
            for self._rows in choices:
                if self._returns(call, run_again, values):
                    break
            else:
                raise TypeError(
                    "it returns something else for one example alone, as attention does that begins with time (give "
                    "make_private batch_first=False, if the model's own inputs do, too)"
                )
            self._drew_the_same = True
        else:
            (self._rows,) = choices
        return dict(
            zip([named[name] for name in trained], self._map(call, grad(weighted_sum), values, gradient), strict=True)
        )

    def _choose_rows(self, call: LayerCall, rows: int) -> list[tuple[int | None, ...]]:
        """Return where inputs may have the examples' axis, the likely ones first: a mask may be as long by chance.

        Beside tensors that begin with time, a mask of padding begins with the examples.

        Raises:
            TypeError: none has.
        """
        shapes = [each.shape if isinstance(each, torch.Tensor) else () for each in call.given]
        axes = sorted({0, call.layout.axis}, reverse=True)
        found = [next((axis for axis in axes if shape[axis:][:1] == (rows,)), None) for shape in shapes]
        places = [i for i, axis in enumerate(found) if axis is not None]
        if not places:
            raise TypeError("none of what it takes is a tensor with the batch axis")
        without = [set(places) - {i} for i in places] if len(places) > 1 else []
        choices = [tuple(axis if i in kept else None for i, axis in enumerate(found)) for kept in (*without, places)]
        if self._rows not in choices and len(self._rows) == len(shapes):  # as where time is as long as this batch
            known = zip(self._rows, shapes, strict=True)
            choices += [self._rows] * all(axis is None or shape[axis:][:1] == (rows,) for axis, shape in known)
        return sorted(choices[::-1], key=lambda each: each != self._rows)

    def _returns(self, call: LayerCall, run_again: Callable[..., torch.Tensor], values: list[torch.Tensor]) -> bool:
        """Return whether the layer, run again for each example by itself, returns what it did."""
        first = _turn(call.output, call.layout.axis)
        try:
            output = self._map(call, run_again, values).flatten(0, 1)
        except (RuntimeError, AssertionError, ValueError, IndexError):  # of other shapes than the layer takes
            return False
        return output.shape == first.shape and bool((output - first).norm() <= TOLERANCE * first.norm())

    def _map(
        self, call: LayerCall, function: Callable[..., Result], values: list[torch.Tensor], *more: torch.Tensor
    ) -> Result:
        """Return what a function of values, and of each example's part of what the layer got, makes of all examples."""
        given = zip(call.given, self._rows, strict=True)
        own = [_turn(each, axis) for each, axis in given if axis is not None and isinstance(each, torch.Tensor)]
        rows = [each.reshape(-1, call.layout.parts, *each.shape[1:]) for each in (*more, *own)]
        device, numbers = call.output.device, call.numbers
        places = None if numbers is None else torch.arange(len(rows[0]), device=device)
        axes = (None, None if numbers is None else 0, *[0] * len(rows))
        mapped = vmap(function, axes, randomness="error" if numbers is None else "different")
        mixed = nullcontext() if call.precision is None else torch.autocast(device.type, call.precision)
        plain = sdpa_kernel(SDPBackend.MATH) if self._deep else nullcontext()  # others run for one after another
        with mixed, plain, nullcontext() if numbers is None else numbers.again():
            return mapped(values, places, *rows)


def first_of(output: Output) -> torch.Tensor:
    """Return what a layer returns first."""
    return output if isinstance(output, torch.Tensor) else output[0]


def _versions_of(layer: torch.nn.Module) -> list[tuple[int, int]]:
    """Return what tells whether buffers were changed or replaced."""
    return [(id(each), each._version) for each in layer.buffers()]


def _turn(tensor: torch.Tensor, axis: int) -> torch.Tensor:
    """Return a tensor with two axes in each other's place, if examples are in the second."""
    return tensor.transpose(0, axis) if axis else tensor

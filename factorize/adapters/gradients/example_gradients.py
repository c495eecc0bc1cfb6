"""Opacus's gradients of each example, with the layers' own paddings and errors that name the layer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from opacus.grad_sample import GradSampleModule
from opacus.grad_sample.grad_sample_module import promote_current_grad_sample
from opacus.layers import dp_rnn
from opacus.layers.dp_rnn import RNNLinear

from factorize.adapters.data.altered_batches import tensors_of
from factorize.adapters.gradients.example_axes import ExampleAxes, RowLayout
from factorize.adapters.gradients.layer_copies import LayerCall, LayerCopy, Output, first_of
from factorize.adapters.gradients.layer_rows import keep_pass
from factorize.adapters.gradients.look_ups import LookUps
from factorize.adapters.gradients.packed_sequences import (
    RECURRENT_LAYERS,
    order_of_sequences,
    put_back,
    recurrent_layers,
)
from factorize.adapters.gradients.raw_gradients import are_accumulated
from factorize.errors import FactorizeError, InvalidParameter
from factorize.numbers.scalars import check_type

GRAD_SAMPLE_MODES = ("hooks", "functorch", "streamed")
"""The ways to a gradient of each example for every layer: Opacus's, and its hooks with a few examples at a time."""
MIN_POSITIONS = 8
"""The fewest ids, of as many examples, that are positions if they count: other ids do so once in 40,320 batches."""
_STREAMED_LAYERS = (torch.nn.Linear, torch.nn.Embedding)
"""The layers whose gradients may be larger than the tensors that they are made of."""
_LAYERS_OF_LAST_AXIS = (*_STREAMED_LAYERS, torch.nn.LayerNorm)
"""The layers that take any number of axes before the last."""
_LISTS = (torch.nn.ParameterList, torch.nn.ParameterDict)


class ExampleGradients(GradSampleModule):
    """Opacus's module, with the layers' own paddings, and errors that name the layer and a way out.

    Args:
        model: the wrapped model.
        mode: one of `GRAD_SAMPLE_MODES`; `streamed` keeps no gradient of each example of large layers
            (`factorize.adapters.gradients.layer_rows`).
        whole: modules that run again as a whole (`factorize.adapters.gradients.layer_copies`).
        rehearsed: whether a rehearsal compares gradients, so that a layer may have examples elsewhere than in its rows
            (`factorize.adapters.gradients.example_axes`).
        **options: options of Opacus's module.
    """

    puts_sequences_back = True
    """Whether packed sequences may be in another order than the batch's."""

    def __init__(
        self,
        model: torch.nn.Module,
        *,
        mode: str = "hooks",
        whole: Iterable[torch.nn.Module] = (),
        rehearsed: bool = False,
        **options: Any,
    ) -> None:
        samplers = {kind: partial(_padded_rows, each) for kind, each in GradSampleModule.GRAD_SAMPLERS.items()}
        if mode == "streamed":
            samplers |= {kind: partial(keep_pass, samplers[kind]) for kind in _STREAMED_LAYERS}
        self.GRAD_SAMPLERS = samplers | {None: self._rows_by_copy}
        apart = [each for each in model.modules() if _has_parts_apart(each)]
        self._mode, self._whole, self._copies = mode, {*whole, *apart}, dict[torch.nn.Module, LayerCopy]()
        self._call: LayerCall | None = None  # whose gradients are made
        self._examples: int | None = None  # in the present batch, if a tensor tells
        self._shared = set[torch.nn.Module]()  # embeddings that are looked up once for all examples
        self._axes, self._rehearsed = ExampleAxes(), rehearsed
        self._sorted: torch.Tensor | None = None  # the examples in the order in which a recurrent layer packs them
        super().__init__(model, strict=False, **options)  # strict, it refuses buffers, which copies read

    def __getitem__(self, place: object) -> object:
        """Return a module by its place or name, as a `Sequential`, `ModuleList` or `ModuleDict` does."""
        return self._module[place]

    def __getattr__(self, name: str) -> Any:
        """Return what the model has by a name, such as a method beside `forward`."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "_module":  # is not there yet
                raise
            return getattr(self._module, name)

    # torch.compiler.disable would import the compiler here, for jobs that compile nothing, too.
    @torch._disable_dynamo  # type: ignore[untyped-decorator]
    def forward(self, *inputs: object, **options: object) -> object:
        """Run the model as it is, also where a loop has compiled it: compiled code replaces what hooks have kept."""
        try:
            return super().forward(*inputs, **options)
        except RuntimeError as error:
            if self._examples == 0:
                error.add_note(
                    "the batch has no example, as a sampled one may; if the model fails for that, leave out its "
                    "forward and backward pass, and call step() alone"
                )
            for name in [name for name, layer in self._module.named_modules() if layer in self._shared]:
                error.add_note(
                    f"{name} was looked up once for all examples, and the private model got a row for each of "
                    f"{self._examples}; if the model fails for that, look it up by ids of shape (batch, tokens), or "
                    "freeze it before you make the job private (requires_grad_(False))"
                )
            raise

    def _get_module_type(self, module: torch.nn.Module) -> type[torch.nn.Module] | None:
        """Return a layer's type, by which Opacus finds its rule; None where a copy has to run instead.

        The rules for convolutions know no padding but zeros, that of LayerNorm none without a bias, and that of
        EmbeddingBag counts a word once that comes twice.
        """
        if isinstance(module, torch.nn.Embedding) and module not in self._whole:
            return torch.nn.Embedding
        padded = getattr(module, "padding_mode", "zeros") != "zeros"
        bare = isinstance(module, torch.nn.LayerNorm) and module.bias is None
        bag = isinstance(module, torch.nn.EmbeddingBag)
        rule = self._mode != "functorch" or isinstance(module, RNNLinear)
        known = rule and type(module) in self.GRAD_SAMPLERS and module not in self._whole
        return type(module) if known and not (padded or bare or bag) else None

    def add_hooks(self, **options: Any) -> None:
        """Hook into the layers; see Opacus.

        Opacus's backward hooks make each output a view, which no later layer may change in place (`ReLU(inplace=True)`,
        `x += y`), and take a layer's calls to come back in reverse order. A hook of each call's output does neither.
        """
        layers = list(self.iterate_submodules(self._module))
        for layer in layers:
            if self._get_module_type(layer) is None and type(layer) not in RECURRENT_LAYERS:
                with _named_errors(layer):
                    self._copies[layer] = LayerCopy(layer)
        super().add_hooks(**options)
        handles = self.autograd_grad_sample_hooks
        for handle in handles[1::2]:
            handle.remove()
        del handles[1::2]
        handles.append(self._module.register_forward_pre_hook(self._count_examples, with_kwargs=True))
        handles.append(self._module.register_forward_hook(self._axes.end, always_call=True))
        for layer in recurrent_layers(self._module):
            handles.append(layer.register_forward_pre_hook(self._begin_sequences))
            handles.append(layer.register_forward_hook(self._end_sequences, always_call=True))
        for layer in layers:
            if layer in self._copies:
                handles += self._copies[layer].add_hooks(self._capture_call)
            elif isinstance(layer, torch.nn.Embedding):
                look_ups = LookUps(layer, self._take_look_up)
                handles.append(layer.register_forward_pre_hook(look_ups.begin))
                handles.append(layer.register_forward_hook(look_ups.end, always_call=True))

    def iterate_submodules(self, module: torch.nn.Module) -> Iterator[torch.nn.Module]:
        """Yield the layers that have trained parameters, but none whose parameters are all those of layers within."""
        if module in self._whole:
            yield module
            return
        own = {id(p) for p in module.parameters(recurse=False) if p.requires_grad}
        within = {id(p) for each in module.children() for p in each.parameters()}
        if not isinstance(module, torch.nn.Embedding) and not (own and own <= within):
            yield from super().iterate_submodules(module)
            return
        if own - within:
            yield module
        for each in module.children():
            yield from self.iterate_submodules(each)

    def _count_examples(self, _: torch.nn.Module, *inputs: object) -> None:
        given = [each for each in tensors_of(inputs) if each.dim()]
        self._examples = len(given[0]) if given and self.batch_first else None
        self._axes.begin(given if self.batch_first and self._rehearsed else [])

    def _begin_sequences(self, _: torch.nn.Module, inputs: Sequence[object]) -> None:
        self._sorted = order_of_sequences(inputs)

    def _end_sequences(self, *_: object) -> None:
        self._sorted = None

    def capture_activations_hook(
        self, module: torch.nn.Module, inputs: Sequence[torch.Tensor], output: Output
    ) -> Output | None:
        """Keep a layer's inputs until the gradient of its output comes, and those of an embedding where it looks up."""
        if isinstance(module, torch.nn.Embedding) or module in self._copies:
            return None
        output = _no_view(module, output)
        self._capture(module, inputs, output)
        return output

    def _capture_call(
        self, layer: torch.nn.Module, inputs: Sequence[object], options: Mapping[str, object], output: Output
    ) -> Output | None:
        """Keep all that a layer got, for its copy."""
        with _named_errors(layer):
            first = first_of(output)
            if not (self.hooks_enabled and layer.training and first.requires_grad):
                return None
            call = self._copies[layer].end(inputs, options, output, self._find_examples(layer, first))
            output = _no_view(layer, output)
            first = first_of(output)
            kept = [first.new_empty(()).expand(first.shape)]
        layer.activations = [*getattr(layer, "activations", ()), kept]
        for p in layer.parameters():
            if p.requires_grad:
                p._forward_counter += 1
        first.register_hook(partial(self._take_gradient, layer, kept, call.layout, call, None))
        return output

    def _capture(self, module: torch.nn.Module, inputs: Sequence[torch.Tensor], output: Output) -> None:
        held = len(getattr(module, "activations", ()))
        with _named_errors(module):
            super().capture_activations_hook(module, inputs, output)
        first = first_of(output)
        if len(getattr(module, "activations", ())) > held and first.requires_grad:
            layout = self._find_examples(module, first)
            kept = module.activations[-1]
            first.register_hook(partial(self._take_gradient, module, kept, layout, None, self._sorted))

    def _find_examples(self, layer: torch.nn.Module, output: torch.Tensor) -> RowLayout:
        second = layer in self._copies or isinstance(layer, _LAYERS_OF_LAST_AXIS)
        if self.batch_first or isinstance(layer, RNNLinear):
            return self._axes.find(layer, output.shape, second=second)
        return RowLayout(1)

    def _rows_by_copy(
        self, layer: torch.nn.Module, inputs: object, gradient: torch.Tensor
    ) -> dict[torch.nn.Parameter, torch.Tensor]:
        assert self._call is not None
        return self._copies[layer].rows(self._call, gradient)

    def _take_look_up(self, module: torch.nn.Module, ids: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Keep what an embedding looks up, and return it, with a row for each example if it is the same for all."""
        if self._examples is not None and module.training and rows.requires_grad:
            if self._is_shared(module, ids, self._examples):
                ids, rows = (_spread(each, ids.dim(), self._examples) for each in (ids, rows))
        self._capture(module, [ids], rows)
        return rows

    def _is_shared(self, module: torch.nn.Module, ids: torch.Tensor, examples: int) -> bool:
        """Return whether an embedding is looked up once for all examples: by ids of shape (1, ...), or by 0, 1, 2, ...

        A few ids, as many as there are examples, may count by chance: then the embedding is what it was before.
        """
        if module not in self._shared and ids.dim():
            told = len(ids) != examples
            counts = ids.dim() == 1 < len(ids) and (told or len(ids) >= MIN_POSITIONS)
            if told and len(ids) == 1 < ids.dim() or (counts and bool((ids.diff() == 1).all())):
                self._shared.add(module)
        return module in self._shared and (ids.dim() == 1 or len(ids) == 1)

    @torch._disable_dynamo  # type: ignore[untyped-decorator]
    def _take_gradient(
        self,
        module: torch.nn.Module,
        inputs: list[torch.Tensor],
        layout: RowLayout,
        call: LayerCall | None,
        places: torch.Tensor | None,
        gradient: torch.Tensor,
    ) -> None:
        """Make a layer's gradients of examples from the inputs of one call and the gradient of its output.

        The rows of each example, such as frames of a video, are one more axis, or calls that follow one another.
        A backward pass to the model's inputs alone, as for adversarial examples, leaves gradients as they are.

        Raises:
            InvalidParameter: a backward pass has used these inputs before.
        """
        place = next((i for i, each in enumerate(module.activations) if each is inputs), None)
        if place is None:
            raise InvalidParameter(
                f"a {type(module).__name__} got a second backward pass for one forward pass; add the losses up, and "
                "call backward() once per batch (a gradient penalty needs two: use differences of outputs instead)",
                field="model",
            )
        del module.activations[place]
        if not are_accumulated(module.parameters()):
            _forget_call(module)
            return
        if places is not None:
            *inputs, gradient = (put_back(each, places) for each in (*inputs, gradient))
        calls, self._call = [(inputs, gradient)], call
        if self.batch_first and layout != RowLayout():
            calls = _divide(module, inputs, gradient, layout, whole=call is not None)
            module.max_batch_len = gradient.shape[layout.axis] // layout.parts
            for p in module.parameters():
                if p.requires_grad:
                    p._forward_counter += len(calls) - 1
        for each, own in calls:
            module.activations.append(each)  # Opacus takes the last
            with _named_errors(module):
                self.capture_backprops_hook(
                    module, None, (own,), loss_reduction=self.loss_reduction, batch_first=self.batch_first
                )
        self._call = None


def _no_view(layer: torch.nn.Module, output: Output) -> Output:
    """Return what a layer returns as no view: torch drops the hooks of one that a later layer changes in place."""
    first = first_of(output)
    if not (first.requires_grad and first._is_view() and type(output) in (torch.Tensor, tuple)):
        return output
    linear = isinstance(layer, torch.nn.Linear)  # keeps no output, so it may be changed, as that of one without a bias
    own = torch.ops.aten._unsafe_view(first, first.shape) if linear else first.clone()
    return own if first is output else (own, *output[1:])


def _has_parts_apart(layer: torch.nn.Module) -> bool:
    """Return whether a layer uses parameters of modules that nobody calls: lists of them, or DoRA's as of PEFT."""
    lists = [each for each in layer.children() if isinstance(each, _LISTS)]
    return any(p.requires_grad for each in lists for p in each.parameters(recurse=False)) or bool(
        len(getattr(layer, "lora_magnitude_vector", ()))
    )


def _divide(
    layer: torch.nn.Module, inputs: list[torch.Tensor], gradient: torch.Tensor, layout: RowLayout, *, whole: bool
) -> list[tuple[list[torch.Tensor], torch.Tensor]]:
    """Return inputs and gradients of a layer with one row for each example: of one call, or of one for each part.

    A copy divides its inputs itself.
    """
    if layout.axis:
        return [([each.transpose(0, 1) for each in inputs], gradient.transpose(0, 1))]
    if whole:
        return [(inputs, gradient)]
    *inputs, gradient = (each.unflatten(0, (-1, layout.parts)) for each in (*inputs, gradient))
    if isinstance(layer, _LAYERS_OF_LAST_AXIS):
        return [(inputs, gradient)]
    return [([each[:, i].contiguous() for each in inputs], gradient[:, i].contiguous()) for i in range(layout.parts)]


def _forget_call(layer: torch.nn.Module) -> None:
    """Count a call of a layer as done whose gradients of examples nobody makes; Opacus waits for all calls."""
    for p in layer.parameters():
        if p.requires_grad:
            p._forward_counter -= 1
            if not p._forward_counter and hasattr(p, "_current_grad_sample"):
                promote_current_grad_sample(p)


def find_modules(model: torch.nn.Module, names: Sequence[str]) -> list[torch.nn.Module]:
    """Return modules of a model by their names, as `named_modules` gives them.

    Raises:
        InvalidParameter: there is none of a name.
    """
    check_type("whole", names, Iterable, remedy="give a list of names of modules")
    modules = {name.removeprefix("module."): each for name, each in model.named_modules()}
    unknown = [str(each)[:80] for each in names if each not in modules]
    if isinstance(names, str) or unknown:
        raise InvalidParameter(f"the model has no modules {unknown or names}; give a list of names", field="whole")
    return [modules[name] for name in names]


def _spread(tensor: torch.Tensor, dimensions: int, examples: int) -> torch.Tensor:
    """Return ids, or what was looked up by ids of so many dimensions, with an axis of examples."""
    tensor = tensor[None] if dimensions == 1 else tensor
    return tensor.expand(examples, *tensor.shape[1:])


@contextmanager
def _named_errors(layer: torch.nn.Module) -> Iterator[None]:
    """Name the layer whose gradients of examples Opacus cannot make.

    Raises:
        InvalidParameter: it cannot.
    """
    try:
        yield
    except FactorizeError:
        raise
    except Exception as error:
        if getattr(error, "name", None) == "_forward_counter":  # which Opacus keeps on parameters, and copies lack
            raise InvalidParameter(
                "the model is a copy of a private model, whose hooks serve the original alone; to train it, create the "
                "model anew and load the weights (load_state_dict); else call it under torch.no_grad()",
                field="model",
            ) from None
        own = ", ".join(name for name, p in layer.named_parameters(recurse=False) if p.requires_grad)
        kind = type(layer).__name__
        if isinstance(layer, torch.nn.EmbeddingBag):
            error = TypeError("give it ids of shape (batch, words), filled up with its padding_idx, and no offsets")
        if hasattr(dp_rnn, f"DP{kind}"):
            message = f"use opacus.layers.dp_rnn.DP{kind}, which has its arguments, in place of {kind}"
            raise InvalidParameter(message, field="model") from error
        raise InvalidParameter(
            f"there is no gradient of each example for a {kind}: {str(error).splitlines()[0][:200]}; a "
            "layer with parameters of its own runs again for each example by itself, so it has to take a tensor that "
            "begins with the batch axis, return one first, and not branch on its values (run experts on all examples, "
            f"weighted by zeros) or mix examples. Freeze {own or 'its parameters'}, move them into a layer of their "
            "own, or give make_private the smallest module around that does so (whole=['encoder'], or [''] for the "
            "whole model)",
            field="model",
        ) from error


def _padded_rows(
    sampler: Callable[..., dict[torch.nn.Parameter, torch.Tensor]], layer: Any, inputs: Any, outputs: torch.Tensor
) -> dict[torch.nn.Parameter, torch.Tensor]:
    """Return a layer's gradients by example: Opacus's, but zero for the word that pads, and right for channels_last."""
    if isinstance(layer, torch.nn.modules.conv._ConvNd):  # Opacus reads windows by the strides of contiguous images
        inputs, outputs = [_with_plain_strides(each) for each in inputs], _with_plain_strides(outputs)
    rows = sampler(layer, inputs, outputs)
    if getattr(layer, "padding_idx", None) is not None:
        for each in rows.values():
            each[:, layer.padding_idx] = 0
    return rows


def _with_plain_strides(images: torch.Tensor) -> torch.Tensor:
    """Return images in torch's usual order; those of one pixel may be contiguous with the strides of another."""
    return images.reshape(-1).view(images.shape)

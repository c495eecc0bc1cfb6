"""The parts that a torch job gives: model, optimizer and data, used as they are or refused by name in advance."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from opacus.distributed import DifferentiallyPrivateDistributedDataParallel
from opacus.grad_sample import AbstractGradSampleModule, GradSampleModule
from opacus.utils.uniform_sampler import DistributedUniformWithReplacementSampler, UniformWithReplacementSampler
from opacus.validators import ModuleValidator
from torch.nn.parameter import is_lazy
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
)

from factorize.adapters.layer_rows import keep_pass
from factorize.errors import FactorizeError, InvalidParameter, InvalidParticipation

GRAD_SAMPLE_MODES = ("hooks", "functorch", "streamed")
"""The ways to a gradient of each example for every layer: Opacus's, and its hooks with a few examples at a time."""
_STREAMED_LAYERS = (torch.nn.Linear, torch.nn.Embedding)
"""The layers whose gradients may be larger than the tensors that they are made of."""
_KEPT_SETTINGS = (
    *("collate_fn", "num_workers", "pin_memory", "timeout", "worker_init_fn", "multiprocessing_context"),
    *("generator", "prefetch_factor", "persistent_workers", "in_order"),
)
_MAX_NAMES = 3
"""The most parameters that a message names."""


@dataclass(frozen=True)
class GivenData:
    """The data of a job.

    Attributes:
        dataset: the data set, with `__len__` and `__getitem__`.
        batch_size: examples per step.
        loading: arguments of the loader that fetches them.
        replaced: a sentence for each setting of the caller's loader that the job's order replaces.
    """

    dataset: Any
    batch_size: int
    loading: dict[str, Any]
    replaced: tuple[str, ...] = ()

    @classmethod
    def read(cls, data: Any, batch_size: int | None, *, sampling: str, remainder: str) -> GivenData:
        """Return the data of a loader, or a data set with a batch size.

        Args:
            data: the caller's data.
            batch_size: the caller's batch size.
            sampling: sampling of the job.
            remainder: the remainder of the job's order.

        Raises:
            InvalidParameter: no batch size or two, data without a length, or a loader that contradicts the job.
            InvalidParticipation: the loader's sampler chooses other examples than the job's order.
        """
        if not isinstance(data, DataLoader):
            _check_dataset(data)
            if batch_size is None:
                message = "a data set needs batch_size=; give it, or give a DataLoader"
                raise InvalidParameter(message, field="batch_size")
            return cls(data, batch_size, {})
        _check_dataset(data.dataset)
        batches = _plain_batches(data)
        if batch_size is not None and batch_size != batches.batch_size:
            message = (
                f"batch_size={batch_size} differs from the loader's {batches.batch_size}; leave batch_size out, or "
                "give the data set instead of the loader"
            )
            raise InvalidParameter(message, field="batch_size")
        if batches.drop_last and remainder == "pad":
            message = "the loader's drop_last=True contradicts remainder='pad'; leave one out"
            raise InvalidParameter(message, field="remainder")
        kept = {name: getattr(data, name) for name in _KEPT_SETTINGS if hasattr(data, name)}
        return cls(data.dataset, batches.batch_size, kept, tuple(_replaced(batches, sampling)))


def refuse_sampling(loader: Any) -> None:
    """Refuse a data loader with another order than that of its data, if nobody audits the batches.

    `PrivacyEngine` draws Poisson samples by default, and `shuffle=True` draws a new order in every epoch: then the
    steps of an example may be neighbours, and the sensitivity of fixed epochs does not cover them.

    Raises:
        InvalidParticipation: the loader samples, shuffles, or leaves examples out.
    """
    if isinstance(_plain_batches(loader).sampler, RandomSampler):
        raise InvalidParticipation(
            "the loader's shuffle=True draws a new order in every epoch, but the sensitivity assumes that every epoch "
            "repeats one order; shuffle once (torch.utils.data.Subset(data, permutation)), give the optimizer an "
            "auditor, or use make_private, which makes the order",
            field="data",
        )


def _plain_batches(loader: Any) -> BatchSampler:
    """Return the sampler of a loader's batches, if every epoch takes every example once.

    Raises:
        InvalidParticipation: an epoch does not.
    """
    batches, examples = getattr(loader, "batch_sampler", None), len(loader.dataset)
    if isinstance(batches, (UniformWithReplacementSampler, DistributedUniformWithReplacementSampler)):
        raise InvalidParticipation(
            f"the loader's {type(batches).__name__} draws Poisson samples, but correlated noise needs a fixed order; "
            "use poisson_sampling=False, or make_private(data set, sampling='cyclic_poisson') with a banded C",
            field="data",
        )
    if batches is None:
        message = "the loader has batch_size=None, so one item may be any number of examples; give it a batch size"
        raise InvalidParameter(message, field="batch_size")
    own = type(loader).__iter__ is not DataLoader.__iter__
    sampler: Any = getattr(batches, "sampler", None)
    random = type(sampler) is RandomSampler and not sampler.replacement and len(sampler.data_source) == examples
    whole = (random or type(sampler) is SequentialSampler) and len(sampler) == examples
    if type(batches) is BatchSampler and whole and not own:
        return batches
    maker = loader if own else batches if type(batches) is not BatchSampler else sampler
    raise InvalidParticipation(
        f"the loader's {type(maker).__name__} decides which of the {examples} examples take part and when, but the "
        "sensitivity assumes an order of all of them. To use part of the data, give torch.utils.data.Subset(data, "
        "indices). Leave a DistributedSampler out, since every rank gets its share of each batch. Otherwise give the "
        "data set with batch_size=",
        field="data",
    )


def _replaced(batches: BatchSampler, sampling: str) -> Iterable[str]:
    """Yield a sentence for each setting of a loader that the job's order replaces."""
    order = "one public permutation (order_seed), which every epoch repeats" if sampling == "fixed" else sampling
    if isinstance(batches.sampler, RandomSampler):
        yield f"The loader's shuffle=True was replaced by {order}."
    if batches.drop_last and sampling != "fixed":
        yield f"The loader's drop_last=True was replaced by {order}, which draws batches of random sizes."


def _check_dataset(dataset: object) -> None:
    """Refuse data without an order of their own."""
    if isinstance(dataset, IterableDataset) or not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        raise InvalidParameter(
            f"{type(dataset).__name__} has no length or no index, so nobody can tell which examples a step uses; give "
            "a data set with __len__ and __getitem__ (list(stream), if it fits into memory)",
            field="data",
        )


def refuse_repeats(dataset: object) -> None:
    """Refuse a data set that names some of its examples more than once, for example to have more of a rare class.

    Raises:
        InvalidParticipation: the data set does, so that these examples take part more often than the participation
            allows.
    """
    entries = entries_of(dataset)
    if len(np.unique(entries, axis=0)) < len(entries):
        raise InvalidParticipation(
            f"the {type(dataset).__name__} lists some examples more than once, so they would take part more often "
            "than the participation allows; list each once, or give users=[number of the example of each item], whose "
            "items take turns",
            field="data",
        )


def entries_of(dataset: Any) -> np.ndarray:
    """Return for each item of a data set the data set that holds it, and its index there, shape (items, 2)."""
    if isinstance(dataset, Subset):
        return entries_of(dataset.dataset)[np.asarray(dataset.indices, dtype=np.int64)]
    if isinstance(dataset, ConcatDataset):
        return np.concatenate([entries_of(part) for part in dataset.datasets])
    chosen: Any = getattr(dataset, "_indices", None)  # of `datasets`, which keep a choice of rows in a table
    rows = chosen.column(0).to_numpy() if hasattr(chosen, "column") else np.arange(len(dataset))
    return np.column_stack([np.full(len(rows), id(dataset)), rows])


class ExampleGradients(GradSampleModule):
    """Opacus's module, with the layers' own paddings, and errors that name the layer and a way out.

    Args:
        model: the wrapped model.
        mode: one of `GRAD_SAMPLE_MODES`; `streamed` keeps no gradient of each example of large layers
            (`factorize.adapters.layer_rows`).
        **options: options of Opacus's module.
    """

    def __init__(self, model: torch.nn.Module, *, mode: str = "hooks", **options: Any) -> None:
        samplers = {kind: partial(_padded_rows, each) for kind, each in GradSampleModule.GRAD_SAMPLERS.items()}
        if mode == "streamed":
            samplers |= {kind: partial(keep_pass, samplers[kind]) for kind in _STREAMED_LAYERS}
        self.GRAD_SAMPLERS = samplers
        super().__init__(model, force_functorch=mode == "functorch", **options)

    def _get_module_type(self, module: torch.nn.Module) -> type[torch.nn.Module] | None:
        """Return a layer's type, by which Opacus finds its rule; those for convolutions know no padding but zeros."""
        padded = getattr(module, "padding_mode", "zeros") != "zeros"
        return None if padded else type(module)

    def capture_activations_hook(self, module: torch.nn.Module, *given: Any) -> None:
        """Keep a layer's inputs; see Opacus."""
        with _named_errors(module):
            super().capture_activations_hook(module, *given)

    def capture_backprops_hook(self, module: torch.nn.Module, *given: Any, **options: Any) -> None:
        """Make a layer's gradients of examples; see Opacus."""
        with _named_errors(module):
            super().capture_backprops_hook(module, *given, **options)

    def rearrange_grad_samples(self, *, module: torch.nn.Module, **others: Any) -> Any:
        """Return activations and backprops with the examples in front; see Opacus.

        Raises:
            InvalidParameter: the layer's activations were used by a backward pass before.
        """
        if getattr(module, "activations", None) == []:
            raise InvalidParameter(
                f"a {type(module).__name__} got a second backward pass for one forward pass; add the losses up, and "
                "call backward() once per batch",
                field="model",
            )
        return super().rearrange_grad_samples(module=module, **others)


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
        raise InvalidParameter(
            f"Opacus makes no gradient of each example for a {type(layer).__name__}: {str(error).splitlines()[0][:120]}"
            "; a layer with parameters of its own has to take one tensor, return one, and draw no random numbers (no "
            "Dropout inside); move its parameters into a layer of their own",
            field="model",
        ) from error


def _padded_rows(
    sampler: Callable[..., dict[torch.nn.Parameter, torch.Tensor]], layer: Any, inputs: Any, outputs: torch.Tensor
) -> dict[torch.nn.Parameter, torch.Tensor]:
    """Return a layer's gradients by example: Opacus's, but zero for the word that pads, and right for channels_last."""
    if isinstance(layer, torch.nn.modules.conv._ConvNd):  # Opacus reads windows by the strides of contiguous images
        inputs, outputs = [each.contiguous() for each in inputs], outputs.contiguous()
    rows = sampler(layer, inputs, outputs)
    if getattr(layer, "padding_idx", None) is not None:
        for each in rows.values():
            each[:, layer.padding_idx] = 0
    return rows


def check_model(model: torch.nn.Module) -> None:
    """Refuse a model whose examples have no gradients of their own here.

    Raises:
        InvalidParameter: see the messages.
    """
    for name, module in model.named_modules():
        reason = _misfit(module)
        if reason is not None:
            raise InvalidParameter(f"{f'module {name}' if name else 'the model'} {reason}", field="model")
    trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    if not trained:
        raise InvalidParameter("no parameter of the model has requires_grad; set it for some", field="model")
    complex_ones = [name for name, p in trained if p.is_complex()]
    if complex_ones:
        message = f"{_listed(complex_ones)}: complex parameters; use two real ones for real and imaginary part"
        raise InvalidParameter(message, field="model")
    errors = ModuleValidator.validate(model, strict=False)
    if errors:
        raise InvalidParameter(f"Opacus rejects the model: {errors[0]}; try ModuleValidator.fix", field="model")
    for name, module in model.named_modules():
        if next(module.buffers(), None) is not None and any(p.requires_grad for p in module.parameters(recurse=False)):
            raise InvalidParameter(
                f"{f'module {name}' if name else 'the model'} has trained parameters of its own and also buffers (as "
                "with spectral_norm, pruning, or tables of positions), so Opacus gives no per-example gradients for "
                "it; move the parameters into their own layer",
                field="model",
            )


def _misfit(module: torch.nn.Module) -> str | None:
    """Return why a module cannot be part of a private model, with the remedy; None where it can."""
    own = list(module.parameters(recurse=False))
    if isinstance(module, (torch.nn.DataParallel, torch.nn.parallel.DistributedDataParallel)):
        return (
            f"is a {type(module).__name__}, which would add noise in every process; give the model inside it on one "
            f"device, or use Opacus's {DifferentiallyPrivateDistributedDataParallel.__name__} for all ranks"
        )
    if any(kind.__name__ == "FullyShardedDataParallel" for kind in type(module).__mro__):
        return "is sharded by FSDP1; use fully_shard, clip in your own loop, and use NoiseGenerator"
    if isinstance(module, AbstractGradSampleModule) or hasattr(module, "autograd_grad_sample_hooks"):
        return "is already wrapped by Opacus; give the unwrapped model, or use CorrelatedOptimizer"
    if hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None:
        return "is compiled, so Opacus's hooks do not run inside it; give the model before torch.compile (_orig_mod)"
    if getattr(module, "max_norm", None) is not None and isinstance(
        module, (torch.nn.Embedding, torch.nn.EmbeddingBag)
    ):
        return "has max_norm, so the words of a batch change its weights without noise; leave max_norm out"
    if isinstance(module, torch.nn.EmbeddingBag) and any(p.requires_grad for p in own):
        return (
            "is an EmbeddingBag, and Opacus counts a word once that comes twice; use Embedding, and the sum or mean "
            "over the words of its output"
        )
    if any(is_lazy(p) for p in own):
        return "has lazy parameters without a shape; call the model once on a batch before you make the optimizer"
    if getattr(module, "gradient_checkpointing", False) is True:
        return (
            "uses gradient checkpointing, which runs Opacus's hooks twice; turn it off, and give physical_batch_size="
        )
    if getattr(module, "merged", False) is True:
        return "has merged adapters, which get no gradient; call unmerge_adapter(), and merge after training"
    made = [name for name, each in vars(module).items() if torch.is_tensor(each) and each.requires_grad]
    if any(name in ("weight", "bias") or vars(module)[name].is_leaf for name in made):
        return (
            f"has the tensor {made[0]}, which has a gradient but is not a parameter, as weight_norm of torch.nn.utils "
            "leaves it; use torch.nn.utils.parametrizations, or make it a torch.nn.Parameter"
        )
    if type(module).__name__ == "DoraLinearLayer":
        return "is a DoRA layer, for which Opacus has no per-example gradients; use LoRA without use_dora"
    if isinstance(module, (torch.nn.ParameterDict, torch.nn.ParameterList)) and any(p.requires_grad for p in own):
        return (
            "has trained parameters outside of any layer, as adapters of an embedding do, and Opacus has no "
            "per-example gradients for them; take embeddings out of target_modules and leave out "
            "trainable_token_indices, or train embeddings whole (modules_to_save)"
        )
    state: Any = getattr(module, "state", None)
    if type(state).__name__ == "MatmulLtState" and state.threshold > 0:  # the class belongs to bitsandbytes
        return (
            f"is in 8 bits with llm_int8_threshold={state.threshold:g}, so on a GPU a large entry of one example "
            "changes how other examples of the batch are rounded; load it with llm_int8_threshold=0.0, or in 4 bits"
        )
    if not module.training and any(p.requires_grad for p in own):
        return "is in eval mode, where Opacus gives no gradients; call model.train(), or freeze its parameters"
    return None


def check_optimizer(optimizer: torch.optim.Optimizer, model: torch.nn.Module | None = None) -> None:
    """Refuse an optimizer that needs more than a released gradient, or that does not have all trained parameters.

    Args:
        optimizer: an optimizer of torch.
        model: the whole model, where it is known.

    Raises:
        InvalidParameter: see the messages.
    """
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        message = (
            f"{type(optimizer).__name__} computes several gradients per step, but only one is released; use SGD or Adam"
        )
        raise InvalidParameter(message, field="optimizer")
    if isinstance(optimizer, torch.optim.SparseAdam):
        raise InvalidParameter("SparseAdam needs sparse gradients, but noise is dense; use Adam", field="optimizer")
    held = [p for group in optimizer.param_groups for p in group["params"]]
    if any(p._post_accumulate_grad_hooks for p in held):
        raise InvalidParameter(
            "some parameters have hooks that run in the backward pass, before the noise is added, and may take a "
            "step; create the model without register_post_accumulate_grad_hook",
            field="optimizer",
        )
    if model is None:
        return
    named = {id(p): (name, p) for name, p in model.named_parameters()}
    strange = [f"one of shape {tuple(p.shape)}" for p in held if id(p) not in named]
    if strange:
        message = (
            f"the optimizer has parameters of another model ({_listed(strange)}); create it from this one's parameters"
        )
        raise InvalidParameter(message, field="optimizer")
    ids = {id(p) for p in held}
    left = [name for key, (name, p) in named.items() if p.requires_grad and key not in ids]
    if left:
        raise InvalidParameter(
            f"the optimizer leaves out {_listed(left)}, whose gradients would stay without noise; give it all trained "
            "parameters, or freeze these (requires_grad=False)",
            field="optimizer",
        )
    stale = [name for key, (name, p) in named.items() if key in ids and not p.requires_grad and p.grad is not None]
    if stale:
        raise InvalidParameter(
            f"{_listed(stale)}: frozen, but with an old gradient, which the optimizer would apply without noise; call "
            "optimizer.zero_grad(), or take these parameters out of the optimizer",
            field="optimizer",
        )


def _listed(names: list[str]) -> str:
    shown, more = ", ".join(names[:_MAX_NAMES]), len(names) - _MAX_NAMES
    return f"{shown} and {more} more" if more > 0 else shown

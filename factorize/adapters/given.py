"""The model and the optimizer that a torch job gives, used as they are or refused by name in advance."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from opacus.distributed import DifferentiallyPrivateDistributedDataParallel
from opacus.grad_sample import AbstractGradSampleModule
from opacus.optimizers import DistributedDPOptimizer, DPOptimizer
from opacus.validators import ModuleValidator
from torch.nn.parameter import is_lazy

from factorize.adapters.disjoint_optimizers import parts_of
from factorize.adapters.gradients.raw_gradients import refuse_hooks
from factorize.adapters.ranks.placements import is_sharded
from factorize.errors import InvalidParameter

_MAX_NAMES = 3
"""The most parameters that a message names."""
_OF_ATTENTION = "nn.MultiheadAttention"
"""In Opacus's refusal of that layer, which has no rule, but runs again for each example here."""


def check_model(model: torch.nn.Module) -> None:
    """Refuse a model whose examples have no gradients of their own here.

    Raises:
        InvalidParameter: see the messages.
    """
    if not isinstance(model, torch.nn.Module):
        message = f"the model is a {type(model).__name__}; give a torch.nn.Module (several in one ModuleDict)"
        raise InvalidParameter(message, field="model")
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
    errors = [each for each in ModuleValidator.validate(model, strict=False) if _OF_ATTENTION not in str(each)]
    if errors:
        raise InvalidParameter(f"Opacus rejects the model: {errors[0]}; try ModuleValidator.fix", field="model")


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
        return (
            "is already wrapped by Opacus, or has the hooks of an earlier job, as where a cell runs again or a search "
            "reuses a model, or is a copy of one; create the model anew and load its weights, or call remove_hooks() "
            "on the earlier job's model and give the one that it was made of, or use CorrelatedOptimizer"
        )
    scripted = isinstance(module, torch.jit.ScriptModule) and any(p.requires_grad for p in own)
    if scripted or hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None:
        return (
            "is compiled, so Opacus's hooks do not run inside it; give the model before torch.compile (_orig_mod) or "
            "torch.jit.script"
        )
    if getattr(module, "sparse", False) and any(p.requires_grad for p in own):
        return "has sparse=True, but noise is dense; leave sparse out"
    if getattr(module, "max_norm", None) is not None and isinstance(
        module, (torch.nn.Embedding, torch.nn.EmbeddingBag)
    ):
        return "has max_norm, so the words of a batch change its weights without noise; leave max_norm out"
    if isinstance(module, torch.nn.RNN) and any(p.requires_grad for p in own):
        return (
            "is an RNN, which Opacus cannot take apart into examples; use opacus.layers.DPRNN, which has its arguments"
        )
    if isinstance(module, torch.nn.modules.batchnorm._NormBase) and any(p.requires_grad for p in own):
        if module.track_running_stats:
            return "keeps running statistics of batches, which mix examples; use a layer without them, as GroupNorm"
    if any(is_lazy(p) for p in own):
        return "has lazy parameters without a shape; call the model once on a batch before you make the optimizer"
    if getattr(module, "gradient_checkpointing", False) is True:
        return (
            "uses gradient checkpointing, which runs Opacus's hooks twice; turn it off, and give physical_batch_size="
        )
    if getattr(module, "merged", False) is True:
        return "has merged adapters, which get no gradient; call unmerge_adapter(), and merge after training"
    made = [
        name
        for name, each in vars(module).items()
        if torch.is_tensor(each) and (each.requires_grad or f"{name}_orig" in module._parameters)
    ]
    if any(name in ("weight", "bias") or vars(module)[name].is_leaf for name in made):
        return (
            f"has the tensor {made[0]}, which has a gradient but is not a parameter, as weight_norm, spectral_norm and "
            "prune of torch.nn.utils leave it; use torch.nn.utils.parametrizations, make it a torch.nn.Parameter, or "
            "multiply by a mask in a parametrization of your own"
        )
    if type(module).__name__ == "ParamWrapper":
        return (
            "is LoRA of a parameter, not of a layer, as of the experts or the gate of a mixture, for which Opacus has "
            "no per-example gradients; take it out of target_modules and target_parameters"
        )
    if type(module).__name__ in ("PromptEmbedding", "PromptEncoder"):
        return (
            "is a prompt that peft computes once for all examples, so none has a gradient of its own; use LoRA, or "
            "PrefixTuningConfig"
        )
    if any(kind.__module__.partition(".")[0] == "keras" for kind in type(module).__mro__):
        return "is a layer of Keras, which reads its weights where no gradient of an example is; use layers of torch"
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
    if not isinstance(optimizer, torch.optim.Optimizer):
        message = f"the optimizer is a {type(optimizer).__name__}; give an optimizer of torch, or a list of several"
        raise InvalidParameter(message, field="optimizer")
    for part in parts_of(optimizer):
        closure = inspect.signature(type(part).step).parameters.get("closure")
        required = closure is not None and closure.default is inspect.Parameter.empty
        if required or hasattr(part, "second_step"):  # as SAM has, whose closure only looks optional
            message = (
                f"{type(part).__name__} computes several gradients per step, but only one is released; use SGD or Adam"
            )
            raise InvalidParameter(message, field="optimizer")
        if isinstance(part, torch.optim.SparseAdam):
            raise InvalidParameter("SparseAdam needs sparse gradients, but noise is dense; use Adam", field="optimizer")
    held = [p for group in optimizer.param_groups for p in group["params"]]
    refuse_hooks(held)
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
            "parameters, give a list with another optimizer for these (such as [Muon, AdamW]), or freeze them "
            "(requires_grad=False)",
            field="optimizer",
        )
    stale = [name for key, (name, p) in named.items() if key in ids and not p.requires_grad and p.grad is not None]
    if stale:
        raise InvalidParameter(
            f"{_listed(stale)}: frozen, but with an old gradient, which the optimizer would apply without noise; call "
            "optimizer.zero_grad(), or take these parameters out of the optimizer",
            field="optimizer",
        )


def refuse_other_clipping(optimizer: torch.optim.Optimizer, *, alone: bool) -> None:
    """Refuse an optimizer that clips in another way, or one of several ranks that would each add all the noise.

    Args:
        optimizer: an optimizer of torch or Opacus.
        alone: whether no other rank takes part.

    Raises:
        InvalidParameter: see the messages.
    """
    if isinstance(optimizer, DPOptimizer) and type(optimizer) not in (DPOptimizer, DistributedDPOptimizer):
        raise InvalidParameter(
            f"Opacus's {type(optimizer).__name__} clips in a way that no sensitivity here covers; use clipping='flat' "
            "with grad_sample_mode='hooks' (one process, DDP), or clip yourself and use NoiseGenerator (fully_shard)",
            field="optimizer",
        )
    sharded = any(is_sharded(p) for group in getattr(optimizer, "param_groups", []) for p in group["params"])
    if alone and (sharded or hasattr(optimizer, "world_size")):
        raise InvalidParameter(
            f"{type(optimizer).__name__} is the optimizer of one of several ranks; use correlated_optimizer of "
            "factorize.adapters.opacus_ranks, which sums over them",
            field="optimizer",
        )


def _listed(names: list[str]) -> str:
    shown, more = ", ".join(names[:_MAX_NAMES]), len(names) - _MAX_NAMES
    return f"{shown} and {more} more" if more > 0 else shown

"""Gradients of a batch that are neither clipped nor noisy, as plain autograd leaves them in `p.grad`.

No private step uses them, but a loop might: a norm that is logged, that sets a rate or that skips a step is a function
of the data without noise. So they are zero when `backward()` returns, and only checks of Opacus's gradients see them.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from functools import partial

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from factorize.errors import InvalidParameter

USED_ROWS = torch.empty(0)
"""A mark in place of examples' gradients that were added up, and of released sums, until `zero_grad` is called."""
_KEPT = WeakTensorKeyDictionary()
"""By parameter, where a check has asked for it: `p.grad`, which is zero, and what was hidden of it."""


def refuse_used(parameters: Iterable[torch.nn.Parameter]) -> None:
    """Refuse gradients of the step before, from which `zero_grad` has not been called.

    Raises:
        InvalidParameter: they are still there.
    """
    for p in parameters:
        for each in (getattr(p, "grad_sample", None), getattr(p, "summed_grad", None)):
            if (each[0] if isinstance(each, list) else each) is USED_ROWS:
                raise InvalidParameter(
                    "gradients of the previous step are still there; call zero_grad() of this optimizer (the model's "
                    "leaves sums) after each step()",
                    field="optimizer",
                )


def is_raw(parameter: torch.nn.Parameter) -> bool:
    """Return whether a gradient, or a part of it, belongs to examples of which nothing was released."""
    held, total = getattr(parameter, "grad_sample", None), getattr(parameter, "summed_grad", None)
    return parameter.grad is not None and not all(each is None or each is USED_ROWS for each in (held, total))


def are_accumulated(parameters: Iterable[torch.nn.Parameter]) -> bool:
    """Return whether the present backward pass adds to `p.grad` of some parameters, or returns their gradients.

    One by `torch.autograd.grad` of inputs alone does not.
    """
    nodes = [torch.autograd.graph.get_gradient_edge(p).node for p in parameters if p.requires_grad]
    try:
        return any(map(torch._C._will_engine_execute_node, nodes))
    except RuntimeError:  # it returns one
        return True


def hide_gradients(parameters: Iterable[torch.nn.Parameter], private: object) -> None:
    """Have the gradients of parameters be zero after a backward pass over private examples, as long as a job exists.

    Args:
        parameters: the parameters that have noise.
        private: the job's optimizer.
    """
    job = weakref.ref(private)
    for p in parameters:
        weakref.finalize(private, p.register_post_accumulate_grad_hook(partial(_hide, job)).remove)


def refuse_hooks(parameters: Iterable[torch.nn.Parameter]) -> None:
    """Refuse code that is not ours and runs in the backward pass, where a gradient without noise is ready.

    Raises:
        InvalidParameter: a parameter has such hooks.
    """
    for p in parameters:
        after = (p._post_accumulate_grad_hooks or {}).values()
        if p._backward_hooks or any(getattr(each, "func", None) is not _hide for each in after):
            raise InvalidParameter(
                "some parameters have hooks that run in the backward pass, where they see gradients that have no noise "
                "yet, and may log them or take a step; leave out register_hook and register_post_accumulate_grad_hook "
                "(as of wandb.watch, whose log='parameters' has none)",
                field="optimizer",
            )


def keep_gradients(parameters: Iterable[torch.nn.Parameter]) -> None:
    """Keep what is hidden from now on, until `kept_gradient` asks for it."""
    for p in parameters:
        _KEPT[p] = None, None


def forget_gradients(parameters: Iterable[torch.nn.Parameter]) -> None:
    """Keep only what is hidden from now on, where anything is kept: a loop has cleared its gradients."""
    keep_gradients(p for p in parameters if p in _KEPT)


def kept_gradient(parameter: torch.nn.Parameter) -> torch.Tensor | None:
    """Return plain autograd's gradient with what a loop has added to it, and keep no more; None if there is none."""
    shown: torch.Tensor | None = parameter.grad
    hidden = _KEPT.pop(parameter, (None, None))[1]
    return shown if hidden is None or shown is None else hidden + shown.to_dense()


def _hide(job: weakref.ref[object], parameter: torch.nn.Parameter) -> None:
    """Clear a gradient that came from a wrapped model: Opacus's rows are there, or come later in this pass."""
    comes = getattr(parameter, "_forward_counter", 0) > 0
    if job() is None or parameter.grad is None or not (comes or is_raw(parameter)):
        return
    if parameter in _KEPT:
        held, hidden = _KEPT[parameter]
        more = parameter.grad.to_dense()
        _KEPT[parameter] = parameter.grad, hidden + more if held is parameter.grad else more.clone()
    parameter.grad.zero_()

"""Gradients of a torch module, one per example: any nn.Module trains with the algorithms of `factorize.training`.

    model = ModuleGradients(module, loss, inputs, targets)
    run = dp_srg(model, model.weights(), order, sums, decay=0.08, optimizer=Sgd(learning_rate=0.1))
    model.load(run.weights)

The parameters are one flat vector. Gradients come from torch.func, so that no example's is mixed with another's; layers
that mix them anyway (BatchNorm in training mode) are refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from factorize.errors import InvalidParameter

if TYPE_CHECKING:
    import torch

Loss = Callable[["torch.Tensor", "torch.Tensor"], "torch.Tensor"]
"""A function from the outputs and the targets of one example, each with a leading 1, to a number."""


class ModuleGradients:
    """A gradient function on a module's flat weights: weights and a batch's indices to gradients, one per example.

    Args:
        module: module whose trainable parameters are trained; its buffers stay as they are.
        loss: loss of one example.
        inputs: shape (examples, ...).
        targets: shape (examples, ...).
        chunk: examples whose gradients are made at once; memory grows with it.

    Raises:
        InvalidParameter: no trainable parameters, other numbers of inputs and targets, or a layer that mixes examples.
    """

    def __init__(
        self, module: torch.nn.Module, loss: Loss, inputs: torch.Tensor, targets: torch.Tensor, *, chunk: int = 256
    ) -> None:
        self._module, self._loss, self._chunk = module, loss, chunk
        self._inputs, self._targets = inputs, targets
        self._names = {name: one.shape for name, one in module.named_parameters() if one.requires_grad}
        if not self._names or len(inputs) != len(targets) or chunk < 1:
            raise InvalidParameter(
                f"{len(self._names)} trainable parameters, {len(inputs)} inputs, {len(targets)} targets and "
                f"chunk={chunk}: give a module with parameters, a target for each input, and a chunk of at least 1",
                field="module",
            )
        mixing = [type(layer).__name__ for layer in module.modules() if "BatchNorm" in type(layer).__name__]
        if mixing and module.training:
            raise InvalidParameter(
                f"{mixing[0]} mixes the examples of a batch, so none has its own gradient; use GroupNorm, or put the "
                "module into eval mode",
                field="module",
            )

    @property
    def shape(self) -> tuple[int]:
        """The shape of the flat weights."""
        return (sum(shape.numel() for shape in self._names.values()),)

    def weights(self) -> np.ndarray:
        """Return the module's trainable parameters, shape (d,), float64."""
        own = dict(self._module.named_parameters())
        return np.concatenate([own[name].detach().cpu().double().numpy().ravel() for name in self._names])

    def load(self, weights: np.ndarray) -> None:
        """Set the module's trainable parameters."""
        import torch

        with torch.no_grad():
            own = dict(self._module.named_parameters())
            for name, value in self._tensors(weights).items():
                own[name].copy_(value)

    def __call__(self, weights: np.ndarray, batch: np.ndarray) -> np.ndarray:
        """Return the gradients of the batch's examples, shape (m, d), float64."""
        import torch

        parameters = self._tensors(weights)
        fixed = {name: one.detach() for name, one in self._module.named_parameters() if name not in parameters}
        fixed |= dict(self._module.named_buffers())

        def cost(trained: dict[str, Any], x: Any, y: Any) -> Any:
            outputs = torch.func.functional_call(self._module, {**fixed, **trained}, (x[None],))
            return self._loss(outputs, y[None])

        each = torch.func.vmap(torch.func.grad(cost), in_dims=(None, 0, 0), randomness="different")
        out = np.empty((len(batch), *self.shape))
        for start in range(0, len(batch), self._chunk):
            rows = slice(start, start + self._chunk)
            chosen = torch.as_tensor(np.asarray(batch)[rows], device=self._inputs.device)
            gradients = each(parameters, self._inputs[chosen], self._targets[chosen])
            flat = torch.cat([gradients[name].reshape(len(chosen), -1) for name in self._names], dim=1)
            out[rows] = flat.detach().cpu().double().numpy()
        return out

    def _tensors(self, weights: np.ndarray) -> dict[str, torch.Tensor]:
        import torch

        if np.shape(weights) != self.shape:
            raise InvalidParameter(
                f"weights of shape {np.shape(weights)} for a module with {self.shape[0]} trainable parameters; pass "
                "flat ones, as `weights()` returns them",
                field="weights",
            )
        own, parts, start = dict(self._module.named_parameters()), {}, 0
        for name, shape in self._names.items():
            part = np.asarray(weights[start : start + shape.numel()]).reshape(tuple(shape))
            parts[name] = torch.as_tensor(part, dtype=own[name].dtype, device=own[name].device)
            start += shape.numel()
        return parts

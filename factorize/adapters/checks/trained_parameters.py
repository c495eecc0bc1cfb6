"""The parameters of a model that are trained and have noise, and a check that they are still the same ones."""

from collections.abc import Hashable, Sequence

import torch

from factorize.adapters.gradients.raw_gradients import keep_gradients, refuse_hooks
from factorize.errors import InvalidParameter


class TrainedParameters:
    """The parameters that have noise, as parts of the model that a loop trains.

    Args:
        model: a model in Opacus's `GradSampleModule`.
        parameters: the parameters that have noise.

    Attributes:
        parameters: these parameters.
    """

    def __init__(self, model: torch.nn.Module, parameters: Sequence[torch.nn.Parameter]) -> None:
        self._model, self.parameters = model, list(parameters)
        self._names = {id(p): name for name, p in _named(model)}
        self._checked: Hashable = None  # key of the model whose parameters were compared with those that have noise

    def named(self, parameters: Sequence[torch.nn.Parameter] | None = None) -> list[tuple[str, torch.nn.Parameter]]:
        """Return parameters, all if None, with their names in the model."""
        some = self.parameters if parameters is None else parameters
        return [(self._names.get(id(p), f"parameter {i}"), p) for i, p in enumerate(some)]

    @property
    def training(self) -> bool:
        """Whether a layer with trained parameters is in train mode; a wrapper around the model may be in another."""
        return any(layer.training and _has_trained(layer) for layer in self._model.modules())

    def model_key(self) -> Hashable:
        """Return a value that changes with the layers, their modes, the parameters and which of them are trained."""
        layers = tuple((id(each), each.training) for each in self._model.modules())
        return layers, tuple((id(p), p.requires_grad) for p in self._model.parameters())

    def check(self) -> None:
        """Refuse a model whose trained parameters are not those that have noise, or are in a mode that breaks them.

        Raises:
            InvalidParameter: a parameter was frozen, thawed, added or replaced, is in a layer in eval mode, or has
                hooks that see gradients without noise; or a layer normalizes by the batch.
        """
        refuse_hooks(self.parameters)
        now = self.model_key()
        if now == self._checked:
            return
        for path, layer in self._model.named_modules() if self.training else ():
            name = path.removeprefix("_module.")
            if not layer.training and _has_trained(layer):
                raise InvalidParameter(
                    f"{name} is in eval mode, where Opacus has no per-example gradients; call model.train() before the "
                    "forward pass, or freeze its parameters before you make the job private",
                    field="model",
                )
            if layer.training and isinstance(layer, torch.nn.modules.batchnorm._BatchNorm):
                raise InvalidParameter(
                    f"{name} is a {type(layer).__name__} in train mode, which mixes the examples of a batch; use "
                    "GroupNorm or torchvision's FrozenBatchNorm2d, or freeze its parameters and call eval() on it "
                    "after each model.train()",
                    field="model",
                )
        trained = {id(p): name for name, p in _named(self._model) if p.requires_grad}
        own = {id(p) for p in self.parameters}
        bare = next((name for key, name in trained.items() if key not in own), None)
        gone = next((name for name, p in self.named() if id(p) not in trained), None)
        if bare is not None:
            raise InvalidParameter(
                f"{bare} is trained but has no noise, because the optimizer does not have it, or it was added, "
                "replaced or unfrozen after the job was made private; freeze it, or make the job private with it",
                field="model",
            )
        if gone is not None:
            raise InvalidParameter(
                f"{gone} has noise but is no longer trained, because it was frozen, replaced or removed; keep it to "
                "the end of the run (a learning rate of 0 stops it)",
                field="model",
            )
        self._checked = now

    def forget_forward(self) -> None:
        """Leave no forward pass whose backward pass never came, as of a test or of what Ctrl-C has ended.

        Opacus would wait for it, and hand out no gradients of examples.
        """
        for layer in self._model.modules():
            for held in ("activations", "max_batch_len"):
                vars(layer).pop(held, None)
        for p in self.parameters:
            p._forward_counter = 0
            vars(p).pop("_current_grad_sample", None)

    def begin_pass(self) -> None:
        """Leave no gradient, as before a backward pass, and keep that of the next pass for a comparison."""
        self.forget_forward()
        for p in self.parameters:
            p.grad, p.grad_sample = None, None
        keep_gradients(self.parameters)

    def clear_gradients(self) -> None:
        """Clear gradients that must not be released; a loop that logs `p.grad` finds zeros."""
        for p in self.parameters:
            p.grad, p.grad_sample = torch.zeros_like(p), None


def _has_trained(layer: torch.nn.Module) -> bool:
    return any(p.requires_grad for p in layer.parameters(recurse=False))


def _named(model: torch.nn.Module) -> list[tuple[str, torch.nn.Parameter]]:
    return [(name.removeprefix("_module."), p) for name, p in model.named_parameters()]

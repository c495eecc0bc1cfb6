"""Look-ups of embeddings, found where they happen: other code may choose the ids, or scale the rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch.overrides import TorchFunctionMode


class LookUps(TorchFunctionMode):
    """What an embedding looks up while it runs.

    Args:
        module: an embedding, or a layer derived from it.
        take: a function of it, of ids and of rows, that returns the rows to go on with.
    """

    def __init__(
        self,
        module: torch.nn.Embedding,
        take: Callable[[torch.nn.Module, torch.Tensor, torch.Tensor], torch.Tensor],
    ) -> None:
        super().__init__()
        self._module, self._take = module, take

    def begin(self, *_: object) -> None:
        """Begin to look, as a hook before the layer runs."""
        self.__enter__()

    def end(self, *_: object) -> None:
        """Look no longer, as a hook after it, or after its failure."""
        self.__exit__(None, None, None)

    def __torch_function__(
        self,
        call: Callable[..., object],
        types: object,
        inputs: Sequence[object] = (),
        options: Mapping[str, object] | None = None,
    ) -> object:
        """Run a function of torch, and take a look-up in the layer's own weight: by a function, or by an index."""
        found, weight = call(*inputs, **(options or {})), self._module.weight
        if call is torch.nn.functional.embedding and inputs[1] is weight:
            return self._take(self._module, inputs[0], found)
        if call is torch.Tensor.__getitem__ and inputs[0] is weight and isinstance(inputs[1], (slice, torch.Tensor)):
            places = torch.arange(self._module.num_embeddings, device=self._module.weight.device)
            return self._take(self._module, places[inputs[1]], found)
        return found

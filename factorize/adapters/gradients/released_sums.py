"""Sums of clipped gradients as they are released: checked, given noise in all its digits, and rounded once."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import repeat

import torch

from factorize.adapters.gradients.clipping import refuse_narrow, tensors_of
from factorize.adapters.ranks.placements import ShardLayout, is_sharded
from factorize.errors import InvalidParameter
from factorize.privacy import refuse_infinite


@dataclass(frozen=True)
class ReleasedSums:
    """The release of sums: their check, their noise and their rounding.

    Attributes:
        layout: this rank's part of the parameters.
        kinds: type and device of the released tensors, for each part.
    """

    layout: ShardLayout
    kinds: Sequence[tuple[torch.dtype, torch.device]]

    def parts_of(self, values: Iterable[torch.Tensor]) -> tuple[list[torch.Tensor], float]:
        """Return this rank's parts of sums or means that have the shapes of the parameters, and their norm.

        Raises:
            InvalidParameter: they do not match the parameters, one has fewer digits than float32 or a number that is
                not finite.
        """
        tensors, parts = tensors_of("sums", values), self.layout.parts
        refuse_narrow(tensors)
        pairs = zip(parts, tensors, strict=False)
        if len(tensors) != len(parts) or any(part.mesh is None and part.local != total.shape for part, total in pairs):
            raise InvalidParameter(
                f"{len(tensors)} sums do not have the shapes of the {len(parts)} parameters; give one for each, in "
                "order",
                field="parameters",
            )
        own = [part.part_of(total) for part, total in zip(parts, tensors, strict=True)]
        norm = norm_of(own)  # takes one pass, a tenth of the time of a look at every entry
        refuse_infinite("sum", finite=math.isfinite(norm) or all(bool(part.isfinite().all()) for part in own))
        self.layout.compare_replicas(own)
        return own, norm

    def add(
        self,
        send: Callable[[Sequence[int], int, Callable[[int, slice, torch.Tensor], None]], None],
        parts: list[torch.Tensor],
        add: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor | None],
        out: Iterable[torch.Tensor | None] | None = None,
    ) -> list[torch.Tensor]:
        """Return the sums with noise, rounded to float32 and then to the type of the release.

        Args:
            send: a function that hands out the noise of a step.
            parts: parts of the sums.
            add: a function that returns a piece of a part with its noise, given memory that it may write; None if it
                has written there.
            out: memory for each part that may be overwritten.
        """
        places = repeat(None) if out is None else out
        made = [
            release_memory(part, *kind, place) for part, kind, place in zip(parts, self.kinds, places, strict=False)
        ]
        flat = [(part.detach().reshape(-1), place.view(-1)) for part, place in zip(parts, made, strict=True)]

        def put(i: int, at: slice, drawn: torch.Tensor) -> None:
            part, place = flat[i][0][at], flat[i][1][at]
            noisy = add(part, drawn.to(part.device, noise_dtype(place.dtype)), place)
            if noisy is not None:
                place.copy_(noisy.float())

        send(self.layout.sizes, 0, put)
        return [placed.tensor(part) for placed, part in zip(self.layout.parts, made, strict=True)]


def norm_of(parts: list[torch.Tensor]) -> float:
    """Return the norm of tensors together, in float64."""
    return float(torch.stack([torch.linalg.vector_norm(part, dtype=torch.float64).cpu() for part in parts]).norm())


def release_memory(
    part: torch.Tensor, dtype: torch.dtype, device: torch.device, place: torch.Tensor | None
) -> torch.Tensor:
    """Return memory for a release with the shape of a part: the present one, where it fits."""
    if place is not None and place.layout == torch.strided and place.is_contiguous() and not is_sharded(place):
        if (place.shape, place.dtype, place.device) == (part.shape, dtype, device):
            return place.detach()
    return torch.empty(part.shape, dtype=dtype, device=device)


def noise_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return a type with enough digits: noise that is rounded further before it is added is not the bounded one."""
    return dtype if dtype == torch.float64 else torch.float32

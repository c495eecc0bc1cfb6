"""The scale of scale-then-privatize: one over the root of an adaptive optimizer's second moments, entry by entry.

Gradients are scaled before they are clipped, and what is released is scaled back, so that the noise lies as the
optimizer will scale the update. The scale is a function of what was released before: it costs no privacy, and no
sensitivity changes. Source: Ganesh, McMahan, Thakurta, On design principles for private adaptive optimizers (arXiv
2507.01129).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from factorize.adapters.adaptive.scale_floor import FLOOR
from factorize.errors import InvalidParameter

_KEPT = {
    torch.optim.Adam: "exp_avg_sq",
    torch.optim.AdamW: "exp_avg_sq",
    torch.optim.NAdam: "exp_avg_sq",
    torch.optim.RAdam: "exp_avg_sq",
    torch.optim.Adagrad: "sum",
    torch.optim.RMSprop: "square_avg",
}
"""Where the optimizers keep the second moments."""


class SecondMoments:
    """The second moments that an optimizer of torch keeps, as scales of root mean square 1.

    Args:
        optimizer: Adam, AdamW, NAdam, RAdam, Adagrad or RMSprop.

    Raises:
        InvalidParameter: another one, which has no second moments.
    """

    def __init__(self, optimizer: Any) -> None:
        name = next((name for kind, name in _KEPT.items() if type(optimizer) is kind), None)
        if name is None:
            known = ", ".join(kind.__name__ for kind in _KEPT)
            raise InvalidParameter(
                f"{type(optimizer).__name__} keeps no second moments to scale by; use {known}, or adaptive='plain'",
                field="adaptive",
            )
        self._optimizer, self._name = optimizer, name

    def scales(self, parameters: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return a positive scale for each entry, shaped like the parameters, in float64; ones before the first step.

        They are 1 / (v^(1/2) + 0.01 rms(v^(1/2))) for second moments v, times what makes their root mean square 1: the
        clip norm then means what it means without them.

        Args:
            parameters: in the order of the gradients.
        """
        kept = [self._optimizer.state.get(p, {}).get(self._name) for p in parameters]
        roots = [
            torch.zeros(p.shape, dtype=torch.float64) if v is None else v.detach().double().cpu().clamp(min=0).sqrt()
            for p, v in zip(parameters, kept, strict=True)
        ]
        middle = _rms(roots)
        if not 0 < middle < float("inf"):
            return [torch.ones_like(root).to(p.device) for root, p in zip(roots, parameters, strict=True)]
        found = [1.0 / (root / middle + FLOOR) for root in roots]
        size = _rms(found)
        return [(scale / size).to(p.device) for scale, p in zip(found, parameters, strict=True)]


def _rms(parts: Sequence[torch.Tensor]) -> float:
    """Return the root of the mean square over all entries."""
    count = sum(part.numel() for part in parts)
    return float((sum(float(part.square().sum()) for part in parts) / max(count, 1)) ** 0.5)

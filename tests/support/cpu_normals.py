"""Normals of a device that is no GPU, so that what torch does with them on a CUDA device can be tested on a CPU."""

from __future__ import annotations

import numpy as np
import torch

from factorize.client.normals import ReplayableNormals


class CpuNormals:
    """Whole blocks of the client's normals, in float32."""

    block = 1 << 16

    def __init__(self, seed: int, context: str, device: torch.device | None = None) -> None:
        self._normals = ReplayableNormals(seed, context)
        self.key = self._normals.key

    def fill(self, out: torch.Tensor, step: int, block: int, scale: float = 1.0) -> None:
        """Fill a tensor of one whole block, with this standard deviation."""
        drawn = np.empty(self.block)
        self._normals.fill(drawn, step, block)
        out.copy_(torch.from_numpy(drawn * scale))

"""Normals that torch draws on a CUDA device, and can draw again: a function of (key, step, block).

The generator is Philox: its key is hashed from the secret, and step and block are its counter, so that no two blocks
meet.
"""

from __future__ import annotations

import hashlib
from typing import Protocol

import torch

from factorize.client.normals import committed, keyed
from factorize.errors import UnsupportedProblem

_COUNTERS = 1 << 12  # Philox counters of one block, far more than a block of 2^20 entries uses


class TorchNormals(Protocol):
    """Whole blocks of normals, float32.

    Attributes:
        block: entries of one block.
        key: the secret that every block is hashed from.
    """

    block: int
    key: bytes

    def fill(self, out: torch.Tensor, step: int, block: int, scale: float = 1.0) -> None:
        """Fill a tensor of one whole block, with this standard deviation."""


class CudaNormals:
    """Blocks from torch's Philox.

    Args:
        key: secret; 64 bits of its hash are the generator's key.
        device: a CUDA device.
    """

    block = 1 << 20

    def __init__(self, key: bytes, device: torch.device) -> None:
        self.key = key
        self._generator = torch.Generator(device=device)
        self._seed = hashlib.shake_128(key + bytes(16)).digest(8)

    def fill(self, out: torch.Tensor, step: int, block: int, scale: float = 1.0) -> None:
        """Fill a tensor of one whole block, with this standard deviation."""
        offset = (step << 24 | block) * _COUNTERS  # 2^28 steps of 2^24 blocks
        state = self._seed + offset.to_bytes(8, "little")
        self._generator.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))
        out.normal_(0, scale, generator=self._generator)


def device_normals(seed: int, context: str, device: torch.device) -> TorchNormals:
    """Return the normals of a device.

    Args:
        seed: a secret integer, `secrets.randbits(128)`.
        context: name of what the noise is for.
        device: a CUDA device.

    Raises:
        InvalidParameter: the seed is no integer >= 0.
        UnsupportedProblem: another kind of device.
    """
    key = keyed(f"torch-{device.type}", seed, context)
    if device.type != "cuda":
        message = f"generator='torch' draws on CUDA devices, not on {device.type}; use generator='sfc64'"
        raise UnsupportedProblem(message, field="generator")
    return CudaNormals(key, device)


def commitment(normals: TorchNormals, device: torch.device) -> str:
    """Return what tells another seed, and a torch that draws another stream; see `factorize.client.normals`."""
    probe = torch.empty(normals.block, device=device)
    normals.fill(probe, 0, 0)
    return committed(normals.key, probe[:64].cpu().numpy().astype("<f4").tobytes())

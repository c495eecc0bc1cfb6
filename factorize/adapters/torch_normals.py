"""Normals drawn by torch itself, on the device, that can be drawn again: a function of (key, step, block).

On the CPU torch keeps 32 bits of any seed that it is given, and a run has millions of blocks: two of them would share
their noise. So the whole state of the generator, 624 words, is set from a hash. On CUDA the generator is Philox: its
key is hashed from the secret, and step and block are its counter, so that no two blocks meet.
"""

from __future__ import annotations

import hashlib
from typing import Any, Protocol

import numpy as np
import torch

from factorize.client.normals import committed
from factorize.errors import InvalidParameter, UnsupportedProblem

_WORDS = 624  # of the Mersenne Twister
_FIRST = 24  # bytes before them: seed, words left, seeded, next word
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


class CpuNormals:
    """Blocks from torch's Mersenne Twister with a hashed state.

    Args:
        key: secret.

    Raises:
        UnsupportedProblem: this version of torch keeps the state of its generator in another layout.
    """

    block = 1 << 16

    def __init__(self, key: bytes) -> None:
        self.key = key
        fresh = torch.Generator().get_state().numpy().copy()
        fresh[:_FIRST] = np.frombuffer(np.array([0, 1 | 1 << 32, 0], dtype="<u8").tobytes(), np.uint8)
        fresh[_FIRST + 8 * _WORDS :] = 0
        self._template = fresh
        self._check_layout()

    def fill(self, out: torch.Tensor, step: int, block: int, scale: float = 1.0) -> None:
        """Fill a tensor of one whole block, with this standard deviation."""
        words = np.frombuffer(_stream(self.key, step, block, 4 * _WORDS), "<u4")
        out.normal_(0, scale, generator=self._generator(words))

    def _generator(self, words: np.ndarray) -> torch.Generator:
        state = self._template.copy()
        state[_FIRST : _FIRST + 8 * _WORDS] = words.astype("<u8").view(np.uint8)
        generator = torch.Generator()
        generator.set_state(torch.from_numpy(state))
        return generator

    def _check_layout(self) -> None:
        """Compare with numpy's Mersenne Twister in the same state: uniforms are its words' last 24 bits."""
        words = np.frombuffer(_stream(b"layout", 0, 0, 4 * _WORDS), "<u4")
        twister: Any = np.random.MT19937(0)
        twister.state = {"bit_generator": "MT19937", "state": {"key": words, "pos": _WORDS}}
        expected = (twister.random_raw(1000) & 0xFFFFFF) / 2.0**24
        if not np.array_equal(torch.rand(1000, generator=self._generator(words)).numpy(), expected):
            raise UnsupportedProblem(
                f"torch {torch.__version__} keeps its generator's state in a layout unknown here; use generator='sfc64'"
            )


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
        self._seed = _stream(key, 0, 0, 8)

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
        device: `cpu` or `cuda`.

    Raises:
        InvalidParameter: the seed is no integer >= 0.
        UnsupportedProblem: another kind of device, or a version of torch that is not understood.
    """
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise InvalidParameter(f"seed={seed!r} is not an integer >= 0; draw secrets.randbits(128)", field="seed")
    secret = seed.to_bytes((seed.bit_length() + 7) // 8, "little")
    key = hashlib.sha512(hashlib.sha256(f"torch-{device.type} {context}".encode()).digest() + secret).digest()
    if device.type == "cpu":
        return CpuNormals(key)
    if device.type == "cuda":
        return CudaNormals(key, device)
    raise UnsupportedProblem(f"torch's generator on {device.type} is not known here; use generator='sfc64'")


def commitment(normals: TorchNormals, device: torch.device) -> str:
    """Return what tells another seed, and a torch that draws another stream; see `factorize.client.normals`."""
    probe = torch.empty(normals.block, device=device)
    normals.fill(probe, 0, 0)
    return committed(normals.key, probe[:64].cpu().numpy().astype("<f4").tobytes())


def _stream(key: bytes, step: int, block: int, size: int) -> bytes:
    return hashlib.shake_128(key + step.to_bytes(8, "little") + block.to_bytes(8, "little")).digest(size)

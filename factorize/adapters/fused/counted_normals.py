"""Counted normals: Philox-4x32-10 and Box-Muller, each entry a function of (key, step, place) alone.

The counter of a Philox call is (step, place); its four words are the normals of four entries of one span. So any part
of any step can be drawn by itself, and a span that is drawn twice has the same numbers. Here is the definition in
numpy, which the kernel (step_kernel.py) is compared with.

Reference:
    Salmon, Moraes, Dror, Shaw 2011, Parallel random numbers: as easy as 1, 2, 3.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from factorize.errors import InvalidParameter

QUARTER = 256
"""Calls of one span; call i gives the entries i, i + QUARTER, i + 2 QUARTER and i + 3 QUARTER of it."""
SPAN = 4 * QUARTER
_MULTIPLIERS = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_WEYL = 0x9E3779B9, 0xBB67AE85
_LOW = np.uint64(0xFFFFFFFF)


def counted_key(seed: int, context: str) -> bytes:
    """Return the secret that the generator's key is taken from.

    Args:
        seed: a secret integer >= 0.
        context: name of what the noise is for.

    Raises:
        InvalidParameter: the seed is no integer >= 0.
    """
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise InvalidParameter(f"seed={seed!r} is not an integer >= 0; draw secrets.randbits(128)", field="seed")
    secret = seed.to_bytes((seed.bit_length() + 7) // 8, "little")
    return hashlib.sha512(hashlib.sha256(f"philox {context}".encode()).digest() + secret).digest()


def philox(counters: Sequence[Any], low: int, high: int) -> list[np.ndarray]:
    """Return the four words of Philox-4x32-10, as uint64 below 2^32, for four words of counters and two of the key."""
    words = [np.asarray(each, dtype=np.uint64) for each in counters]
    for _ in range(10):
        first, second = words[0] * _MULTIPLIERS[0], words[2] * _MULTIPLIERS[1]
        words = [
            (second >> np.uint64(32)) ^ words[1] ^ np.uint64(low),
            second & _LOW,
            (first >> np.uint64(32)) ^ words[3] ^ np.uint64(high),
            first & _LOW,
        ]
        low, high = (low + _WEYL[0]) & 0xFFFFFFFF, (high + _WEYL[1]) & 0xFFFFFFFF
    return words


def counted_normals(key: bytes, step: int, span: int) -> np.ndarray:
    """Return the normals of one span of z_step, float64, shape (SPAN,).

    Args:
        key: its first 8 bytes are Philox's key.
        step: below 2^32.
        span: entries span * SPAN and after.
    """
    counters = np.arange(QUARTER, dtype=np.uint64) + np.uint64(span * QUARTER)
    low, high = np.frombuffer(key[:8], "<u4").tolist()
    words = philox([counters & _LOW, counters >> np.uint64(32), np.uint64(step), np.uint64(0)], low, high)
    found = np.empty((4, QUARTER))
    for pair in (0, 2):
        radius = np.sqrt(-2.0 * np.log((words[pair].astype(np.float64) + 0.5) * 2.0**-32))
        angle = words[pair + 1].astype(np.float64) * (2.0**-31 * np.pi)
        found[pair], found[pair + 1] = radius * np.cos(angle), radius * np.sin(angle)
    return found.reshape(-1)


class CountedNormals:
    """The same normals as whole blocks on the CPU, for devices without the kernel.

    Args:
        key: see `counted_key`.
    """

    block = 64 * SPAN

    def __init__(self, key: bytes) -> None:
        self.key = key

    def fill(self, out: torch.Tensor, step: int, block: int, scale: float = 1.0) -> None:
        """Fill a tensor of one whole block, with this standard deviation."""
        spans = [counted_normals(self.key, step, block * 64 + i) for i in range(64)]
        out.copy_(torch.from_numpy(np.concatenate(spans).astype(np.float32)) * scale)

"""Standard normal numbers that can be drawn again: a function of (seed, step, block), whatever was drawn before."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from factorize.errors import InvalidParameter

BLOCK = 1 << 16
"""Entries of one block of a step's noise; each block of each step has a counter range of its own."""


class ReplayableNormals:
    """Rows z_0, z_1, ... of independent standard normals, in float64, any block of any row at any time.

    Philox 4x64 (Salmon et al. 2011) with the counter (0, block, step, 0) and a key made of the seed and a context. It
    is a statistical generator, not a cryptographic one.

    Args:
        seed: a secret of the training job, a non-negative integer of 128 random bits (`secrets.randbits(128)`). Two
            runs with one seed and one context draw the same noise, which is not private.
        context: name of what the noise is for, so that one seed gives independent rows for two factorizations.
    """

    def __init__(self, seed: int, context: str = "") -> None:
        if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or seed < 0:
            raise InvalidParameter(f"seed={seed!r} is not an integer >= 0; draw secrets.randbits(128)", field="seed")
        words = np.frombuffer(hashlib.sha256(context.encode()).digest(), dtype="<u4").tolist()
        self._key = np.random.SeedSequence(int(seed), spawn_key=words).generate_state(2, np.uint64)

    def fill(self, out: np.ndarray, step: int, block: int) -> None:
        """Fill a contiguous float64 vector with the first entries of one block of z_step."""
        counter = np.array([0, block, step, 0], dtype=np.uint64)
        np.random.Generator(np.random.Philox(counter=counter, key=self._key)).standard_normal(out=out)

    def canary(self) -> str:
        """Return the first number of z_0: it tells another seed, and a library that draws another stream."""
        first = np.empty(1)
        self.fill(first, 0, 0)
        return float(first[0]).hex()


def blocks(size: int) -> Sequence[slice]:
    """Return the slices of a vector's blocks."""
    return [slice(start, min(start + BLOCK, size)) for start in range(0, size, BLOCK)]

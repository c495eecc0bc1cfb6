"""Standard normal numbers that can be drawn again, as a function of (seed, step, block) alone."""

import hashlib
import hmac
from abc import ABC, abstractmethod
from functools import cache
from typing import Any, ClassVar, cast

import numpy as np
from numpy.random.bit_generator import ISeedSequence

from factorize.errors import InvalidParameter
from factorize.noise.noise_kernels import fill_normals
from factorize.noise.single_use import Secret
from factorize.numbers.compiling import HAS_COMPILER
from factorize.numbers.scalars import check_choice, whole_number

_COMMITMENT_SIZE = 64  # The numbers of z_0 from which a commitment is made.
MIN_SEED = 1 << 64
"""The smallest seed; a smaller one could be guessed from the commitment in checkpoints and receipts."""

BLOCK = 1 << 16
"""The entries of one block of a step's noise; each block of each step has a counter range of its own."""


class Normals(Secret, ABC):
    """Rows z_0, z_1, ... of independent standard normals, in float64, any block of any row at any time.

    Args:
        seed: a secret of the training job, at least `MIN_SEED`.
        context: name of the noise's purpose.

    Attributes:
        generator: name of the generator.
        key: the secret that every stream is hashed from.
    """

    generator: ClassVar[str]

    def __init__(self, seed: int, context: str = "") -> None:
        self.key = keyed(self.generator, seed, context)

    @abstractmethod
    def fill(self, out: np.ndarray, step: int, block: int) -> None:
        """Fill a contiguous float64 vector with the first entries of one block of z_step."""


class _Hashed(ISeedSequence):
    """A seed sequence that gives any bit generator of numpy its state from a hash."""

    def __init__(self, text: bytes) -> None:
        self._text = text

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> np.ndarray:
        """Return n_words of the SHAKE-128 stream."""
        kind = np.dtype(dtype).newbyteorder("<")
        stream = hashlib.shake_128(self._text).digest(n_words * kind.itemsize)
        return np.frombuffer(stream, dtype=kind).astype(dtype)


class ReplayableNormals(Normals):
    """Normals from numpy's SFC64 and ziggurat, the fastest, from a statistical generator.

    Each block of each step is a stream of its own, whose 192-bit state is a hash of (seed, context, step, block): among
    10^10 streams two coincide with a probability below 10^-37.

    Args:
        seed: a secret of the training job, a non-negative integer of 128 random bits (`secrets.randbits(128)`). Two
            runs with one seed and one context draw the same noise, which is not private.
        context: name of the noise's purpose, so that one seed gives independent rows for two factorizations.
    """

    generator = "sfc64"

    def fill(self, out: np.ndarray, step: int, block: int) -> None:
        """Fill a contiguous float64 vector with the first entries of one block of z_step."""
        state = _Hashed(self.key + step.to_bytes(8, "little") + block.to_bytes(8, "little"))
        seeds = cast(np.random.SeedSequence, state)  # The stubs know no other seed sequence.
        bits = np.random.SFC64(seeds)
        if len(out) == BLOCK and (tables := _ziggurat()) is not None:
            fill_normals(bits.state["state"]["state"], *tables, out)
        else:
            np.random.Generator(bits).standard_normal(out=out)


@cache
def _ziggurat() -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """Return the tables of compiled normals, or None where these are missing, or differ from numpy's in a bit."""
    if not HAS_COMPILER:
        return None
    try:
        from numba.np.random._constants import fi_double, ki_double, wi_double
    except ImportError:
        return None
    tables, bits, out = (ki_double, wi_double, fi_double), np.random.SFC64(0), np.empty(BLOCK)
    fill_normals(bits.state["state"]["state"], *tables, out)
    return tables if np.array_equal(out, np.random.Generator(bits).standard_normal(BLOCK)) else None


class CryptographicNormals(Normals):
    """Normals from SHAKE-128 and Box-Muller: predicting them is as hard as breaking SHA-3 at 128 bits.

    They take about 6 times the time of `ReplayableNormals`. Each number comes from 64 random bits, so none exceeds 9.4.

    Args:
        seed: as for `ReplayableNormals`; it is the key, so it needs all its 128 random bits.
        context: as for `ReplayableNormals`.
    """

    generator = "shake128"

    def fill(self, out: np.ndarray, step: int, block: int) -> None:
        """Fill a contiguous float64 vector with the first entries of one block of z_step.

        The words 2i and 2i + 1 give the entries 2i and 2i + 1, so that the first entries do not depend on how many
        are asked for.
        """
        pairs = (len(out) + 1) // 2
        stream = hashlib.shake_128(self.key + step.to_bytes(8, "little") + block.to_bytes(8, "little"))
        words = np.frombuffer(stream.digest(16 * pairs), dtype="<u8").reshape(pairs, 2)
        uniform = (words + 0.5) * 2.0**-64  # It is in (0, 1]: the largest words round up to 1, with logarithm 0.
        radius = np.sqrt(-2.0 * np.log(uniform[:, 0]))
        angle = 2 * np.pi * uniform[:, 1]
        out[0::2] = radius * np.cos(angle)
        out[1::2] = (radius * np.sin(angle))[: len(out) // 2]


GENERATORS: dict[str, type[Normals]] = {kind.generator: kind for kind in (ReplayableNormals, CryptographicNormals)}


def make_normals(generator: str, seed: int, context: str) -> Normals:
    """Return a generator of normals by its name.

    Raises:
        InvalidParameter: the name is unknown, or the seed cannot be secret.
    """
    check_choice("generator", generator, GENERATORS)
    return GENERATORS[generator](seed, context)


def commitment(normals: Normals) -> str:
    """Return a text that differs for another seed or another stream of numbers, and reveals nothing about either.

    It is a hash of the first numbers of z_0, keyed with the secret of 128 random bits that they are drawn from: without
    that key it cannot be told from random bits, however few parameters there are.
    """
    first = np.empty(_COMMITMENT_SIZE)
    normals.fill(first, 0, 0)
    return committed(normals.key, first.astype("<f8").tobytes())


def committed(key: bytes, numbers: bytes) -> str:
    """Return HMAC-SHA256 of the bytes of some normals, in hex."""
    return hmac.digest(key, b"factorize commitment " + numbers, "sha256").hex()


def secret_seed(seed: object, public: int | None = None) -> int:
    """Return a seed that can be secret.

    Args:
        seed: a number like those of `secrets.randbits(128)`.
        public: the public seed of the same run, where there is one.

    Raises:
        InvalidParameter: the seed is no integer, below 2^64, or the public one.
    """
    remedy = "draw secrets.randbits(128) once, and keep it secret: whoever knows it can remove the noise"
    number = whole_number("seed", seed, low=MIN_SEED, remedy=remedy)
    if number == public:
        raise InvalidParameter(f"seed equals the public seed of the run; {remedy}", field="seed")
    return number


def keyed(generator: str, seed: int, context: str) -> bytes:
    """Return the secret that the streams are hashed from, which has one length and differs for every context.

    Raises:
        InvalidParameter: the seed cannot be secret.
    """
    number = secret_seed(seed)
    secret = number.to_bytes((number.bit_length() + 7) // 8, "little")
    return hashlib.sha512(hashlib.sha256(f"{generator} {context}".encode()).digest() + secret).digest()

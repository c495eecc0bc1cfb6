"""Keys of balls in bins: what a key must be, the bins that it draws, and the hash that names it."""

from __future__ import annotations

import hashlib

import numpy as np

from factorize.errors import InvalidParameter

KEY_BYTES = 32
SMALLEST_KEY_BYTES = 16
SMALLEST_SEED = 1 << 64

_DOMAIN = b"factorize balls in bins 1\0"
_BLOCK = 1 << 16  # examples for each call of SHAKE-128
_WORDS = 1 << 64


def draw_bins(key: bytes, examples: int, bins: int) -> np.ndarray:
    """Return the bin of each example, independent and exactly uniform if SHAKE-128 is a random function.

    Args:
        key: secret.
        examples: how many.
        bins: b, at most 2^63.

    Returns:
        Integers in 0..bins - 1, shape (examples,).
    """
    prefix = _DOMAIN + b"draw" + _framed(key) + bins.to_bytes(8, "little")
    drawn = np.empty(examples, dtype=np.int64)
    for block, first in enumerate(range(0, examples, _BLOCK)):
        drawn[first : first + _BLOCK] = _block(prefix + block.to_bytes(8, "little"), bins)[: examples - first]
    return drawn


def _block(prefix: bytes, bins: int) -> np.ndarray:
    """Return `_BLOCK` uniform bins: words above the largest multiple of `bins` are drawn again."""
    largest = np.uint64(_WORDS // bins * bins - 1)
    words = np.empty(_BLOCK, dtype=np.uint64)
    missing, attempt = np.ones(_BLOCK, dtype=bool), 0
    while missing.any():
        fresh = np.frombuffer(hashlib.shake_128(prefix + attempt.to_bytes(8, "little")).digest(8 * _BLOCK), dtype="<u8")
        words[missing] = fresh[missing]
        missing &= words > largest
        attempt += 1
    return (words % np.uint64(bins)).astype(np.int64)


def checked_key(key: object, public_seed: int | None) -> bytes:
    """Return a key that can be secret.

    Raises:
        InvalidParameter: no bytes, too few, the public seed of the run in some form, or plainly not random.
    """
    remedy = f"draw it with secrets.token_bytes({KEY_BYTES}), for this run alone, and keep it where secrets are kept"
    if not isinstance(key, bytes) or len(key) < SMALLEST_KEY_BYTES:
        what = f"{len(key)} bytes" if isinstance(key, bytes) else f"a {type(key).__name__}"
        message = f"secret_key is {what}, at least {SMALLEST_KEY_BYTES} random bytes are needed; {remedy}"
        raise InvalidParameter(message, field="secret_key")
    if public_seed is not None and public_seed in (int.from_bytes(key, "little"), int.from_bytes(key, "big")):
        raise InvalidParameter(
            f"secret_key is the public seed of the run: everybody could compute every bin; {remedy}", field="secret_key"
        )
    if len(set(key)) < SMALLEST_KEY_BYTES // 2:
        raise InvalidParameter(
            f"secret_key has {len(set(key))} different bytes, as a small number or a password has: the hash in the "
            f"checkpoint would let it be guessed; {remedy}",
            field="secret_key",
        )
    return key


def derived_key(seed: int, digest: str, public_seed: int | None) -> bytes:
    """Return the key of a run's bins from the secret seed of its noise.

    Args:
        seed: secret, as `secrets.randbits(128)` draws it.
        digest: of the factorization: the same seed draws other bins for another one.
        public_seed: of the run, which the secret one must not be.

    Raises:
        InvalidParameter: a seed that is public, or that can be guessed from the hash of the key.
    """
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < SMALLEST_SEED or seed == public_seed:
        raise InvalidParameter(
            "seed is the public seed of the run, or an integer below 2^64: the hash in the checkpoint would let it be "
            "guessed, and with it every bin; draw it with secrets.randbits(128), and keep it where secrets are kept",
            field="seed",
        )
    plain = seed.to_bytes((seed.bit_length() + 7) // 8, "little")
    return hashlib.sha256(_DOMAIN + b"seed" + _framed(digest.encode()) + plain).digest()


def commitment(key: bytes) -> str:
    """Return a hash that names a key and shows nothing of it: 64 hexadecimal digits."""
    return hashlib.sha256(_DOMAIN + b"commitment" + _framed(key)).hexdigest()


def _framed(key: bytes) -> bytes:
    return len(key).to_bytes(8, "little") + key

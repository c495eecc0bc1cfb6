"""Draws of balls in bins: the rules for a key, the bins that it draws, the hash that names it, and the sizes of bins.

A capacity relies on the probability that one bin holds too many examples; a dealt permutation betrays itself by bins
that are nearly equal, which has a small probability. Probabilities that privacy relies on are rounded up.
"""

import hashlib
import math
from bisect import bisect_left

import numpy as np

from factorize.errors import InvalidParameter
from factorize.noise.normals import secret_seed

KEY_BYTES = 32
"""The bytes of a key that is drawn here."""
MIN_KEY_BYTES = 16
"""The fewest bytes of a key that a caller gives: 128 bits."""

_DOMAIN = b"factorize balls in bins 1\0"
_BLOCK = 1 << 16
"""The number of examples for each call of SHAKE-128."""
_WORDS = 1 << 64
"""The number of values of a 64-bit word."""


def draw_bins(key: bytes, examples: int, bins: int) -> np.ndarray:
    """Return the bin of each example, independent and exactly uniform if SHAKE-128 is a random function.

    Args:
        key: the secret key.
        examples: number of examples.
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
    """Return `_BLOCK` uniform bins: words at or above the largest multiple of `bins` are drawn again."""
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
        InvalidParameter: the key is no bytes, too short, the public seed of the run in some form, or plainly not
            random.
    """
    remedy = f"draw a new one for this run with secrets.token_bytes({KEY_BYTES}), and store it as a secret"
    if not isinstance(key, bytes) or len(key) < MIN_KEY_BYTES:
        what = f"{len(key)} bytes" if isinstance(key, bytes) else f"a {type(key).__name__}"
        message = f"secret_key is {what}, but must be at least {MIN_KEY_BYTES} random bytes; {remedy}"
        raise InvalidParameter(message, field="secret_key")
    if public_seed is not None and public_seed in (int.from_bytes(key, "little"), int.from_bytes(key, "big")):
        raise InvalidParameter(
            f"secret_key is the run's public seed, so anyone could compute every bin; {remedy}", field="secret_key"
        )
    if len(set(key)) < MIN_KEY_BYTES // 2:
        raise InvalidParameter(
            f"secret_key has {len(set(key))} different bytes, fewer than {MIN_KEY_BYTES // 2}, like a small number or "
            f"a password, which can be guessed from its hash in a checkpoint; {remedy}",
            field="secret_key",
        )
    return key


def derived_key(seed: int, digest: str) -> bytes:
    """Return the key of a run's secret order, made of the secret seed of its noise.

    Args:
        seed: secret seed, as `secrets.randbits(128)` draws it.
        digest: digest of the factorization: the same seed draws another order for another one. Before it stands
            a generator with noise of its own.

    Raises:
        InvalidParameter: the seed cannot be secret.
    """
    secret = secret_seed(seed)
    plain = secret.to_bytes((secret.bit_length() + 7) // 8, "little")
    return hashlib.sha256(_DOMAIN + b"seed" + _framed(digest.encode()) + plain).digest()


def commitment(key: bytes) -> str:
    """Return a hash that names a key without revealing it: 64 hexadecimal digits."""
    return hashlib.sha256(_DOMAIN + b"commitment" + _framed(key)).hexdigest()


def _framed(key: bytes) -> bytes:
    return len(key).to_bytes(8, "little") + key


def overflow_probability(examples: int, bins: int, capacity: int) -> float:
    """Return an upper bound on the probability that one of the bins holds more than `capacity` examples.

    It is a union bound over the bins' exact tail: min(1, b P(Binomial(N, 1/b) > capacity)).

    Args:
        examples: N.
        bins: b.
        capacity: the most examples that a bin may hold.

    Returns:
        A probability, rounded up; 0 where no bin can overflow.
    """
    if capacity >= examples:
        return 0.0
    if bins == 1:
        return 1.0
    return min(1.0, math.nextafter(bins * math.exp(_log_tail(examples, bins, capacity + 1)), math.inf))


def capacity_for(examples: int, bins: int, *, physical_batch: int, tau: float) -> int:
    """Return the smallest multiple of `physical_batch` that some bin exceeds with probability at most `tau`."""
    parts = range(1, -(-examples // physical_batch))  # candidates below all examples, a number that no bin exceeds
    return physical_batch * (
        1 + bisect_left(parts, True, key=lambda few: overflow_probability(examples, bins, few * physical_batch) <= tau)
    )


def _log_tail(examples: int, bins: int, first: int) -> float:
    """Return log P(Binomial(examples, 1 / bins) >= first), rounded up, for 1 <= first <= examples.

    The sum is its first term times 1 + r_1 + r_1 r_2 + ..., where r_i = (N - k) / ((k + 1) (b - 1)) falls with
    k = first + i; once r < 1 the remaining terms are at most a geometric series.
    """
    term, total, k = 1.0, 1.0, first
    while k < examples:
        ratio = (examples - k) / ((k + 1) * (bins - 1))
        if ratio < 1 and term * ratio / (1 - ratio) < total * 2.0**-53:
            total += term * ratio / (1 - ratio)
            break
        term *= ratio
        if term > 1e300:
            return 0.0  # the capacity is far below the mean
        total, k = total + term, k + 1
    whole, some, rest = (math.lgamma(count + 1) for count in (examples, first, examples - first))
    log_first = whole - some - rest - examples * math.log(bins) + (examples - first) * math.log(bins - 1)
    rounding = 2.0**-48 * (whole + examples * math.log(bins) + 1)  # covers the logarithms and the sum
    return min(0.0, log_first + math.log(total) + rounding)


def equal_sizes_probability(examples: int, bins: int) -> float:
    """Return the probability that independent uniform bins have sizes that differ by at most 1.

    For N = q b + r these are r bins of q + 1 and b - r of q: C(b, r) N! / (b^N q!^(b-r) (q+1)!^r). It is rounded up.
    """
    size, more = divmod(examples, bins)
    ways = _log_factorial(bins) - _log_factorial(more) - _log_factorial(bins - more) + _log_factorial(examples)
    within = (bins - more) * _log_factorial(size) + more * _log_factorial(size + 1)
    rounding = 2.0**-48 * (ways + examples * math.log(bins))
    return min(1.0, math.nextafter(math.exp(ways - within - examples * math.log(bins) + rounding), math.inf))


def regularity(sizes: np.ndarray) -> float:
    """Return the probability that independent uniform bins are at least as equal as these.

    It is that of a chi-square statistic this small, and at least that of sizes that differ by at most 1: these are the
    most equal ones, and for few examples the law is not chi-square.

    Args:
        sizes: sizes of all bins, shape (bins,).
    """
    examples, bins = int(sizes.sum()), len(sizes)
    if bins == 1 or examples == 0:
        return 1.0
    mean = examples / bins
    statistic = float(((sizes - mean) ** 2).sum()) / mean
    return max(_chi_square_below(statistic, bins - 1), equal_sizes_probability(examples, bins))


def _chi_square_below(statistic: float, degrees: int) -> float:
    """Return P(chi-square <= statistic): the lower incomplete gamma function, by its series."""
    a, x = degrees / 2, statistic / 2
    if x == 0:
        return 0.0
    if x > a + 1:
        return 1.0  # at or above the mean nothing is regular, and the series is long
    term = total = 1.0
    k = a
    while term > total * 1e-17:
        k += 1
        term *= x / k
        total += term
    return min(1.0, math.exp(a * math.log(x) - x - math.lgamma(a + 1)) * total)


def _log_factorial(count: int) -> float:
    return math.lgamma(count + 1)

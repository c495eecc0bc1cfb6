"""Sums without noise, in a type of JAX with which nothing computes: the noise alone opens it.

JAX has arrays of keys, which can be laid out, selected and passed through jit, but not added, scaled, compared or
converted. Sums that lie in such an array reach the noise as they left `gradients`, or not at all: a norm that sets the
rate, a wrapper of optax that looks at them, or an update that leaves out the noise ends with an error of JAX, which
names this type. JAX compares keys with `==`; since their words are not those of the sums, no sum compares as zero.
"""

from functools import partial
from typing import NoReturn

import jax
import optax
from jax import numpy as jnp
from jax.extend.random import define_prng_impl

from factorize.errors import InvalidParameter

_NAME = "sums without noise: only the noise of make_private takes them, so put it first in optax.chain"

_MASK = 0xFFDA7A5E
"""The number that each word is combined with: one that is zero is that of a NaN."""


def _no_key(*_arguments: object, **_options: object) -> NoReturn:
    raise TypeError(f"these are no keys of random numbers, but {_NAME}")


_IMPLEMENTATIONS = {
    bits: define_prng_impl(
        key_shape=(bits // 32,), seed=_no_key, split=_no_key, random_bits=_no_key, fold_in=_no_key, name=name, tag=_NAME
    )
    for bits, name in ((32, "factorize_sums_float32"), (64, "factorize_sums_float64"))
}


def enclose(sums: optax.Updates) -> optax.Updates:
    """Return sums, of float32 or float64, in arrays of the same shapes that only `disclose` reads."""
    return jax.tree.map(_enclosed, sums)


def disclose(sums: optax.Updates) -> optax.Updates:
    """Return the sums that `enclose` was given.

    Raises:
        InvalidParameter: they are not from `enclose`.
    """
    return jax.tree.map(_disclosed, sums)


@partial(jax.jit, inline=True)  # one program, also for a loop that is not jitted
def _enclosed(leaf: jax.Array) -> jax.Array:
    bits = jnp.finfo(leaf.dtype).bits
    words = jax.lax.bitcast_convert_type(leaf, jnp.uint32).reshape(*leaf.shape, bits // 32)
    return jax.random.wrap_key_data(words ^ jnp.uint32(_MASK), impl=_IMPLEMENTATIONS[bits])


@partial(jax.jit, inline=True)
def _disclosed(leaf: jax.Array) -> jax.Array:
    kind = jnp.result_type(leaf)
    if not (jnp.issubdtype(kind, jax.dtypes.prng_key) and jax.random.key_impl(leaf) in _IMPLEMENTATIONS.values()):
        raise InvalidParameter(
            f"the updates are {kind}, not the sums over examples that gradients(...) returned; they were computed "
            "elsewhere, or never clipped. Give update those sums unchanged, with the noise first in optax.chain, or "
            "use correlated_noise for sums that your own code clips",
            field="updates",
        )
    words = jax.random.key_data(leaf) ^ jnp.uint32(_MASK)
    if words.shape[-1] == 1:
        return jax.lax.bitcast_convert_type(words[..., 0], jnp.float32)
    return jax.lax.bitcast_convert_type(words, jnp.float64)

"""Adam in JAX whose second moments are released with noise of their own, in one mechanism with the first (JME)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import optax
from jax import numpy as jnp

from factorize.accounting.joint_moments import JointMoments
from factorize.adapters.jax import Precision, correlated_noise
from factorize.adapters.jobs import check_floor, second_seed


class JointState(NamedTuple):
    """What goes from step to step, and into checkpoints; the seed is not in it.

    Attributes:
        first: state of the noise of gradients.
        second: state of the noise of squares.
        count: steps taken, int32.
        mu: moving averages of released gradients.
        nu: moving averages of released squares.
    """

    first: Any
    second: Any
    count: jax.Array
    mu: Any
    nu: Any


def clipped_moments_of(loss: Callable[..., Any], *, l2_clip_norm: float) -> Callable[..., tuple[Any, Any]]:
    """Return the function that sums clipped gradients, and the squares of their entries, over a batch.

    It takes (params, *data, is_padding_example=...), as `summed_over_parts` calls it, and returns float32.

    Args:
        loss: of params and a batch of one example.
        l2_clip_norm: bound on the norm of an example's gradient over all parameters.
    """
    from jax_privacy.clipping import clip_pytree

    def moments(params: Any, *data: Any, is_padding_example: Any) -> tuple[Any, Any]:
        def one(padding: jax.Array, *example: jax.Array) -> tuple[Any, Any]:
            own = jax.grad(loss)(params, *(part[None] for part in example))
            wide = jax.tree.map(lambda leaf: leaf.astype(jnp.promote_types(leaf.dtype, jnp.float32)), own)
            clipped, _ = clip_pytree(wide, clip_norm=l2_clip_norm, nan_safe=True, return_zero=padding)
            return clipped, jax.tree.map(jnp.square, clipped)

        each = jax.vmap(one)(is_padding_example, *data)
        return jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0), each)

    return moments


def scale_by_joint_adam(
    first: Any,
    second: Any,
    moments: JointMoments,
    *,
    seed: int,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    floor: float | None = None,
    dtype: Precision = "float32",
    specs: Any = None,
) -> optax.GradientTransformation:
    """Return the transformation of (sums of clipped gradients, sums of their squares) into Adam's direction.

    Put it first: `optax.chain(scale_by_joint_adam(...), optax.scale_by_learning_rate(rate))`. It adds row t of C1^-1 Z
    to the one and row t of C2^-1 Z' to the other, with independent Z and Z', and returns m_hat / (max(v_hat,
    floor^2)^(1/2) + eps): noisy squares may be negative. It divides both by the calibration's divisor, after the noise.

    Args:
        first: factors of C1.
        second: factors of C2.
        moments: noise of both, from `calibrate_moments`.
        seed: a secret integer, `secrets.randbits(128)`.
        b1: decay of the first moments.
        b2: decay of the second.
        eps: added to the roots.
        floor: of the roots; by default the standard deviation of the second moments' noise, to the power 1/2.
        dtype: see `correlated_noise`.
        specs: see `correlated_noise`; of the gradients.

    Raises:
        InvalidParameter: noise of other factorizations, or a floor out of range.
    """
    noise = moments.second.sigma_of_means or moments.second.sigma_of_sums
    least = check_floor(noise**0.5 if floor is None else floor)
    one = correlated_noise(first, moments.first, seed=seed, dtype=dtype, specs=specs)
    two = correlated_noise(second, moments.second, seed=second_seed(seed), dtype=dtype, specs=specs)

    def init(params: Any) -> JointState:
        zeros = jax.tree.map(lambda p: jnp.zeros_like(p, dtype=jnp.float32), params)
        return JointState(one.init(params), two.init(params), jnp.array(0, jnp.int32), zeros, zeros)

    def update(updates: tuple[Any, Any], state: JointState, params: Any = None) -> tuple[Any, JointState]:
        gradients, squares = updates
        noisy, kept = one.update(gradients, state.first, params)
        noisy_squares, kept_squares = two.update(squares, state.second, params)
        mu = optax.tree.update_moment(noisy, state.mu, b1, 1)
        nu = optax.tree.update_moment(noisy_squares, state.nu, b2, 1)
        count = state.count + 1
        m, v = optax.tree.bias_correction(mu, b1, count), optax.tree.bias_correction(nu, b2, count)
        moved = jax.tree.map(lambda a, b: a / (jnp.sqrt(jnp.maximum(b, least**2)) + eps), m, v)
        return moved, JointState(kept, kept_squares, count, mu, nu)

    return optax.GradientTransformation(init, update)

"""Scale-then-privatize in JAX: gradients are scaled by an optimizer's second moments before they are clipped.

Source: Ganesh, McMahan, Thakurta, On design principles for private adaptive optimizers (arXiv 2507.01129).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import optax
from jax import numpy as jnp

from factorize.adapters.adaptive.scale_floor import FLOOR
from factorize.errors import InvalidParameter

_KEPT = ("nu", "sum_of_squares")
"""What optax calls second moments."""


class ScaledState(NamedTuple):
    """What goes from step to step.

    Attributes:
        noise: the state of the noise.
        inner: the state of the optimizer.
    """

    noise: Any
    inner: Any


class ScaledOptimizer(NamedTuple):
    """An optimizer that takes sums (or means) of scaled clipped gradients; see `scale_then_privatize`.

    Attributes:
        init: parameters -> state.
        update: (sums, state, parameters) -> (updates, state), as of an `optax.GradientTransformation`.
        scaling: state -> the function that `clipped_grad` takes as `pre_clipping_transform`.
    """

    init: Callable[..., ScaledState]
    update: Callable[..., tuple[Any, ScaledState]]
    scaling: Callable[[ScaledState], Callable[[Any], Any]]


def scale_then_privatize(
    noise: optax.GradientTransformation, optimizer: optax.GradientTransformation
) -> ScaledOptimizer:
    """Return the optimizer with noise that lies as the optimizer scales its update.

    In each step give `clipped_grad` `pre_clipping_transform=scaled.scaling(state)`, and the sums to `scaled.update`: it
    adds the noise, takes the scale off and goes on with the optimizer. Scales are functions of what was released
    before, so that sensitivity and guarantee stay the same. Their root mean square is 1.

    Args:
        noise: of `correlated_noise` or `make_private`.
        optimizer: of optax, that keeps second moments: adam, adamw, nadam, radam, adagrad, rmsprop.

    Raises:
        InvalidParameter: at `init`: the optimizer keeps none.
    """

    def init(params: Any) -> ScaledState:
        state = ScaledState(noise.init(params), optimizer.init(params))
        _roots(state.inner)
        return state

    def scaling(state: ScaledState) -> Callable[[Any], Any]:
        scales = moment_scales(state.inner)
        return lambda tree: jax.tree.map(lambda leaf, scale: leaf.astype(jnp.float32) * scale, tree, scales)

    def update(updates: Any, state: ScaledState, params: Any = None) -> tuple[Any, ScaledState]:
        scales = moment_scales(state.inner)
        noisy, drawn = noise.update(updates, state.noise, params)
        moved, inner = optimizer.update(jax.tree.map(jnp.divide, noisy, scales), state.inner, params)
        return moved, ScaledState(drawn, inner)

    return ScaledOptimizer(init, update, scaling)


def moment_scales(state: Any) -> Any:
    """Return a positive scale for each entry of the parameters, of root mean square 1; ones before the first step.

    They are 1 / (v^(1/2) + 0.01 rms(v^(1/2))) for second moments v, times a constant.

    Args:
        state: of an optimizer of optax.

    Raises:
        InvalidParameter: it keeps no second moments.
    """
    roots = _roots(state)
    middle = _rms(roots)
    known = (middle > 0) & jnp.isfinite(middle)
    safe = jnp.where(known, middle, 1.0)
    found = jax.tree.map(lambda root: 1.0 / (root / safe + FLOOR), roots)
    size = _rms(found)
    return jax.tree.map(lambda scale: jnp.where(known, scale / size, 1.0), found)


def _roots(state: Any) -> Any:
    kept = [found for name in _KEPT if (found := optax.tree.get(state, name)) is not None]
    if len(kept) != 1:
        raise InvalidParameter(
            "the optimizer keeps no second moments to scale by; use optax's adam, adamw, nadam, radam, adagrad or "
            "rmsprop, or put the noise before it with optax.chain",
            field="optimizer",
        )
    return jax.tree.map(lambda v: jnp.sqrt(jnp.maximum(v.astype(jnp.float32), 0.0)), kept[0])


def _rms(tree: Any) -> jax.Array:
    leaves = jax.tree.leaves(tree)
    count = sum(leaf.size for leaf in leaves)
    return jnp.sqrt(sum(jnp.sum(leaf * leaf) for leaf in leaves) / max(count, 1))

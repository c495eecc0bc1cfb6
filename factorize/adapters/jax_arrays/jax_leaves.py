"""The leaves of trees in JAX: types and values that noise covers."""

from typing import Any

import jax
import numpy as np
import optax
from jax import numpy as jnp
from jax.typing import ArrayLike

from factorize.errors import InvalidParameter
from factorize.numbers.scalars import check_choice


def checked_dtype(dtype: str) -> np.dtype:
    """Return a dtype that JAX will keep.

    Raises:
        InvalidParameter: another dtype, or float64 where JAX would silently use float32.
    """
    if check_choice("dtype", dtype, ("float32", "float64")) == "float64" and not jax.config.read("jax_enable_x64"):
        raise InvalidParameter(
            'JAX would read these float64 numbers as float32; call jax.config.update("jax_enable_x64", True) first, '
            'or accept 24 bits of precision with dtype="float32"',
            field="dtype",
        )
    return np.dtype(dtype)


def refuse_unfit(value: ArrayLike) -> None:
    """Refuse sums of clipped gradients, or normals, that are not real or have fewer digits than float32.

    Raises:
        InvalidParameter: they are not real, or too short. Rounding before the noise is added raises the sensitivity.
    """
    refuse_unreal("", value)
    kind = jnp.result_type(value)
    if jnp.finfo(kind).eps > jnp.finfo(np.float32).eps:
        raise InvalidParameter(
            f"the sum of clipped gradients (or its noise) is {kind}, and rounding it before the noise is added raises "
            "its sensitivity; clip and sum in float32: clipped_grad(..., dtype=jnp.float32) in jax_privacy",
            field="dtype",
        )


def real_leaves(tree: optax.Params) -> list[tuple[str, Any]]:
    """Return the leaves of parameters, or of their gradients, with their names.

    Raises:
        InvalidParameter: there is none, or one that `refuse_unreal` refuses.
    """
    named = jax.tree_util.tree_leaves_with_path(tree, is_leaf=lambda each: isinstance(each, optax.MaskedNode))
    if not named:
        raise InvalidParameter("the tree of parameters has no leaf; give all that are trained", field="parameters")
    leaves = [(jax.tree_util.keystr(path).removesuffix(".value"), leaf) for path, leaf in named]  # of flax's variables
    for name, leaf in leaves:
        refuse_unreal(name, leaf)
    return leaves


def refuse_unreal(name: str, value: ArrayLike) -> None:
    """Refuse a parameter, or its gradient, that real noise does not cover.

    Raises:
        InvalidParameter: it is no array, complex, an integer or a truth value, or optax has masked it.
    """
    if isinstance(value, optax.MaskedNode):
        raise InvalidParameter(
            f"optax has masked the parameter {name}, so its gradient would be released without noise; put the noise "
            "first, over all parameters, and mask after it: optax.chain(noise, optax.multi_transform(...))",
            field="parameters",
        )
    kind = getattr(value, "dtype", None) or np.asarray(value).dtype
    if kind == np.dtype(object) or isinstance(kind, str):  # a text is the type of a variable of Keras
        raise InvalidParameter(
            f"{name or 'the parameter'} is a {type(value).__name__}, not an array, as models of Equinox hold beside "
            "their arrays; train the arrays alone, eqx.partition(model, eqx.is_inexact_array), and combine both in the "
            "loss, or take the value of each variable of Keras",
            field="parameters",
        )
    if not jnp.issubdtype(kind, jnp.floating):
        raise InvalidParameter(
            f"the parameter or gradient {name} is {getattr(kind, 'name', kind)}, but the noise is real; split a "
            "complex parameter into two real ones, and take other types out of the trained tree",
            field="parameters",
        )

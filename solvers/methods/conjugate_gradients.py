"""Conjugate gradients with a rule of the caller's for when to end."""

from collections.abc import Callable

import numpy as np

from factorize.solvers.methods.compiled import Array


def conjugate_gradients(
    apply: Callable[[Array], Array],
    right: Array,
    start: Array,
    *,
    ended: Callable[[Array, Array], bool],
    most: int,
    scaling: Array | float = 1.0,
    flat: float = 0.0,
) -> tuple[Array, Array, int]:
    """Solve ``apply(y) = right`` for a symmetric positive definite map.

    Args:
        apply: the map; its values are overwritten.
        right: right-hand side, shape (n,).
        start: y to begin with, shape (n,).
        ended: whether y and its residual will do.
        most: products, of which the residual of the start is one.
        scaling: diagonal of a preconditioner.
        flat: curvature along a direction, beside its squared length, that is none.

    Returns:
        (y, residual, number of products). A direction without curvature ends it too.
    """
    y = start.copy()
    residual, used = right - apply(y), 1
    along = scaling * residual
    norm = float(residual @ along)
    while used < most and not ended(y, residual):
        image = apply(along)
        used += 1
        curvature = float(along @ image)
        if not curvature > flat * float(along @ along):
            break
        image *= norm / curvature
        residual -= image
        y += np.multiply(norm / curvature, along, out=image)
        preconditioned = np.multiply(scaling, residual, out=image)
        previous, norm = norm, float(residual @ preconditioned)
        along *= norm / previous
        along += preconditioned
    return y, residual, used

"""Conjugate gradients with a rule of the caller's for when to end."""

from __future__ import annotations

from collections.abc import Callable

from factorize.solvers.methods.arrays import Array


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
        apply: the map.
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
        y += norm / curvature * along
        residual -= norm / curvature * image
        preconditioned = scaling * residual
        previous, norm = norm, float(residual @ preconditioned)
        along = preconditioned + norm / previous * along
    return y, residual, used

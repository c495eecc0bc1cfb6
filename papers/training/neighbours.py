"""Two data sets that differ in one example, as the gradient functions that an audit trains with."""

from __future__ import annotations

import numpy as np

from factorize.privacy.adjacency import Adjacency
from papers.training.clip import GradientFunction, Rows, contributions_at


def neighbours(
    gradient: GradientFunction, example: int, contribution: np.ndarray, adjacency: Adjacency | str
) -> tuple[GradientFunction, GradientFunction]:
    """Return the gradient functions of two data sets that differ in one example, whose gradient is then a constant.

    World 0 has the zero vector (zero-out) or the opposite contribution (replace-one), world 1 the contribution. Make it
    so long that the clipping always acts: then it lets through as much as it ever does. What is clipped is the gradient
    in most systems, so the contribution is longer than the clip norm. DP-SRG clips g_t - c_t g_{t-1}, (1 - c_t) times a
    constant gradient: the contribution is at least clip / (1 - max c_t), and no constant will do for c_t = 1.
    Shorter ones make a weak audit, which a broken run passes.

    Args:
        gradient: gradient function of all other examples.
        example: index of the one that differs.
        contribution: its gradient, of the weights' shape.
        adjacency: `zero_out` or `replace_one`.
    """
    opposite = np.zeros_like(contribution) if Adjacency.parse(adjacency) is Adjacency.ZERO_OUT else -contribution

    def planted(value: np.ndarray) -> GradientFunction:
        def function(weights: np.ndarray, batch: np.ndarray) -> Rows:
            rows = np.array(contributions_at(gradient, weights, batch).dense(), dtype=np.float64)
            rows[np.asarray(batch) == example] = value
            return Rows(rows)

        return function

    return planted(opposite), planted(contribution)

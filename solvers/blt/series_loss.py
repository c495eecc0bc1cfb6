"""The loss for any workload and objective that the Toeplitz solver knows, by the chain rule through its column."""

import numpy as np

from factorize.solvers.blt.parameters import Alternating
from factorize.solvers.methods.compiled import Array
from factorize.solvers.toeplitz.gradients import ToeplitzLoss

_BLOCK = 1024


class SeriesLoss:
    """log(sensitivity^2 error) in the variables of `Alternating`, O(n (buffers + log n)) per evaluation.

    Args:
        parameters: what the variables stand for; the coefficients fall unless its end is free.
        loss: of a column.
    """

    def __init__(self, parameters: Alternating, loss: ToeplitzLoss) -> None:
        self.parameters, self.loss = parameters, loss
        self._exponents = np.arange(1.0, loss.n - 1)

    def __call__(self, variables: Array) -> tuple[float, Array]:
        """Return the value, infinity where it is not finite, and its gradient."""
        point = self.parameters.at(variables)
        table = powers(point.theta, self.loss.n - 1)
        value, slope = self.loss(np.concatenate([[1.0], point.omega @ table]))
        by_place, by_scale = np.zeros(len(point.places)), np.zeros(len(point.places))
        by_scale[1::2] = point.omega * (table @ slope[1:])
        by_place[1::2] = -point.omega * (table[:, :-1] @ (slope[2:] * self._exponents))
        return value, self.parameters.back(point, by_place, by_scale)


def powers(theta: Array, count: int) -> Array:
    """Return theta^t for t < count, shape (buffers, count): a table times a table."""
    blocks = -(-count // _BLOCK)
    with np.errstate(under="ignore"):
        within = theta[:, None] ** np.arange(min(_BLOCK, count))
        before = theta[:, None] ** (float(_BLOCK) * np.arange(blocks))
        products = (before[:, :, None] * within[:, None, :]).reshape(len(theta), -1)[:, :count]
    products[products < 1e-300] = 0.0
    return products

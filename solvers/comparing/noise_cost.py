"""The cost of a step of noise, for each structure of C: vectors of state, and operations for each parameter."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from factorize.structures.base import Matrix
from factorize.structures.names import SCALED, wrapped_structure

Tensors = Mapping[str, np.ndarray]


class NoiseCost(NamedTuple):
    """Of x_t = (C^-1 z)_t, beside drawing z_t.

    Attributes:
        vectors: numbers kept from step to step for each parameter; a structure without a recursion keeps all of z.
        flops: additions and multiplications for each parameter and step, on average over the steps.
        redraws: normals drawn once more for each parameter and step, on average over the steps.
    """

    vectors: int
    flops: float
    redraws: float = 0.0


def noise_cost(strategy: Matrix) -> NoiseCost:
    """Return the cost of the recursion that the client uses for this structure (recurrences/ there).

    Args:
        strategy: C.
    """
    parts, n = strategy.tensors(), strategy.n
    scaled = strategy.structure == SCALED
    cost = _COSTS[wrapped_structure(parts, n) if scaled else strategy.structure](parts, n)
    return cost._replace(flops=cost.flops + 1.0) if scaled else cost


def _all_rows(n: int) -> NoiseCost:
    """Row t is a sum over z_0 .. z_t: t + 1 products, t sums."""
    return NoiseCost(n, float(n))


def _few_diagonals(bands: int) -> NoiseCost:
    return NoiseCost(bands - 1, 2.0 * (bands - 1) + (bands > 1))


def _toeplitz(parts: Tensors, n: int) -> NoiseCost:
    bands = len(parts["coefficients"])
    return _few_diagonals(bands) if bands < n or bands == 1 else _all_rows(n)


def _buffered(parts: Tensors, n: int) -> NoiseCost:
    """Of x = (z - output . s) / diagonal, s = decay s + input x: 2 p + 1 and 3 p."""
    buffers = parts["decay"].shape[1]
    return NoiseCost(buffers, 5.0 * buffers + 1)


def _redrawn(parts: Tensors, n: int) -> NoiseCost:
    """Of x = output . s + sum direct_m z_m, s = decay s + sum input_m z_m: 2 p and p, and 2 (p + 1) for each draw."""
    buffers, draws = parts["decay"].shape[1], np.count_nonzero(parts["direct"]) / n
    return NoiseCost(buffers, 3.0 * buffers + 2.0 * (buffers + 1) * draws - 1, draws - 1)


def _state_space(parts: Tensors, n: int) -> NoiseCost:
    """As with buffers, each state being a combination of those in its block."""
    states = parts["input"].shape[1]
    return NoiseCost(states, 2.0 * states + 1 + 2.0 * states + (2.0 * parts["transition"].shape[-1] - 1) * states)


def _blt(parts: Tensors, n: int) -> NoiseCost:
    """Of x = z - omega . s, s = theta s + x: 2 p and 2 p."""
    buffers = len(parts["theta"])
    return NoiseCost(buffers, 4.0 * buffers)


def _tree(parts: Tensors, n: int) -> NoiseCost:
    """One product and one sum for each block behind the step, one division, and the carries: about one sum a step."""
    nodes = parts["tree.nodes"]
    return NoiseCost(len(nodes) - 1, 2.0 * np.count_nonzero(nodes[1:]) / nodes.shape[1] + 2)


_COSTS: dict[str, Callable[[Tensors, int], NoiseCost]] = {
    "tree": _tree,
    "redrawn": _redrawn,
    "state_space": _state_space,
    "buffered": _buffered,
    "blt": _blt,
    "inverse_banded_toeplitz": lambda parts, n: _few_diagonals(len(parts["inverse_coefficients"])),
    "banded": lambda parts, n: _few_diagonals(len(parts["bands"])),
    "toeplitz": _toeplitz,
    "banded_toeplitz": _toeplitz,
    "dense": lambda parts, n: _all_rows(n),
}

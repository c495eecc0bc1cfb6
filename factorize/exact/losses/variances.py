"""Losses of long strategies that are recursions: row i of A C^-1 has as squared norm the variance of row i of A C^-1 y.

y is white noise, x = C^-1 y and A x are recursions of a few states, and their covariance is carried along (see
exact/variance_kernels.py). No n x n array, and no B: what a job computes as B is not compared with this.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from factorize.exact.arithmetic.intervals import NotEnclosed
from factorize.exact.spec import program_of
from factorize.exact.spec.programs import Coefficient, Program, Statement, X, pair
from factorize.exact.strategy import Strategy
from factorize.exact.structures.blt import Decays
from factorize.exact.structures.buffered import Buffers
from factorize.exact.structures.inverse_banded_toeplitz import Renewal

LARGEST_WORK = 1 << 35
_SLACK = 2.0**-44


class Ends(NamedTuple):
    """Enclosures at sensitivity 1, each (low, high), as in `residual.Losses`."""

    total: tuple[float, float]
    largest: tuple[float, float]
    last: tuple[float, float]
    objective: tuple[float, float]


def losses(strategy: Strategy, workload: Mapping[str, Any], objective: Mapping[str, Any]) -> Ends | None:
    """Return the losses, or None where C or A has no recursion here, or it would take too long.

    Args:
        strategy: banded, Toeplitz with few diagonals, with buffers or decays, or a tree.
        workload: the spec's.
        objective: the spec's.

    Raises:
        NotEnclosed: the recursion grows so much that doubled precision does not enclose it.
    """
    found = program_of(workload)
    if found is not None and strategy.scale is not None:
        found = _after_factors(found, strategy.scale)
    if found is not None and isinstance(strategy.decays, Renewal):
        found = _after_diagonals(found, strategy.decays.weights)
    ends = None if found is None else _variances(strategy, found)
    if found is None or ends is None:
        return None
    tau = objective.get("tau")
    if tau is None:
        return _losses(ends, objective)
    since = _variances(strategy, found.since_reference(strategy.n, tau))
    return None if since is None else _losses(ends, {"kind": "weighted", "weights": _weights(strategy.n, tau)}, since)


def _after_factors(program: Program, scale: np.ndarray) -> Program:
    """The same of x over the factors of the columns of C, kept as a state of its own."""
    divided = len(program.statements)
    return program.fed([(divided, {X: [1 / Fraction(factor) for factor in scale.tolist()]})], divided)


def _after_diagonals(program: Program, weights: np.ndarray) -> Program:
    """The same of x = y - sum of w_d y_{i - d}, for the few diagonals of C^-1; the input is y, and kept for as long."""
    used = np.flatnonzero(weights).tolist()
    made, kept = len(program.statements), max(used, default=0)
    one, late = Fraction(1), [X, *range(made + 1, made + 1 + kept)]
    first: dict[int, Coefficient] = {X: one, **{late[d]: -Fraction(float(weights[d])) for d in used}}
    found: list[Statement] = [(made, first)]
    found += [(late[d], {late[d - 1]: one}) for d in range(kept, 0, -1)]
    return program.fed(found, made)


def _weights(n: int, tau: int) -> list[float]:
    return [1.0 if t % tau == 0 else 1.0 / tau for t in range(1, n + 1)]


def _variances(strategy: Strategy, program: Program) -> np.ndarray | None:
    """Ends of the variance of the output at each step, shape (2, n)."""
    states, bands = len(program.statements), bands_of(strategy)
    given = (states, *program.arrays(), program.output, ends := np.empty((2, strategy.n)))
    if bands is not None:
        width = len(bands) + states
        if strategy.n * width * (len(bands) + 2 * states) > LARGEST_WORK:
            return None
        from factorize.exact.losses.variance_kernels import banded

        enclosed = banded(bands, _reciprocals(bands[0]), *given)
    elif (given_buffers := buffers_of(strategy)) is not None:
        from factorize.exact.losses.variance_kernels import buffered

        diagonal, transition, inputs, outputs = given_buffers
        enclosed = buffered(_reciprocals(diagonal), transition, *_balanced(inputs, outputs), *given)
    elif strategy.tree is not None:
        from factorize.exact.losses.variance_kernels import tree

        enclosed = tree(_reciprocals(strategy.tree.nodes[0]), strategy.tree.nodes, strategy.tree.restart, *given)
    elif strategy.inverse is not None:
        if strategy.n**2 * (strategy.inverse.decay.shape[1] + states) > LARGEST_WORK:
            return None
        from factorize.exact.structures.redrawn_kernels import variances

        enclosed = variances(*strategy.inverse, *given)
    else:
        return None
    if not enclosed or not np.isfinite(ends).all():
        raise NotEnclosed("the recursion of the inverse of C grows too much to be enclosed")
    return ends


def buffers_of(strategy: Strategy) -> Buffers | None:
    """Return buffers, also of decays and scales: with states (a, b), b <- a, a <- theta a, b is read, a is fed."""
    if not isinstance(strategy.decays, Decays):
        return strategy.buffers
    decay, scale = strategy.decays
    transition, ends = np.zeros((1, len(decay), 2, 2)), np.zeros((2, 1, len(decay), 2))
    transition[0, :, 0, 0], transition[0, :, 1, 0] = decay, 1.0
    ends[0, 0, :, 0], ends[1, 0, :, 1] = 1.0, scale
    return Buffers(np.ones(strategy.n), transition, *ends)


def _balanced(inputs: np.ndarray, outputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The same matrix with states multiplied by powers of two, so that inputs and outputs are of one size.

    What a step may lose is bounded by the largest of all states, so one that is large and hardly read spoils the rest.
    """
    sizes = [np.frexp(np.abs(part).max(axis=(0, 2)))[1] for part in (outputs, inputs)]
    powers = ((sizes[0] - sizes[1]) // 2)[:, None]
    moved = np.ldexp(inputs, powers), np.ldexp(outputs, -powers)
    exact = (np.ldexp(moved[0], -powers) == inputs).all() and (np.ldexp(moved[1], powers) == outputs).all()
    return moved if exact else (inputs, outputs)


def bands_of(strategy: Strategy) -> np.ndarray | None:
    """Return diagonals, shape (bands, n), also of a Toeplitz matrix with few; 1 where those of C^-1 are statements."""
    if isinstance(strategy.decays, Renewal):
        return np.ones((1, strategy.n))
    if strategy.column is None:
        return strategy.bands
    width = strategy.bandwidth
    if strategy.n * width**2 > LARGEST_WORK:
        return None
    bands = np.repeat(strategy.column[:width, None], strategy.n, axis=1)
    for d in range(width):
        bands[d, strategy.n - d :] = 0.0
    return bands


def _reciprocals(diagonal: np.ndarray) -> np.ndarray:
    """1 / d as pairs, within 2^-104."""
    return np.array([pair(1 / Fraction(d)) for d in diagonal.tolist()]).reshape(-1, 2)


def _losses(ends: np.ndarray, objective: Mapping[str, Any], since: np.ndarray | None = None) -> Ends:
    """The losses of variances, and the objective of others if those are what it weighs."""
    below, above = _outwards(ends)
    total = (math.fsum(below) * (1 - _SLACK), math.fsum(above) * (1 + _SLACK))
    largest = (float(below.max()), float(above.max()))
    if objective["kind"] == "mean":
        chosen = (total[0] / len(below) * (1 - _SLACK), total[1] / len(below) * (1 + _SLACK))
    elif objective["kind"] == "max":
        chosen = largest
    else:
        weights = np.asarray(objective["weights"], dtype=np.float64)
        low, high = (below, above) if since is None else _outwards(since)
        chosen = (math.fsum(weights * low) * (1 - _SLACK), math.fsum(weights * high) * (1 + _SLACK))
    return Ends(total, largest, (float(below[-1]), float(above[-1])), chosen)


def _outwards(ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return np.maximum(ends[0] * (1 - _SLACK), 0.0), ends[1] * (1 + _SLACK)

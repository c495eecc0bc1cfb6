"""Losses of long banded and buffered strategies: row i of A C^-1 has as squared norm the variance of row i of A C^-1 y.

y is white noise, x = C^-1 y and A x are recursions of a few states, and their covariance is carried along (see
exact/variance_kernels.py). No n x n array, and no B: what a job computes as B is not compared with this.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from factorize.exact.intervals import NotEnclosed
from factorize.exact.strategy import Strategy

LARGEST_WORK = 1 << 35
_SLACK = 2.0**-44
X = -1

Coefficient = Fraction | list[Fraction]
Statement = tuple[int, dict[int, Coefficient]]


class Ends(NamedTuple):
    """Enclosures at sensitivity 1, each (low, high), as in `residual.Losses`."""

    total: tuple[float, float]
    largest: tuple[float, float]
    last: tuple[float, float]
    objective: tuple[float, float]


def statements(document: Mapping[str, Any]) -> tuple[list[Statement], int] | None:
    """Return the workload as statements state <- sum of factors times states, in order, and which state is the output.

    State -1 is x, the input. None where the kind is no recursion of few states.
    """
    one, kind = Fraction(1), document["kind"]
    mu = Fraction(document.get("momentum", 0.0))
    rates = document.get("learning_rates")
    eta: Coefficient = one if rates is None else [Fraction(rate) for rate in rates]
    if kind == "identity":
        return [], X
    if kind in ("prefix", "decay"):
        return [(0, {0: Fraction(document.get("rate", 1.0)), X: one})], 0
    if kind in ("momentum", "schedule"):
        program: list[Statement] = [(0, {0: mu, X: one})]
        if document.get("nesterov"):
            return [*program, (1, {X: one, 0: mu}), (2, {2: one, 1: eta})], 2
        return [*program, (1, {1: one, 0: eta})], 1
    if kind == "srg":
        return [(0, {0: Fraction(document["decay"]), X: one}), (1, {1: mu, 0: one}), (2, {2: one, 1: one})], 2
    if kind == "weight_decay":
        rate = Fraction(document["rate"])
        if document["mode"] == "coupled":
            return [(0, {0: mu, X: one, 1: -rate}), (1, {1: one, 0: eta})], 1
        kept = [1 - step * rate for step in eta] if isinstance(eta, list) else 1 - eta * rate
        return [(0, {0: mu, X: one}), (1, {1: kept, 0: eta})], 1
    return None


def losses(strategy: Strategy, workload: Mapping[str, Any], objective: Mapping[str, Any]) -> Ends | None:
    """Return the losses, or None where C or A has no recursion here, or it would take too long.

    Args:
        strategy: banded, or with buffers; without factors of its columns.
        workload: the spec's.
        objective: the spec's; not `lambda_tau`.

    Raises:
        NotEnclosed: the recursion grows so much that doubled precision does not enclose it.
    """
    found = statements(workload)
    if found is None or strategy.scale is not None or objective["kind"] == "lambda_tau":
        return None
    program, output = found
    states = len(program)
    given = (states, *_arrays(program), output, ends := np.empty((2, strategy.n)))
    if strategy.bands is not None:
        width = len(strategy.bands) + states
        if strategy.n * width * (len(strategy.bands) + 2 * states) > LARGEST_WORK:
            return None
        from factorize.exact.variance_kernels import banded

        enclosed = banded(strategy.bands, _reciprocals(strategy.bands[0]), *given)
    elif strategy.buffers is not None:
        from factorize.exact.variance_kernels import buffered

        diagonal, transition, inputs, outputs = strategy.buffers
        enclosed = buffered(_reciprocals(diagonal), transition, inputs, outputs, *given)
    else:
        return None
    if not enclosed or not np.isfinite(ends).all():
        raise NotEnclosed("the recursion of the inverse of C grows too much to be enclosed")
    return _losses(ends, objective)


def _arrays(program: list[Statement]) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Targets, sources, their number, and the factors as pairs of doubles for one step or for each."""
    most = max((len(terms) for _, terms in program), default=1)
    varying = [len(factor) for _, terms in program for factor in terms.values() if isinstance(factor, list)]
    factors = np.zeros((max(varying, default=1), len(program), most, 2))
    sources = np.zeros((len(program), most), dtype=np.int64)
    for k, (_, terms) in enumerate(program):
        for s, (source, factor) in enumerate(terms.items()):
            sources[k, s] = source
            values = factor if isinstance(factor, list) else [factor]
            factors[:, k, s] = [_pair(value) for value in values]
    targets = np.array([target for target, _ in program], dtype=np.int64)
    return targets, sources, np.array([len(terms) for _, terms in program], dtype=np.int64), factors


def _pair(value: Fraction) -> tuple[float, float]:
    high = float(value)
    return high, float(value - Fraction(high))


def _reciprocals(diagonal: np.ndarray) -> np.ndarray:
    """1 / d as pairs, within 2^-104."""
    return np.array([_pair(1 / Fraction(d)) for d in diagonal.tolist()]).reshape(-1, 2)


def _losses(ends: np.ndarray, objective: Mapping[str, Any]) -> Ends:
    below, above = np.maximum(ends[0] * (1 - _SLACK), 0.0), ends[1] * (1 + _SLACK)
    total = (math.fsum(below) * (1 - _SLACK), math.fsum(above) * (1 + _SLACK))
    largest = (float(below.max()), float(above.max()))
    if objective["kind"] == "mean":
        chosen = (total[0] / len(below) * (1 - _SLACK), total[1] / len(below) * (1 + _SLACK))
    elif objective["kind"] == "max":
        chosen = largest
    else:
        weights = np.asarray(objective["weights"], dtype=np.float64)
        chosen = (math.fsum(weights * below) * (1 - _SLACK), math.fsum(weights * above) * (1 + _SLACK))
    return Ends(total, largest, (float(below[-1]), float(above[-1])), chosen)

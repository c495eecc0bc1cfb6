"""The lower bound for long workloads that are recursions of few states, by log-determinants: no n x n array.

Each singular value s of G = W A F, F = diag(sqrt v), adds to the nuclear norm, with the substitution y = e^u s,

    integral over u of e^-u log(1 + e^(2u) s^2) = s times the integral over y > 0 of log(1 + y^2) / y^2 = pi s.

At the nodes e^(2u) = 2^k, h = log(2) / 2 apart, the trapezoidal rule gives pi s times 1 + 2 sum over l of Re z_l with
|z_l| = sech(pi^2 l / h) / |1 + 2 pi i l / h| (the Fourier transform of the integrand, by parts that of sech), at most
pi s (1 + 1e-13). Terms that are left out lower the sum, and are bounded themselves: to the left by log(1 + x / 2) >=
log(1 + x) / 2; to the right, L(2^k) = log det(I + 2^k G G^T) grows, and is at least n k log 2 + log det G G^T.
Determinants come from below by `determinant_kernels`; weights, zero or not, and powers of two are exact.
"""

import math
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
from flint import arb, ctx

from factorize.checker.arithmetic.balls import ends
from factorize.checker.arithmetic.near import NotEnclosed
from factorize.checker.bounds import determinant_kernels
from factorize.checker.bounds.evidence import row_weights, weights_of
from factorize.checker.spec.objectives import weighing_of
from factorize.checker.spec.programs import X
from factorize.checker.spec.workloads import program_of

LARGEST = 1 << 14
"""Longest n of a recursion of several states."""
_CUTOFF = 1e-12
_FARTHEST = 300  # |k|: beyond, 2^k and what it multiplies leave the range of doubles
_TINIEST = 1e-200  # of the largest weight; smaller ones count as 0, which lowers the bound
_PLACES = 160  # of logarithms
_ALIASING = Fraction(1, 10**13)
_LN2_BELOW = Fraction(693147180559945309417232121458, 10**30)
_LOST, _LOST_IN_PIVOTS = 2.0**-94, 2.0**-50  # of a determinant and of a product of pivots, for each step
_SMALLEST_PIVOT = 1e-140  # and its inverse the largest
_PI_ABOVE = Fraction(314159265358979323846264338328, 10**29)
_RATIO = Fraction(7071067811865475, 10**16)  # below 2^(-1/2), the ratio of e^-u from node to node


class DeterminantRecursion(NamedTuple):
    """What a determinant is computed from: after the number of states, arguments of `determinant_kernels`."""

    states: int
    inputs: np.ndarray
    weights: np.ndarray
    targets: np.ndarray
    sources: np.ndarray
    counts: np.ndarray
    program: np.ndarray
    output: int


def lower_bound(spec: Mapping[str, Any], dual: Mapping[str, np.ndarray]) -> Fraction | None:
    """Return the bound for single participation, or None where the workload or the evidence is of another kind.

    Raises:
        CertificateError: the evidence has the wrong shape, is negative, not finite or all zero.
        NotEnclosed: n is above `LARGEST` and A has several states, or grows beyond the range of doubles.
    """
    program = program_of(spec["workload"])
    if spec["participation"]["kind"] != "single" or "weights" not in dual or program is None:
        return None
    n = spec["workload"]["n"]
    weighing = weighing_of(spec["objective"], n)
    rows = row_weights(weighing, dual)
    if rows is None:
        return None
    if n > LARGEST and program.steps(1) is None:
        raise NotEnclosed(f"log-determinants of several states are evaluated up to n={LARGEST}; got n={n}")
    weights, divisor = rows
    if weighing.tau is not None:
        program = program.since_reference(n, weighing.tau)
    columns = weights_of(dual, "weights", n)
    inputs, scale = _normalized(columns)
    outputs, other = _normalized(weights)
    states = max((target for target, _ in program.statements), default=X) + 1
    # What logarithms are off by, times 2^150, is below 0 where all singular values are tiny: no bound then.
    norm = max(_norm(DeterminantRecursion(states, inputs, outputs, *program.arrays(), program.output)), Fraction(0))
    return norm**2 * scale * other / (Fraction(math.fsum(columns)) * (1 + Fraction(1, 2**52)) * divisor)


def _normalized(weights: np.ndarray) -> tuple[np.ndarray, Fraction]:
    """Weights of at most 1 and the power of two by which they were divided; tiny ones are 0."""
    exponent = int(np.frexp(weights.max())[1])
    scaled = np.ldexp(weights, -exponent)
    return np.where(scaled < _TINIEST, 0.0, scaled), Fraction(2) ** exponent


@ctx.workprec(_PLACES)  # in both threads
def _norm(recursion: DeterminantRecursion) -> Fraction:
    """A number not above the nuclear norm."""
    determinant: Any = determinant_kernels.determinant
    saturated = _logarithm(*pivots(recursion), relative=len(recursion.inputs) * _LOST_IN_PIVOTS)

    def measure(k: int) -> Fraction | None:
        m = 1 + recursion.states
        lower = determinant(math.ldexp(1.0, k), *recursion[1:], np.zeros((m, m)), np.zeros((3, m)))
        return _logarithm(*lower, relative=len(recursion.inputs) * _LOST)

    with ThreadPoolExecutor(2) as pool:
        left = pool.submit(_left, measure)
        right = pool.submit(_right, measure, saturated, len(recursion.inputs))
        total = left.result() + right.result()
    return total * _LN2_BELOW / (2 * _PI_ABOVE * (1 + _ALIASING))


def pivots(recursion: DeterminantRecursion) -> tuple[float, float, int]:
    """The product of the squared diagonal entries of G, off by n 2^-50, as `determinant` writes one; 0 if one may be 0.

    A diagonal entry is what one input adds to the output of its own step, so all steps are run at once.
    """
    value, size = np.zeros((2, 1 + recursion.states, len(recursion.inputs)))
    value[0] = size[0] = 1.0
    with np.errstate(all="ignore"):
        for k, target in enumerate(recursion.targets):
            total = most = np.zeros(1)
            for source, factor in zip(
                recursion.sources[k, : recursion.counts[k]], recursion.program[:, k, :, 0].T, strict=False
            ):
                total, most = total + factor * value[1 + source], most + abs(factor) * size[1 + source]
            value[1 + target], size[1 + target] = total, most
        entries = abs(value[1 + recursion.output]) - 2.0**-46 * size[1 + recursion.output]
        squares = np.where(entries > 0.0, entries * entries * recursion.weights * recursion.inputs, 0.0)
    if not ((squares > _SMALLEST_PIVOT) & (squares < 1.0 / _SMALLEST_PIVOT)).all():
        return 0.0, 0.0, 0
    mantissas, exponents = np.frexp(squares)
    product, exponent = 1.0, int(exponents.sum())
    for mantissa in mantissas.tolist():
        product, moved = math.frexp(product * mantissa)
        exponent += moved
    return math.ldexp(product, exponent % 400), 0.0, exponent // 400


def _left(measure: Callable[[int], Fraction | None]) -> Fraction:
    """The terms of k = -1, -2, ..., and what those beyond sum to at least."""
    total = term = Fraction(0)
    for k in range(-1, -_FARTHEST, -1):
        value = measure(k)
        if value is None:
            raise NotEnclosed("the recursion of the workload grows too much for its determinants to be enclosed")
        term = _root_of_two(-k) * value
        total += term
        if term * min(value, Fraction(1)) <= Fraction(_CUTOFF) * total:
            break
    return total + term * _RATIO / (1 - _RATIO)


def _right(measure: Callable[[int], Fraction | None], saturated: Fraction | None, n: int) -> Fraction:
    """The terms of k = 0, 1, ..., and what those beyond sum to at least: sums over j of r^j, and of j r^j."""
    total = tail = Fraction(0)
    for k in range(_FARTHEST):
        value, factor = measure(k), _root_of_two(-k)
        if value is None:  # with an observation this fine, what was rounded outweighs a variance: those before do
            break
        total += factor * value
        tail, missing = factor * value * _RATIO / (1 - _RATIO), value
        if saturated is not None:
            line = saturated + n * k * _LN2_BELOW
            steps = factor * (line * _RATIO / (1 - _RATIO) + n * _LN2_BELOW * _RATIO / (1 - _RATIO) ** 2)
            tail, missing = max(tail, steps), max(value - line, Fraction(0))
        if factor * missing <= Fraction(_CUTOFF) * total:
            break
    return total + tail


def _root_of_two(k: int) -> Fraction:
    """2^(k / 2), rounded down."""
    return Fraction(2) ** (k // 2) * (2 * _RATIO if k % 2 else 1)


def _logarithm(high: float, low: float, places: int, *, relative: float) -> Fraction | None:
    """Log of (high + low) 2^(400 places) from below, off by a relative error; None for 0."""
    if not high > 0:
        return None
    return ends((arb(high) + arb(low)).log() + 400 * places * arb.const_log2() - relative)[0]

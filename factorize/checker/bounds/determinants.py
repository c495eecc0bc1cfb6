"""The lower bound for long workloads that are recursions of few states, by log-determinants: no n x n array.

Each singular value s of G = W A F, F = diag(sqrt v), adds to the nuclear norm, with the substitution y = e^u s,

    integral over u of e^-u log(1 + e^(2u) s^2) = s times the integral over y > 0 of log(1 + y^2) / y^2 = pi s.

At the nodes e^(2u) = 2^k, h = log(2) / 2 apart, the trapezoidal rule gives pi s times 1 + 2 sum over l of Re z_l with
|z_l| = sech(pi^2 l / h) / |1 + 2 pi i l / h| (the Fourier transform of the integrand, by parts that of sech), at most
pi s (1 + 1e-13). Terms that are left out lower the sum, and are bounded themselves: to the left by log(1 + x / 2) >=
log(1 + x) / 2; to the right, L(2^k) = log det(I + 2^k G G^T) grows, and is at least n k log 2 + log det G G^T.
Determinants come from below; weights, zero or not, and powers of two are exact.

Those of I + t G G^T come by a filter whose covariance is never too large. The process y = G u, u white, is observed
with noise of variance 1 / t: det(I + t G G^T) is the product of 1 + t s_i^2, s_i^2 the variance of y_i given the
observations before. The filter's step P <- S P S^T + N, P <- P - P e e^T P / (P_ee + 1 / t) is monotone in P, in the
order of semidefinite matrices, also where P is not semidefinite as long as P_ee + 1 / t > 0: the second is the least (I
- k e^T) P (I - k e^T)^T + k k^T / t over all k. So it is enough to make P smaller after each statement by a diagonal
matrix that covers the rounding. An entry (a, c) that is off by at most E z_a z_c is covered by E z_a^2 at a and E
z_c^2 at c, for any positive z, and so E may be the sum over all entries. With roots of the variances as z every state
is kept relative to its own size, whatever its unit.
"""

import math
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
from flint import arb, ctx

from factorize.checker.arithmetic.balls import ends
from factorize.checker.arithmetic.loops import kernel, part
from factorize.checker.arithmetic.near import NotEnclosed
from factorize.checker.bounds.evidence import row_weights, weights_of
from factorize.checker.spec.objectives import weighing_of
from factorize.checker.spec.programs import X
from factorize.checker.spec.workloads import program_of
from factorize.checker.structures.covariances import _plus, _times

MAX_N_OF_STATES = 1 << 14
"""The largest n of a recursion of several states."""
_MAX_TERM_SHARE = 1e-12  # The sum ends where a term adds no more than this share of it.
_MAX_NODE = 300  # With a larger |k|, 2^k and its products leave the range of doubles.
_MIN_WEIGHT = 1e-200  # A weight below this share of the largest counts as 0, which lowers the bound.
_PLACES = 160  # the binary places of logarithms
_ALIASING = Fraction(1, 10**13)
_LN2_BELOW = Fraction(693147180559945309417232121458, 10**30)
_DETERMINANT_LOSS, _PIVOT_LOSS = 2.0**-94, 2.0**-50
"""The shares of a determinant, and of a product of pivots, that one step may lose to rounding."""
_MIN_PIVOT = 1e-140  # The inverse of the smallest pivot is the largest.
_PI_ABOVE = Fraction(314159265358979323846264338328, 10**29)
_RATIO = Fraction(7071067811865475, 10**16)  # just below 2^(-1/2), the ratio of e^-u from node to node


class DeterminantRecursion(NamedTuple):
    """The recursion of a determinant: the number of states, then arguments of `determinant`."""

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
        NotEnclosed: n is above `MAX_N_OF_STATES` and A has several states, or grows beyond the range of doubles.
    """
    program = program_of(spec["workload"])
    if spec["participation"]["kind"] != "single" or "weights" not in dual or program is None:
        return None
    n = spec["workload"]["n"]
    weighing = weighing_of(spec["objective"], n)
    rows = row_weights(weighing, dual)
    if rows is None:
        return None
    if n > MAX_N_OF_STATES and program.steps(1) is None:
        raise NotEnclosed(f"log-determinants of several states are evaluated up to n={MAX_N_OF_STATES}; got n={n}")
    weights, divisor = rows
    if weighing.tau is not None:
        program = program.since_reference(n, weighing.tau)
    columns = weights_of(dual, "weights", n)
    inputs, scale = _normalized(columns)
    outputs, other = _normalized(weights)
    states = max((target for target, _ in program.statements), default=X) + 1
    # Where all singular values are tiny, logarithms are off by more than they are worth: the bound is then 0.
    norm = max(_norm(DeterminantRecursion(states, inputs, outputs, *program.arrays(), program.output)), Fraction(0))
    return norm**2 * scale * other / (Fraction(math.fsum(columns)) * (1 + Fraction(1, 2**52)) * divisor)


def _normalized(weights: np.ndarray) -> tuple[np.ndarray, Fraction]:
    """Return weights of at most 1, tiny ones as 0, and the power of two by which they were divided."""
    exponent = int(np.frexp(weights.max())[1])
    scaled = np.ldexp(weights, -exponent)
    return np.where(scaled < _MIN_WEIGHT, 0.0, scaled), Fraction(2) ** exponent


@ctx.workprec(_PLACES)  # Both threads share the precision.
def _norm(recursion: DeterminantRecursion) -> Fraction:
    """Return a number not above the nuclear norm."""
    saturated = _logarithm(*pivots(recursion), relative=len(recursion.inputs) * _PIVOT_LOSS)

    def measure(k: int) -> Fraction | None:
        m = 1 + recursion.states
        lower = determinant(math.ldexp(1.0, k), *recursion[1:], np.zeros((m, m)), np.zeros((3, m)))
        return _logarithm(*lower, relative=len(recursion.inputs) * _DETERMINANT_LOSS)

    with ThreadPoolExecutor(2) as pool:
        left = pool.submit(_left, measure)
        right = pool.submit(_right, measure, saturated, len(recursion.inputs))
        total = left.result() + right.result()
    return total * _LN2_BELOW / (2 * _PI_ABOVE * (1 + _ALIASING))


def pivots(recursion: DeterminantRecursion) -> tuple[float, float, int]:
    """Return the product of the squared diagonal entries of G, off by n 2^-50, in three numbers as `determinant` does.

    It is 0 if an entry may be 0.

    One input adds the diagonal entry to the output of its own step, so all steps run at once.
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
    if not ((squares > _MIN_PIVOT) & (squares < 1.0 / _MIN_PIVOT)).all():
        return 0.0, 0.0, 0
    mantissas, exponents = np.frexp(squares)
    product, exponent = 1.0, int(exponents.sum())
    for mantissa in mantissas.tolist():
        product, moved = math.frexp(product * mantissa)
        exponent += moved
    return math.ldexp(product, exponent % 400), 0.0, exponent // 400


def _left(measure: Callable[[int], Fraction | None]) -> Fraction:
    """Return the sum of the terms of k = -1, -2, ..., with a lower bound of the terms that are left out."""
    total = term = Fraction(0)
    for k in range(-1, -_MAX_NODE, -1):
        value = measure(k)
        if value is None:
            raise NotEnclosed("the recursion of the workload grows too much for its determinants to be enclosed")
        term = _root_of_two(-k) * value
        total += term
        if term * min(value, Fraction(1)) <= Fraction(_MAX_TERM_SHARE) * total:
            break
    return total + term * _RATIO / (1 - _RATIO)


def _right(measure: Callable[[int], Fraction | None], saturated: Fraction | None, n: int) -> Fraction:
    """Return the sum of the terms of k = 0, 1, ..., with a lower bound of the rest by sums over j of r^j and j r^j."""
    total = tail = Fraction(0)
    for k in range(_MAX_NODE):
        value, factor = measure(k), _root_of_two(-k)
        if value is None:  # With so fine an observation, rounding outweighs a variance: the earlier terms suffice.
            break
        total += factor * value
        tail, missing = factor * value * _RATIO / (1 - _RATIO), value
        if saturated is not None:
            line = saturated + n * k * _LN2_BELOW
            steps = factor * (line * _RATIO / (1 - _RATIO) + n * _LN2_BELOW * _RATIO / (1 - _RATIO) ** 2)
            tail, missing = max(tail, steps), max(value - line, Fraction(0))
        if factor * missing <= Fraction(_MAX_TERM_SHARE) * total:
            break
    return total + tail


def _root_of_two(k: int) -> Fraction:
    """Return 2^(k / 2), rounded down."""
    return Fraction(2) ** (k // 2) * (2 * _RATIO if k % 2 else 1)


def _logarithm(high: float, low: float, places: int, *, relative: float) -> Fraction | None:
    """Return the log of (high + low) 2^(400 places), less its relative error, from below; None for 0."""
    if not high > 0:
        return None
    return ends((arb(high) + arb(low)).log() + 400 * places * arb.const_log2() - relative)[0]


STEP = 2.0**-49
"""More than the relative error of a statement or an observation of up to 4 terms, which has at most 12 roundings."""
_MIN_ROOT = 1e-140  # It is added to the root of a variance, so that no root is 0.
_MAX_GAIN = 1e140  # A gain from here on counts as unknown, before numbers leave the range of doubles.
_RESCALING = 2.0**-400  # A product that grows beyond its inverse is multiplied by it.


@part(error_model="numpy")
def _lower(p, z, sizes):
    """Lower the diagonal to cover rounded entries, whose sizes over z_a z_c are summed; z becomes its roots."""
    for c in range(len(p)):
        p[c, c] -= STEP * (sizes + STEP) * z[c] * z[c] + 2.0**-52 * abs(p[c, c])
        z[c] = math.sqrt(abs(p[c, c])) + _MIN_ROOT


@part(error_model="numpy")
def _statement(k, target, sources, count, program, p, z, row, size):
    """Carry out statement k of a step, a state <- sum of coefficients times states."""
    own = whole = sizes = 0.0
    for c in range(len(p)):
        row[c] = size[c] = 0.0
        for s in range(count):
            entry = program[k, s, 0] * p[1 + sources[k, s], c]
            row[c] += entry
            size[c] += abs(entry)
    for s in range(count):
        own += program[k, s, 0] * row[1 + sources[k, s]]
        whole += abs(program[k, s, 0]) * size[1 + sources[k, s]]
    row[target], size[target], z[target] = own, whole, math.sqrt(whole) + _MIN_ROOT
    for c in range(len(p)):
        p[target, c] = p[c, target] = row[c]
        sizes += size[c] / (z[target] * z[c])
    _lower(p, z, sizes)


@part(error_model="numpy")
def _observe(o, shift, p, z, row, size):
    """Condition on the observation of state o with noise of variance 1 / shift."""
    sizes = 0.0
    for c in range(len(p)):
        size[c] = shift * p[o, c]
    for c in range(len(p)):
        row[c] = p[o, c] / (1.0 + size[o])
    z[o] = math.sqrt(abs(row[o])) + _MIN_ROOT
    for a in range(len(p)):
        for c in range(a + 1):
            before, moved = p[a, c], size[a] * row[c]
            if a == o or c == o:
                before, moved = row[a + c - o], 0.0
            p[a, c] = p[c, a] = before - moved
            sizes += (abs(before) + abs(moved)) / (z[a] * z[c])
    _lower(p, z, sizes)


@kernel(error_model="numpy")
def determinant(shift, inputs, weights, targets, sources, counts, program, output, p, work):
    """Return det(I + shift G G^T) from below as (high, low, places): (high + low) 2^(400 places), 0 if unknown.

    Since the product itself is rounded, it may still be too large by the relative error n 2^-94. G is diag(sqrt
    weights) A diag(sqrt inputs), A by the statements as losses/variances.py writes them; shift is a power of two. p is
    the covariance of the input and the states, all zero, and work is scratch, three rows of zeros.
    """
    z, row, size, o = work[0], work[1], work[2], 1 + output
    ph, pl, places = 1.0, 0.0, 0
    for i in range(len(inputs)):
        for c in range(len(p)):
            p[0, c] = p[c, 0] = 0.0
            z[c] += _MIN_ROOT
        p[0, 0], z[0] = inputs[i], math.sqrt(inputs[i]) + _MIN_ROOT
        for k in range(len(targets)):
            _statement(k, 1 + targets[k], sources, counts[k], program[i if len(program) > 1 else 0], p, z, row, size)
        gain = shift * weights[i] * p[o, o]
        if not -0.5 <= gain < _MAX_GAIN:
            return 0.0, 0.0, 0
        if weights[i] > 0.0:
            _observe(o, shift * weights[i], p, z, row, size)
        if gain > 0.0:
            xh, xl = _plus(1.0, 0.0, gain * (1.0 - 2.0**-52), 0.0)
            ph, pl = _times(ph, pl, xh, xl)
            while ph > 1.0 / _RESCALING:
                ph, pl, places = ph * _RESCALING, pl * _RESCALING, places + 1
    return ph, pl, places

"""The lower bound over several participations for workloads that are chains, in O(n k^2) for k epochs.

F is block diagonal over the classes of steps a multiple of b apart: over disjoint patterns of `min_sep` too, once steps
are added before the first to fill k epochs of b, which adds rows of zeros and columns that F does not read.
With G = A^-1 bidiagonal, W = F F^T and T = F^-1 G G^T F^-T the norm is tr T^(-1/2), and the trapezoidal rule with
step h for

    x^(-1/2) = (2 / pi) integral over u of e^u / (x + e^(2u))

exceeds it by a factor of at most 1 + delta, delta = 2 sum 1 / cosh(pi^2 l / h). Neighbouring terms outwards shrink by
at most e^-h, and a geometric series with that ratio is a lower bound of each tail: a close one from where two terms
have nearly that ratio, since only the tails of all singular values are left then. It leaves traces tr(W K^-1) with
K = G G^T + t W. With x_i = gain_i y_i and gain_{i+1} = gain_i p_i / q_{i+1} the quadratic form K is a chain of springs
from each step to the next and from the last one to the ground, (y_i - y_{i+1})^2 / r_i, and t W, which couples the k
steps of a class. Fold the steps of each epoch, so that the classes m and b - 1 - m make one block of 2k, and eliminate
the blocks from both ends. What has been eliminated acts on the next block as

    A' = t W + P,    P = (A^-1 + R)^-1 = L (I + L^T R L)^-1 L^T,   A = L L^T

with the resistances R of the springs between them. This map is monotone in the order of quadratic forms, so an A that
is too large in every direction stays so; in the end (A + A'')^-1, with A'' from the other side, is too small, and its
trace a lower bound. Hence after each operation the diagonal is raised (that of B = I + L^T R L, which is inverted,
lowered) by more than the operation can have rounded. In units of u = 2^-53, with s = 2k and d_i^2 the diagonal:

- Cholesky: |error_ij| <= (min(i, j) + 3) u d_i d_j, hence at most (s^2 / 2 + 4 s) u diag; sums of s products give
  s (s + 1) u diag.
- K = L H^-T by substitution, B = H H^T: entry j of the residual of row i is at most (j + 2) u ||h_j|| ||k_i||. It
  changes K K^T by at most 2 (s + 1) u ||k_i|| ||k_j|| times sqrt(tr B), since B >= I, and times
  sqrt(s sum_j B_jj (B^-1)_jj), which does not depend on the scale of the steps.
- the last trace, ||L^-1 F||^2: less than 2 s u sqrt(s sum_i A_ii (A^-1)_ii) of it.

In the unknowns of the steps a rounding of u relative to the springs would be one of u n^2 relative to the weak t W. In
differences along the part of the chain that has been eliminated (`resolvent_kernels`) springs and t W keep to entries
of their own. Up to 16 epochs the bound loses 3e-10 of itself at most (n = 1024). With more the raised diagonals count,
and it loses 3e-9 at 32 and 5e-7 at 128. The gains round as well: a spring with ends y_i and (1 + e) y_{i+1},
|e| <= 4 u, is less than one without e that is 1 + 2^-38 times as stiff, together with one of 1e-19 to the ground. An
odd number of classes gets one more with W = 0, which cuts a spring in two of half the resistance.

A chain is a weighted workload whose steps depend on one number of the step before: row i of W A is sqrt(w_i) s_i with
s_i = k_i s_{i-1} + e_i x_i. For running sums (every k_i = 1) the difference of a row and the row at the last restart
is such a chain, too, which begins anew after each restart.
"""

import math
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from factorize.checker.arithmetic.near import NotEnclosed
from factorize.checker.bounds.evidence import evidence_of, row_weights
from factorize.checker.bounds.resolvent_kernels import block_resolvent_trace
from factorize.checker.participation import allowed
from factorize.checker.spec.objectives import weighing_of
from factorize.checker.spec.workloads import program_of

MAX_WORK = 1 << 25
"""The largest n epochs^2 for which the bound is evaluated, which takes 40 seconds there."""
_STEP = math.pi**2 / math.log(4e11)  # With this step h of the trapezoidal rule, delta is 1e-11.
_TAIL = math.exp(-_STEP) / (1 - math.exp(-_STEP)) * (1 - 1e-14)
_MAX_TAIL_LOSS = 1e-11  # A tail may lose this share of the largest term when a geometric series replaces it.
_GROUND_STIFFNESS = 1e-19  # Each end of a spring is grounded by this share of its stiffness.
_MAX_TERMS = 2000  # A side of the trapezoidal rule ends here at the latest.
_MAX_RESISTANCE_RATIO = 1e4  # Where hard and soft springs meet, the bound loses up to this ratio times 1e-11.
_TERM_ROUNDING = 64 * 2.0**-53
"""The share of a term that covers roundings of nodes, weights and scaled factors."""
_MIN_NUMBER = 1e-120  # Products of a few numbers between it and its inverse stay in the range of doubles.


class BlockChain(NamedTuple):
    """W A, each number rounded at most once.

    Attributes:
        follow: k, shape (n,); the first is 0.
        feed: e, shape (n,).
        weights: w of the rows times some number, shape (n,).
        divisor: the objective's divisor, times the same number.
    """

    follow: np.ndarray
    feed: np.ndarray
    weights: np.ndarray
    divisor: Fraction

    def inverse(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Return the diagonal p > 0 and negated sub-diagonal q > 0 of (W A)^-1, at most 7 roundings each, shape (n,).

        The answer is None where A has no such inverse, or numbers leave a safe range. The first of q is not used.
        """
        with np.errstate(all="ignore"):
            roots = np.sqrt(self.weights)
            p = 1.0 / (self.feed * roots)
            q = self.follow / (self.feed * np.concatenate([[1.0], roots[:-1]]))
        safe = all(((part > _MIN_NUMBER) & (part < 1 / _MIN_NUMBER)).all() for part in (self.feed, roots, p, q[1:]))
        return (p, q) if safe else None


def lower_bound(spec: Mapping[str, Any], dual: Mapping[str, np.ndarray]) -> Fraction | None:
    """Return the bound over several participations, or None where the workload or the evidence is of another kind.

    Raises:
        CertificateError: the evidence has the wrong shape, is not finite or is all zero.
        NotEnclosed: numbers are too far apart, or there are too many epochs.
    """
    n = spec["workload"]["n"] if spec["workload"].get("shape") is None else 0
    factors = evidence_of(spec["participation"], dual, n) if n and dual.keys() == {"factors"} else None
    chain = None if factors is None else chain_of(spec, dual)
    inverse = None if chain is None else chain.inverse()
    if factors is None or chain is None or inverse is None:
        return None
    separation = allowed(spec["participation"], n).separation
    epochs = -(-n // separation)
    if n * epochs**2 > MAX_WORK:
        raise NotEnclosed(f"{epochs} epochs of n={n} steps exceed the limit of {MAX_WORK} for n epochs^2")
    extra, blocks, cost = epochs * separation - n, np.zeros((separation, epochs, epochs)), Fraction(0)
    for factor in factors:
        cost += factor.cost()
        for steps, block in zip(factor.patterns + extra, factor.blocks, strict=True):
            blocks[steps[0] % separation][np.ix_(steps // separation, steps // separation)] = block
    before = np.full(extra, inverse[0][0])
    p, q = (np.concatenate([before, part]) for part in inverse)
    q[extra] = p[0]
    norm = nuclear_norm_below(p, q, blocks) * (1 - 14 * len(p) * 2.0**-53)
    return Fraction(max(norm, 0.0)) ** 2 / (cost * chain.divisor)


def nuclear_norm_below(p: np.ndarray, q: np.ndarray, factors: np.ndarray) -> float:
    """Return a number not above the nuclear norm of A F.

    Args:
        p: the diagonal of A^-1, positive, shape (n,).
        q: its negated sub-diagonal, positive but for the first, which is not used, shape (n,).
        factors: the F_j, shape (b, k, k): rows j, j + b, ... of F and the columns of the same class.

    Raises:
        NotEnclosed: the steps are not one chain of safe numbers.
    """
    springs = _springs(p, q)
    if springs is None:
        raise NotEnclosed("the workload's steps are too uneven for block resolvents")
    k = factors.shape[1]
    gains, resistances = (np.ascontiguousarray(part.reshape(k, -1).T) for part in springs)
    scaled = factors * gains[:, :, None]
    grounded = _GROUND_STIFFNESS / resistances
    if len(gains) % 2:
        resistances = np.concatenate([resistances, resistances[-1:] / 2])
        resistances[-2] /= 2
        scaled = np.concatenate([scaled, np.zeros((1, k, k))])
        grounded = np.concatenate([grounded, np.zeros((1, k))])
    dual = scaled @ scaled.transpose(0, 2, 1)
    # Singular values reach from the size of a step to n times that size: both sides take equally long from the middle.
    centre = -0.5 * math.log(float(np.einsum("jss,js->", dual, resistances)))
    arguments = _folded(resistances, np.maximum(grounded, np.roll(grounded, 1, axis=0)), dual, scaled)
    with ThreadPoolExecutor(2) as pool:
        sides = pool.map(lambda start: _one_side(arguments, centre + start * _STEP, start), (0.5, -0.5))
    delta = 2.0 / math.cosh(math.pi**2 / _STEP) * 1.0001
    total = math.fsum(term for side in sides for term in side)
    return total * (2 * _STEP / math.pi) / (1 + delta) * (1 - 1e-15)


def _folded(
    resistances: np.ndarray, grounded: np.ndarray, dual: np.ndarray, factors: np.ndarray
) -> tuple[np.ndarray, ...]:
    """Return the arguments that describe each block: classes m and b - 1 - m, in the unknowns u and d of each shift.

    A spring from d + u to the ground is no stiffer than two of twice its stiffness, one from d and one from u.
    """
    half, k = len(dual) // 2, dual.shape[1]
    springs, both, rows = np.zeros((2, half, 2 * k)), np.zeros((2, half, 2 * k, 2 * k)), np.zeros((half, 2 * k, 2 * k))
    springs[:, :, :k], springs[:, :, k:] = grounded[:half], 2 * grounded[: half - 1 : -1]
    both[:, :, :k, :k], both[:, :, k:, k:] = dual[:half], dual[: half - 1 : -1]
    rows[:, :k, :k], rows[:, k:, k:] = (part.transpose(0, 2, 1) for part in (factors[:half], factors[: half - 1 : -1]))
    for shift in range(2):
        moved, later = slice(shift, k), slice(k, 2 * k - shift)
        springs[shift, :, moved] += springs[shift, :, later]
        both[shift, :, k:, moved] = both[shift, :, k:, later]
        both[shift, :, moved, k:] = both[shift, :, later, k:]
        both[shift, :, moved, moved] += both[shift, :, later, later]
    return np.sqrt(resistances), springs, both, rows


def _springs(p: np.ndarray, q: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """Return gains and resistances by step, shape (n,), or None where a step is cut off or numbers grow too large."""
    if not (q[1:] > 0).all():
        return None
    gains = np.ones(len(p))
    with np.errstate(all="ignore"):
        for i in range(1, len(p)):
            gains[i] = gains[i - 1] * p[i - 1] / q[i]
        resistances = (1 - 2.0**-37) / (p * gains) ** 2
    safe = ((gains > 1e-100) & (gains < 1e100)).all() and resistances.max() < _MAX_RESISTANCE_RATIO * resistances.min()
    return (gains, resistances) if safe else None


def _one_side(arguments: tuple[np.ndarray, ...], u: float, direction: float) -> list[float]:
    """Return the terms from u outwards and a lower bound of the rest."""
    trace: Any = block_resolvent_trace
    blocks, side, _ = arguments[-1].shape
    scratch = [np.empty(shape) for shape in ((blocks, side, side), (side, side), (4 * side, side))]
    terms: list[float] = []
    largest = before = 0.0
    for place in range(_MAX_TERMS):
        node = u + math.copysign(place * _STEP, direction)
        value = trace(*arguments, math.exp(2 * node), *scratch)
        terms.append(0.0 if math.isnan(value) else math.exp(node) * value * (1 - _TERM_ROUNDING))
        largest = max(largest, terms[-1])
        if place and terms[-1] - before * math.exp(-_STEP) <= _MAX_TAIL_LOSS * largest:
            break
        before = terms[-1]
    return [*terms, terms[-1] * _TAIL]


def chain_of(spec: Mapping[str, Any], dual: Mapping[str, np.ndarray]) -> BlockChain | None:
    """Return W A as a chain, or None where it is none; weights of the rows are evidence for the largest error."""
    program = program_of(spec["workload"])
    steps = None if program is None else program.steps(spec["workload"]["n"])
    if steps is None:
        return None
    weighing = weighing_of(spec["objective"], len(steps))
    follow, feed = (np.array([float(step[part]) for step in steps]) for part in (0, 1))
    follow[0] = 0.0
    if weighing.tau is not None:
        if any(k != 1 for k, _ in steps[1:]):
            return None
        follow[:: weighing.tau] = 0.0
    rows = row_weights(weighing, dual)
    return None if rows is None else BlockChain(follow, feed, *rows)

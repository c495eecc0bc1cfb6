"""The lower bound over all strategy matrices, from the stored evidence, rounded down throughout.

For F from the evidence and any matrix Q, objective >= scale * (tr(Q^T W A F) / |Q|_2)^2 / cost(F) (cost and scale:
lower_bounds/bounds.py). Q is the polar factor that an SVD finds in floating point, cut to a grid; its
trace and Q^T Q - I are then computed without rounding: a wrong SVD gives a weaker bound and never a false one.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from factorize.errors import CertificateError
from factorize.exact.arithmetic.integers import Limbs, Numbers, integers, limbs, product, split, squares
from factorize.exact.losses.residual import approximation
from factorize.exact.participation import allowed
from factorize.exact.sensitivity import square_root_down, square_root_up
from factorize.exact.spec import Weighing, weighing_of

_GUESS_BITS = 54


class Piece(NamedTuple):
    """Rows `steps` of F, in columns of their own: block has shape (len(steps), any)."""

    steps: np.ndarray
    block: np.ndarray


def lower_bound(spec: Mapping[str, Any], dual: Mapping[str, np.ndarray], workload: Numbers) -> Fraction | None:
    """Return a bound that no strategy matrix beats, or None where the evidence is of no kind that is known here.

    Args:
        spec: the canonical spec.
        dual: `weights` (n,) for single participation, with `row_weights` (m,) for the objective `max`; `factors`
            (patterns, k, k) for disjoint patterns of fixed epochs or of steps at least min_sep apart.
        workload: A, shape (m, n).

    Raises:
        CertificateError: the evidence has the wrong shape, is not finite or is all zero.
    """
    m, n = workload.values.shape
    weighing = weighing_of(spec["objective"], m)
    pieces = pieces_of(spec["participation"], dual, n)
    rows = rows_of(weighing, dual)
    if pieces is None or rows is None:
        return None
    scales, divisor = rows
    references = weighing.references
    guess = polar(weigh(approximation(workload), scales, references), pieces)
    found = trace(guess, scales, references, pieces, workload)
    cost = sum((_cost(piece) for piece in pieces), start=Fraction(0))
    if not cost:
        raise CertificateError("the dual evidence is all zero")
    return max(found, Fraction(0)) ** 2 / ((1 + defect(guess)) * cost * divisor)


def pieces_of(participation: Mapping[str, Any], dual: Mapping[str, np.ndarray], n: int) -> list[Piece] | None:
    """Return F for disjoint allowed patterns that cover the steps."""
    form = allowed(participation, n)
    several = participation["kind"] != "single"
    if "weights" in dual and not several:
        roots = np.sqrt(_positive(dual["weights"], n, "weights"))
        return [Piece(np.array([j]), np.array([[root]])) for j, root in enumerate(roots)]
    if "factors" not in dual or not several:
        return None
    patterns = []
    for j in range(form.separation):
        steps = np.arange(j, n, form.separation)
        patterns += [steps[start : start + form.most] for start in range(0, len(steps), form.most)]
    factors, shape = dual["factors"], (len(patterns), form.most, form.most)
    if factors.shape != shape or not np.isfinite(factors).all():
        raise CertificateError(f"dual.factors must be finite, of shape {shape}; got {factors.shape}")
    return [Piece(steps, block[: len(steps)]) for steps, block in zip(patterns, factors, strict=True)]


def _positive(weights: np.ndarray, size: int, name: str) -> np.ndarray:
    if weights.shape != (size,) or not np.isfinite(weights).all() or (weights < 0).any():
        raise CertificateError(f"dual.{name} must be {size} finite non-negative numbers")
    return weights


def _cost(piece: Piece) -> Fraction:
    """Largest diagonal entry of F F^T over a pattern: at least tr(F F^T X) for every feasible X."""
    norms = squares(limbs(np.ascontiguousarray(piece.block.T)))
    return norms.fraction(int(norms.values.max()) + norms.radius)


def rows_of(weighing: Weighing, dual: Mapping[str, np.ndarray]) -> tuple[np.ndarray, Fraction] | None:
    """Return row factors of W, rounded down (a smaller W has a smaller objective), and a divisor of the square."""
    if weighing.weights is not None:
        inside = {weight: square_root_down(weight) for weight in set(weighing.weights)}
        return np.array([inside[weight] for weight in weighing.weights]), Fraction(weighing.divisor or 1)
    if "row_weights" not in dual:
        return None
    # The largest of the row errors is at least their mean with any weights: here the squares of the roots.
    roots = np.sqrt(_positive(dual["row_weights"], weighing.rows, "row_weights"))
    total = sum((Fraction(root) ** 2 for root in roots), start=Fraction(0))
    return (roots, total) if total else None


def weigh(rows: np.ndarray, scales: np.ndarray, references: list[int]) -> np.ndarray:
    """Return W A: scaled differences of rows and of those that they refer to (-1 for none)."""
    before = np.array(references)
    out = rows.copy()
    out[before >= 0] -= rows[before[before >= 0]]
    return out * scales[:, None]


def polar(target: np.ndarray, pieces: list[Piece]) -> Limbs:
    """Return something near the polar factor of W A F on a grid of 2^-54, as exact numbers.

    Raises:
        CertificateError: W A F leaves the range of doubles.
    """
    try:
        with np.errstate(over="ignore", invalid="ignore"):
            whole = np.concatenate([target[:, piece.steps] @ piece.block for piece in pieces], axis=1)
            left, _, right = np.linalg.svd(whole, full_matrices=False)
            guess = left @ right
        if not np.isfinite(guess).all():  # some libraries say so in place of an error
            raise np.linalg.LinAlgError("it is not finite")
    except np.linalg.LinAlgError as error:
        raise CertificateError(f"no polar factor of the target was found: {error}") from None
    return limbs(guess, _GUESS_BITS)._replace(radius=0)


def trace(guess: Limbs, scales: np.ndarray, references: list[int], pieces: list[Piece], workload: Numbers) -> Fraction:
    """Return a lower bound of tr(Q^T W A F) = sum of (W^T Q F^T) * A entry by entry."""
    factors = integers(scales)
    whole = guess.numbers()
    scaled = whole.values * factors.values[:, None]
    moved = scaled.copy()
    for t, before in enumerate(references):
        if before >= 0:
            moved[before] = moved[before] - scaled[t]
    exponent = whole.exponent + factors.exponent
    total, start = Fraction(0), 0
    for steps, block in pieces:
        stop = start + block.shape[1]
        part = _through(Numbers(moved[:, start:stop], exponent), block)
        entries = workload.values[:, steps]
        units = int((part.values * entries).sum())
        slack = workload.radius * int(abs(part.values).sum()) + part.radius * int(abs(entries).sum())
        slack += workload.radius * part.radius * entries.size
        total += part.fraction(1) * workload.fraction(1) * (units - slack)
        start = stop
    return total


def _through(rows: Numbers, block: np.ndarray) -> Numbers:
    """Return rows times the transposed block."""
    if block.size == 1:
        only = integers(block[0])
        return Numbers(rows.values * int(only.values[0]), rows.exponent + only.exponent)
    return product(split(rows), limbs(np.ascontiguousarray(block.T)))


def defect(guess: Limbs) -> Fraction:
    """Return at least |Q^T Q - I|_F, so that |Q|_2^2 <= 1 + defect; on the shorter side of Q."""
    tall = guess if guess.parts.shape[1] >= guess.parts.shape[2] else guess.transpose()
    gram = product(tall.transpose(), tall)
    side = gram.values.shape[0]
    rest = gram.minus(Numbers(np.eye(side, dtype=np.int64).astype(object), 0))
    total = int(((abs(rest.values) + rest.radius) ** 2).sum())
    return Fraction(square_root_up(rest.fraction(1) ** 2 * total))

"""B C - A without rounding, and from it an enclosure of every loss.

B is the stored one, or any floating-point guess: with R = B C - A exactly known, A C^-1 = B - R C^-1, and the norm of
C^-1 is bounded through a guess N and the exact N C - I. A bad guess widens the enclosure and never makes it false.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from factorize.errors import CertificateError, CorruptObject
from factorize.exact.arithmetic.integers import Limbs, Numbers, limbs, product, split, squares
from factorize.exact.doubles.roundings import outwards
from factorize.exact.losses.widths import WIDEST, width_of_losses
from factorize.exact.sensitivity import square_root_up
from factorize.exact.spec import Weighing, weighing_of
from factorize.exact.strategy import Strategy

LARGEST = 2048
GUESS_BITS = 72
_SLACK = 2.0**-45  # of the few floating-point operations on norms that are known as rationals
LIMITS = {"float64": Fraction(1, 2**40), "float32": Fraction(1, 2**18)}
"""Of the residual, beside the workload's largest column sum, by the type in which B is stored."""


class Losses(NamedTuple):
    """Enclosures at sensitivity 1, each (low, high); variances but for the residual.

    Attributes:
        rest: B C - A.
        residual: largest entry of |B C - A|, rounded up.
        total: sum of the squared row norms of A C^-1.
        largest: the largest of them.
        last: the last of them.
        objective: what the spec minimises.
    """

    rest: Numbers
    residual: float
    total: tuple[float, float]
    largest: tuple[float, float]
    last: tuple[float, float]
    objective: tuple[float, float]


def read_matrix(structure: str, parts: Mapping[str, np.ndarray], shape: tuple[int, int]) -> np.ndarray:
    """Return a stored B or C^-1 as an array.

    Raises:
        CorruptObject: a structure in which they are never stored, or another shape.
    """
    if structure == "dense" and parts[""].shape == shape:
        return parts[""]
    if structure == "toeplitz" and parts["coefficients"].shape == (shape[1],) and shape[0] == shape[1]:
        n, column = shape[0], parts["coefficients"]
        return np.array([np.concatenate([column[i::-1], np.zeros(n - 1 - i)]) for i in range(n)])
    raise CorruptObject(f"a stored matrix of shape {shape} cannot be {structure[:40]} with these tensors")


def losses(
    strategy: Strategy,
    workload: Numbers,
    objective: Mapping[str, Any],
    stored: np.ndarray | None,
    limit: Fraction = LIMITS["float64"],
) -> Losses:
    """Return the residual and the losses of C for the workload.

    Args:
        strategy: C, n at most `LARGEST`.
        workload: A, shape (m, n).
        objective: the spec's.
        stored: the B of the file, or None.
        limit: see `LIMITS`.

    Raises:
        CertificateError: the residual is above the limit, B does not have full rank, or C is too ill-conditioned for
            its inverse to be bounded.
    """
    approximate = approximation(strategy.numbers())
    guess = _solve(approximate, approximation(workload)) if stored is None else stored
    decoder = limbs(guess, GUESS_BITS)._replace(radius=0) if stored is None else limbs(guess)
    rest = _times(decoder, strategy).minus(workload)
    residual = _magnitude(rest)
    allowed = limit * max(workload.fraction(int(abs(workload.values).sum(axis=0).max())), Fraction(1))
    if residual > allowed:
        raise CertificateError(f"B C differs from A by {float(residual):.3g}, above the limit {float(allowed):.3g}")
    if stored is not None and stored.shape[0] == stored.shape[1]:
        _check_rank(stored, workload)
    inverse_norm = _inverse_norm(approximate, strategy)
    # Row i of B - A C^-1 = R C^-1 is no longer than row i of R, in which what was cut from B is, times |C^-1|.
    errors = [norm * inverse_norm * (1 + _SLACK) for norm in _row_norms_of(rest)]
    decoder = decoder._replace(radius=0)
    rows = [_around(norm, error) for norm, error in zip(_row_norms(decoder), errors, strict=True)]
    found = Losses(
        rest=rest,
        residual=square_root_up(residual**2),
        total=_sum(rows),
        largest=(max(low for low, _ in rows), max(high for _, high in rows)),
        last=rows[-1],
        objective=_objective(weighing_of(objective, len(rows)), decoder, errors, rows),
    )
    if stored is None or width_of_losses(found[2:]) <= WIDEST:
        return found
    # A B in single precision is too far from A C^-1 for its rows to say what the losses are.
    return losses(strategy, workload, objective, None, limit)._replace(rest=rest, residual=found.residual)


def approximation(numbers: Numbers) -> np.ndarray:
    """Return the nearest doubles, or nearly; only guesses are made from them."""
    bits = int(abs(numbers.values).max()).bit_length()
    drop = max(bits - 900, 0)
    return np.ldexp((numbers.values >> drop).astype(np.float64), numbers.exponent + drop)


def _identity(n: int) -> Numbers:
    return Numbers(np.eye(n, dtype=np.int64).astype(object), 0)


def _solve(strategy: np.ndarray, workload: np.ndarray) -> np.ndarray:
    from scipy.linalg import solve_triangular

    found = np.full(workload.shape, np.nan)
    if np.diagonal(strategy).all():  # an entry far below the others is cut to 0
        with np.errstate(over="ignore", invalid="ignore"):
            found = solve_triangular(strategy, workload.T, trans="T", lower=True, check_finite=False).T
    if not np.isfinite(found).all():
        raise CertificateError("C is too ill-conditioned to be inverted in double precision")
    return found


def _times(left: Limbs, strategy: Strategy) -> Numbers:
    found = product(left, strategy.whole)
    return found if strategy.factors is None else found.scaled(strategy.factors)


def _magnitude(numbers: Numbers) -> Fraction:
    return numbers.fraction(int(abs(numbers.values).max()) + numbers.radius)


def _row_norms(matrix: Limbs) -> list[float]:
    """Norms of the rows of a matrix without radius, rounded up from exact sums."""
    sums = squares(matrix.transpose())
    unit = sums.fraction(1)
    return [square_root_up(int(total) * unit) for total in sums.values]


def _row_norms_of(numbers: Numbers) -> list[float]:
    """At least the norms of the rows."""
    squared = ((abs(numbers.values) + numbers.radius) ** 2).sum(axis=1)
    unit = numbers.fraction(1) ** 2
    return [square_root_up(int(total) * unit) for total in squared]


def _inverse_norm(approximate: np.ndarray, strategy: Strategy) -> float:
    """An upper bound of the spectral norm of C^-1: |N|_F / (1 - |N C - I|_F)."""
    guess = limbs(_solve(approximate, np.eye(strategy.n)), GUESS_BITS)._replace(radius=0)
    defect = float(_magnitude(_times(guess, strategy).minus(_identity(strategy.n)))) * strategy.n
    if not defect < 0.5:
        raise CertificateError("C is too ill-conditioned: the norm of its inverse cannot be bounded")
    return math.hypot(*_row_norms(guess)) / (1 - defect) * (1 + _SLACK)


def _check_rank(stored: np.ndarray, workload: Numbers) -> None:
    """A square B is proven invertible by its form; where A has a zero on its diagonal, so has B."""
    if np.triu(stored, 1).any():
        raise CertificateError("the stored B is not lower-triangular")
    lost = (np.diagonal(stored) == 0) & (np.diagonal(workload.values) != 0)
    if lost.any():
        raise CertificateError(f"the stored B does not have full rank: its diagonal is 0 at {int(np.argmax(lost))}")


def _around(norm: float, error: float) -> tuple[float, float]:
    low, high = max(norm * (1 - _SLACK) - error * (1 + _SLACK), 0.0), (norm + error) * (1 + _SLACK)
    return outwards((low * low, high * high), _SLACK) if high else (0.0, 0.0)


def _sum(rows: list[tuple[float, float]], weights: list[float] | None = None) -> tuple[float, float]:
    factors = [1.0] * len(rows) if weights is None else weights
    low = math.fsum(w * row[0] for w, row in zip(factors, rows, strict=True))
    high = math.fsum(w * row[1] for w, row in zip(factors, rows, strict=True))
    return outwards((low, high), _SLACK)


def _objective(
    weighing: Weighing, decoder: Limbs, errors: list[float], rows: list[tuple[float, float]]
) -> tuple[float, float]:
    if weighing.weights is None:
        return max(low for low, _ in rows), max(high for _, high in rows)
    weights = weighing.doubles.tolist()
    if weighing.tau is None:
        low, high = _sum(rows, weights)
        if weighing.divisor is None:
            return low, high
        return outwards((low / weighing.divisor, high / weighing.divisor), _SLACK)
    before = np.array(weighing.references)
    differences = decoder.parts.copy()
    differences[:, before >= 0] -= decoder.parts[:, before[before >= 0]]
    doubled = split(Limbs(differences, decoder.exponent).numbers())  # back to limbs below 2^18
    beside = [error + (errors[t] if t >= 0 else 0.0) for error, t in zip(errors, weighing.references, strict=True)]
    return _sum([_around(norm, error) for norm, error in zip(_row_norms(doubled), beside, strict=True)], weights)

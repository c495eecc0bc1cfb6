"""The two ways to use a factorization, and what the privacy of each rests on.

Publishing B (C G + Z) rests on C alone: B comes after the noise. Adding noise to exact results, A G + B Z, is
B (E G + Z) with the encoder E = B^-1 A = C - B^-1 R, R = B C - A: there the bytes of B matter, and directions that B
does not reach are published without noise. For a wide B of full row rank E = B^+ A, the projection of C less B^+ R.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from factorize.errors import CertificateError
from factorize.exact.arithmetic.integers import Limbs, Numbers, limbs, product, split, squares
from factorize.exact.sensitivity import square_root_up

_GUESS_BITS = 72


def added_noise(stored: np.ndarray, rest: Numbers, most: int, upper: Fraction) -> float | str:
    """Return an upper bound of the sensitivity of the encoder of A G + B Z, or why there is none.

    A column of B^-1 R adds at most its norm to a pattern, and a pattern has at most `most` steps.

    Args:
        stored: B, shape (m, n).
        rest: R = B C - A, shape (m, n).
        most: participations.
        upper: squared sensitivity of C from above.
    """
    m, n = stored.shape
    if m > n:
        return "B has more rows than columns, so parts of A G that differ from B C G would have no noise"
    inverse = np.linalg.pinv(stored) if m < n else _inverse(stored)
    if inverse is None:
        return "B is singular, so a part of A G would have no noise"
    guess = limbs(inverse, _GUESS_BITS)._replace(radius=0)
    # From the right, B N = I + D proves full row rank and that B^+ is no longer than N / (1 - |D|).
    left, right = (guess, limbs(stored)) if m == n else (limbs(stored), guess)
    defect = _defect(left, right)
    if defect >= Fraction(1, 2):
        raise CertificateError("the stored B is so ill-conditioned that its rank cannot be proved")
    longest = _longest(product(guess, split(rest))) if m == n else _frobenius(guess) * _longest(rest)
    return enlarged(upper, most * longest / (1 - defect))


def enlarged(upper: Fraction, added: Fraction) -> float:
    """Return the root of a squared sensitivity plus what each pattern gains, rounded up."""
    return square_root_up((Fraction(square_root_up(upper)) + added) ** 2)


def _inverse(stored: np.ndarray) -> np.ndarray | None:
    """A guess from substitution; None for a zero on the diagonal."""
    from scipy.linalg import solve_triangular

    if not np.diagonal(stored).all():
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        found = solve_triangular(stored, np.eye(len(stored)), lower=True, check_finite=False)
    if not np.isfinite(found).all():
        raise CertificateError("the stored B is too ill-conditioned to be inverted in double precision")
    return np.asarray(found)


def _defect(left: Limbs, right: Limbs) -> Fraction:
    """Return at least the Frobenius norm of left times right minus I."""
    found = product(left, right)
    side = found.values.shape[0]
    rest = found.minus(Numbers(np.eye(side, dtype=np.int64).astype(object), 0))
    total = int(((abs(rest.values) + rest.radius) ** 2).sum())
    return Fraction(square_root_up(rest.fraction(1) ** 2 * total))


def _longest(numbers: Numbers) -> Fraction:
    """Return at least the largest column norm."""
    norms = ((abs(numbers.values) + numbers.radius) ** 2).sum(axis=0)
    return Fraction(square_root_up(numbers.fraction(1) ** 2 * int(norms.max())))


def _frobenius(guess: Limbs) -> Fraction:
    sums = squares(guess)
    return Fraction(square_root_up(sums.fraction(int(sums.values.sum()))))

"""Bounds on what bins leak that every epoch draws anew: the chain of theorem 9, its other direction, and no secrecy.

H is the Gram matrix of all n columns of |C| over sigma^2, rounded up. S holds one step of each epoch, S' is another
draw, and K_SS' the sum of H over S x S'. For the order m and t = m / 2, docs/notes/amplification-proofs.md proves

    E L^m <= E_S prod_e [ a_e(S_e) e^{t f_e(S_e)} ]^(m-1) prod_e [ u_e(S_e, S_e+1) w_e(S_e, S_e+1) ]^(m-1)

with a_e(s) the mean over the steps x of epoch e of e^{t H_sx}; f_e(s) the sum over the other epochs of the largest
H_sx in their far part; u_e(r, s) the mean of e^{t (H_sx + g_rx)} over that of e^{t H_sx}, x in the epoch of s and g
what H_rx is above the far part there; and w_e the same with the epochs exchanged. The mean over S is a chain.
"""

from __future__ import annotations

from decimal import Decimal, localcontext
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from factorize.errors import InvalidParameter, TooLarge
from factorize.exact.arithmetic.enclosures import (
    EXP_SLACK,
    LEAST_EXPONENT,
    SLACK,
    Enclosed,
    context,
    decimal,
    exponentials,
)
from factorize.exact.sampling import star
from factorize.exact.sampling.bins import Gram

MOST_STEPS = 4096
_UNIT = 2.0**-52
_LARGEST_EXPONENT = 600.0
_LN2 = Decimal(2).ln(context())
_FAR_APART = -1020  # of powers of two in one sum: less is raised to it


class Scaled(NamedTuple):
    """Positive numbers, each value * 2^power: chains of large powers leave the range of doubles."""

    value: np.ndarray
    power: np.ndarray

    @classmethod
    def of(cls, value: np.ndarray, power: np.ndarray | int = 0) -> Scaled:
        """Return positive doubles with values in [1/2, 1)."""
        mantissa, exponent = np.frexp(value)
        return cls(mantissa, exponent.astype(np.int64) + power)

    def times(self, other: Scaled) -> Scaled:
        """Return the products, rounded up."""
        return Scaled.of(np.nextafter(self.value * other.value, np.inf), self.power + other.power)

    def to_the(self, exponent: int) -> Scaled:
        """Return powers, rounded up, by squares."""
        found, square = Scaled.of(np.ones_like(self.value)), self
        while exponent:
            if exponent & 1:
                found = found.times(square)
            square, exponent = square.times(square), exponent >> 1
        return found

    def sums(self) -> Scaled:
        """Return the sums over the first axis, rounded up."""
        top = self.power.max(axis=0)
        terms = np.ldexp(self.value, np.maximum(self.power - top, _FAR_APART).astype(np.int32))
        return Scaled.of(terms.sum(axis=0) * (1 + (len(terms) + 4) * _UNIT), top)


class Epochs:
    """H in epochs of b steps, rounded up.

    Args:
        kernel: H, shape (n, n).
        bins: b.

    Raises:
        TooLarge: more than 4096 steps.
    """

    def __init__(self, kernel: np.ndarray, bins: int) -> None:
        n = len(kernel)
        if n > MOST_STEPS:
            raise TooLarge(f"re-drawn bins are checked up to n={MOST_STEPS} steps here; got {n}")
        self.bins, self.number = bins, -(-n // bins)
        whole = np.zeros((self.number * bins, self.number * bins))
        whole[:n, :n] = kernel
        self._whole = whole
        self._cut = bins - bins // 2

    def block(self, e: int, x: int) -> np.ndarray:
        """Return H of the steps of one epoch with those of another, shape (b, b)."""
        b = self.bins
        return self._whole[e * b : (e + 1) * b, x * b : (x + 1) * b]

    def far(self, e: int) -> np.ndarray:
        """Return f_e, shape (b,), rounded up."""
        total = np.zeros(self.bins)
        for x in range(self.number):
            if x != e:
                total += self._floor(e, x)
        return total * (1 + (self.number + 2) * _UNIT)

    def excess(self, e: int, x: int) -> np.ndarray:
        """Return what H is above the far part of a neighbouring epoch, shape (b, b), rounded up; 0 in the far part."""
        found = np.nextafter(self.block(e, x) - self._floor(e, x)[:, None], np.inf)
        found[:, self._far_part(e, x)] = 0.0
        return np.maximum(found, 0.0)

    def _far_part(self, e: int, x: int) -> slice:
        if x == e + 1:
            return slice(self._cut, None)
        return slice(None, self._cut) if x == e - 1 else slice(None)

    def _floor(self, e: int, x: int) -> np.ndarray:
        found: np.ndarray = self.block(e, x)[:, self._far_part(e, x)].max(axis=1, initial=0.0)
        return found

    def norm(self) -> Fraction:
        """Return at least the largest K_SS: each step with its square, and its largest product in each other epoch."""
        total = Fraction(0)
        for e in range(self.number):
            charged = np.diagonal(self.block(e, e)).copy()
            for x in range(self.number):
                if x != e:
                    charged += self.block(e, x).max(axis=1)
            total += Fraction(float(charged.max()) * (1 + (self.number + 2) * _UNIT))
        return total


def log_moment(epochs: Epochs, order: int) -> Decimal:
    """Return the log of a bound of E L^m, rounded up.

    Args:
        epochs: of H.
        order: m, at least 2.

    Raises:
        InvalidParameter: exponents that doubles do not hold: there is too little noise for this order.
    """
    half, b = 0.5 * order, epochs.bins
    chain = Scaled.of(np.full(b, 1.0))
    rows = [_exponentials(half * epochs.block(e, e)) for e in range(epochs.number)]
    for e in range(epochs.number):
        chain = chain.times(_own(rows[e], half * epochs.far(e), order))
        if e + 1 == epochs.number:
            break
        forth = _ratios(rows[e + 1], half * epochs.excess(e, e + 1))
        back = _ratios(rows[e], half * epochs.excess(e + 1, e)).T
        steps = Scaled.of(np.nextafter(forth * back, np.inf)).to_the(order - 1)
        chain = Scaled(chain.value[:, None], chain.power[:, None]).times(steps).sums()
    last = chain.sums()
    with localcontext(context()):
        means = epochs.number * Decimal(b).ln()
        return Decimal(float(last.value)).ln() + int(last.power) * _LN2 - means + SLACK


def _exponentials(exponents: np.ndarray) -> np.ndarray:
    """Return e^x, rounded up, of exponents that were rounded once."""
    raised = np.nextafter(exponents, np.inf)
    if raised.max() > _LARGEST_EXPONENT:
        raise InvalidParameter("there is so little noise that the bound is beyond doubles; take more", field="sigma")
    return exponentials(np.maximum(raised, LEAST_EXPONENT)) * (1 + EXP_SLACK + 2 * _UNIT)


def _own(rows: np.ndarray, far: np.ndarray, order: int) -> Scaled:
    """Return (a e^{t f})^(m-1), shape (b,)."""
    b = len(rows)
    means = rows.sum(axis=1) * ((1 + (b + 8) * _UNIT) / b)
    return Scaled.of(np.nextafter(means * _exponentials(far), np.inf)).to_the(order - 1)


def _ratios(rows: np.ndarray, excess: np.ndarray) -> np.ndarray:
    """Return at least sum_x e^{t (H_sx + g_rx)} / sum_x e^{t H_sx}, shape (r, s).

    Rows are at least e^{t H} and at most 1 + 2 EXP_SLACK times as much, which the quotient is given on top.
    """
    b = len(rows)
    raised = _exponentials(excess) @ rows.T
    lost = 8 * EXP_SLACK + 4 * (b + 8) * _UNIT
    found: np.ndarray = np.maximum(raised / rows.sum(axis=1) * (1 + lost), 1.0)
    return found


def log_ceiling(epochs: Epochs, order: int, epsilon: float) -> Decimal:
    """Return log W(m) = log(c_m E*(m)), rounded up."""
    with localcontext(context()):
        m, less = Decimal(order), Decimal(order - 1)
        return log_moment(epochs, order) + less * (less.ln() - Decimal(epsilon)) - m * m.ln() + SLACK


def addition(gram: Gram, bins: int, sigma: float, epsilon: float) -> Enclosed:
    """Enclose the closed form of theorem 7 for the covariance of the sums that were rounded up."""
    square = Fraction(sigma) ** 2
    ends = [_means(part, bins) for part in (gram.near, gram.high)]
    grown = Fraction(1, 2**40)  # more than numpy's sums of positive doubles lose, up to 4096 twice
    whole = Enclosed(
        _rounded(ends[0].whole * (1 - grown) / square, -1), _rounded(ends[1].whole * (1 + grown) / square, 1)
    )
    low = (ends[0].diagonal + ends[0].whole) * (1 - grown) - ends[1].own * (1 + grown)
    high = (ends[1].diagonal + ends[1].whole) * (1 + grown) - ends[0].own * (1 - grown)
    if low <= 0 or whole.low <= 0:
        return Enclosed(Decimal(0), Decimal(1))
    mean = Enclosed(_rounded(low / square, -1), _rounded(high / square, 1))
    return star.closed_form(mean, whole, decimal(epsilon))


class _Means(NamedTuple):
    """Of the squares of steps, of products within an epoch, and of all products; each summed over the epochs."""

    diagonal: Fraction
    own: Fraction
    whole: Fraction


def _means(gram: np.ndarray, bins: int) -> _Means:
    diagonal = Fraction(float(np.diagonal(gram).sum())) / bins
    parts = (gram[start : start + bins, start : start + bins] for start in range(0, len(gram), bins))
    own = sum((Fraction(float(part.sum(axis=1).sum())) for part in parts), Fraction(0)) / bins**2
    return _Means(diagonal, own, Fraction(float(gram.sum(axis=1).sum())) / bins**2)


def _rounded(value: Fraction, sign: int) -> Decimal:
    with localcontext(context()):
        return decimal(value) * (1 + sign * SLACK)

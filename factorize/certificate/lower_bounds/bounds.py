"""Lower bounds over all strategy matrices, evaluated from a solver's dual evidence.

Any evidence certifies a bound; good evidence certifies a tight one. With the target T = W A (workload weighted by the
objective) and any matrix U = F F^T that is feasible for the participation,

    objective >= scale * ||T F||_*^2 / cost(U)

- single: F = diag(sqrt(weights)), cost = sum of weights              (docs/notes/method.md; D22)
- single, objective `max`: objective >= ||diag(sqrt u) A F||_*^2 / (sum(u) cost(U)) for any weights u >= 0 of the rows,
  because max_i e_i >= sum(u_i e_i) / sum(u)                          (docs/notes/method.md, "The largest variance")
- fixed epochs: U is block diagonal over the patterns, F holds one k x k factor per pattern, and
  cost = sum over patterns of the largest diagonal entry of F F^T     (docs/notes/method.md, "Fixed epochs")

Keeping factors F instead of U makes U positive semidefinite by construction. Nothing here uses solver code.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from factorize.certificate.lower_bounds import block_resolvents, determinants, resolvents
from factorize.errors import CertificateError
from factorize.numbers.blas_threads import one_blas_thread
from factorize.numbers.rounding import UNIT
from factorize.spec import Spec
from factorize.workloads.forms import BidiagonalInverse
from factorize.workloads.state_space import StateSpace, scaling

DENSE_RULE = "nuclear norm dual"
RESOLVENT_RULE = "nuclear norm dual, by resolvents of the bidiagonal inverse"
DETERMINANT_RULE = "nuclear norm dual, by log-determinants of the recursion"
MAX_RULE = "nuclear norm dual with row weights"
MAX_RESOLVENT_RULE = "nuclear norm dual with row weights, by resolvents of the bidiagonal inverse"
MAX_DETERMINANT_RULE = "nuclear norm dual with row weights, by log-determinants of the recursion"
BLOCK_RESOLVENT_RULE = "nuclear norm dual, by block resolvents of the bidiagonal inverse"
_DIRECT_SVD = 640
_ONE_THREAD = 1024  # side up to which a second thread of BLAS slows singular values down on a busy machine
_LARGEST_DENSE = 8192


@dataclass(frozen=True)
class LowerBound:
    """A bound that no strategy matrix beats.

    Attributes:
        objective: the bound, in the objective's units, rounding allowance subtracted.
        rule: the formula used.
    """

    objective: float
    rule: str

    def document(self) -> dict[str, Any]:
        """Return the contract's JSON form."""
        return {"objective": self.objective, "rule": self.rule}


def lower_bound(spec: Spec, dual: Mapping[str, np.ndarray]) -> LowerBound | None:
    """Return the bound that the evidence certifies, or None where no bound is known or no evidence was given.

    Args:
        spec: canonical spec.
        dual: `weights` of shape (n,) for single participation, and `row_weights` of shape (m,) for objective `max`;
            `factors` of shape (b, k, k) for fixed epochs.

    Raises:
        CertificateError: the evidence has the wrong shape, is not finite, is negative or is all zero.
    """
    if not dual:
        return None
    if not spec.objective.quadratic:
        return _max_error(spec, dual)
    participation = spec.participation
    listed = participation.patterns(spec.workload.n) if participation.periodic and "factors" in dual else None
    if participation.single and "weights" in dual:
        weights = _weights(dual, "weights", spec.workload.n)
        factor, cost = _diagonal(np.sqrt(weights)), math.fsum(weights)
        structured = _structured_norm(spec, weights) if spec.workload.n > _DIRECT_SVD else None
        if structured is not None:
            norm, rule = structured
            return LowerBound(spec.objective.scale(spec.workload.m) * norm**2 / cost * (1 - 4 * UNIT), rule)
    elif listed is not None:
        blocks = _blocks(dual["factors"], listed.shape)
        by_blocks = spec.workload.n > _DIRECT_SVD
        bound = _by_block_resolvents(spec, blocks) if by_blocks else None
        if bound is not None or max(spec.workload.m, spec.workload.n) > _LARGEST_DENSE:
            return bound
        factor, cost = _Factor(listed, blocks), _cost_of_factors(blocks)
    else:
        return None
    if max(spec.workload.m, spec.workload.n) > _LARGEST_DENSE:
        return None
    target = spec.objective.weigh(spec.workload.dense())
    norm = nuclear_norm_below(factor.after(target))
    allowance = 1 - 16 * spec.workload.n * UNIT
    return LowerBound(spec.objective.scale(spec.workload.m) * norm**2 / cost * allowance, DENSE_RULE)


def _structured_norm(spec: Spec, weights: np.ndarray) -> tuple[float, str] | None:
    """Return the norm below in O(n) and its rule, or None if W A is no recursion with few states."""
    inverse, steps = spec.workload.bidiagonal_inverse(), spec.workload.first_order()
    weighted = None if inverse is None else spec.objective.weighted_inverse(inverse)
    if weighted is not None:
        return resolvents.nuclear_norm_below(weighted, weights) * _entries_rounded(weighted), RESOLVENT_RULE
    rows = spec.objective.row_weights(spec.workload.m)
    if steps is not None and rows is not None:
        return resolvents.nuclear_norm_of_recursion_below(steps, rows, weights), RESOLVENT_RULE
    norm = _norm_by_determinants(spec, spec.objective.state_space(spec.workload.m), weights)
    return None if norm is None else (norm, DETERMINANT_RULE)


def _entries_rounded(inverse: BidiagonalInverse) -> float:
    """Return the factor for entries of A^-1 that are themselves rounded, such as 1 / eta and its scalings.

    At most three roundings in each of the 2n - 1 entries of a bidiagonal matrix move every singular value by at most
    the product of their factors (Demmel and Kahan 1990). Powers of two and zeros are exact.
    """
    entries = np.concatenate(inverse)
    if np.isin(np.frexp(entries)[0], (0.0, 0.5)).all():
        return 1.0
    return 1.0 - 4.0 * len(entries) * 2.0**-53


def _norm_by_determinants(spec: Spec, objective: StateSpace | None, weights: np.ndarray) -> float | None:
    """Return the norm of W A diag(sqrt v) below, W given as a recursion, or None if A is too long or no recursion."""
    factors = spec.workload.recursions() if spec.workload.n <= determinants.LARGEST else None
    if objective is None or factors is None:
        return None
    return determinants.nuclear_norm_below([*factors, objective], weights)


def _max_error(spec: Spec, dual: Mapping[str, np.ndarray]) -> LowerBound | None:
    """Any non-negative weights of rows and columns certify: an average of the e_i is below the largest of them."""
    if not spec.participation.single or not {"weights", "row_weights"} <= dual.keys():
        return None
    m, n = spec.workload.m, spec.workload.n
    u, v = _weights(dual, "row_weights", m), _weights(dual, "weights", n)
    cost = math.fsum(u) * math.fsum(v)
    steps = spec.workload.first_order() if n > _DIRECT_SVD else None
    if steps is not None:
        norm = resolvents.nuclear_norm_of_recursion_below(steps, u, v)
        return LowerBound(norm**2 / cost * (1 - 8 * UNIT), MAX_RESOLVENT_RULE)
    if n > _DIRECT_SVD:
        recursive = _norm_by_determinants(spec, scaling(np.sqrt(u)), v)
        if recursive is not None:
            return LowerBound(recursive**2 / cost * (1 - 8 * UNIT), MAX_DETERMINANT_RULE)
    if max(m, n) > _LARGEST_DENSE:
        return None
    norm = nuclear_norm_below(np.sqrt(u)[:, None] * spec.workload.dense() * np.sqrt(v))
    return LowerBound(norm**2 / cost * (1 - 16 * max(m, n) * UNIT), MAX_RULE)


def _weights(dual: Mapping[str, np.ndarray], name: str, size: int) -> np.ndarray:
    """Return the evidence of that name, divided by its largest entry: any other scale proves the same."""
    weights = dual[name]
    if weights.shape != (size,) or not np.isfinite(weights).all() or (weights < 0).any() or not weights.any():
        raise CertificateError(f"dual.{name} must be {size} finite non-negative numbers, not all zero")
    return np.asarray(weights / weights.max())


@dataclass(frozen=True)
class _Factor:
    """F, block diagonal over the patterns.

    Attributes:
        patterns: shape (b, k).
        blocks: shape (b, k, k).
    """

    patterns: np.ndarray
    blocks: np.ndarray

    def after(self, target: np.ndarray) -> np.ndarray:
        """Return T F: m n k multiplications."""
        out = np.empty_like(target)
        out[:, self.patterns] = (target[:, self.patterns].swapaxes(0, 1) @ self.blocks).swapaxes(0, 1)
        return out


def _by_block_resolvents(spec: Spec, factors: np.ndarray) -> LowerBound | None:
    """Return the bound in O(n k^2), or None where W A has no bidiagonal inverse or its numbers vary too much."""
    inverse = spec.workload.bidiagonal_inverse()
    weighted = None if inverse is None else spec.objective.weighted_inverse(inverse)
    if weighted is None:
        return None
    cost = _cost_of_factors(factors)
    norm = block_resolvents.nuclear_norm_below(weighted, factors)
    if norm is None:
        return None
    bound = spec.objective.scale(spec.workload.m) * norm**2 / cost * (1 - 8 * UNIT)
    return LowerBound(bound, BLOCK_RESOLVENT_RULE)


def _blocks(factors: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Return the evidence for patterns of shape (b, k), times a power of two: then squares do not underflow."""
    wanted = (*shape, shape[1])
    if factors.shape != wanted or not np.isfinite(factors).all() or not factors.any():
        raise CertificateError(f"dual.factors must be finite, not all zero, of shape {wanted}; got {factors.shape}")
    return np.asarray(np.ldexp(factors, -np.frexp(np.abs(factors).max())[1]))


def _cost_of_factors(factors: np.ndarray) -> float:
    """Sum over the classes of the largest diagonal entry of F F^T, rounded up."""
    squares = np.einsum("jik,jik->ji", factors, factors).max(axis=1)
    return math.fsum(squares) * (1 + (factors.shape[1] + 4) * UNIT)


def _diagonal(entries: np.ndarray) -> _Factor:
    return _Factor(np.arange(len(entries))[:, None], entries[:, None, None])


def nuclear_norm_below(matrix: np.ndarray) -> float:
    """Return the sum of the singular values, which the caller's allowance for their rounding makes a lower bound.

    An orthogonal Q near the polar factor of M would bound it, too, ||M||_* >= tr(Q^T M). But the Q that a strategy with
    a loss 3e-10 above the optimum gives loses 2e-8 to 2e-7, and to make it orthogonal takes as long as singular values.

    Args:
        matrix: shape (m, n).
    """
    with one_blas_thread(max(matrix.shape), largest=_ONE_THREAD):
        return float(np.linalg.svd(matrix, compute_uv=False).sum())


def nuclear_norm_by_squares(matrix: np.ndarray) -> float:
    """Return a number not above the sum of the singular values, in a third of the time: by eigenvalues of M M^T.

    What the product of k terms and the eigenvalues of n rows may be off by is taken off each: (k + n + 8) roundings of
    the sum of all squares. That costs what singular values below the square root of a rounding are worth, 1e-6 of the
    sum where they differ by 1e5; for a bound that is not attained anyway.

    Args:
        matrix: shape (m, n); numbers whose squares leave the range of doubles are scaled.
    """
    exponent = int(np.frexp(np.abs(matrix).max(initial=0.0))[1])
    scaled = np.ldexp(matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T, -exponent)
    with one_blas_thread(max(matrix.shape), largest=_ONE_THREAD):
        squares = scaled @ scaled.T
        values = np.linalg.eigvalsh(squares)
    off = (sum(scaled.shape) + 8) * (UNIT / 2) * float(np.trace(squares))
    roots = np.sqrt(np.maximum(values - off, 0.0))
    return float(np.ldexp(roots.sum() * (1 - len(roots) * UNIT), exponent))

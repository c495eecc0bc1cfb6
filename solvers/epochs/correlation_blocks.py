"""The dual of fixed epochs: one block W_j = w_j R_j per class of steps, and the power step on them.

The examples fall into b classes of k steps, pi_j = {j, j + b, ...}. Against contributions that are vectors of norm at
most 1, the best Gram matrix X is diagonal within every class, with class traces 1 (docs/notes/method.md), and the dual
is

    ||T F||_*^2 / sum_j w_j,   F F^T = W = (+)_j w_j R_j,   R_j correlation matrices of size k            (F.3)

with T the target. Write T F = U diag(s) Q^T and H = Q diag(s) Q^T. Then X = F^-T H F^-1, and since ||T F||_* is convex
in F with gradient X F, replacing F_j by the matrix of the same cost that is most aligned with G_j = F_j^-T H_jj never
lowers the bound: normalise the rows of G_j for R_j, and take w_j proportional to the squared sum of its row norms.

All arrays here are in class order: index j k + s stands for step j + s b.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from factorize.solvers.single.dense import right_singular

_IDLE_WEIGHT = 1e-30  # a class whose columns are all zero gets this part of the largest weight
_IDLE_SHARE = 1e-12  # a step that moves nothing gets this part of its class's budget, which keeps C invertible
_MIN_EIGENVALUE = 1e-13  # correlation matrices have no smaller eigenvalue, which keeps their factors invertible


@dataclass(frozen=True)
class BlockIterate:
    """Dual factors and the decomposition of T F.

    Attributes:
        target: T in the original order of steps, shape (m, n).
        order: class order, shape (n,): column i of class-ordered arrays is step order[i].
        factors: F_j, shape (b, k, k), scaled to sum_j w_j = 1.
        s: singular values of T F, shape (r,).
        q: right singular vectors by class, shape (b, k, r).
    """

    target: np.ndarray
    order: np.ndarray
    factors: np.ndarray
    s: np.ndarray
    q: np.ndarray

    @property
    def lower(self) -> float:
        """The dual bound; the cost is 1."""
        return float(self.s.sum()) ** 2

    @cached_property
    def products(self) -> np.ndarray:
        """W_j, shape (b, k, k)."""
        return self.factors @ self.factors.transpose(0, 2, 1)

    @property
    def idle(self) -> np.ndarray:
        """The steps that move nothing (a zero column of T), in class order, shape (b, k)."""
        moved = np.asarray(self.target.any(axis=0))
        return ~moved[self.order].reshape(self.q.shape[:2])

    def gram(self) -> np.ndarray:
        """X scaled so that tr(X W) = sum_j w_j = 1, in class order, shape (n, n); a mere trace of it for idle steps."""
        b, k, r = self.q.shape
        whitened = np.linalg.solve(self.factors.transpose(0, 2, 1), self.q).reshape(b * k, r)
        return self.settle((whitened * (self.s / self.s.sum())) @ whitened.T)

    def settle(self, gram: np.ndarray) -> np.ndarray:
        """Cut the idle steps out of a Gram matrix in class order, leaving each a trace of its class's budget."""
        idle = np.flatnonzero(self.idle)
        gram[idle] = gram[:, idle] = 0.0
        gram[idle, idle] = _IDLE_SHARE
        return gram


def start(target: np.ndarray, order: np.ndarray, k: int) -> BlockIterate:
    """Return the iterate without correlations whose weights are the mean column norms of the classes."""
    weights = np.sqrt(np.einsum("ij,ij->j", target, target))[order].reshape(-1, k).mean(axis=1)
    return evaluate(target, order, weights, np.broadcast_to(np.eye(k), (len(weights), k, k)))


def evaluate(target: np.ndarray, order: np.ndarray, weights: np.ndarray, correlations: np.ndarray) -> BlockIterate:
    """Decompose T F for weights of shape (b,), of any scale, and definite correlation matrices, shape (b, k, k)."""
    b, k = correlations.shape[:2]
    weights = np.maximum(weights, _IDLE_WEIGHT * weights.max())
    factors = np.linalg.cholesky(correlations) * np.sqrt(weights / weights.sum())[:, None, None]
    factors /= np.sqrt(np.einsum("jik,jik->ji", factors, factors).max(axis=1).sum())
    columns = target[:, order].reshape(-1, b, k).transpose(1, 0, 2)
    s, q = right_singular((columns @ factors).transpose(1, 0, 2).reshape(len(target), b * k))
    return BlockIterate(target, order, factors, s, q.reshape(b, k, -1))


def power(at: BlockIterate) -> tuple[np.ndarray, np.ndarray]:
    """Return the generalised power step: weights, shape (b,), and correlations, shape (b, k, k)."""
    blocks = (at.q * at.s) @ at.q.transpose(0, 2, 1)
    aligned = np.linalg.solve(at.factors.transpose(0, 2, 1), blocks)
    norms = np.where(at.idle, 0.0, np.linalg.norm(aligned, axis=2))
    floor = 1e-100 * norms.max()
    units = aligned / np.maximum(norms, floor)[:, :, None]
    rows = np.where((norms > floor)[:, :, None], units, np.eye(norms.shape[1]))
    return norms.sum(axis=1) ** 2, _regular(rows @ rows.transpose(0, 2, 1))


def normalised(products: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return w_j and R_j of blocks W_j, shape (b, k, k), whose diagonals are constant up to rounding."""
    weights = np.einsum("jii->ji", products).mean(axis=1)
    return weights, _regular(products / weights[:, None, None])


def _regular(correlations: np.ndarray) -> np.ndarray:
    """Return a symmetric matrix with a diagonal of ones, and just enough of the identity to be invertible."""
    k = correlations.shape[1]
    mixed = (correlations + correlations.transpose(0, 2, 1)) / 2 + k * _MIN_EIGENVALUE * np.eye(k)
    root = np.sqrt(np.einsum("jii->ji", mixed))
    return mixed / root[:, :, None] / root[:, None, :]


def pack(weights: np.ndarray, correlations: np.ndarray) -> np.ndarray:
    """Return log w_j up to a constant and the entries of R_j below the diagonal, as one vector."""
    rows, columns = np.tril_indices(correlations.shape[1], -1)
    logs = np.log(np.maximum(weights, _IDLE_WEIGHT * weights.max()) / weights.sum())
    return np.concatenate([logs, correlations[:, rows, columns].ravel()])


def unpack(vector: np.ndarray, b: int, k: int) -> tuple[np.ndarray, np.ndarray] | None:
    """Return weights and correlations of a vector, or None if a correlation matrix is not definite."""
    rows, columns = np.tril_indices(k, -1)
    correlations = np.broadcast_to(np.eye(k), (b, k, k)).copy()
    correlations[:, rows, columns] = correlations[:, columns, rows] = vector[b:].reshape(b, -1)
    if np.linalg.eigvalsh(correlations).min() <= _MIN_EIGENVALUE:
        return None
    return np.exp(vector[:b] - vector[:b].max()), correlations


def importance(at: BlockIterate) -> np.ndarray:
    """Return weights of the packed unknowns for least squares: the root of their class's share of the cost."""
    b, k = at.factors.shape[:2]
    root = np.sqrt(np.einsum("jik,jik->j", at.factors, at.factors))
    return np.concatenate([root, np.repeat(root, k * (k - 1) // 2)])

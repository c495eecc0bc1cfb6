"""Blocks of the dual by decompositions of the whole target: for patterns of any workload, and many epochs of few steps.

Another resolvent for the ascent of `factorize.solvers.epochs.blocks`. With W = F F^T, F block diagonal over the
patterns, and the eigenvalues s^2 of F^T T^T T F, whose eigenvectors are Q,

    X = F^-T Q s Q^T F^-1,     X^-1 = F Q s^-1 Q^T F^T,

at the cost of one eigenvalue problem of n x n, which is the quicker one of two only where epochs are many. Squares of
singular values have half their digits: that is enough for evidence, which certifies whatever it is.
"""

from __future__ import annotations

import numpy as np

from factorize.solvers.epochs.pieces import NOTHING, Places, uncorrelated
from factorize.solvers.methods.arrays import Array
from factorize.solvers.methods.poles import Poles

_LEAST = 1e-9  # of the largest singular value, for those that rounding has taken
_NO_POLES = Poles(np.empty(0), np.empty(0), 0.0, np.inf, 0.0)


class WholeTarget:
    """A target and its patterns, as `factorize.solvers.epochs.blocks.maximise` wants them.

    Args:
        target: T, shape (m, n).
        patterns: disjoint patterns of its steps, shape (patterns, most), filled up with -1.
    """

    least = 1e-14

    def __init__(self, target: Array, patterns: Places) -> None:
        moving = np.append(target.any(axis=0), False)
        self._here = moving[patterns]
        self._columns = np.append(target, np.zeros((len(target), 1)), axis=1)[:, patterns].swapaxes(0, 1)
        self.size = int(self._here.sum())

    def start(self) -> Array:
        """W with w_j the mean norm of the columns of T in pattern j, little where none moves, and R_j = I."""
        norms = np.linalg.norm(self._columns, axis=1)
        weights = norms.sum(axis=1) / np.maximum(self._here.sum(axis=1), 1)
        return uncorrelated(np.maximum(weights, _LEAST * weights.max()), norms.shape[1])

    def poles(self, _dual: Array, _error: float) -> Poles:
        """None: the decomposition has no error that counts."""
        return _NO_POLES

    def gradient(self, dual: Array, _poles: Poles) -> tuple[Array, Array]:
        """X and what stands for Y without poles, ``-W^-1 X^-1 W^-1``, both within the patterns."""
        factors = np.linalg.cholesky(dual)
        products = (self._columns @ factors).swapaxes(0, 1)[:, self._here]
        squares, vectors = np.linalg.eigh(products.T @ products)
        values = np.sqrt(np.maximum(squares, _LEAST**2 * squares[-1]))
        turned = np.zeros((*self._here.shape, self.size))
        turned[self._here] = vectors
        turned = np.linalg.solve(factors.swapaxes(1, 2), turned)
        x, y = ((turned * scale) @ turned.swapaxes(1, 2) for scale in (values, -1 / values))
        pattern, place = np.nonzero(~self._here)
        x[pattern, place, place] = NOTHING
        return x, y

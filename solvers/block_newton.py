"""Newton's step for the dual of fixed epochs, where the power step is slow: ill-conditioned workloads.

The bound 2 ||T F||_* - sum_j w_j has, in the blocks W_j = F_j F_j^T, the gradient X_jj - diag(1/k) and a second
derivative known through Y = F^-T Q (notation of solvers/correlation_blocks.py):

    -dX = Y (Phi o (Y^T dW Y)) Y^T,   Phi_ab = s_a s_b / (s_a + s_b) = int_0^inf s_a e^(-s_a t) s_b e^(-s_b t) dt.

The trapezoidal rule in log t turns the integral into a short sum, so that the Hessian is sum_t K_t (x) K_t with
K_t = Y diag(s e^(-s t)) Y^T and can be formed and factored whole. The unknowns are one change of w_j per class and the
entries of W_j above the diagonal: b + n (k - 1) / 2 of them. The rule's error slows Newton's method from quadratic to a
factor of 10^4 a step, which is enough.

The step also moves X to X + dX, which is diagonal within the classes up to the same small error: a far better primal
matrix than X with its entries set to zero, since its distance from X is small in the metric of X.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from solvers.correlation_blocks import Iterate, evaluate, normalised

LARGEST_SYSTEM = 8192
_SPACING = 0.9  # of log t: a relative error of about 2 exp(-pi^2 / 0.9) = 4e-5
_SMALLEST = 1e-12  # singular values below this share of the largest need no accurate Hessian
_LEAST_SHRINKAGE = 0.1  # no direction of W becomes smaller than this share of itself in one step
_RIDGE = 1e-13
_BACKTRACKS = 5


@dataclass(frozen=True)
class Step:
    """A Newton step.

    Attributes:
        iterate: the next dual iterate.
        gram: X + dX in class order, shape (n, n): nearly feasible.
    """

    iterate: Iterate
    gram: np.ndarray


def unknowns(b: int, k: int) -> int:
    """Return the size of the linear system of a step."""
    return b + b * k * (k - 1) // 2


def newton(at: Iterate) -> Step | None:
    """Return the step, or None where the system cannot be solved or no length of the step raises the bound."""
    b, k, r = at.q.shape
    scale = at.s.sum()  # W scaled by it has sum_j w_j = ||T F||_*, and X class traces near 1
    s, factors = at.s * scale, at.factors * scale
    whitened = np.linalg.solve(factors.transpose(0, 2, 1), at.q).reshape(b * k, r)
    first, second = np.triu_indices(k, 1)
    change = _solve(_hessian(whitened, s, b, k), _gradient(whitened, s, b, k))
    if change is None:
        return None
    moved = np.zeros((b, k, k))
    moved[:, first, second] = moved[:, second, first] = change[b:].reshape(b, -1)
    moved += change[:b, None, None] * np.eye(k)
    half = np.linalg.solve(factors, moved)
    relative = np.linalg.solve(factors, half.transpose(0, 2, 1))
    gram = _moved_gram(at, s, whitened, relative)
    least = float(np.linalg.eigvalsh(relative).min())
    length = min(1.0, (1 - _LEAST_SHRINKAGE) / max(-least, 1e-300))
    for _ in range(_BACKTRACKS):
        trial = evaluate(at.target, at.order, *normalised(at.products + length / scale**2 * moved))
        if trial.lower >= at.lower * (1 - 1e-13):
            return Step(trial, gram)
        length *= 0.3
    return None


def _moved_gram(at: Iterate, s: np.ndarray, whitened: np.ndarray, relative: np.ndarray) -> np.ndarray:
    """Return X + dX, with Phi itself instead of its approximation; relative is F^-1 dW F^-T."""
    flat = at.q.reshape(whitened.shape)
    inner = flat.T @ (relative @ at.q).reshape(flat.shape)
    sums = s[:, None] + s
    inner *= np.divide(s[:, None] * s, sums, out=np.zeros_like(sums), where=sums > 0)
    return whitened @ ((np.diag(s) - (inner + inner.T) / 2) @ whitened.T)


def _gradient(whitened: np.ndarray, s: np.ndarray, b: int, k: int) -> np.ndarray:
    blocks = whitened.reshape(b, k, -1)
    inner = (blocks * s) @ blocks.transpose(0, 2, 1)
    first, second = np.triu_indices(k, 1)
    return np.concatenate([np.einsum("jss->j", inner) - 1, 2 * inner[:, first, second].ravel()])


def _hessian(whitened: np.ndarray, s: np.ndarray, b: int, k: int) -> np.ndarray:
    """Return minus the second derivative, symmetric of side `unknowns(b, k)`."""
    kernels = np.array([(whitened * decay) @ whitened.T for decay in _decays(s)]).reshape(-1, b, k, b, k)
    first, second = np.triu_indices(k, 1)
    pairs = len(first)
    corner, border = np.zeros((b, b)), np.zeros((b, b, pairs))
    inner = np.zeros((b, pairs, b, pairs))
    for j in range(b):
        rows = kernels[:, j].transpose(2, 0, 1, 3).reshape(b, len(kernels), k * k)
        products = (rows.transpose(0, 2, 1) @ rows).reshape(b, k, k, k, k)  # [i, p, r, q, s] = sum_t K_pr K_qs
        across = np.einsum("iprqr->ipq", products)
        corner[j] = np.einsum("ipp->i", across)
        border[:, j] = 2 * np.einsum("iprps->irs", products)[:, first, second]
        left, right = (first[:, None], second[:, None]), (first, second)
        direct = products[:, left[0], right[0], left[1], right[1]]
        crossed = products[:, left[0], right[1], left[1], right[0]]
        inner[j] = 2 * (direct + crossed).transpose(1, 0, 2)
    size = b * pairs
    edge = border.transpose(1, 0, 2).reshape(b, size)
    return np.block([[corner, edge], [edge.T, inner.reshape(size, size)]])


def _decays(s: np.ndarray) -> np.ndarray:
    """Return s_a e^(-s_a t) sqrt(weight) for the nodes t, shape (nodes, r)."""
    low = np.log(1e-4 / (2 * s[0]))
    high = np.log(10 / (2 * max(s[-1], _SMALLEST * s[0])))
    nodes = np.exp(np.arange(low, high + _SPACING, _SPACING))
    with np.errstate(under="ignore"):
        return s * np.exp(-np.outer(nodes, s)) * np.sqrt(_SPACING * nodes)[:, None]


def _solve(hessian: np.ndarray, gradient: np.ndarray) -> np.ndarray | None:
    from scipy.linalg import LinAlgError, cho_factor, cho_solve

    scale = np.sqrt(np.maximum(np.diagonal(hessian), 1e-300))
    hessian /= scale
    hessian /= scale[:, None]
    hessian[np.diag_indices_from(hessian)] += _RIDGE
    try:
        factor = cho_factor(hessian, lower=True, overwrite_a=True, check_finite=False)
    except LinAlgError:
        return None
    solution = cho_solve(factor, gradient / scale, check_finite=False) / scale
    return solution if np.isfinite(solution).all() else None

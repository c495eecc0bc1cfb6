"""Newton's method on the central path of the dual of fixed epochs: for workloads where the power step is slow.

Where T is ill-conditioned the power step, and Newton's too, make W nearly singular long before it is optimal, and from
there no direction looks worth a step. So the bound is maximised together with a barrier that falls,

    2 ||T F||_* - sum_j w_j + mu sum_j log det W_j,   W_j = F_j F_j^T.

At its maximum X + mu (+)_j W_j^-1 is diagonal within the classes with traces 1: a feasible matrix, at a distance of
mu n from the optimum. The gradient in W_j is X_jj + mu W_j^-1 - diag(1/k), and the second derivative of the first term
is known through Y = F^-T Q (notation of correlation_blocks.py):

    -dX = Y (Phi o (Y^T dW Y)) Y^T,   Phi_ab = s_a s_b / (s_a + s_b) = int_0^inf s_a e^(-s_a t) s_b e^(-s_b t) dt.

The trapezoidal rule in log t turns the integral into a short sum, so that the Hessian is sum_t K_t (x) K_t with
K_t = Y diag(s e^(-s t)) Y^T and can be formed and factored whole. The unknowns are one change of w_j per class and the
entries of W_j above the diagonal: b + n (k - 1) / 2 of them. The rule's error slows Newton's method from quadratic to a
factor of 10^2 or 10^3 a step, which is enough.

The step also moves X to X + dX, which with its share of the barrier is diagonal within the classes up to the same small
error: a far better primal matrix than X with entries set to zero, since what it lacks is small in the metric of X.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from factorize.solvers.epochs.correlation_blocks import BlockIterate, evaluate, normalised

MAX_UNKNOWNS = 8192
_SPACING = 1.2  # the distance of nodes in log t: a relative error of about 2 exp(-pi^2 / 1.2) = 5e-4
_TAIL_ERROR = 1e-2
_MIN_SINGULAR_VALUE = 1e-10  # singular values below this share of the largest need no accurate Hessian
_MIN_SHRINKAGE = 0.05  # no direction of W becomes smaller than this share of itself in one step
_MIN_EIGENVALUE = 0.03  # smallest eigenvalue of a correlation matrix to start from
_RIDGE = 1e-13
_BACKTRACKS = 5


@dataclass(frozen=True)
class NewtonStep:
    """A Newton step.

    Attributes:
        iterate: the next dual iterate.
        gram: X + dX + mu (W + dW)^-1 to first order, in class order, shape (n, n): nearly feasible.
        change: largest relative change of W in any direction that the whole step asked for; small near the path.
    """

    iterate: BlockIterate
    gram: np.ndarray
    change: float


@dataclass(frozen=True)
class _Scaled:
    """An iterate with W scaled so that the barrier problem's class traces are near 1."""

    at: BlockIterate
    mu: float
    scale: float
    s: np.ndarray
    factors: np.ndarray
    inverse: np.ndarray
    whitened: np.ndarray

    @classmethod
    def of(cls, at: BlockIterate, centring: float) -> _Scaled:
        b, k, r = at.q.shape
        scale = float(at.s.sum()) * _stretch(centring)
        factors = at.factors * scale
        half = np.linalg.inv(factors)
        return cls(
            at=at,
            mu=centring * at.lower / (b * k),
            scale=scale,
            s=at.s * scale,
            factors=factors,
            inverse=half.transpose(0, 2, 1) @ half,
            whitened=(half.transpose(0, 2, 1) @ at.q).reshape(b * k, r),
        )


def _stretch(centring: float) -> float:
    """Return the x that maximises 2 x - x^2 + 2 centring log x: the best scale of F where the bound is 1."""
    return (1 + (1 + 4 * centring) ** 0.5) / 2


def unknowns(b: int, k: int) -> int:
    """Return the size of the linear system of a step."""
    return b + b * k * (k - 1) // 2


def centred(at: BlockIterate) -> BlockIterate:
    """Return an iterate whose correlations are no nearer to singular than a barrier would let them be."""
    weights, correlations = normalised(at.products)
    least = float(np.linalg.eigvalsh(correlations).min())
    share = max(0.0, _MIN_EIGENVALUE - least)
    return evaluate(at.target, at.order, weights, (1 - share) * correlations + share * np.eye(correlations.shape[1]))


def newton(at: BlockIterate, centring: float) -> NewtonStep | None:
    """Return a step towards the point of the central path where mu n is `centring` times the bound.

    None where the linear system cannot be solved or no length of the step raises the barrier's objective.
    """
    b, k, _ = at.q.shape
    first, second = np.triu_indices(k, 1)
    scaled = _Scaled.of(at, centring)
    change = _solve(_hessian(scaled, b, k), _gradient(scaled, b, k))
    if change is None:
        return None
    moved = np.zeros((b, k, k))
    moved[:, first, second] = moved[:, second, first] = change[b:].reshape(b, -1)
    moved += change[:b, None, None] * np.eye(k)
    half = np.linalg.solve(scaled.factors, moved)
    relative = np.linalg.solve(scaled.factors, half.transpose(0, 2, 1))
    changes = np.linalg.eigvalsh(relative)
    length = min(1.0, (1 - _MIN_SHRINKAGE) / max(-float(changes.min()), 1e-300))
    aim = _merit(at, scaled.mu, centring)
    for _ in range(_BACKTRACKS):
        trial = evaluate(at.target, at.order, *normalised(at.products + length / scaled.scale**2 * moved))
        if _merit(trial, scaled.mu, centring) >= aim - 1e-13 * abs(aim):
            return NewtonStep(trial, _moved_gram(scaled, relative, moved), float(np.abs(changes).max()))
        length *= 0.3
    return None


def _merit(at: BlockIterate, mu: float, centring: float) -> float:
    """Return the barrier's objective at the scale of W that `_Scaled` uses."""
    b, k, _ = at.q.shape
    scale = at.lower * _stretch(centring) ** 2
    logdet = 2 * float(np.log(np.einsum("jss->js", at.factors)).sum()) + b * k * np.log(scale)
    return 2 * np.sqrt(scale * at.lower) - scale + mu * logdet


def _moved_gram(scaled: _Scaled, relative: np.ndarray, moved: np.ndarray) -> np.ndarray:
    """Return X + dX + mu (W^-1 - W^-1 dW W^-1), with Phi itself; relative is F^-1 dW F^-T."""
    s, q, whitened = scaled.s, scaled.at.q, scaled.whitened
    b, k, _ = q.shape
    flat = q.reshape(whitened.shape)
    inner = flat.T @ (relative @ q).reshape(flat.shape)
    sums = s[:, None] + s
    inner *= np.divide(s[:, None] * s, sums, out=np.zeros_like(sums), where=sums > 0)
    gram = whitened @ ((np.diag(s) - (inner + inner.T) / 2) @ whitened.T)
    classes = np.arange(b)
    blocks = gram.reshape(b, k, b, k)
    blocks[classes, :, classes, :] += scaled.mu * (scaled.inverse - scaled.inverse @ moved @ scaled.inverse)
    return gram


def _gradient(scaled: _Scaled, b: int, k: int) -> np.ndarray:
    blocks = scaled.whitened.reshape(b, k, -1)
    inner = (blocks * scaled.s) @ blocks.transpose(0, 2, 1) + scaled.mu * scaled.inverse
    first, second = np.triu_indices(k, 1)
    return np.concatenate([np.einsum("jss->j", inner) - 1, 2 * inner[:, first, second].ravel()])


def _hessian(scaled: _Scaled, b: int, k: int) -> np.ndarray:
    """Return the upper triangle of minus the second derivative, of side `unknowns(b, k)`; the rest is not filled."""
    whitened = scaled.whitened
    kernels = np.array([(whitened * decay) @ whitened.T for decay in _decays(scaled.s)]).reshape(-1, b, k, b, k)
    first, second = np.triu_indices(k, 1)
    pairs = len(first)
    corner, border = np.zeros((b, b)), np.zeros((b, b, pairs))
    inner = np.zeros((b, pairs, b, pairs))
    for j in range(b):
        rows = kernels[:, j, :, j:].transpose(2, 0, 1, 3).reshape(b - j, len(kernels), k * k)
        products = (rows.transpose(0, 2, 1) @ rows).reshape(b - j, k, k, k, k)  # [i, p, r, q, s] = sum_t K_pr K_qs
        products[0] += scaled.mu * np.einsum("pr,qs->prqs", scaled.inverse[j], scaled.inverse[j])
        across = np.einsum("iprqr->ipq", products)
        corner[j, j:] = corner[j:, j] = np.einsum("ipp->i", across)
        border[j, j:] = 2 * across[:, first, second]
        border[j:, j] = 2 * np.einsum("iprps->irs", products)[:, first, second]
        direct = products[:, first[:, None], first, second[:, None], second]
        crossed = products[:, first[:, None], second, second[:, None], first]
        inner[j, :, j:] = 2 * (direct + crossed).transpose(1, 0, 2)
    size = b * pairs
    edge = border.transpose(1, 0, 2).reshape(b, size)
    return np.block([[corner, edge], [edge.T, inner.reshape(size, size)]])


def _decays(s: np.ndarray) -> np.ndarray:
    """Return s_a e^(-s_a t) sqrt(weight) for the nodes t, shape (nodes, r)."""
    low = np.log(_TAIL_ERROR / (2 * s[0]))
    high = np.log(-np.log(_TAIL_ERROR) / (2 * max(s[-1], _MIN_SINGULAR_VALUE * s[0])))
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
        factor = cho_factor(hessian, lower=False, overwrite_a=True, check_finite=False)
    except LinAlgError:
        return None
    solution = cho_solve(factor, gradient / scale, check_finite=False) / scale
    return solution if np.isfinite(solution).all() else None

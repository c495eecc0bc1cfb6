"""The loss of a buffered strategy as a function of few numbers: smooth profiles of poles and weights.

The optimum with enough buffers is ``X = sum_j w_j (L + t_j V)^-1``.  For few buffers both become profiles,
``T_j = t_j v exp(profile)`` and ``D_j = sqrt(w_j) exp(profile)``, and the pole of largest t, whose term is nearly
diagonal, becomes the diagonal ``E = (w / t) / v``, which costs no buffer.  Profiles are cubic splines in
``log(i + 1/2) - log(n - i - 1/2)``, which resolves both ends step by step: there the optimum has layers of fixed shape,
and in between it varies with i / n.  Blocks that the workload does not couple each get the same profile.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from factorize.solvers.buffered import adjoints, kernels
from factorize.solvers.buffered.points.differences import Centre, Points, hessian
from factorize.solvers.methods.poles import Poles
from factorize.structures.buffered import BufferedMatrix

Array = NDArray[np.float64]

_MARGIN, _MARGIN_PER_STEP = 2.0**-40, 2.0**-51  # below a norm of 1, by more than recursions and certificate round
_DEGREE = 3


class BufferedLoss:
    """Relative distance of the loss to a lower bound, with its gradient by profile coefficients.

    Args:
        p: diagonal of (W A)^-1, shape (n,).
        q: negated subdiagonal, shape (n,), ``q[0] = 0``.
        v: dual weights, shape (n,).
        buffers: how many.
        lower_bound: of the loss at sensitivity 1.
        intervals: of the splines.
    """

    def __init__(self, p: Array, q: Array, v: Array, buffers: int, lower_bound: float, intervals: int) -> None:
        n, m = len(p), buffers
        self.shape = (2, intervals + _DEGREE, m)
        self._p2, self._q2 = p * p, q * q
        self._root = np.concatenate([[0.0], q[1:] * p[:-1]])
        self._follow, self._feed = q / p, 1.0 / p
        self._v, self._log_v = v, np.log(v)[:, None]
        self._log_nodes, self._half_log_weights = np.zeros((2, kernels.width_of(m)))
        self._extra = np.zeros(n)
        self._basis = _splines(places(q), intervals)
        self._transposed = self._basis.T.tocsr()
        self._bound = lower_bound
        self._points: list[Points] = []
        width = kernels.width_of(m)
        self._arrays = np.zeros((11, n, width))
        self._arrays[4, :, m] = self._follow
        self._vectors = np.empty((3, n))
        self._marks = np.empty((2, -(-n // kernels.EVERY), (m + 1) * width))

    @property
    def origin(self) -> Array:
        """All profiles zero: the truncation of the optimum by the poles themselves."""
        return np.zeros(int(np.prod(self.shape)))

    def use(self, poles: Poles) -> None:
        """Set the poles that profiles refer to, one more than there are buffers."""
        m = self.shape[2]
        self._log_nodes[:m], self._half_log_weights[:m] = np.log(poles.nodes[:m]), 0.5 * np.log(poles.weights[:m])
        self._extra = poles.weights[m] / poles.nodes[m] / self._v

    def value(self, z: Array) -> float:
        """Return loss / lower bound - 1, infinite where C is lost to rounding."""
        if not self._build(z):
            return np.inf
        ratio, inputs, outputs = self._arrays[4], self._arrays[5], self._arrays[7]
        loss = kernels.error(self.shape[2], ratio, inputs, outputs, self._vectors[1], self._marks[1])
        return loss / self._bound - 1.0

    def __call__(self, z: Array) -> tuple[float, Array]:
        """Return loss / lower bound - 1 (infinite where C is lost to rounding) and its gradient.

        Args:
            z: coefficients of all profiles, shape (2 x splines x buffers,).
        """
        m = self.shape[2]
        tau, scale, above, held, ratio, inputs, targets, outputs, ratio_bar, inputs_bar, outputs_bar = self._arrays
        own, diagonal, own_bar = self._vectors
        if not self._build(z):
            return np.inf, np.zeros(z.size)
        state = (m, ratio, inputs, outputs, diagonal, self._marks[1])
        loss = kernels.error(*state)
        adjoints.error_adjoint(*state, ratio_bar, inputs_bar, outputs_bar, own_bar)
        inputs[:, m], outputs_bar[:, m:] = 0.0, 0.0
        adjoints.factor_adjoint(
            m, ratio, inputs, targets, own, diagonal, outputs, self._marks[0],
            ratio_bar, inputs_bar, outputs_bar, own_bar,
        )  # fmt: skip
        adjoints.sweep_adjoint(
            m, self._p2, self._q2, tau, above, held, ratio, scale, self._extra,
            inputs_bar, outputs_bar, ratio_bar, own_bar,
        )  # fmt: skip
        gradient = np.concatenate([(self._transposed @ bar)[:, :m].ravel() for bar in (ratio_bar, outputs_bar)])
        if not np.isfinite(gradient).all():
            return np.inf, np.zeros(z.size)
        return loss / self._bound - 1.0, gradient / self._bound

    def hessian(self, z: Array, gradient: Array, step: float, alive: Callable[[], None]) -> Array:
        """Return the second derivatives at z by forward differences.

        Args:
            z: where the value is finite.
            gradient: there.
            step: of the differences.
            alive: called between parts; what it raises ends the calculation.
        """
        self._build(z)
        m, per_step = self.shape[2], _DEGREE + 1
        centre = Centre(
            pivots=np.array([self._p2, self._q2, self._root]),
            decoder=np.array([self._follow, self._feed]),
            extra=self._extra,
            profiles=np.ascontiguousarray(self._arrays[:2, :, :m]),
            first=self._basis.indices.reshape(-1, per_step)[:, 0].astype(np.int64),
            weights=self._basis.data.reshape(-1, per_step),
            splines=self.shape[1],
        )
        return hessian(centre, gradient * self._bound, step, alive, self._points) / self._bound

    def strategy(self, z: Array) -> BufferedMatrix:
        """Return C, its columns scaled to norms just below 1.

        Raises:
            FloatingPointError: a pivot is lost to rounding.
        """
        if not self._build(z):
            raise FloatingPointError("a pivot of the factor is lost to rounding")
        ratio, inputs, outputs = (self._arrays[at, :, : self.shape[2]] for at in (4, 5, 7))
        return unit_columns(BufferedMatrix(self._vectors[1], ratio, inputs, outputs))

    def _build(self, z: Array) -> bool:
        """Fill the arrays of the strategy; return whether all pivots are positive."""
        tau, scale, above, held, ratio, inputs, targets, outputs = self._arrays[:8]
        own, diagonal, _ = self._vectors
        m = self.shape[2]
        profiles = np.zeros((*self.shape[:2], tau.shape[1]))
        profiles[:, :, :m] = z.reshape(self.shape)
        log_tau, log_scale = self._basis @ profiles[0], self._basis @ profiles[1]
        log_tau += self._log_nodes
        log_tau += self._log_v
        log_scale += self._half_log_weights
        with np.errstate(over="ignore"):
            np.exp(log_tau, out=tau)
            np.exp(log_scale, out=scale)
        if not (np.isfinite(tau).all() and np.isfinite(scale).all()):
            return False
        inputs[:, m] = self._feed
        kernels.sweep(m, self._p2, self._q2, self._root, tau, above, held, ratio)
        kernels.generate(m, tau, above, held, scale, self._extra, inputs, targets, own)
        return kernels.factor(m, ratio, inputs, targets, own, diagonal, outputs, self._marks[0]) < 0


def unit_columns(matrix: BufferedMatrix) -> BufferedMatrix:
    """Return the matrix with its columns divided by their norms, and by a little more."""
    scale = (1.0 - _MARGIN - _MARGIN_PER_STEP * matrix.n) / np.sqrt(matrix.column_norms_squared())
    return BufferedMatrix(matrix.diagonal * scale, matrix.transition, matrix.inputs * scale[:, None], matrix.outputs)


def starts_of_blocks(q: Array) -> NDArray[np.int64]:
    """Return where blocks begin that the workload does not couple to the steps before, shape (blocks,)."""
    coupled = q != 0.0
    coupled[0] = False
    return np.flatnonzero(~coupled)


def places(q: Array) -> Array:
    """Return ``log(i + 1/2) - log(length - i - 1/2)`` within each step's block, shape (n,)."""
    starts = starts_of_blocks(q)
    lengths = np.diff(np.append(starts, len(q)))
    inside = np.arange(len(q)) - np.repeat(starts, lengths) + 0.5
    return np.log(inside / (np.repeat(lengths, lengths) - inside))


def _splines(x: Array, intervals: int):  # type: ignore[no-untyped-def]  # a sparse matrix of scipy, which has no types
    """Return the cubic B-splines on equal intervals over the places, a sparse matrix of shape (n, intervals + 3)."""
    from scipy.interpolate import BSpline

    reach = max(float(np.abs(x).max()), 1e-3)
    knots = np.linspace(-reach, reach, intervals + 1)
    padded = np.concatenate([[-reach] * _DEGREE, knots, [reach] * _DEGREE])
    return BSpline.design_matrix(np.clip(x, -reach, reach), padded, _DEGREE).tocsr()

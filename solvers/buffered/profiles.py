"""The loss of a buffered strategy as a function of few numbers: smooth profiles of poles and weights.

The optimum with enough buffers is ``X = sum_j w_j (L + t_j V)^-1``.  For few buffers both become profiles,
``T_j = t_j v exp(profile)`` and ``D_j = sqrt(w_j) exp(profile)``, and the pole of largest t, whose term is nearly
diagonal, becomes the diagonal ``E = (w / t) / v``, which costs no buffer.  Profiles are cubic splines in
``log(i + 1/2) - log(n - i - 1/2)``, which resolves both ends step by step: there the optimum has layers of fixed shape,
and in between it varies with i / n.  Blocks that the workload does not couple each get the same profile.
"""

import math

import numpy as np
from numpy.typing import NDArray

from factorize.solvers.buffered import kernels
from factorize.solvers.methods.compiled import WIDTH, Array
from factorize.solvers.methods.lanes import vectors
from factorize.solvers.methods.poles import Poles
from factorize.structures.buffered import BufferedMatrix

_MIN_SIZE = 2.0**-900  # states below this size count for nothing, and their products underflow
_MAX_LOG_GROWTH = 10 * math.log(2.0)  # the certificate encloses a growth of 2^12, and not of 2^16
_MARGIN, _STEP_MARGIN = 2.0**-40, 2.0**-51  # norms stay below 1 by more than recursions and certificate round
_DEGREE = 3


class BufferedLoss:
    """Relative distance of the loss to a lower bound, with its gradient by profile coefficients.

    Args:
        p: diagonal of (W A)^-1, shape (n,).
        q: negated subdiagonal, shape (n,), ``q[0] = 0``.
        v: dual weights, shape (n,).
        buffers: the number of buffers.
        lower_bound: lower bound of the loss at sensitivity 1.
        intervals: the number of the splines' intervals.
    """

    def __init__(self, p: Array, q: Array, v: Array, buffers: int, lower_bound: float, intervals: int) -> None:
        n, m = len(p), buffers
        self.shape = (2, intervals + _DEGREE, m)
        self._p2, self._q2 = p * p, q * q
        self._root = np.concatenate([[0.0], q[1:] * p[:-1]])
        self._follow, self._feed = q / p, 1.0 / p
        self._v, self._extra = v, np.zeros(n)
        self._logs = np.zeros((2, 1, m))  # logarithms of nodes and of weights' roots
        self._basis = np.column_stack([_splines(places(q), intervals), np.log(v)])
        self._bound = lower_bound
        width = kernels.width_of(m)
        rows = width // WIDTH
        self._arrays = [vectors(n * rows).reshape(n, width) for _ in range(11)]
        self._vectors = np.empty((3, n))
        self._kappa = np.empty((n, width))
        starts = range(0, n, kernels.SEGMENT_STEPS)
        self._segments = [(first, min(n, first + kernels.SEGMENT_STEPS)) for first in starts]
        self._gram_marks, self._cov_marks = np.empty((2, len(starts), m + 1, width))
        self._kept = vectors((kernels.SEGMENT_STEPS + 1) * (m + 1) * rows).reshape(-1, m + 1, width)
        self._cov, self._bar = vectors(2 * (m + 1) * rows).reshape(2, m + 1, width)
        self._lines = vectors(3 * rows).reshape(3, width)

    @property
    def origin(self) -> Array:
        """The coefficients of profiles that are all zero: the truncation of the optimum by the poles themselves."""
        return np.zeros(int(np.prod(self.shape)))

    def use(self, poles: Poles) -> None:
        """Set the poles that profiles refer to, one more than there are buffers."""
        m = self.shape[2]
        self._logs[:, 0] = np.log(poles.nodes[:m]), 0.5 * np.log(poles.weights[:m])
        self._extra = poles.weights[m] / poles.nodes[m] / self._v

    def value(self, z: Array) -> float:
        """Return loss / lower bound - 1, infinite where C is lost to rounding."""
        if not self._build(z):
            return np.inf
        return self._error() / self._bound - 1.0

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
        loss = self._error()
        state, bars = (ratio, inputs, outputs, diagonal), (ratio_bar, inputs_bar, outputs_bar, own_bar)
        self._bar[:] = 0.0
        for (first, last), mark in zip(self._segments[::-1], self._cov_marks[::-1], strict=True):
            self._cov[:] = mark
            kernels.error(m, first, last, 1, state, self._cov, self._kept, self._lines[0])
            kernels.error_adjoint(m, first, last, state, self._kept, bars, self._bar, self._lines)
        inputs[:, m], outputs_bar[:, m:], self._bar[:] = 0.0, 0.0, 0.0
        chain = (ratio, inputs, targets)
        for (first, last), mark in zip(self._segments, self._gram_marks, strict=True):
            self._kept[last - first] = mark
            kernels.factor(m, first, last, 1, chain, own, diagonal, outputs, self._kept)
            kernels.factor_adjoint(m, first, last, chain, diagonal, outputs, self._kept, bars, self._bar, self._lines)
        self._lines[:] = 0.0
        # With c = E + sum_j d_j^2 kappa_j, all of g = d kappa / sqrt(c), h = d / sqrt(c) and E / c.
        both = outputs_bar + self._kappa * inputs_bar
        by_log_norm = (_along(targets, both) + 2.0 * own * own_bar)[:, None]
        scale_bar = targets * (both - by_log_norm * inputs)
        sizes_bar = inputs * self._kappa * (0.5 * by_log_norm * targets - inputs_bar)
        kernels.pivots_adjoint(self._p2, self._q2, tau, above, held, sizes_bar, ratio_bar, self._lines)
        gradient = np.stack([self._basis.T @ bar for bar in (ratio_bar, scale_bar)])[:, :-1, :m].ravel()
        if not np.isfinite(gradient).all():
            return np.inf, np.zeros(z.size)
        return loss / self._bound - 1.0, gradient / self._bound

    def certified(self, z: Array) -> tuple[float, Array]:
        """Return the same, the distance infinite also where states grow by so much that rounding would, too."""
        value, gradient = self(z)
        return (value if value < np.inf and self._moderate() else np.inf), gradient

    def strategy(self, z: Array) -> BufferedMatrix:
        """Return C, its columns scaled to norms just below 1.

        Raises:
            FloatingPointError: a pivot is lost to rounding.
        """
        if not self._build(z):
            raise FloatingPointError("a pivot of the factor is lost to rounding")
        ratio, inputs, outputs = (self._arrays[at][:, : self.shape[2]] for at in (4, 5, 7))
        inputs, outputs = (np.where(np.abs(part) < _MIN_SIZE, 0.0, part) for part in (inputs, outputs))
        return unit_columns(BufferedMatrix(self._vectors[1], ratio, inputs, outputs))

    @np.errstate(over="ignore", invalid="ignore")  # numbers out of range end in a pivot that is not positive
    def _build(self, z: Array) -> bool:
        """Fill the arrays of the strategy; return whether all pivots are positive."""
        tau, scale, above, held, ratio, inputs, targets, outputs = self._arrays[:8]
        own, diagonal, _ = self._vectors
        m = self.shape[2]
        profiles = np.zeros((2, self._basis.shape[1], tau.shape[1]))
        profiles[:, :-1, :m] = z.reshape(self.shape) + self._logs  # the splines add up to one
        profiles[0, -1] = 1.0
        np.matmul(self._basis, profiles[0], out=tau)
        np.matmul(self._basis, profiles[1], out=scale)
        np.exp(tau, out=tau)
        np.exp(scale, out=scale)
        scale[:, m:] = 0.0
        if not (np.isfinite(tau).all() and np.isfinite(scale).all()):
            return False
        kernels.pivots(self._p2, self._q2, self._root, tau, above, held, ratio)
        np.divide(1.0, above + (held - tau), out=self._kappa)
        np.multiply(scale, self._kappa, out=inputs)
        norms = 1.0 / np.sqrt(self._extra + _along(scale, inputs))
        inputs *= norms[:, None]
        np.multiply(scale, norms[:, None], out=targets)
        np.multiply(self._extra, norms**2, out=own)
        ratio[:, m], inputs[:, m] = self._follow, self._feed
        self._kept[0] = 0.0
        for (first, last), mark in zip(self._segments[::-1], self._gram_marks[::-1], strict=True):
            mark[:] = self._kept[0]
            if kernels.factor(m, first, last, 0, (ratio, inputs, targets), own, diagonal, outputs, self._kept) >= 0:
                return False
        return True

    def _error(self) -> float:
        """Return the loss of the strategy."""
        state = (self._arrays[4], self._arrays[5], self._arrays[7], self._vectors[1])
        loss, self._cov[:] = 0.0, 0.0
        for (first, last), mark in zip(self._segments, self._cov_marks, strict=True):
            mark[:] = self._cov
            loss += kernels.error(self.shape[2], first, last, 0, state, self._cov, self._kept, self._lines[0])
        return loss

    def _moderate(self) -> bool:
        """Return whether the states of the strategy, of a size at which they are read as they are fed, hardly grow."""
        ratio, inputs, outputs = (self._arrays[at][:, : self.shape[2]] for at in (4, 5, 7))
        with np.errstate(all="ignore"):
            size = 0.5 * np.log(np.abs(outputs / inputs))
            path = size + np.cumsum(np.log(np.maximum(ratio, _MIN_SIZE)), axis=0)
            return not (path - np.minimum.accumulate(path, axis=0) > _MAX_LOG_GROWTH).any()


def _along(a: Array, b: Array) -> Array:
    """Return the products of rows, summed."""
    return (a * b) @ np.ones(a.shape[1])


def unit_columns(matrix: BufferedMatrix) -> BufferedMatrix:
    """Return the matrix with its columns divided by their norms, and by a little more."""
    scale = (1.0 - _MARGIN - _STEP_MARGIN * matrix.n) / np.sqrt(matrix.column_norms_squared())
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


def _splines(x: Array, intervals: int) -> Array:
    """Return the values of the intervals + 3 cubic B-splines on equal intervals at the places, shape (n, splines)."""
    reach = max(float(np.abs(x).max()), 1e-3)
    knots = np.concatenate([[-reach] * _DEGREE, np.linspace(-reach, reach, intervals + 1), [reach] * _DEGREE])
    inside = np.clip(np.searchsorted(knots, x, side="right") - 1, _DEGREE, _DEGREE + intervals - 1)
    values = (inside[:, None] == np.arange(len(knots) - 1)).astype(np.float64)
    for degree in range(1, _DEGREE + 1):  # each is a mixture of two of the degree below, by de Boor's recursion
        lengths = knots[degree:] - knots[:-degree]
        shares = (x[:, None] - knots[:-degree]) / np.where(lengths > 0.0, lengths, 1.0)
        values = shares[:, :-1] * values[:, :-1] + (1.0 - shares[:, 1:]) * values[:, 1:]
    return values

"""The Hessian of a buffered strategy's loss, by differences of its gradient: eight columns at a time, on two cores."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from factorize.solvers.buffered.points import point_adjoints as adjoints
from factorize.solvers.buffered.points import point_recursions as recursions
from factorize.solvers.methods.lane_algebra import vectors
from factorize.solvers.methods.lanes import WIDTH
from factorize.solvers.methods.threads import run

Array = NDArray[np.float64]

_CORES = 2
_PARALLEL_WORK = 1 << 11  # steps times squared buffers from which eight gradients, 0.1 ms there, pay for a thread


@dataclass(frozen=True)
class Centre:
    """A strategy whose profiles are moved; see `BufferedLoss` for what p and q are.

    Attributes:
        pivots: p^2, q^2 and ``q[i] p[i-1]``, shape (3, n).
        decoder: q / p and 1 / p, shape (2, n).
        extra: the diagonal E, shape (n,).
        profiles: T and D, shape (2, n, buffers).
        first: of the splines that are not zero at each step, shape (n,).
        weights: their values, shape (n, splines that are not zero).
        splines: how many there are.
    """

    pivots: Array
    decoder: Array
    extra: Array
    profiles: Array
    first: NDArray[np.int64]
    weights: Array
    splines: int


class Points:
    """Gradients at eight points around a centre, and the arrays for them.

    Args:
        n: steps.
        m: buffers.
        splines: of each profile.
    """

    def __init__(self, n: int, m: int, splines: int) -> None:
        self._m = m
        self._arrays = [vectors(n * (m + 1)) for _ in range(12)]
        self._vectors = [vectors(n) for _ in range(3)]
        segments = -(-n // recursions.SEGMENT)
        self._grams = vectors(segments * m**2)
        self._covariances = vectors(segments * (m + 1) ** 2)
        self._slopes = vectors(2 * splines * m).reshape(2, -1)
        self._losses = vectors(1)

    def gradients(self, centre: Centre, moved: range, step: float) -> tuple[Array, Array]:
        """Return losses, shape (8,), and their gradients by all coefficients, shape (coefficients, 8).

        Args:
            centre: where the points lie around.
            moved: the coefficient that each point has moved, at most eight; points beyond them stay.
            step: how far.
        """
        m = self._m
        tau, scale, above, below, kappa, ratio, inputs, targets, outputs = self._arrays[:9]
        ratio_bar, inputs_bar, outputs_bar = self._arrays[9:]
        by, inverse, bar = self._vectors
        coefficients = np.full(WIDTH, -1)
        coefficients[: len(moved)] = moved
        half = centre.splines * m
        of_profile = np.where(coefficients < half, coefficients, -1), np.maximum(coefficients - half, -1)
        for out, base, which in zip((tau, scale), centre.profiles, of_profile, strict=True):
            recursions.displace(base, centre.first, centre.weights, step, which, out)
        p2, q2, roots = centre.pivots
        for out, column in zip((ratio, inputs), centre.decoder, strict=True):
            out.reshape(-1, m + 1, WIDTH)[:, m] = column[:, None]
        recursions.sweeps(m, p2, q2, roots, tau, above, below, kappa, ratio)
        recursions.generators(m, kappa, scale, centre.extra, inputs, targets, by)
        recursions.factors(m, ratio, inputs, targets, centre.extra, by, inverse, outputs, self._grams)
        state = (m + 1, ratio, inputs, outputs, inverse, self._covariances)
        recursions.losses(*state, self._losses)
        adjoints.losses_adjoint(*state, ratio_bar, inputs_bar, outputs_bar, bar)
        adjoints.factors_adjoint(
            m, ratio, inputs, targets, inverse, outputs, self._grams, ratio_bar, inputs_bar, outputs_bar, bar
        )
        adjoints.generators_adjoint(m, kappa, scale, centre.extra, by, inputs_bar, outputs_bar, bar)
        adjoints.sweeps_adjoint(m, p2, q2, tau, above, below, inputs_bar, ratio_bar)
        for by_profile, out in zip((ratio_bar, outputs_bar), self._slopes, strict=True):
            adjoints.by_splines(m, centre.first, centre.weights, by_profile, out)
        return self._losses, self._slopes.reshape(-1, WIDTH)


def hessian(centre: Centre, gradient: Array, step: float, alive: Callable[[], None], rooms: list[Points]) -> Array:
    """Return the second derivatives by forward differences, rows of zeros for points where C is lost to rounding.

    Args:
        centre: where.
        gradient: there, shape (size,).
        step: of the differences.
        alive: called between parts; what it raises ends the calculation.
        rooms: for the points; filled up to one for each core, for the next time.
    """
    n, m = centre.profiles.shape[1:]
    together = n * m**2 > _PARALLEL_WORK
    while len(rooms) < (_CORES if together else 1):
        rooms.append(Points(n, m, centre.splines))
    found = np.zeros((gradient.size, gradient.size))
    each = WIDTH * len(rooms)
    for start in range(0, gradient.size, each):
        alive()
        calls = [
            partial(_fill, room, centre, gradient, step, range(first, min(first + WIDTH, gradient.size)), found)
            for room, first in zip(rooms, range(start, min(start + each, gradient.size), WIDTH), strict=False)
        ]
        run(calls, together=together)
    return 0.5 * (found + found.T)


def _fill(room: Points, centre: Centre, gradient: Array, step: float, rows: range, out: Array) -> None:
    losses, slopes = room.gradients(centre, rows, step)
    for point, row in enumerate(rows):
        if np.isfinite(losses[point]) and np.isfinite(slopes[:, point]).all():
            out[row] = (slopes[:, point] - gradient) / step

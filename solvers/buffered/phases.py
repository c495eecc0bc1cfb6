"""Phases: what each step of an epoch reveals, for a system that reads its draws of all epochs at once.

Ordered by the step within its epoch (the *phase* t = 0 .. b - 1), the k draws y_t of a class, one of each epoch, are
one vector, and a recurrence that returns to them an epoch later is a recurrence from phase to phase:

    s_{t+1} = F_t s_t + E_t y_t,     x_t = O_t s_t + H_t y_t,     s_0 = Z s_b

where s holds the states of all epochs and Z hands the end of each epoch to the beginning of the next. The blocks
G_t = X_t^T X_t, X_t the columns (all phases of all epochs) that answer to y_t, cost O(b s^3), however long an epoch is:

    z_t = N R_{t+1} E_t  at phase 0,   N = (I - Z L_b)^-1 Z,   L_t = F_{t-1} ... F_0,   R_t = F_{b-1} ... F_t
    G_t = z^T M_t z + Y^T Y + w^T P_{t+1} w,   Y = O_t L_t z + H_t,   w = F_t L_t z + E_t

with the energies M_t of phases before t and P_t of phases from t on.
"""

from typing import NamedTuple

import numpy as np

from factorize.solvers.methods.compiled import Array


class Phases(NamedTuple):
    """A system by phases, or the derivatives by its entries.

    Attributes:
        follow: F, shape (b, s, s).
        feed: E, shape (b, s, k).
        read: O, shape (b, k, s).
        direct: H, shape (b, k, k).
    """

    follow: Array
    feed: Array
    read: Array
    direct: Array


class ClassGrams:
    """The Gram blocks of a system, with what their derivatives need.

    Args:
        system: the system.
        again: Z, shape (s, s), nilpotent.

    Attributes:
        blocks: G, shape (b, k, k).
    """

    def __init__(self, system: Phases, again: Array) -> None:
        follow, feed, read, direct = system
        self._system = system
        self._left, self._right = _products(follow)
        self._seen = read @ self._left[:-1]
        self._before = np.zeros_like(self._left)
        np.cumsum(_t(self._seen) @ self._seen, axis=0, out=self._before[1:])
        self._after = _energies(follow, read)
        self._again = np.linalg.solve(np.eye(len(again)) - again @ self._left[-1], again)
        self._onto = self._right[1:] @ feed
        self._start = self._again @ self._onto
        self._here = self._left[:-1] @ self._start
        self._out = read @ self._here + direct
        self._next = follow @ self._here + feed
        self.blocks = (
            _t(self._start) @ (self._before[:-1] @ self._start)
            + _t(self._out) @ self._out
            + _t(self._next) @ (self._after[1:] @ self._next)
        )

    def adjoint(self, bars: Array) -> Phases:
        """Return the derivatives of sum(bars * blocks); bars are symmetric, shape (b, k, k)."""
        follow, feed, read, _ = self._system
        started, reached = self._start @ bars, self._next @ bars
        out_bar = 2.0 * self._out @ bars
        next_bar = 2.0 * self._after[1:] @ reached
        here_bar = _t(read) @ out_bar + _t(follow) @ next_bar
        start_bar = 2.0 * self._before[:-1] @ started + _t(self._left[:-1]) @ here_bar
        onto_bar = self._again.T @ start_bar

        after_bar, right_bar, left_bar = np.zeros((3, *self._left.shape))
        after_bar[1:] = reached @ _t(self._next)
        right_bar[1:] = onto_bar @ _t(feed)
        right_bar[0] = 0.0
        for t in range(len(follow)):
            right_bar[t + 1] += right_bar[t] @ follow[t].T
            after_bar[t + 1] += follow[t] @ after_bar[t] @ follow[t].T

        before_bar = started @ _t(self._start)
        later = np.cumsum(before_bar[:0:-1], axis=0)[::-1]  # the energy before t + 1 is part of all those after it
        seen_bar = 2.0 * self._seen @ np.concatenate([later, np.zeros((1, *later.shape[1:]))])
        left_bar[:-1] = here_bar @ _t(self._start) + _t(read) @ seen_bar
        left_bar[-1] = self._again.T @ (start_bar @ _t(self._onto)).sum(axis=0) @ self._again.T
        for t in range(len(follow) - 1, -1, -1):
            left_bar[t] += follow[t].T @ left_bar[t + 1]

        return Phases(
            next_bar @ _t(self._here)
            + _t(self._right[1:]) @ right_bar[:-1]
            + 2.0 * self._after[1:] @ follow @ after_bar[:-1]
            + left_bar[1:] @ _t(self._left[:-1]),
            next_bar + _t(self._right[1:]) @ onto_bar,
            out_bar @ _t(self._here) + 2.0 * read @ after_bar[:-1] + seen_bar @ _t(self._left[:-1]),
            out_bar,
        )


def _t(array: Array) -> Array:
    return np.swapaxes(array, -1, -2)


def _products(follow: Array) -> tuple[Array, Array]:
    """Return the products of the transitions before each phase and from each phase on, shape (b + 1, s, s)."""
    left, right = np.empty((2, len(follow) + 1, *follow.shape[1:]))
    left[0] = right[-1] = np.eye(follow.shape[1])
    for t in range(len(follow)):
        left[t + 1] = follow[t] @ left[t]
        right[-2 - t] = right[-1 - t] @ follow[-1 - t]
    return left, right


def _energies(follow: Array, read: Array) -> Array:
    after = np.zeros((len(follow) + 1, *follow.shape[1:]))
    own = _t(read) @ read
    for t in range(len(follow) - 1, -1, -1):
        after[t] = own[t] + follow[t].T @ after[t + 1] @ follow[t]
    return after

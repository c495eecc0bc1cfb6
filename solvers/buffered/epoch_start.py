"""The start of the search for a strategy with few states under fixed epochs: the optimum C, projected.

The rows below step i, restricted to the columns up to i, are a matrix that m states would have to factor; its m
strongest right singular vectors are tracked from step to step, each step adding a column and dropping a row. The states
are then changed to a basis where both Gramians are equal (balanced), turned so that every transition is symmetric: near
the identity, as smooth from step to step as the matrix is, so that one scale fits all transitions.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from factorize.solvers.buffered.epoch_loss import EpochRecurrence

Array = NDArray[np.float64]

_LEAVING = 1e-3  # weight of the row that a step reads, beside those after it; a block's last row has none after it
_SMALL = 1e-6  # directions that a transition shrinks by more are not traced back through it
_RIDGE = 1e-6  # of a Gramian's mean eigenvalue


def truncated(strategy: Array, states: int) -> EpochRecurrence:
    """Return a recurrence near a lower-triangular matrix of shape (n, n)."""
    n, m = len(strategy), states
    transition, inputs, rows = np.zeros((n, m, m)), np.zeros((n, m)), np.zeros((n, m))
    ahead = np.zeros((n, m))  # rows from i on, columns before i, in the basis of the states
    for i in range(n - 1):
        rows[i] = ahead[0]
        extended = np.column_stack([ahead[1:], strategy[i + 1 :, i]])
        leaving = np.append(_LEAVING * ahead[0], 0.0)  # read after the transition, so that it has to survive it
        basis = np.linalg.eigh(extended.T @ extended + np.outer(leaving, leaving))[1][:, :0:-1]
        transition[i], inputs[i] = basis[:m].T, basis[m]
        ahead = extended @ basis
    rows[-1], transition[-1] = ahead[0], np.eye(m)
    outputs = np.einsum("iab,ia->ib", np.linalg.pinv(transition, rcond=_SMALL), rows)
    return EpochRecurrence(transition, inputs, outputs, np.diagonal(strategy).copy())


def symmetric(recurrence: EpochRecurrence) -> EpochRecurrence:
    """Return the same matrix in states whose transitions are symmetric and positive semidefinite."""
    to, back = _balancing(recurrence)
    transition = to[1:] @ recurrence.transition @ back[:-1]
    inputs = np.einsum("iab,ib->ia", to[1:], recurrence.inputs)
    outputs = np.einsum("iba,ib->ia", back[1:], recurrence.outputs)
    turn = np.eye(inputs.shape[1])
    for i in range(len(transition)):
        left, _, right = np.linalg.svd(transition[i] @ turn.T)
        now = (left @ right).T
        transition[i] = now @ transition[i] @ turn.T
        inputs[i], outputs[i] = now @ inputs[i], now @ outputs[i]
        turn = now
    return EpochRecurrence(transition, inputs, outputs, recurrence.diagonal)


def _balancing(recurrence: EpochRecurrence) -> tuple[Array, Array]:
    """Return the change of basis before every step and after the last, and its inverse, shape (n + 1, m, m)."""
    transition, inputs, outputs, _ = recurrence
    n, m = inputs.shape
    reach, seen = np.zeros((2, n + 1, m, m))
    for i in range(n):
        reach[i + 1] = transition[i] @ reach[i] @ transition[i].T + np.outer(inputs[i], inputs[i])
        k = n - 1 - i
        seen[k] = transition[k].T @ (seen[k + 1] + np.outer(outputs[k], outputs[k])) @ transition[k]
    for gramian in (reach, seen):
        gramian += (_RIDGE * np.einsum("iaa->i", gramian) / m + 1e-12)[:, None, None] * np.eye(m)
    root = np.linalg.cholesky(reach)
    vectors, values, _ = np.linalg.svd(root.transpose(0, 2, 1) @ seen @ root)
    scale = values[:, None, :] ** 0.25
    back = root @ vectors / scale
    return np.linalg.inv(back), back

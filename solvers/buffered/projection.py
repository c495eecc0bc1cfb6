"""A recurrence with few states near a given matrix.

The rows below step i, restricted to the columns up to i, are a matrix that m states would have to factor; its m
strongest right singular vectors are tracked from step to step, each step adding a column and dropping a row.
"""

import numpy as np

from factorize.solvers.methods.compiled import Array
from factorize.structures.buffered import BufferedMatrix

_LEAVING = 1e-3  # weight of the row that a step reads, beside those after it; a block's last row has none after it
_SMALL = 1e-6  # directions that a transition shrinks by more are not traced back through it


def projected(strategy: Array, states: int) -> BufferedMatrix:
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
    return BufferedMatrix(np.diagonal(strategy).copy(), transition, inputs, outputs)

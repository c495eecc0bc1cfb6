"""A strategy of every structure, by a name: likely numbers, the same ones each time; and what it is in fractions."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import numpy as np
from checker_files import in_fractions, inverted
from redrawn_cases import inverse, likely

from factorize.numbers.triangular import toeplitz_rows
from factorize.structures.banded import BandedMatrix
from factorize.structures.base import Matrix
from factorize.structures.buffered import BufferedMatrix
from factorize.structures.dense import DenseMatrix
from factorize.structures.redrawn import RedrawnMatrix
from factorize.structures.scaled import ColumnScaled
from factorize.structures.toeplitz import BltMatrix, InverseBandedToeplitz, ToeplitzMatrix
from factorize.structures.tree import TreeMatrix, level_count

N = 20


def draws() -> Callable[..., np.ndarray]:
    rng = np.random.default_rng(5)
    return lambda *shape: rng.uniform(0.2, 0.9, shape)


def banded(n: int) -> BandedMatrix:
    bands = draws()(4, n) / 2
    bands[0] += 1
    for d in range(4):
        bands[d, n - d :] = 0
    return BandedMatrix(bands)


def tree(n: int, restart: int) -> TreeMatrix:
    levels, leaf = level_count(min(restart, n)), np.arange(n) % restart
    inner = [draws()(n) / 2 * (leaf >> j & 1) for j in range(levels)]
    return TreeMatrix(np.vstack([1 + draws()(n), *inner]), restart)


def strategies(n: int = N) -> dict[str, Matrix]:
    u = draws()
    full = np.tril(u(n, n)) / 2 + np.eye(n)
    return {
        "dense": DenseMatrix(full),
        "toeplitz": ToeplitzMatrix(np.r_[1, u(n - 1)], n),
        "banded_toeplitz": ToeplitzMatrix(np.r_[2, u(3)], n),
        "one diagonal": ToeplitzMatrix(np.array([2.0]), n),
        "banded": banded(n),
        "buffered": BufferedMatrix(1 + u(n), u(n, 3), u(n, 3), u(n, 3)),
        "state_space": BufferedMatrix(1 + u(n), u(n, 2, 2, 2) * 0.4, u(n, 4), u(n, 4)),
        "state_space of one group": BufferedMatrix(1 + u(n), u(n, 3, 3) * 0.3, u(n, 3), u(n, 3)),
        "inverse_banded_toeplitz": InverseBandedToeplitz(np.array([1.0, -0.5, -0.125, -0.0625]), n),
        "blt": BltMatrix(np.array([0.9, 0.3]), np.array([0.3, 0.2]), n),
        "redrawn": likely(n, redraws=2, lag=max(1, n // 3)),
        "tree": tree(n, 32),
        "tree with restarts": tree(n, 6),
        "scaled": ColumnScaled(ToeplitzMatrix(np.r_[1, u(n - 1)], n), 1 + u(n)),
        "scaled and banded": ColumnScaled(ToeplitzMatrix(np.r_[1.5, u(3)], n), 1 + u(n)),
        "scaled and dense": ColumnScaled(DenseMatrix(full), 1 + u(n)),
    }


NAMES = list(strategies())


def signed_buffers(n: int, seed: int) -> BufferedMatrix:
    """Return two states that turn, and one that changes its sign."""
    rng = np.random.default_rng(seed)
    turning = rng.uniform(-1, 1, (n, 2, 2, 2))
    return BufferedMatrix(1 + rng.random(n), turning, rng.standard_normal((n, 4)), rng.standard_normal((n, 4)))


def exact(matrix: Matrix) -> np.ndarray:
    """Return C in fractions, by the definition of its structure."""
    n = matrix.n
    if isinstance(matrix, ColumnScaled):
        return np.asarray(exact(matrix.inner) * in_fractions(matrix.scale))
    if isinstance(matrix, RedrawnMatrix):
        return inverted(inverse(matrix))
    if isinstance(matrix, InverseBandedToeplitz):
        return inverted(in_fractions(toeplitz_rows(np.r_[matrix.noising, np.zeros(n - len(matrix.noising))], 0, n)))
    if isinstance(matrix, BltMatrix):
        decays = list(zip(map(Fraction, matrix.theta), map(Fraction, matrix.omega), strict=True))
        column = [Fraction(1)] + [sum((w * t**s for t, w in decays), Fraction(0)) for s in range(n - 1)]
        return np.array([[column[i - j] if i >= j else Fraction(0) for j in range(n)] for i in range(n)], dtype=object)
    if not isinstance(matrix, BufferedMatrix):
        return in_fractions(matrix.dense())
    states = matrix.blocks.shape[:3]
    given = matrix.diagonal, matrix.blocks, matrix.inputs.reshape(states), matrix.outputs.reshape(states)
    diagonal, transition, inputs, outputs = map(in_fractions, given)
    whole = np.full((n, n), Fraction(0), dtype=object)
    for j in range(n):
        whole[j, j], state = diagonal[j], inputs[j]
        for i in range(j + 1, n):
            state = np.stack([transition[i, g] @ state[g] for g in range(len(state))])
            whole[i, j] = (outputs[i] * state).sum()
    return whole

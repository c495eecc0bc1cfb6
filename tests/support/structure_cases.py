"""A strategy of every structure, by a name: likely numbers, the same ones each time."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from redrawn_cases import likely

from factorize.structures.banded import BandedMatrix
from factorize.structures.base import Matrix
from factorize.structures.blt import BltMatrix
from factorize.structures.buffered import BufferedMatrix
from factorize.structures.dense import DenseMatrix
from factorize.structures.inverse_banded_toeplitz import InverseBandedToeplitz
from factorize.structures.scaled import ColumnScaled
from factorize.structures.toeplitz import ToeplitzMatrix
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

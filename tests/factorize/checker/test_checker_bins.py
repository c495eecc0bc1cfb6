"""The Gram matrix of bins by the exact checker, for every structure, beside the matrix written out in fractions."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from factorize.checker.sampling.bins import gram
from factorize.checker.strategy import Strategy
from factorize.errors import InvalidParameter, InvalidStrategy, TooLarge

N = 12
RNG = np.random.default_rng(7)
SCALE = 0.5 + RNG.random(N)
Tensors = dict[str, np.ndarray]


def toeplitz(column: np.ndarray) -> np.ndarray:
    return np.array([[column[i - j] if i >= j else 0.0 for j in range(N)] for i in range(N)])


def bands() -> tuple[Tensors, np.ndarray]:
    stored, whole = RNG.standard_normal((3, N)), np.zeros((N, N))
    stored[0] = 1 + RNG.random(N)
    for d in range(3):
        stored[d, N - d :] = 0
        whole[np.arange(d, N), np.arange(N - d)] = stored[d, : N - d]
    return {"bands": stored}, whole


def buffers(sign: float) -> tuple[Tensors, np.ndarray]:
    parts = {name: RNG.random((N, 2)) for name in ("decay", "input", "output")} | {"diagonal": 1 + RNG.random(N)}
    parts["input"] = parts["input"] - sign
    whole, state = np.zeros((N, N)), np.zeros((2, N))
    for i in range(N):
        state = parts["decay"][i][:, None] * state
        whole[i] = parts["output"][i] @ state
        whole[i, i] = parts["diagonal"][i]
        state[:, i] = parts["input"][i]
    return parts, whole


def redraws() -> tuple[Tensors, np.ndarray]:
    lag = 4
    direct, inputs = np.zeros((2, N)), np.zeros((2, N, 1))
    direct[0], direct[1, lag:] = 1.5, -0.3
    inputs[0], inputs[1, lag:] = 0.2, 0.1
    decay, output = np.full((N, 1), 0.7), np.full((N, 1), -0.4)
    inverse, state = np.zeros((N, N)), np.zeros(N)
    for i in range(N):
        inverse[i] = output[i, 0] * state
        state = decay[i, 0] * state
        for m in range(2):
            if i - m * lag >= 0:
                inverse[i, i - m * lag] += direct[m, i]
                state[i - m * lag] += inputs[m, i, 0]
    parts = {"decay": decay, "output": output, "input": inputs, "direct": direct, "lag": np.array([float(lag)])}
    return parts, np.linalg.inv(inverse)


def dense() -> np.ndarray:
    found = np.tril(RNG.standard_normal((N, N)))
    np.fill_diagonal(found, 2)
    return found


def cases() -> dict[str, tuple[str, Tensors, np.ndarray]]:
    column = np.concatenate([[1.5], RNG.standard_normal(N - 1)])
    decay, scale = np.array([0.5, 0.9]), np.array([0.3, 0.1])
    geometric = np.concatenate([[1.0], [(scale * decay**t).sum() for t in range(N - 1)]])
    inverse = np.array([1, -0.3, -0.2, -0.1])
    free = dense()
    found: dict[str, tuple[str, Tensors, np.ndarray]] = {
        "dense": ("dense", {"": free}, free),
        "dense and Toeplitz": ("dense", {"": toeplitz(column)}, toeplitz(column)),
        "toeplitz": ("toeplitz", {"coefficients": column}, toeplitz(column)),
        "banded_toeplitz": ("banded_toeplitz", {"coefficients": column[:3]}, toeplitz(np.pad(column[:3], (0, N - 3)))),
        "banded": ("banded", *bands()),
        "blt": ("blt", {"theta": decay, "omega": scale}, toeplitz(geometric)),
        "inverse_banded_toeplitz": (
            "inverse_banded_toeplitz",
            {"inverse_coefficients": inverse},
            np.linalg.inv(toeplitz(np.pad(inverse, (0, N - 4)))),
        ),
        "buffered": ("buffered", *buffers(0.0)),
        "buffered with signs": ("buffered", *buffers(0.5)),
        "redrawn": ("redrawn", *redraws()),
        "float32": ("dense", {"": free.astype(np.float32).astype(float)}, free.astype(np.float32).astype(float)),
    }
    stored = buffers(0.0)
    moved = {**stored[0], "transition": stored[0]["decay"][:, :, None, None]}
    del moved["decay"]
    found["state_space"] = ("state_space", moved, stored[1])
    for name in ("dense", "toeplitz", "banded", "blt", "buffered", "buffered with signs"):
        _, parts, whole = found[name]
        found[f"scaled {name}"] = ("scaled", {**parts, "column_scale": SCALE}, whole * SCALE)
    return found


CASES = cases()


def in_fractions(whole: np.ndarray, bins: int) -> list[list[Fraction]]:
    size = [[abs(Fraction(float(x))) for x in row] for row in whole]
    sums = [[sum(row[j::bins], Fraction(0)) for j in range(bins)] for row in size]
    return [[sum((row[i] * row[j] for row in sums), Fraction(0)) for j in range(bins)] for i in range(bins)]


@pytest.mark.parametrize("bins", [1, 2, 5, 12, 15])
@pytest.mark.parametrize("name", CASES)
def test_gram_is_that_of_the_sums_of_magnitudes(name: str, bins: int) -> None:
    structure, parts, whole = CASES[name]
    found, true = gram(Strategy(structure, parts, N), bins), np.array(in_fractions(whole, bins)).astype(float)
    top = true.max()
    assert (found.near <= found.high).all() and (found.high - found.near <= 1e-12 * top).all()
    assert np.abs(found.high - true).max() <= 1e-12 * top
    np.testing.assert_array_equal(found.high, found.high.T)


@pytest.mark.parametrize("name", ["dense", "toeplitz", "banded", "scaled dense", "float32"])
def test_entries_that_are_stored_are_never_rounded_down(name: str) -> None:
    structure, parts, whole = CASES[name]
    if name == "scaled dense":  # the truth with the factors exact, too
        rows = [[Fraction(float(x)) * Fraction(float(s)) for x, s in zip(row, SCALE, strict=True)] for row in parts[""]]
        size = [[abs(x) for x in row] for row in rows]
    else:
        size = [[abs(Fraction(float(x))) for x in row] for row in whole]
    sums = [[sum(row[j::5], Fraction(0)) for j in range(5)] for row in size]
    found = gram(Strategy(structure, parts, N), 5)
    for i in range(5):
        for j in range(5):
            true = sum((row[i] * row[j] for row in sums), Fraction(0))
            assert Fraction(float(found.high[i, j])) >= true


def test_a_tree_is_the_same_by_columns_as_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = np.zeros((4, N))
    nodes[0] = 1.5
    leaves = np.arange(N) % 8
    for level in range(3):
        nodes[level + 1] = np.where(leaves >> level & 1, 0.4 / (level + 1), 0.0)
    parts = {"tree.nodes": nodes, "tree.restart": np.array([8.0])}
    tree = Strategy("tree", dict(parts), N)
    found, whole = (gram(one, 5).high for one in (tree, Strategy("dense", {"": tree.reading.doubles}, N)))
    np.testing.assert_allclose(found, whole, rtol=1e-12)


def test_more_of_c_is_more_of_the_gram() -> None:
    _, parts, whole = CASES["dense"]
    larger = whole.copy()
    larger[7, 2] *= 2
    a, b = (gram(Strategy("dense", {"": m}, N), 5).high for m in (whole, larger))
    assert (b >= a * (1 - 1e-15)).all() and b[2, 2] > a[2, 2]


@pytest.mark.parametrize("bins", [0, -1, True, 2.0])
def test_a_number_of_bins_that_is_none_is_refused(bins: int) -> None:
    with pytest.raises(InvalidParameter, match="integer of at least 1"):
        gram(Strategy("toeplitz", {"coefficients": np.ones(N)}, N), bins)


def test_what_is_too_large_is_refused() -> None:
    with pytest.raises(TooLarge, match="limited to 4096 bins"):
        gram(Strategy("toeplitz", {"coefficients": np.ones(N)}, N), 5000)
    with pytest.raises(InvalidStrategy, match="beyond the range"):
        gram(Strategy("toeplitz", {"coefficients": np.full(N, 1e200)}, N), 2)
    long = np.zeros((1, 1 << 20))
    long[0] = 1.0
    with pytest.raises(TooLarge, match="products, above"):
        gram(Strategy("banded", {"bands": long}, 1 << 20), 4000)

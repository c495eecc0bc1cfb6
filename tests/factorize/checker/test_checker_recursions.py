"""Coefficients and norms that the exact checker encloses by recursions, beside fractions."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from factorize.checker.arithmetic.balls import Balls, ends
from factorize.checker.structures import blt, buffered, inverse_banded_toeplitz


def enclosed(found: Balls, true: list[Fraction]) -> None:
    """Each within its ball, which is small beside the largest."""
    largest = max(map(abs, true))
    for (low, high), exact in zip(map(ends, found), true, strict=True):
        assert low <= exact <= high <= low + largest / 2**200


@given(st.lists(st.tuples(st.floats(-1, 1), st.floats(-1e20, 1e20)), min_size=1, max_size=3), st.integers(1, 6))
def test_decays_are_enclosed(pairs: list[tuple[float, float]], n: int) -> None:
    true = [Fraction(1)]
    for t in range(n - 1):
        true.append(sum((Fraction(scale) * Fraction(decay) ** t for decay, scale in pairs), Fraction(0)))
    decays = blt.Decays(np.array([d for d, _ in pairs]), np.array([s for _, s in pairs]))
    enclosed(blt.series(decays, n), true)


@given(st.lists(st.floats(0, 0.25), min_size=0, max_size=4), st.integers(5, 8))
def test_inverses_are_enclosed(weights: list[float], n: int) -> None:
    true = [Fraction(1)]
    for t in range(1, n):
        true.append(sum((Fraction(w) * true[t - d] for d, w in enumerate(weights, 1) if d <= t), Fraction(0)))
    tensors = {"inverse_coefficients": np.array([1.0, *(-w for w in weights)])}
    found = inverse_banded_toeplitz.InverseBandedToeplitzReading.read(tensors, n)
    enclosed(found.series, true)
    assert found.bandwidth == (n if any(weights) else 1)


def dense(given: buffered.Buffers) -> list[list[Fraction]]:
    """C in fractions: output_i . T_i ... T_{j+1} input_j below the diagonal."""
    n, groups, states = given.inputs.shape
    out = [[Fraction(0)] * n for _ in range(n)]
    for j in range(n):
        out[j][j] = Fraction(float(given.diagonal[j]))
        state = [[Fraction(float(x)) for x in group] for group in given.inputs[j]]
        for i in range(j + 1, n):
            blocks = given.transition[i]
            state = [
                [
                    sum((Fraction(float(blocks[g, a, b])) * state[g][b] for b in range(states)), Fraction(0))
                    for a in range(states)
                ]
                for g in range(groups)
            ]
            read = [Fraction(float(x)) for x in given.outputs[i].ravel()]
            out[i][j] = sum(
                (r * s for r, s in zip(read, [x for group in state for x in group], strict=True)), Fraction(0)
            )
    return out


def random_buffers(seed: int, groups: int, states: int, n: int = 5, size: float = 1.0) -> buffered.Buffers:
    rng = np.random.default_rng(seed)
    middle = size * rng.uniform(-1, 1, (n, groups, states, states))
    return buffered.Buffers(1 + rng.random(n), middle, *rng.standard_normal((2, n, groups, states)))


@pytest.mark.parametrize(("groups", "states"), [(1, 1), (3, 1), (1, 2), (2, 2), (3, 3)])
@pytest.mark.parametrize("size", [0.9, 3.0])
def test_buffers_beside_fractions(groups: int, states: int, size: float) -> None:
    for seed in range(2):
        given_ = random_buffers(seed, groups, states, size=size)
        true = dense(given_)
        values, far = buffered.near_columns(given_, np.arange(len(true)))
        for j, column in enumerate(zip(*true, strict=True)):
            apart = sum(
                ((Fraction(float(value)) - exact) ** 2 for value, exact in zip(values[:, j], column, strict=True))
            )
            assert apart <= Fraction(float(far[j])) ** 2 and far[j] < 1e-9

"""Coefficients and norms that the exact checker encloses by recursions in fixed point, beside fractions."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from factorize.checker.arithmetic.integers import Numbers
from factorize.checker.arithmetic.intervals import PLACES
from factorize.checker.structures import blt, buffered, inverse_banded_toeplitz

UNIT = Fraction(1, 2**PLACES)


def enclosed(found: Numbers, true: list[Fraction], radius: int) -> None:
    """In units of 2^-256, each within the radius, which is as stated."""
    assert found.exponent == -PLACES and found.radius == radius and len(found.values) == len(true)
    for value, exact in zip(found.values, true, strict=True):
        assert abs(int(value) * UNIT - exact) <= radius * UNIT


@given(st.lists(st.tuples(st.floats(-1, 1), st.floats(-1e20, 1e20)), min_size=1, max_size=3), st.integers(1, 6))
def test_decays_are_cut_by_less_than_a_unit_per_step_and_decay(pairs: list[tuple[float, float]], n: int) -> None:
    true = [Fraction(1)]
    for t in range(n - 1):
        true.append(sum((Fraction(scale) * Fraction(decay) ** t for decay, scale in pairs), Fraction(0)))
    decays = blt.read({"theta": np.array([d for d, _ in pairs]), "omega": np.array([s for _, s in pairs])})
    enclosed(blt.series(decays, n), true, n * len(pairs) if n > 1 else 0)


@given(st.lists(st.floats(0, 0.25), min_size=0, max_size=4), st.integers(5, 8))
def test_inverses_are_cut_by_less_than_a_unit_per_step(weights: list[float], n: int) -> None:
    true = [Fraction(1)]
    for t in range(1, n):
        true.append(sum((Fraction(w) * true[t - d] for d, w in enumerate(weights, 1) if d <= t), Fraction(0)))
    tensors = {"inverse_coefficients": np.array([1.0, *(-w for w in weights)])}
    found = inverse_banded_toeplitz.InverseBandedToeplitzReading.read(tensors, n)
    enclosed(found.series, true, n if any(weights) else 0)
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
        whole = buffered.entries(given_)
        for j, column in enumerate(zip(*true, strict=True)):
            for i in range(len(column)):
                assert abs(int(whole.values[i, j]) * UNIT - true[i][j]) <= whole.radius * UNIT
        assert whole.radius < 2**40  # of 2^256


def same_everywhere(transition: list, feed: list, out: list, n: int, groups: int = 1) -> buffered.Buffers:
    states = len(transition)
    parts = (np.tile(np.array(part, dtype=float).reshape(-1, states), (n, 1, 1)) for part in (feed, out))
    return buffered.Buffers(np.ones(n), np.tile(np.array(transition, dtype=float), (n, groups, 1, 1)), *parts)


@pytest.mark.parametrize(("step", "feed"), [(2**54, 1), (1, 2**54)])
def test_large_buffers_are_integers(step: int, feed: int) -> None:
    large = same_everywhere([[step]], [feed], [4], 2)
    whole = buffered.entries(large)
    assert [int(v) * UNIT for v in whole.values[1]] == [4 * step * feed, 1]

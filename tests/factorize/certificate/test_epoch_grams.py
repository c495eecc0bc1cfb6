"""Epoch Grams beside the Gram blocks of listed patterns, which they stand for."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from factorize.certificate import epoch_grams, gram_bounds
from factorize.numbers.pattern_sums import gram_sums
from factorize.numbers.wide import of_constants
from factorize.structures.dense import DenseMatrix


def strategy(epochs: int, steps: int, *, signed: bool, spread: float, scale: float) -> np.ndarray:
    luck = np.random.default_rng(epochs)
    n = epochs * steps
    array = luck.standard_normal((n, n)) * np.exp(spread * luck.standard_normal((n, n)))
    array = np.tril(array if signed else np.abs(array))
    np.fill_diagonal(array, np.abs(np.diagonal(array)) + 1.0)
    return array * scale


def patterns_of(epochs: int, steps: int) -> np.ndarray:
    return np.arange(epochs * steps).reshape(epochs, steps).T


@pytest.mark.parametrize("scale", [1.0, 1e-30, 1e40])
@pytest.mark.parametrize("spread", [0.0, 6.0])
@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize(("epochs", "steps"), [(2, 64), (3, 70), (8, 64)])
def test_they_are_the_blocks_of_all_patterns(
    epochs: int, steps: int, signed: bool, spread: float, scale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    array = strategy(epochs, steps, signed=signed, spread=spread, scale=scale)
    patterns = patterns_of(epochs, steps)
    assert epoch_grams.epochs_of(patterns, len(array)) == epochs
    above, attained = gram_bounds.gram_blocks(DenseMatrix(array), patterns)
    monkeypatch.setattr(epoch_grams, "epochs_of", lambda *_: 0)
    other, reached = gram_bounds.gram_blocks(DenseMatrix(array), patterns)
    assert float(above) == float(other) and attained == pytest.approx(reached, rel=1e-14)


def test_a_group_has_the_sums_of_each_pattern_alone() -> None:
    array = strategy(4, 64, signed=True, spread=1.0, scale=1.0)
    patterns = patterns_of(4, 64)
    for some in ([5], [3, 4, 9], list(range(32, 64))):
        alone = [gram_sums(of_constants(np.ascontiguousarray(array[:, patterns[p]]))) for p in some]
        found = epoch_grams.largest_sum(array, 4, np.array(some))
        assert found is not None and abs(found / max(alone) - 1) < Fraction(1, 2**60)
        exact = max(
            sum(abs(sum(x * y for x, y in zip(a, b, strict=True))) for a in columns for b in columns)
            for columns in ([[Fraction(float(v)) for v in array[:, step]] for step in patterns[p]] for p in some[:2])
        )
        assert len(some) > 2 or exact <= found


def test_what_doubles_hold_is_summed_without_an_error() -> None:
    whole = np.eye(128)
    assert epoch_grams.largest_sum(whole, 2, np.arange(64)) == 2
    assert gram_bounds.gram_blocks(DenseMatrix(whole), patterns_of(2, 64)) == (2, 2.0)


def test_others_are_left_to_the_blocks() -> None:
    patterns = patterns_of(4, 64)
    assert epoch_grams.epochs_of(patterns[:, :3], 256) == 0
    assert epoch_grams.epochs_of(patterns[::-1], 256) == 0
    assert epoch_grams.epochs_of(patterns_of(32, 64), 2048) == 0
    assert epoch_grams.epochs_of(patterns_of(4, 16), 64) == 0
    assert gram_bounds.near_gram_blocks(np.eye(64), patterns_of(4, 16)) == 4
    assert epoch_grams.largest_sum(np.eye(128) * 1e290, 2, np.arange(64)) is None
    assert [group.tolist() for group in epoch_grams.groups(np.array([1, 127, 128, 300]))] == [[1, 127], [128], [300]]


@pytest.mark.parametrize(("epochs", "length"), [(8, 64), (16, 16), (24, 4), (4, 150)])
def test_sums_in_doubles_are_near(epochs: int, length: int) -> None:
    array = strategy(epochs, length, signed=True, spread=1.0, scale=1.0)
    above, _ = gram_bounds.gram_blocks(DenseMatrix(array), patterns_of(epochs, length))
    near = gram_bounds.near_gram_blocks(array, patterns_of(epochs, length))
    assert near == pytest.approx(float(above), rel=1e-14)

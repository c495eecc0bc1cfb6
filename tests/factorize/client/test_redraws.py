"""Streaming strategies that make draws of earlier epochs again: the loss, where its search starts, where it ends."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from specs import spec_of

from factorize import parse_spec, solvers
from factorize.errors import UnsupportedProblem
from factorize.solvers.buffered.redrawn_loss import MARGIN, BidiagonalDecoder, RedrawnLoss, RedrawnNumbers
from factorize.solvers.buffered.redrawn_start import fitted
from factorize.structures.redrawn import RedrawnMatrix


def numbers(rng: np.random.Generator, epochs: int, length: int, buffers: int, redraws: int) -> RedrawnNumbers:
    n = epochs * length
    later = np.arange(n) >= length * np.arange(redraws + 1)[:, None]
    direct = 0.1 * rng.standard_normal((redraws + 1, n)) * later
    direct[0] = rng.uniform(0.5, 1.5, n)
    return RedrawnNumbers(
        rng.uniform(0.2, 0.95, (n, buffers)),
        -0.2 * rng.uniform(size=(n, buffers)),
        rng.standard_normal((redraws + 1, n, buffers)) * later[:, :, None],
        direct,
    )


def decoder(rng: np.random.Generator, n: int) -> BidiagonalDecoder:
    return BidiagonalDecoder(np.append(0.0, rng.uniform(0.7, 1.0, n - 1)), rng.uniform(0.5, 1.5, n))


def whole_decoder(parts: BidiagonalDecoder) -> np.ndarray:
    n = len(parts.feed)
    out = np.zeros((n, n))
    for i in range(n):
        out[i] = parts.follow[i] * out[i - 1]
        out[i, i] = parts.feed[i]
    return out


def whole_inverse(at: RedrawnNumbers, length: int) -> np.ndarray:
    return np.asarray(np.linalg.inv(RedrawnMatrix(*at, lag=length).rows(0, len(at.decay))))


def brute_loss(at: RedrawnNumbers, parts: BidiagonalDecoder, epochs: int) -> float:
    """Every class scaled to sum |C^T C| = 1, then |W A C^-1|^2, with whole matrices."""
    length = len(at.decay) // epochs
    inverse = whole_inverse(at, length)
    strategy = np.linalg.inv(inverse)
    gram = np.abs(strategy.T @ strategy).reshape(epochs, length, epochs, length)
    sums = np.einsum("ajbj->j", gram)
    return float(np.sum((whole_decoder(parts) @ (np.tile(np.sqrt(sums), epochs)[:, None] * inverse)) ** 2))


SHAPES = st.tuples(st.integers(2, 4), st.integers(2, 6), st.integers(1, 3), st.integers(1, 3), st.integers(0, 2**32))


@given(SHAPES)
def test_the_loss_is_that_of_whole_matrices(shape: tuple[int, int, int, int, int]) -> None:
    epochs, length, buffers, redraws, seed = shape
    redraws = min(redraws, epochs - 1)
    rng = np.random.default_rng(seed)
    parts, at = decoder(rng, epochs * length), numbers(rng, epochs, length, buffers, redraws)
    loss = RedrawnLoss(parts, epochs, buffers, redraws, 2.0)
    assert loss.value(loss.pack(at)) == pytest.approx(brute_loss(at, parts, epochs) / 2.0 - 1.0, rel=1e-8)
    for before, after in zip(at, loss.unpack(loss.pack(at)), strict=True):
        np.testing.assert_allclose(after, before, rtol=1e-14)


def test_a_scaled_strategy_reveals_just_below_one_from_every_class() -> None:
    rng = np.random.default_rng(3)
    at = numbers(rng, 3, 5, 2, 2)
    loss = RedrawnLoss(decoder(rng, 15), 3, 2, 2, 1.0)
    strategy = np.linalg.inv(whole_inverse(loss.scaled(loss.pack(at)), 5))
    sums = np.einsum("ajbj->j", np.abs(strategy.T @ strategy).reshape(3, 5, 3, 5))
    np.testing.assert_allclose(sums, 1.0 - 2 * MARGIN, rtol=1e-11)


def test_numbers_beyond_double_precision_have_an_infinite_loss() -> None:
    rng = np.random.default_rng(4)
    loss = RedrawnLoss(decoder(rng, 12), 3, 2, 1, 1.0)
    at = numbers(rng, 3, 4, 2, 1)
    value, gradient = loss(loss.pack(at._replace(output=1e200 * at.output)))
    assert value == np.inf and not gradient.any()


@pytest.mark.parametrize("redraws", [1, 2, 3])
def test_a_fit_finds_what_has_its_decays(redraws: int) -> None:
    rng, epochs, length = np.random.default_rng(redraws), 4, 6
    at = numbers(rng, epochs, length, 2, redraws)
    decay = np.array([0.9, 0.4])
    inverse = whole_inverse(at._replace(decay=np.tile(decay, (24, 1)), output=np.ones((24, 2))), length)
    found = fitted(inverse, decoder(rng, 24), epochs, redraws, decay)
    np.testing.assert_allclose(whole_inverse(found, length), inverse, atol=1e-8)


def redrawn(epochs: int, length: int, buffers: int, redraws: int | None = None, **workload: Any) -> Any:
    mechanism = {"kind": "buffered_linear", "buffers": buffers} | ({} if redraws is None else {"redraws": redraws})
    return spec_of({"kind": "prefix", "n": epochs * length} | workload, mechanism, epochs)


@pytest.mark.parametrize(
    ("workload", "gap"),
    [({}, 2.5e-3), ({"kind": "schedule", "learning_rates": [1.0 - i / 100 for i in range(72)]}, 5e-3)],
)
def test_two_states_with_redraws_come_near_the_optimum(workload: dict[str, Any], gap: float) -> None:
    with_redraws = solvers.solve(redrawn(3, 24, 2, **workload)).certificate
    without = solvers.solve(redrawn(3, 24, 2, 0, **workload)).certificate
    assert with_redraws.relative_gap is not None and without.relative_gap is not None
    assert with_redraws.relative_gap < gap < 10 * gap < without.relative_gap
    assert with_redraws.sensitivity.kind == "exact"


def test_one_redraw_helps_less_than_all() -> None:
    gaps = [solvers.solve(redrawn(4, 16, 2, redraws)).certificate.relative_gap for redraws in (0, 1, 3, None)]
    assert all(gap is not None for gap in gaps)
    assert gaps == sorted(gaps, reverse=True)  # type: ignore[type-var]  # none is None
    assert gaps[-1] == gaps[-2] < gaps[-3]


@pytest.mark.parametrize(
    ("epochs", "length", "buffers", "redraws", "message"),
    [
        (4, 16, 2, 4, "redraws=4 exceeds the 3 returns that 4 epochs have; use at most 3"),
        (4, 4, 4, 1, "buffers=4 is not below the 4 steps of an epoch"),
    ],
)
def test_what_cannot_be_asked_for(epochs: int, length: int, buffers: int, redraws: int, message: str) -> None:
    with pytest.raises(UnsupportedProblem, match=message):
        solvers.solve(redrawn(epochs, length, buffers, redraws))


def test_redraws_need_steps_that_return() -> None:
    single = {"workload": {"kind": "prefix", "n": 64}, "participation": {"kind": "single"}}
    with pytest.raises(UnsupportedProblem, match="redraws=1 needs fixed_epochs.*leave redraws out"):
        solvers.solve(parse_spec({**single, "mechanism": {"kind": "buffered_linear", "buffers": 2, "redraws": 1}}))

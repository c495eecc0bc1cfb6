"""The law of the noise from the client's side: what a generator really makes is at least as private as it was asked.

Normals are replaced by unit vectors, so that rows of a matrix come out; client_law.py inverts it and bounds the sensitivity of
the inverse by the exact checker. The noise is calibrated for mu = 1.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from client_law import PARTICIPATIONS, N, demanded_mu, impulse_rows, real_mu
from hypothesis import given
from hypothesis import strategies as st
from specs import spec_of
from test_noise import NAMES, STREAMS, source_of, strategies

from factorize.client import NoiseGenerator
from factorize.errors import InvalidParameter
from factorize.factors.sensitivity import Sensitivity, sensitivity_of
from factorize.format.manifest import ENDLESS_STEPS
from factorize.noise.allowances import MAX_ALLOWANCE, MAX_SINGLE_ALLOWANCE, allowance, participations_of, raised
from factorize.noise.recurrences.state_rounding import (
    DOUBLE,
    SINGLE,
    Deviation,
    observe_columns,
    varying_columns,
)
from factorize.noise.source import Streamable, noise_source
from factorize.privacy import Calibration, PrivacyTarget, calibrate
from factorize.structures.base import Matrix
from factorize.structures.buffered import BufferedMatrix
from factorize.structures.toeplitz import BltMatrix


def calibrated(strategy: Matrix, participation: dict[str, Any]) -> Calibration:
    spec = spec_of(strategy.n, participation=participation)
    return calibrate(sensitivity_of(strategy, spec.participation), PrivacyTarget(mu=1.0))


@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize("participation", PARTICIPATIONS, ids=lambda p: p["kind"])
@pytest.mark.parametrize("name", NAMES)
def test_what_is_drawn_is_at_least_as_private_as_calibrated(name: str, participation: dict[str, Any], precision: Any):
    strategy = strategies(N)[name]
    scale = calibrated(strategy, participation)
    made = NoiseGenerator(source_of(strategy), scale, N, seed=1 << 64, precision=precision)
    assert made.sigma == raised(scale.sigma_of_sums, made.allowance) and SINGLE <= made.allowance < 2e-5
    rows = impulse_rows(made, N)
    assert real_mu(rows, strategy, scale, made.sigma) <= 1
    single = precision == "float32" and name in STREAMS
    whitened = strategy.dense() @ rows / made.sigma - np.eye(N)
    assert np.abs(whitened).max() < (1e-6 if single else 1e-13)
    if single and name not in ("one diagonal",):
        assert np.abs(whitened).max() > 1e-10  # or the state would not be what this is about


@pytest.mark.parametrize("name", STREAMS)
def test_and_is_not_without_the_allowance(name: str):
    """What the bound is for: a state that is always rounded to the same side."""
    strategy = strategies(N)[name]
    scale = calibrated(strategy, PARTICIPATIONS[0])
    made = NoiseGenerator(source_of(strategy), scale, N, seed=1 << 64, precision="float64")
    recurrence = made._engine._recurrence
    if not recurrence.vectors or recurrence.keeps_draws:
        return
    advance, unit = recurrence.advance, 2.0**-12

    def rounded_up(step: int, x: np.ndarray, state: np.ndarray, scratch: np.ndarray) -> None:
        before = state.copy()
        advance(step, x, state, scratch)
        state *= np.where(state == before, 1.0, 1 + unit)

    recurrence.advance = rounded_up
    rows = impulse_rows(made, N)
    found = np.linalg.norm(np.linalg.inv(rows / made.sigma), axis=0).max() / scale.sensitivity.value - 1
    promised = allowance(source_of(strategy).recurrence().deviation(unit), scale.sensitivity.value, 1, N)
    assert 1e-7 < found <= promised


class TestWithoutEnd:
    """What a user moves Z by: the normals that make the noise 1 where the user takes part, and 0 elsewhere."""

    N, STEPS = 2000, (0, 1000)

    def made(self, precision: Any = None) -> NoiseGenerator:
        strategy = BltMatrix(np.array([0.999, 0.5]), np.array([0.01, 0.2]), self.N)
        scale = calibrated(strategy, {"kind": "min_sep", "min_sep": 1000, "max_participations": 2})
        return NoiseGenerator(
            noise_source("blt", strategy.tensors(), ENDLESS_STEPS, ""), scale, 1, seed=1 << 64, precision=precision
        )

    @pytest.mark.parametrize("precision", ["float32", "float64"])
    def test_it_is_what_was_calibrated(self, precision: Any):
        made = self.made(precision)
        mu, seen = demanded_mu(made, self.STEPS, self.N)
        assert seen == self.N and mu <= 1
        assert mu * (1 + made.allowance) == pytest.approx(1, abs=1e-6 if precision == "float32" else 1e-12)

    def test_another_decay_is_noticed(self):
        made = self.made()
        recurrence = made._engine._recurrence
        recurrence._theta = recurrence._theta * (1 + 1e-4)
        assert demanded_mu(made, self.STEPS, self.N)[0] > 1

    def test_time_may_be_up(self):
        assert demanded_mu(self.made(), self.STEPS, self.N, end=0.0) == (0.0, 0)


class TestBounds:
    @given(st.integers(0, 10**6), st.sampled_from(["buffered", "state_space", "state_space of one group", "blt"]))
    def test_hold_for_any_roundings(self, seed: int, name: str):
        """Columns of strategies whose states are rounded in every way that numbers up to 2^-10 allow."""
        rng, unit = np.random.default_rng(seed), 2.0**-10
        strategy = signed(name, rng)
        recurrence = source_of(strategy).recurrence()
        bound = recurrence.deviation(unit)
        for pick in (lambda: rng.choice([-unit, unit], recurrence.vectors), lambda: np.full(recurrence.vectors, unit)):
            errors = [pick() for _ in range(N)]
            changed = np.column_stack([column(strategy, j, errors) for j in range(N)])
            off = np.linalg.norm(changed - strategy.dense(), axis=0).max()
            assert off <= bound.columns
            assert bound.columns < 400 * unit * np.linalg.norm(strategy.dense(), axis=0).max() + 1

    def test_stretches_change_nothing(self, monkeypatch: pytest.MonkeyPatch):
        rng = np.random.default_rng(3)
        for n in (1, 2, 3, 7, 50):
            moves, reads = rng.uniform(-0.9, 0.9, (n, 2, 2, 2)), rng.uniform(-1, 1, (n, 2, 2))
            writes = rng.uniform(-1, 1, (n, 2, 2))
            expected = np.zeros(n)
            for j in range(n):
                total = np.zeros((2, 2, 2))
                for t in range(j + 1, n):
                    passed = np.abs(reads[t]) * 1.25
                    for i in range(t - 1, j, -1):
                        passed = np.einsum("gi,gij->gj", passed, np.abs(moves[i]) * 1.25)
                    total += (t - j) ** 2 * passed[:, :, None] * passed[:, None, :]
                inner = np.einsum("gi,gij,gj->g", np.abs(writes[j]), total, np.abs(writes[j]))
                expected[j] = 0.25 * np.sqrt(inner).sum()
            (found,) = varying_columns(moves, reads, [writes], 0.25)
            assert np.allclose(found, expected, rtol=1e-4) and (found >= expected).all()

    def test_roundings_that_double_what_is_read_leave_no_bound(self):
        steps = np.ones((2, 1, 1))
        assert np.isinf(observe_columns(steps[..., None], steps, steps, steps, 0.5, 0.0)).all()
        assert observe_columns(steps[..., None], steps, steps, steps, 0.25, 0.0)[0] == pytest.approx(1 / 3, rel=1e-3)

    def test_the_allowance_adds_what_each_part_costs(self):
        assert allowance(Deviation(), 2.0, 3, 10) == pytest.approx(SINGLE, rel=1e-4)
        assert allowance(Deviation(columns=0.02), 2.0, 3, 10) == pytest.approx(0.03, rel=1e-4)
        assert allowance(Deviation(entries=0.01), 2.0, 3, 10) == pytest.approx(0.03, rel=1e-4)
        assert allowance(Deviation(rows=0.01), 2.0, 3, 10) == pytest.approx(1 / 0.99 - 1, rel=1e-4)
        assert allowance(Deviation(inverse=0.01), 2.0, 3, 10) == pytest.approx(0.25, rel=1e-4)
        assert allowance(Deviation(inverse=0.025), 2.0, 3, 10) == math.inf
        scaled = Deviation(0.1, 0.0, 0.2, 0.4).scaled(0.5, 3.0, DOUBLE)
        assert scaled == Deviation(pytest.approx(0.3), 3 * DOUBLE, 0.2, 0.8)

    @pytest.mark.parametrize(
        ("participation", "times"),
        [
            ({"kind": "single"}, 1),
            ({"kind": "fixed_epochs", "epochs": 7}, 7),
            ({"kind": "min_sep", "min_sep": 4}, 6),
            ({"kind": "min_sep", "min_sep": 4, "max_participations": 5}, 5),
            ({"kind": "min_sep", "min_sep": 4, "max_participations": 9}, 6),
            ({"kind": "something new"}, 21),
        ],
    )
    def test_participations(self, participation: dict[str, Any], times: int):
        assert participations_of(participation, 21) == times


class TestPrecision:
    def slow(self, theta: float, n: int = 10**6) -> Streamable:
        parts = {"theta": np.array([theta]), "omega": np.array([1e-4])}
        source = noise_source("blt", parts, n, "")
        assert isinstance(source, Streamable)
        return source

    def scale(self) -> Calibration:
        return calibrate(Sensitivity(1.0, "exact", "by hand", {"kind": "single"}), PrivacyTarget(mu=1.0))

    def test_float32_where_it_is_cheap(self):
        made = NoiseGenerator(self.slow(0.999), self.scale(), 3, seed=1 << 64)
        assert (
            made.precision == "float32"
            and made.allowance <= MAX_SINGLE_ALLOWANCE
            and made._engine.state.dtype == np.float32
        )

    @pytest.mark.parametrize("theta", [1 - 1e-7, 1 - 1e-8, 1 - 1e-9, 1.0])
    def test_float64_where_a_float32_state_cannot_be_bounded(self, theta: float):
        """Decays that float32 rounds to 1, for ever: the sensitivity would grow without limit."""
        source = self.slow(theta, n=10**15 - 1 if theta < 1 else 10**6)
        chosen = NoiseGenerator(source, self.scale(), 3, seed=1 << 64)
        assert chosen.precision == "float64" and chosen.allowance < 1e-5 and chosen._engine.state.dtype == np.float64

    def test_asked_for_by_name(self):
        steep = noise_source("blt", {"theta": np.array([1 - 2e-6]), "omega": np.array([5e-4])}, 10**15 - 1, "")
        assert isinstance(steep, Streamable)
        assert NoiseGenerator(steep, self.scale(), 3, seed=1 << 64).precision == "float64"
        assert (
            MAX_SINGLE_ALLOWANCE
            < NoiseGenerator(steep, self.scale(), 3, seed=1 << 64, precision="float32").allowance
            < MAX_ALLOWANCE
        )
        steeper = noise_source("blt", {"theta": np.array([1 - 1e-7]), "omega": np.array([1e-3])}, 10**15 - 1, "")
        assert isinstance(steeper, Streamable)
        with pytest.raises(InvalidParameter, match='float32 state .* the limit is 0.01; use precision="float64"'):
            NoiseGenerator(steeper, self.scale(), 3, seed=1 << 64, precision="float32")

    def test_what_no_precision_bounds_is_refused(self):
        growing = noise_source("blt", {"theta": np.array([1.5]), "omega": np.array([0.1])}, 10**6, "")
        assert isinstance(growing, Streamable)
        with pytest.raises(InvalidParameter, match="float64 state .* use another C"):
            NoiseGenerator(growing, self.scale(), 3, seed=1 << 64)


def signed(name: str, rng: np.random.Generator) -> Matrix:
    """A strategy of this structure with numbers of any sign."""

    def any_sign(*shape: int) -> np.ndarray:
        return np.asarray(rng.choice([-1.0, 1.0], shape) * rng.uniform(0.2, 0.9, shape))

    if name == "blt":
        return BltMatrix(rng.uniform(0.1, 1, 3), rng.uniform(0.1, 0.3, 3), N)
    groups = {"buffered": (3,), "state_space": (2, 2, 2), "state_space of one group": (3, 3)}[name]
    states = math.prod(groups[:2]) if len(groups) == 3 else groups[0]
    return BufferedMatrix(1 + rng.random(N), any_sign(N, *groups), any_sign(N, states), any_sign(N, states))


def column(strategy: Matrix, j: int, errors: list[np.ndarray]) -> np.ndarray:
    """Column j of C where the state after step i is off by the factors 1 + errors[i]: x = e_j in, rows of C x out."""
    recurrence = source_of(strategy).recurrence()
    found, state = np.zeros(N), np.zeros((recurrence.vectors, 1))
    scratch = np.zeros((recurrence.scratch, 1))
    for t in range(N):
        read, moved = np.zeros(1), state.copy()
        recurrence.advance(t, read, moved, scratch)  # x = -reads . s
        x = np.array([float(t == j) - read[0]])
        found[t] = x[0] / recurrence.gain(t)
        recurrence.advance(t, x, state, scratch)  # the row is e_j again, up to a rounding, and the state moves on
        state *= 1 + errors[t][:, None]
    return found

"""The structured optimum for workloads with a bidiagonal inverse, against dense and exact arithmetic."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from filter_cases import dense_bounds
from hypothesis import given, settings
from hypothesis import strategies as st

from factorize.solvers.methods.poles import zolotarev
from factorize.solvers.single.bidiagonal import Bidiagonal
from factorize.solvers.single.newton import bounds, maximise

REFERENCE = {
    entry["id"]: entry
    for entry in json.loads((Path(__file__).parents[2] / "data" / "reference-values.json").read_text())["entries"]
}


def maximised(p, q, **options):
    return maximise(Bidiagonal(p, q), **options)


def dense(p, q):
    """A from its bidiagonal inverse, row by row."""
    a = np.zeros((len(p), len(p)))
    for i in range(len(p)):
        a[i] = q[i] * a[i - 1] if i else 0.0
        a[i, i] = 1.0
        a[i] /= p[i]
    return a


def lambda_tau(n, tau):
    t = np.arange(1, n + 1)
    p = np.where(t % tau == 0, 1.0, np.sqrt(tau))
    q = np.where((t - 1) % tau == 0, 0.0, np.sqrt(tau))
    return p, q


@pytest.mark.parametrize("n", [2, 3, 4, 8, 16, 32, 64, 128, 256])
def test_prefix_reference_values(n):
    optimum = maximised(np.ones(n), np.ones(n), tolerance=1e-11)
    reference = REFERENCE[f"P1-prefix-n{n}"]["optimal_loss"]
    assert optimum.lower_bound <= reference * (1 + 1e-12)
    assert optimum.upper_bound >= reference * (1 - 1e-12)
    assert optimum.relative_gap < 1e-11


def test_prefix_2048_is_the_known_optimum():
    optimum = maximised(np.ones(2048), np.ones(2048), tolerance=1e-11)
    assert optimum.lower_bound == pytest.approx(20610.2158960, abs=2e-6)
    assert optimum.relative_gap < 1e-11


def test_a_single_step():
    optimum = maximised(np.array([4.0]), np.array([9.0]), tolerance=1e-12)
    assert optimum.lower_bound <= 1 / 16 <= optimum.upper_bound
    assert optimum.relative_gap < 1e-12


def test_lambda_tau_splits_into_blocks():
    optimum = maximised(*lambda_tau(12, 3), tolerance=1e-11)
    reference = REFERENCE["P1-LambdaS-T12-tau3"]["optimal_loss"]
    assert optimum.lower_bound <= reference <= optimum.upper_bound * (1 + 1e-12)
    even = maximised(*lambda_tau(2048, 2), tolerance=1e-11)
    assert even.lower_bound <= 2048 <= even.upper_bound
    assert even.relative_gap < 1e-11


def schedules(n):
    i = np.arange(n)
    cosine = 0.5 * (1 + np.cos(np.pi * i / max(1, n - 1)))
    return {
        "cosine to 1e-12": 1e-12 + cosine,
        "cosine to 1e-3": 1e-3 + cosine,
        "steps": np.where(i < n / 3, 1.0, np.where(i < 2 * n / 3, 0.1, 0.01)),
        "log-normal": np.exp(5 * np.random.default_rng(0).normal(size=n)),
        "scaled by 1e-20": 1e-20 * (1 + cosine),
    }


@pytest.mark.parametrize("n", [2, 3, 64, 256])
@pytest.mark.parametrize("name", schedules(1))
def test_extreme_schedules_reach_the_dense_optimum(name, n):
    p = 1.0 / schedules(n)[name]
    optimum = maximised(p, p, tolerance=1e-9)
    lower, upper = dense_bounds(dense(p, p), optimum.v)
    assert optimum.relative_gap < 1e-9
    assert optimum.lower_bound <= lower * (1 + 1e-12)
    assert lower <= optimum.lower_bound * (1 + 1e-9)
    if optimum.v.max() < 1e4 * optimum.v.min():  # elsewhere the SVD loses the diagonal where v is smallest
        assert upper <= lower * (1 + 1e-9)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.tuples(st.floats(-9, 9), st.floats(1e-9, 1.5), st.integers(0, 4)), min_size=1, max_size=24),
    st.integers(0, 2**32 - 1),
)
def test_random_workloads(rows, seed):
    """Random p, decay q / p and breaks q = 0: no dual value, dense ones included, exceeds a primal one."""
    p = np.exp([row[0] for row in rows])
    q = np.array([0.0 if row[2] == 0 else row[1] for row in rows]) * p
    optimum = maximised(p, q, tolerance=1e-9)
    assert optimum.relative_gap < 1e-9
    assert optimum.lower_bound <= optimum.upper_bound
    a = dense(p, q)
    lower, _ = dense_bounds(a, optimum.v)
    assert optimum.lower_bound <= lower * (1 + 1e-12) <= optimum.upper_bound * (1 + 1e-11)
    other = optimum.v * np.exp(np.random.default_rng(seed).normal(size=len(p)))
    assert dense_bounds(a, other)[0] <= optimum.upper_bound * (1 + 1e-12)


def test_coarse_poles_give_wide_but_true_bounds():
    structure = Bidiagonal(np.ones(64), np.ones(64))
    v = maximised(np.ones(64), np.ones(64), tolerance=1e-9).v
    truth = REFERENCE["P1-prefix-n64"]["optimal_loss"]
    for error in (0.1, 1e-2, 1e-5):
        lower, upper = bounds(structure, v, zolotarev(*structure.interval(v), error=error))
        assert lower <= truth <= upper
        assert upper / lower - 1 < 6 * error


@pytest.mark.parametrize("factor", [1 + 1e-6, 1 - 1e-6])
def test_a_wrong_quadrature_is_caught(factor):
    structure = Bidiagonal(np.ones(64), np.ones(64))
    v = structure.start()
    good = zolotarev(*structure.interval(v), error=1e-9)
    wrong = dataclasses.replace(good, weights=good.weights * factor)
    with pytest.raises(FloatingPointError, match="promised"):
        bounds(structure, v, wrong)


def test_a_callback_can_cancel():
    def cancel(step, gap):
        if step == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        maximised(np.ones(64), np.ones(64), tolerance=1e-9, callback=cancel)


def test_a_tolerance_below_rounding_gets_an_honest_gap():
    optimum = maximised(np.ones(300), np.ones(300), tolerance=0.0)
    assert 0.0 < optimum.relative_gap < 2e-12
    assert optimum.iterations < 60


@pytest.mark.parametrize(
    ("p", "q", "message"),
    [
        ([1.0, 0.0], [0.0, 1.0], "p holds 0.0"),
        ([1.0, 1.0], [0.0, -1.0], "q holds -1.0"),
        ([1.0, np.nan], [0.0, 1.0], "p holds nan"),
        ([1.0, 1e200], [0.0, 1.0], "rescale"),
        ([1.0], [0.0, 1.0], "one length"),
        ([], [], "one length"),
    ],
)
def test_bad_arrays_are_refused(p, q, message):
    with pytest.raises(ValueError, match=message):
        maximised(np.array(p), np.array(q), tolerance=1e-9)


@pytest.mark.parametrize("tolerance", [-1.0, float("nan"), float("inf")])
def test_bad_tolerances_are_refused(tolerance):
    with pytest.raises(ValueError, match="tolerance"):
        maximised(np.ones(3), np.ones(3), tolerance=tolerance)

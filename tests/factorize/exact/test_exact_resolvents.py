"""Lower bounds by resolvents against singular values of the whole matrix, and what they do not answer."""

from __future__ import annotations

import sys
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from specs import spec_of

from factorize.errors import CertificateError
from factorize.exact.arithmetic.intervals import NotEnclosed
from factorize.exact.bounds import resolvent_kernels, resolvent_traces, resolvents

N = 6
RATES = [1.0, 0.5, 0.75, 2.0, 0.25, 1.5]
WEIGHTS = np.array([4.0, 1.0, 0.5, 2.0, 3.0, 0.25])
ROWS = np.array([1.0, 3.0, 0.5, 0.25, 2.0, 1.5])
SINGLE = {"kind": "single"}


def asked(
    workload: str | dict[str, Any], objective: dict[str, Any] | None = None, participation: dict[str, Any] = SINGLE
) -> Any:
    return spec_of(workload, "dense", participation, objective, n=N).canonical()


@pytest.mark.parametrize(
    "objective", [{"kind": "mean"}, {"kind": "weighted", "weights": ROWS.tolist()}, {"kind": "max"}], ids=str
)
@pytest.mark.parametrize(
    "workload",
    [
        {"kind": "prefix"},
        {"kind": "decay", "rate": 0.75},
        {"kind": "schedule", "learning_rates": RATES},
        {"kind": "weight_decay", "rate": 0.25, "mode": "decoupled", "learning_rates": RATES},
    ],
    ids=lambda workload: workload["kind"],
)
def test_bounds_are_just_below_the_nuclear_norm(workload: dict[str, Any], objective: dict[str, Any]) -> None:
    """(sum of the singular values of W A F)^2 over the sum of the weights, and the mean's n or the rows' sum."""
    spec = asked(workload, objective)
    rows = np.ones(N) if objective["kind"] == "mean" else ROWS
    divisor = {"mean": N, "weighted": 1.0, "max": ROWS.sum()}[objective["kind"]]
    whole = np.sqrt(rows)[:, None] * spec.workload.dense() * np.sqrt(WEIGHTS)
    true = np.linalg.svd(whole, compute_uv=False).sum() ** 2 / WEIGHTS.sum() / divisor
    found = resolvents.lower_bound(spec.document(), {"weights": WEIGHTS, "row_weights": ROWS})
    assert found is not None and true * (1 - 1e-10) <= float(found) <= true * (1 - 1e-14)


def test_one_step_by_hand() -> None:
    """K = (4) has the inverse root 1 / 2."""
    assert 0.5 * (1 - 1e-10) <= resolvents._norm(np.array([4.0]), np.zeros(0)) <= 0.5 * (1 - 1e-14)


def test_what_is_lost_is_taken_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors of a quarter of each trace, sums that are twice too large, and (1 + 64) roundings of 2^-10 beside 1 / 4."""
    given, trace = (np.array([4.0]), np.zeros(0)), resolvent_kernels.trace
    exact = resolvents._norm(*given)
    with monkeypatch.context() as patched:
        patched.setattr(resolvent_kernels, "trace", lambda *known: (trace(*known)[0], trace(*known)[0] / 4))
        assert resolvents._norm(*given) == pytest.approx(exact * 3 / 4, rel=1e-10)
    with monkeypatch.context() as patched:
        patched.setattr(resolvents, "_EXCESS", 2.0)
        assert resolvents._norm(*given) == pytest.approx(exact / 2, rel=1e-10)
    monkeypatch.setattr(resolvents, "_UNIT", 2.0**-10)
    monkeypatch.setattr(resolvents, "_NODE_ERROR", 0.25)
    assert resolvents._norm(*given) == pytest.approx(exact * (3 / 4 - 65 / 1024 * (1 + 1e-6)), rel=1e-9)


def test_squares_by_hand() -> None:
    """s_i = k s_{i-1} + e x_i with weights: 1 / (e^2 v w) on the diagonal, k^2 / (e^2 v w) with the row before below."""
    steps = [(Fraction(1), Fraction(2)), (Fraction(3), Fraction(1, 2))]
    rows, columns = [Fraction(4), Fraction(8)], [Fraction(1), Fraction(2)]
    diagonal, below = resolvents._squares(steps, rows, columns)
    assert diagonal.tolist() == [1 / (4 * 1 * 4), 1 / (0.25 * 2 * 8)] and below.tolist() == [9 / (0.25 * 2 * 4)]


def in_doubles(k: list[float], e: list[float], rows: list[float], columns: list[float]) -> Any:
    steps = [(Fraction(a), Fraction(b)) for a, b in zip(k, e, strict=True)]
    return resolvents._squares_in_doubles(steps, [Fraction(w) for w in rows], [Fraction(v) for v in columns])


@pytest.mark.parametrize("zero", [False, True])
def test_squares_in_doubles_are_those_of_rationals(zero: bool) -> None:
    """Of powers of two to the last bit, also where a step forgets what was before; one step may be for all."""
    k, e = [1.0, 0.0 if zero else 0.5, -2.0, 1.0], [0.5, 1.0, 4.0, -2.0]
    rows, columns = [2.0, 0.5, 1.0, 8.0], [1.0, 4.0, 0.25, 2.0]
    found = in_doubles(k, e, rows, columns)
    steps = [(Fraction(a), Fraction(b)) for a, b in zip(k, e, strict=True)]
    fractions = [Fraction(w) for w in rows], [Fraction(v) for v in columns]
    for part, wanted in zip(found, resolvents._squares(steps, *fractions), strict=True):
        assert part.tolist() == wanted.tolist()
    same = [steps[2]] * 4
    once = resolvents._squares_in_doubles(same, *fractions)
    assert once is not None
    for part, wanted in zip(once, resolvents._squares(same, *fractions), strict=True):
        assert part.tolist() == wanted.tolist()
    alone = in_doubles([1.0], [2.0], [4.0], [1.0])
    assert alone[0].tolist() == [1 / 16] and alone[1].tolist() == []


@pytest.mark.parametrize(
    "unsafe",
    [
        {"k": [1, 1, 1e-70], "columns": [1, 1, 1e-50]},  # k^2 alone
        {"k": [1, 1, 1e35], "columns": [1, 1, 1e-60]},  # k^2 / (e^2 v w) alone
        {"k": [1, 1, 1e-50], "columns": [1, 1, 1e-75], "rows": [1, 1e-75, 1]},  # e^2 v w alone
        {"k": [1, 1, 1e-170]},
        {"e": [1, 1e-61, 1], "columns": [1, 1e60, 1]},
        {"e": [1, 1e61, 1], "columns": [1, 1e-60, 1]},
        {"columns": [1, 1e-121, 1], "rows": [1e60, 1e60, 1]},
        {"rows": [1, 1, 1e-121]},
        {"rows": [1, 1, 1e121]},
        {"rows": [1, 1, 1e-70], "columns": [1, 1, 1e-70]},
    ],
    ids=str,
)
def test_squares_that_may_lose_digits_are_left_to_rationals(unsafe: dict[str, list[float]]) -> None:
    given = {name: [1.0] * 3 for name in ("k", "e", "rows", "columns")}
    assert in_doubles(**given) is not None
    assert in_doubles(**given | unsafe) is None


def test_the_ends_of_the_safe_range_are_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolvents, "_SAFE", 2.0**-10)
    for row, column, safe in (
        (2.0**-9, 1.0, True),
        (2.0**-10, 2.0, False),  # and 1 / (v w) is 2^9
        (2.0**9, 1.0, True),
        (2.0**10, 0.5, False),
        (1.5 * 2.0**10, 0.25, False),
    ):
        assert (in_doubles([0.0], [1.0], [row], [column]) is not None) == safe


def test_which_squares_are_made_in_doubles(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many steps as the limit says, and with what these round."""
    steps, ones = [(Fraction(1), Fraction(1))] * 3, [Fraction(1)] * 3
    asked: list[int] = []
    monkeypatch.setattr(resolvents, "_norm", lambda a, b, roundings=1: asked.append(roundings) or 0.5)
    for limit, unsafe, roundings in ((3, False, 12), (2, False, 1), (3, True, 1)):
        monkeypatch.setattr(resolvents, "LARGEST_IN_DOUBLES", limit)
        monkeypatch.setattr(resolvents, "_SAFE", 2.0 if unsafe else 1e-120)
        assert resolvents._norm_of(steps, ones, ones) == 0.5
        assert asked.pop() == roundings


def test_numbers_that_are_too_uneven() -> None:
    for diagonal in ([1e-250, 1.0], [1.0, 1e250], [np.nan, 1.0], [np.inf, 1.0]):
        with pytest.raises(NotEnclosed, match="too uneven"):
            resolvents._norm(np.array(diagonal), np.ones(1))
    for below in (np.inf, np.nan):
        with pytest.raises(NotEnclosed, match="too uneven"):
            resolvents._norm(np.ones(2), np.array([below]))


def test_rationals_that_doubles_round_cost_no_less() -> None:
    """1 + u and u, less a little: the first is rounded down, and so is the sum."""
    little = Fraction(1, 2**53) * (1 - Fraction(1, 2**20))
    numbers = [1 + little, little]
    assert sum(numbers) <= resolvents._above(numbers) <= 1 + Fraction(1, 2**52)


def test_the_cost_of_evidence_is_taken_from_above() -> None:
    weights = [Fraction(1), Fraction(3, 2**55)]
    assert sum(weights) <= resolvents._above(weights) < 1 + Fraction(1, 2**51)


def test_other_problems_have_no_bound_of_this_kind() -> None:
    given, epochs = {"weights": WEIGHTS}, {"kind": "fixed_epochs", "epochs": 2}
    prefix = {"kind": "prefix"}
    assert resolvents.lower_bound(asked(prefix).document(), given) is not None
    for spec, dual in (
        (asked(prefix, participation=epochs), given),
        (asked(prefix), {}),
        (asked(prefix, {"kind": "max"}), given),
        (asked(prefix, {"kind": "lambda_tau", "tau": 2}), given),
        (asked(prefix), {"weights": WEIGHTS * (np.arange(N) > 0)}),
        (asked(prefix, {"kind": "weighted", "weights": [0.0, *ROWS[1:].tolist()]}), given),
        (asked({"kind": "identity"}), given),
        (asked({"kind": "momentum", "momentum": 0.5}), given),
        (asked({"kind": "schedule", "learning_rates": [0.0, *RATES[1:]]}), given),
        (asked({"kind": "mu2", "output": "x"}), given),
    ):
        assert resolvents.lower_bound(spec.document(), dual) is None


def test_evidence_that_is_none() -> None:
    for wrong in (WEIGHTS[1:], -WEIGHTS, np.full(N, np.nan), np.full(N, np.inf)):
        with pytest.raises(CertificateError, match="6 finite non-negative numbers"):
            resolvents.lower_bound(asked({"kind": "prefix"}).document(), {"weights": wrong})
    for far in (1e-260, 1e260):
        with pytest.raises(NotEnclosed, match="too uneven"):
            resolvents.lower_bound(asked({"kind": "prefix"}).document(), {"weights": np.array([far, *WEIGHTS[1:]])})


def test_shifts_together_give_the_bits_of_one_after_the_other() -> None:
    """Compiled code and numpy carry out the same operations; a trace by hand: (4 + 5)^-1, and by inversion."""
    numbers = np.random.default_rng(5).random(2 * N)
    a, b = numbers[:N] + 0.5, numbers[N + 1 :]
    shifts = np.exp(np.arange(-30.0, 30.0))
    values, errors = resolvent_traces.traces_together(a, b, shifts)
    alone = np.array([resolvent_kernels.trace(a, b, shift) for shift in shifts])
    assert np.array_equal(alone, np.stack([values, errors], axis=1))
    lower = np.diag(np.sqrt(a)) + np.diag(np.sqrt(b), -1)
    true = [np.trace(np.linalg.inv(lower.T @ lower + shift * np.eye(N))) for shift in shifts]
    assert np.allclose(values, true, rtol=1e-9, atol=0)
    assert resolvent_traces.traces_together(np.array([4.0]), np.zeros(0), np.array([5.0]))[0] == 1 / 9


def test_without_compiled_code_the_bound_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = np.array([4.0, 9.0, 2.0]), np.array([1.0, 0.5])
    compiled = resolvents._norm(a, b)
    monkeypatch.delitem(sys.modules, "numba")
    monkeypatch.setattr(resolvent_kernels, "trace", None)  # whoever calls it fails
    assert resolvents._norm(a, b) == compiled

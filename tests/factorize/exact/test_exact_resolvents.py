"""Lower bounds by resolvents against singular values of the whole matrix, and what they do not answer."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
from specs import spec_of

from factorize.errors import CertificateError
from factorize.exact.arithmetic.intervals import NotEnclosed
from factorize.exact.bounds import resolvent_kernels, resolvents

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


def test_numbers_that_are_too_uneven() -> None:
    for diagonal in ([1e-250, 1.0], [1.0, 1e250], [np.nan, 1.0], [np.inf, 1.0]):
        with pytest.raises(NotEnclosed, match="too uneven"):
            resolvents._norm(np.array(diagonal), np.ones(1))
    for below in (np.inf, np.nan):
        with pytest.raises(NotEnclosed, match="too uneven"):
            resolvents._norm(np.ones(2), np.array([below]))


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


def test_without_compiled_code_the_bound_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = np.array([4.0, 9.0, 2.0]), np.array([1.0, 0.5])
    compiled = resolvents._norm(a, b)
    monkeypatch.delitem(sys.modules, "numba")
    monkeypatch.setattr(resolvent_kernels, "trace", None)  # whoever calls it fails
    assert resolvents._norm(a, b) == compiled

"""Lower bounds of recursions of one state against singular values of the whole matrix, whatever weights vanish."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from specs import spec_of

from factorize.checker.bounds import determinants
from factorize.errors import CertificateError

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
    found = determinants.lower_bound(spec.document(), {"weights": WEIGHTS, "row_weights": ROWS})
    assert found is not None and true * (1 - 1e-10) <= float(found) <= true * (1 - 1e-14)


@pytest.mark.parametrize("tau", [1, 3])
@pytest.mark.parametrize(
    ("rates", "columns", "rows"),
    [
        (RATES, WEIGHTS, None),
        ([0.0, *RATES[1:]], WEIGHTS, None),
        ([*RATES[:2], 0.0, 0.0, *RATES[4:]], WEIGHTS, None),
        ([*RATES[:-1], 0.0], WEIGHTS * (np.arange(N) != 2), None),
        (RATES, WEIGHTS, ROWS * (np.arange(N) % 3 > 0)),
        ([1.0, 0.0, 0.0, 1.0, 0.0, 1.0], WEIGHTS * (np.arange(N) > 0), ROWS * (np.arange(N) < 3)),
        (RATES, WEIGHTS * 1e-260, ROWS * 1e250),
        (RATES, np.array([1e-200, *WEIGHTS[1:]]), None),
    ],
)
def test_rates_and_weights_may_vanish(
    rates: list[float], columns: np.ndarray, rows: np.ndarray | None, tau: int
) -> None:
    """With rows of weight 0, with columns that are all 0, and over restarts."""
    objective: dict[str, Any] = {"kind": "lambda_tau", "tau": tau} if rows is None else {"kind": "max"}
    spec = asked({"kind": "schedule", "learning_rates": rates}, objective)
    dual = {"weights": columns} | ({} if rows is None else {"row_weights": rows})
    dense = spec.workload.dense()
    weighed = spec.objective.weigh(dense) if rows is None else np.sqrt(rows / rows.sum())[:, None] * dense
    singular = np.linalg.svd(weighed * np.sqrt(columns / columns.sum()), compute_uv=False)
    true = singular.sum() ** 2
    found = determinants.lower_bound(spec.document(), dual)
    assert found is not None and true * (1 - 1e-10) <= float(found) <= true * (1 - 1e-14)


def test_other_problems_have_no_bound_of_this_kind() -> None:
    given, epochs = {"weights": WEIGHTS}, {"kind": "fixed_epochs", "epochs": 2}
    prefix = {"kind": "prefix"}
    assert determinants.lower_bound(asked(prefix).document(), given) is not None
    for spec, dual in (
        (asked(prefix, participation=epochs), given),
        (asked(prefix), {}),
        (asked(prefix, {"kind": "max"}), given),
    ):
        assert determinants.lower_bound(spec.document(), dual) is None


def test_evidence_that_is_none() -> None:
    for wrong in (WEIGHTS[1:], -WEIGHTS, np.full(N, np.nan), np.full(N, np.inf), np.zeros(N)):
        with pytest.raises(CertificateError, match="6 finite non-negative numbers"):
            determinants.lower_bound(asked({"kind": "prefix"}).document(), {"weights": wrong})

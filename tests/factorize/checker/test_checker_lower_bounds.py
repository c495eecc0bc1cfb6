"""Lower bounds over all matrices by each of their roads: just below what singular values give, for evidence of any kind."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from cases import objectives_of, recursions_of
from hypothesis import given, settings
from hypothesis import strategies as st
from specs import solved, spec_of

from factorize.checker.arithmetic.near import NotEnclosed
from factorize.checker.bounds import block_resolvents, determinants, nuclear_norms
from factorize.checker.bounds.evidence import row_weights
from factorize.checker.losses.products import WorkloadRows
from factorize.checker.spec.objectives import weighing_of
from factorize.checker.utility import bound_by_whole, lower_bound
from factorize.errors import CertificateError
from factorize.spec import Spec

Dual = Mapping[str, np.ndarray]


def by_vectors(spec: dict[str, Any], dual: Dual) -> Fraction:
    return bound_by_whole(spec, dual, WorkloadRows(spec["workload"], {}), None)


def asked(workload: Any, participation: Any = "single", objective: Any = None, **more: Any) -> Spec:
    return spec_of(workload, "dense", participation, objective, **more).canonical()


def disjoint(spec: Spec) -> list[tuple[int, ...]]:
    """Patterns that cover all steps, as the factors of the evidence are counted."""
    n, (separation, most, _) = spec.workload.n, spec.participation.spread(spec.workload.n)
    return [
        tuple(steps[start : start + most])
        for steps in (range(j, n, separation) for j in range(separation))
        for start in range(0, len(steps), most)
    ]


def true_bound(spec: Spec, dual: Dual) -> float:
    """(nuclear norm of W A F)^2 over the cost of F, in the objective's units."""
    rows, n = spec.workload.dense(), spec.workload.n
    if spec.objective.kind == "max":
        target = np.sqrt(dual["row_weights"] / dual["row_weights"].sum())[:, None] * rows
    else:
        target = spec.objective.weigh(rows)
    if "weights" in dual:
        weights = dual["weights"] / dual["weights"].sum()
        singular = np.linalg.svd(target * np.sqrt(weights), compute_uv=False)
        return float(spec.objective.scale(n) * singular.sum() ** 2)
    columns, cost = [], 0.0
    for steps, block in zip(disjoint(spec), dual["factors"], strict=True):
        own = block[: len(steps), : len(steps)]
        columns.append(target[:, steps] @ own)
        cost += float((own**2).sum(axis=1).max())
    singular = np.linalg.svd(np.concatenate(columns, axis=1), compute_uv=False)
    return float(spec.objective.scale(n) * singular.sum() ** 2 / cost)


@pytest.mark.parametrize("objective", objectives_of(1))
@pytest.mark.parametrize("name", recursions_of(5))
def test_one_participation(name: str, objective: str) -> None:
    for n, spread, seed in ((5, 2, 1), (60, 1, 2), (60, 4, 3)):
        spec, rng = asked(recursions_of(n)[name], "single", objectives_of(n)[objective]), np.random.default_rng(seed)
        dual = {"weights": 10.0 ** rng.uniform(-spread, spread, n), "row_weights": rng.random(n)}
        true = true_bound(spec, dual)
        found = determinants.lower_bound(spec.document(), dual)
        assert (found is None) == (name == "window")
        for bound in (by_vectors(spec.document(), dual), *([] if found is None else [found])):
            assert true * (1 - 1e-10) <= float(bound) <= true * (1 + 1e-13)


N = 6
RATES = [1.0, 0.5, 0.75, 2.0, 0.25, 1.5]
WEIGHTS, ROWS = np.array([4.0, 1.0, 0.5, 2.0, 3.0, 0.25]), np.array([1.0, 3.0, 0.5, 0.25, 2.0, 1.5])


@pytest.mark.parametrize("tau", [1, 3])
@pytest.mark.parametrize(
    ("rates", "columns", "rows"),
    [
        ([0.0, *RATES[1:]], WEIGHTS, None),
        ([*RATES[:2], 0.0, 0.0, *RATES[4:]], WEIGHTS, None),
        ([*RATES[:-1], 0.0], WEIGHTS * (np.arange(N) != 2), None),
        (RATES, WEIGHTS, ROWS * (np.arange(N) % 3 > 0)),
        ([1.0, 0.0, 0.0, 1.0, 0.0, 1.0], WEIGHTS * (np.arange(N) > 0), ROWS * (np.arange(N) < 3)),
        (RATES, WEIGHTS * 1e-260, ROWS * 1e250),
        (RATES, np.array([1e-200, *WEIGHTS[1:]]), None),
    ],
)
def test_rates_and_weights_may_vanish(rates: list[float], columns: np.ndarray, rows: Any, tau: int) -> None:
    """With rows of weight 0, with columns that are all 0, and over restarts."""
    objective = {"kind": "lambda_tau", "tau": tau} if rows is None else {"kind": "max"}
    spec = asked({"kind": "schedule", "n": N, "learning_rates": rates}, "single", objective)
    dual = {"weights": columns} | ({} if rows is None else {"row_weights": rows})
    found, true = determinants.lower_bound(spec.document(), dual), true_bound(spec, dual)
    assert found is not None and true * (1 - 1e-10) <= float(found) <= true * (1 - 1e-14)


CHAINS: list[dict[str, Any]] = [
    {"kind": "prefix"},
    {"kind": "decay", "rate": 0.99},
    {"kind": "weight_decay", "rate": 0.01, "mode": "decoupled"},
    {"kind": "schedule", "learning_rates": {"kind": "cosine", "final": 1e-3}},
]


def random_factors(spec: Spec, seed: int) -> Dual:
    patterns, rng = disjoint(spec), np.random.default_rng(seed)
    k = max(map(len, patterns))
    return {"factors": np.exp(rng.standard_normal((len(patterns), 1, 1))) * rng.standard_normal((len(patterns), k, k))}


@pytest.mark.parametrize(
    ("n", "participation"),
    [
        *((k * b, k) for k, b in ((2, 2), (2, 3), (3, 1), (4, 16), (4, 17), (8, 8), (16, 5), (5, 60))),
        (11, {"kind": "min_sep", "min_sep": 4}),
        (11, {"kind": "min_sep", "min_sep": 3, "max_participations": 2}),
    ],
)
@pytest.mark.parametrize("workload", CHAINS, ids=lambda workload: workload["kind"])
def test_several_participations(workload: dict[str, Any], n: int, participation: Any) -> None:
    """Patterns of min_sep are of unequal length: steps before the first fill the epochs."""
    for objective in ({"kind": "mean"}, {"kind": "weighted", "weights": [*range(1, n + 1)]}):
        spec = asked(workload, participation, objective, n=n)
        dual = random_factors(spec, n)
        true = true_bound(spec, dual)
        for road in (block_resolvents.lower_bound, by_vectors):
            bound = road(spec.document(), dual)
            assert bound is not None and true * (1 - 3e-9) <= float(bound) <= true * (1 + 1e-13)


@settings(max_examples=25)
@given(
    st.integers(2, 6), st.integers(1, 9), st.lists(st.floats(-6.0, 6.0), min_size=54, max_size=54), st.integers(0, 9)
)
def test_random_schedules(epochs: int, classes: int, logs: list[float], seed: int) -> None:
    rates = np.exp(logs[: epochs * classes]).tolist()
    spec = asked({"kind": "schedule", "n": epochs * classes, "learning_rates": rates}, epochs)
    dual = random_factors(spec, seed)
    true, found = true_bound(spec, dual), block_resolvents.lower_bound(spec.document(), dual)
    assert found is not None and true * (1 - 1e-6) <= float(found) <= true * (1 + 1e-12)


def test_singular_and_empty_blocks() -> None:
    spec = asked(18, 3)
    factors = random_factors(spec, 1)["factors"]
    factors[2] = 0.0
    factors[4, :, 1:] = 0.0
    for road in (block_resolvents.lower_bound, by_vectors):
        bound = road(spec.document(), {"factors": factors})
        assert bound is not None and 0 <= float(bound) <= true_bound(spec, {"factors": factors}) * (1 + 1e-13)


@pytest.mark.parametrize(
    ("workload", "participation", "objective"),
    [
        ({"kind": "prefix"}, "single", {"kind": "mean"}),
        ({"kind": "window", "width": 5}, "single", {"kind": "mean"}),
        ({"kind": "prefix"}, "single", {"kind": "lambda_tau", "tau": 4}),
        ({"kind": "prefix"}, "single", {"kind": "weighted", "weights": [1.0, 2.0, 0.5] * 4}),
        ({"kind": "prefix"}, 3, {"kind": "mean"}),
        ({"kind": "schedule", "learning_rates": [1.0, 0.3, 0.7] * 4}, 2, {"kind": "mean"}),
    ],
)
def test_the_evidence_of_solvers_with_help_from_their_strategy(
    workload: dict[str, Any], participation: Any, objective: dict[str, Any]
) -> None:
    result = solved(workload, "dense", participation, objective, n=12)
    spec, inverse = result.spec.document(), np.linalg.inv(result.strategy.dense())
    true = true_bound(result.spec, result.dual)
    for guess in (None, lambda: inverse):
        bound = bound_by_whole(spec, result.dual, WorkloadRows(spec["workload"], {}), guess)
        assert true * (1 - 1e-8) <= float(bound) <= true * (1 + 1e-12)


@pytest.mark.parametrize(
    ("objective", "dual", "workload", "true"),
    [
        ({"kind": "mean"}, {}, np.eye(2), 2**2 / 2 / 2),
        ({"kind": "mean"}, {"weights": np.array([4.0, 1.0])}, np.eye(2), 3**2 / 5 / 2),
        ({"kind": "weighted", "weights": [4.0, 1.0]}, {}, np.eye(2), 3**2 / 2),
        ({"kind": "max"}, {"row_weights": np.array([4.0, 1.0])}, np.eye(2), 3**2 / 2 / 5),
        ({"kind": "lambda_tau", "tau": 2}, {}, np.eye(2), (0.5**0.5 + 1) ** 2 / 2),
        ({"kind": "lambda_tau", "tau": 1}, {}, np.eye(2), 5 / 2),  # W = 1 0; -1 1, of nuclear norm sqrt(3 + 2)
        ({"kind": "mean"}, {}, np.diag([3.0, 4.0]), 49 / 4),
        ({"kind": "mean"}, {}, np.array([[3.0, 4.0]]), 25 / 2),
        ({"kind": "mean"}, {}, np.array([[1.0, 0], [1, 0], [0, 1]]), (2**0.5 + 1) ** 2 / 2 / 3),
    ],
)
def test_answers_by_hand(objective: Any, dual: Dual, workload: np.ndarray, true: float) -> None:
    named = {"kind": "matrix", "sha256": "mine", "shape": list(workload.shape)}
    spec = {"workload": named, "objective": objective, "participation": {"kind": "single"}}
    found = lower_bound(spec, {"weights": np.ones(2), **dual}, {"mine": workload})
    assert true * (1 - 1e-11) <= found.objective <= true


def test_one_pattern_by_hand() -> None:
    """Of two steps: F = 2 I costs 4 (diagonal of F F^T), and W A F = 2 I has the nuclear norm 4."""
    spec = asked({"kind": "identity", "n": 2}, 2).document()
    assert lower_bound(spec, {"factors": 2 * np.eye(2)[None]}, {}).objective == pytest.approx(4**2 / 4 / 2, rel=1e-11)


@pytest.mark.parametrize("power", [-1000, -532, 900])
def test_evidence_of_any_size_proves_the_same(power: int) -> None:
    """Of squares below the normal range few digits are left: the cost was too small, and the bound too large."""
    for participation, dual in (
        ("single", {"weights": np.arange(1.0, 7.0)}),
        (2, {"factors": np.array([[[1.0, 0.1], [0.1, 1.0]]] * 3)}),
    ):
        spec = asked(6, participation).document()
        scaled = {name: np.ldexp(array, power) for name, array in dual.items()}
        assert lower_bound(spec, scaled, {}) == lower_bound(spec, dual, {})


def test_the_cost_of_evidence_is_taken_from_above() -> None:
    """A sum that a double rounds down: 1 and a third of its last place."""
    weights = np.array([1.0, 2.0**-53 * 0.75])
    _, upper = row_weights(weighing_of({"kind": "max"}, 2), {"row_weights": weights}) or (None, Fraction(0))
    assert float(np.sum(weights)) < sum(map(Fraction, weights)) <= upper < 1 + Fraction(1, 2**51)


BOTH = {"weights": np.ones(4), "row_weights": np.ones(4)}
NO_WEIGHTS = (
    np.ones(3), np.zeros(4), np.array([1.0, -1e-300, 1.0, 1.0]), np.array([1.0, np.nan, 1.0, 1.0]), np.full(4, np.inf),
    np.ones((4, 1)),
)  # fmt: skip
NO_FACTORS = (
    np.ones((1, 4, 4)),
    np.ones((4, 2, 2)),
    np.ones((4, 1, 1)),
    np.full((2, 2, 2), np.nan),
    np.zeros((2, 2, 2)),
)


@pytest.mark.parametrize(
    ("participation", "objective", "dual", "words"),
    [
        *(("single", "max", BOTH | {name: wrong}, f"dual.{name} must be 4 finite non-negative numbers, not all zero")
          for name in BOTH for wrong in NO_WEIGHTS),
        *((2, "mean", {"factors": wrong}, r"factors must be finite, not all zero, of shape \(2, 2, 2\)")
          for wrong in NO_FACTORS),
    ],
)  # fmt: skip
def test_evidence_that_is_none(participation: Any, objective: str, dual: Dual, words: str) -> None:
    spec = asked(4, participation, objective).document()
    for road in (lambda: lower_bound(spec, dual, {}), lambda: by_vectors(spec, dual)):
        with pytest.raises(CertificateError, match=words):
            road()


@pytest.mark.parametrize(
    ("participation", "objective", "dual"),
    [
        ("single", "mean", {}),
        ("single", "max", {"weights": np.ones(4)}),
        (2, "max", BOTH),
        (2, "mean", {"weights": np.ones(4)}),
        (2, "mean", {"other": np.ones(3)}),
    ],
)
def test_evidence_of_another_kind_proves_nothing(participation: Any, objective: str, dual: Dual) -> None:
    spec = asked(4, participation, objective).document()
    assert determinants.lower_bound(spec, dual) is None
    with pytest.raises(NotEnclosed, match="evidence of this kind is not evaluated"):
        lower_bound(spec, dual, {})


def test_what_is_out_of_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    momentum = asked({"kind": "momentum", "n": 4, "momentum": 0.9}).document()
    monkeypatch.setattr(determinants, "MAX_N_OF_STATES", 4)
    assert determinants.lower_bound(momentum, BOTH) is not None
    monkeypatch.setattr(determinants, "MAX_N_OF_STATES", 3)
    with pytest.raises(NotEnclosed, match="up to n=3"):
        determinants.lower_bound(momentum, BOTH)
    monkeypatch.setattr(nuclear_norms, "MAX_N_OF_VECTORS", 3)
    with pytest.raises(NotEnclosed, match="up to n=3"):
        by_vectors(momentum, BOTH)
    uneven = asked({"kind": "decay", "n": 300, "rate": 0.9}, 5)
    with pytest.raises(NotEnclosed, match="too uneven"):
        block_resolvents.lower_bound(uneven.document(), random_factors(uneven, 0))
    with pytest.raises(NotEnclosed, match="too uneven"):  # cut in two
        block_resolvents.nuclear_norm_below(np.ones(4), np.array([0.0, 1.0, 0.0, 1.0]), np.ones((2, 2, 2)))
    for workload in ({"kind": "prefix", "n": 12}, {"kind": "decay", "n": 12, "rate": 0.9}):
        restarted = asked(workload, 3, {"kind": "lambda_tau", "tau": 4})
        assert block_resolvents.lower_bound(restarted.document(), random_factors(restarted, 0)) is None
    assert 512**3 > block_resolvents.MAX_WORK
    with pytest.raises(NotEnclosed, match="512 epochs"):
        block_resolvents.lower_bound(asked(512, 512).document(), {"factors": np.ones((1, 512, 512))})

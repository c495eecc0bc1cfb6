"""Losses of long trees, decays, inverses of few diagonals and columns with factors: covariances against whole matrices."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import redrawn_cases
from exact_files import parts, sealed
from specs import solved, spec_of

from factorize.errors import CertificateError
from factorize.exact import check_factor_file
from factorize.exact.arithmetic.intervals import NotEnclosed
from factorize.exact.losses import residual, variances
from factorize.exact.spec import program_of, weighing_of, workload_numbers
from factorize.exact.spec.programs import X
from factorize.exact.strategy import Strategy
from factorize.exact.structures.base import Buffers

N = 24
RATES = [1.0, 0.5, 0.75, 0.0, 0.25]
WEIGHTS = {"kind": "weighted", "weights": [float(i % 3) for i in range(N)]}
STRATEGIES: dict[str, tuple[str, dict[str, np.ndarray]]] = {
    "decays": ("blt", {"theta": np.array([0.9, 0.0, -0.5]), "omega": np.array([0.25, 0.5, 0.125])}),
    "few diagonals of the inverse": (
        "inverse_banded_toeplitz",
        {"inverse_coefficients": np.array([1.0, -0.5, 0.0, -0.125])},
    ),
    "identity": ("inverse_banded_toeplitz", {"inverse_coefficients": np.array([1.0])}),
    "few diagonals": ("banded_toeplitz", {"coefficients": np.array([1.0, 0.5, 0.0, -0.25])}),
    "bands": ("banded", {"bands": np.array([[1.5] * N, [0.25] * (N - 1) + [0.0]])}),
    "buffers": (
        "buffered",
        {
            "diagonal": 1 + np.arange(N) / N,
            "decay": np.full((N, 2), 0.75),
            "input": np.full((N, 2), 0.5),
            "output": np.linspace(0, 1, 2 * N).reshape(N, 2),
        },
    ),
}


def tree_of(restart: int) -> tuple[str, dict[str, np.ndarray]]:
    levels = (restart - 1).bit_length()
    nodes = np.random.default_rng(restart).standard_normal((levels + 1, N))
    nodes[0] = 1 + np.arange(N) / N
    nodes[1:][(np.arange(N) % restart >> np.arange(levels)[:, None]) & 1 == 0] = 0.0
    return "tree", {"tree.nodes": nodes, "tree.restart": np.array([float(restart)])}


def compared(
    structure: str, tensors: dict[str, np.ndarray], workload: dict[str, Any], objective: dict[str, Any]
) -> None:
    """Both enclosures hold the true losses, so they overlap; and both are narrow."""
    spec = spec_of(workload, "identity", objective=objective).document()
    strategy, numbers = Strategy(structure, dict(tensors), N), workload_numbers(spec["workload"], {})
    assert numbers is not None
    whole = residual.losses(strategy, numbers, spec["objective"], None)
    long = variances.losses(strategy, spec["workload"], spec["objective"])
    assert long is not None
    for name in ("total", "largest", "last", "objective"):
        (low, high), (a, b) = getattr(whole, name), getattr(long, name)
        assert max(low, a) <= min(high, b), name
        assert high - low <= 1e-9 * high and b - a <= 1e-9 * b, name


@pytest.mark.parametrize(
    "objective", [{"kind": "mean"}, {"kind": "lambda_tau", "tau": 5}, WEIGHTS], ids=lambda o: o["kind"]
)
@pytest.mark.parametrize(
    ("name", "factors"),
    [*((name, factors) for name in STRATEGIES for factors in (False, True)), ("tree", False), ("trees", False)],
)
def test_recursions_and_whole_matrices_enclose_the_same(name: str, factors: bool, objective: dict[str, Any]) -> None:
    structure, tensors = STRATEGIES.get(name) or tree_of(24 if name == "tree" else 7)
    if factors:
        structure, tensors = "scaled", tensors | {"column_scale": 0.5 + np.arange(N) / 7}
    rates = {"kind": "schedule", "n": N, "learning_rates": {"kind": "cosine"}}
    for workload in (rates, {"kind": "identity", "n": N}, {"kind": "mu2", "n": N, "output": "x"}):
        compared(structure, tensors, workload, objective)


LONG: list[dict[str, Any]] = [
    {"mechanism": {"kind": "tree", "decoder": "honaker_full"}},
    {"mechanism": {"kind": "tree", "decoder": "online", "restart_every": 9}, "objective": {"kind": "max"}},
    {"mechanism": {"kind": "blt", "buffers": 2}, "tolerance": 1e-2},
    {"mechanism": {"kind": "banded_square_root", "bands": 4, "normalization": "columns"}},
]


@pytest.mark.parametrize("document", LONG, ids=lambda d: d["mechanism"]["kind"])
def test_files_whose_losses_are_followed(document: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    workload = {"kind": "prefix", "n": N}
    if document["mechanism"]["kind"] == "blt":
        document = {**document, "objective": {"kind": "lambda_tau", "tau": 7}}
    result = solved(workload, **document)
    monkeypatch.setattr("factorize.exact.losses.residual.LARGEST", 8)
    for name in (None, *result.manifest["certificate"]["loss"]):
        for factor in (1 - 1e-8, 1 + 1e-8):
            manifest, tensors = parts(result)
            if name:
                manifest["certificate"]["loss"][name] *= factor
            report = check_factor_file(sealed(manifest, tensors))
            assert any("every loss enclosed" in text for text in report.checked)
            assert any(f"loss.{name}" in text for text in report.failed) == bool(name), report.failed


def test_what_has_no_recursion() -> None:
    prefix, mean = {"kind": "prefix", "n": 3}, {"kind": "mean"}
    assert variances.losses(Strategy("dense", {"": np.tri(3) + np.diag([1.0, 2.0, 3.0])}, 3), prefix, mean) is None


@pytest.mark.parametrize(
    "document",
    [
        {"kind": "identity"},
        {"kind": "prefix"},
        {"kind": "decay", "rate": 0.75},
        {"kind": "momentum", "momentum": 0.5},
        {"kind": "momentum", "momentum": 0.5, "nesterov": True, "learning_rates": RATES},
        {"kind": "schedule", "learning_rates": RATES},
        {"kind": "srg", "momentum": 0.5, "decay": 0.75},
        *({"kind": "mu2", "output": output} for output in ("q", "w", "x")),
        *(
            {"kind": "weight_decay", "rate": 0.25, "mode": mode, "momentum": 0.5} | rates
            for mode in ("coupled", "decoupled")
            for rates in ({}, {"learning_rates": RATES})
        ),
    ],
    ids=str,
)
def test_statements_make_the_workload(document: dict[str, Any]) -> None:
    """Column by column: the statements, run for the input 1 at one step, give the column of A."""
    n = len(RATES)
    spec = spec_of(document | {"n": n}, "identity").canonical()
    found = program_of(spec.document()["workload"])
    assert found is not None
    program, output = found
    for j in range(n):
        states = dict.fromkeys(range(len(program)), Fraction(0))
        for i in range(n):
            states[X] = Fraction(int(i == j))
            for target, terms in program:
                factors = {s: f[i] if isinstance(f, list) else f for s, f in terms.items()}
                states[target] = sum((factor * states[s] for s, factor in factors.items()), Fraction(0))
            assert float(states[output]) == pytest.approx(spec.workload.dense()[i, j], rel=1e-14, abs=0)


def test_rates_that_are_not_one_for_each_step() -> None:
    with pytest.raises(CertificateError, match="states 2 learning rates for n=3"):
        program_of({"kind": "schedule", "n": 3, "learning_rates": [1.0, 0.5]})


@pytest.mark.parametrize(
    ("objective", "chosen", "roundings"),
    [
        ({"kind": "mean"}, (1.5, 3), 3),
        ({"kind": "max"}, (2, 4), 1),
        ({"kind": "weighted", "weights": [1.0, 2.0]}, (5, 10), 2),
    ],
    ids=lambda value: str(value)[:20],
)
def test_every_sum_is_moved_outwards(objective: dict[str, Any], chosen: tuple[float, float], roundings: int) -> None:
    """Variances from 1 to 2 and from 2 to 4: their ends move by 2^-44 for themselves, and for each sum and quotient."""
    ends = variances.weighed(np.array([[1.0, 2.0], [2.0, 4.0]]), weighing_of(objective, 2))
    for (low, high), (least, most), times in (
        (ends.total, (3, 6), 2),
        (ends.largest, (2, 4), 1),
        (ends.last, (2, 4), 1),
        (ends.objective, chosen, roundings),
    ):
        assert low == pytest.approx(least * (1 - times * 2.0**-44), rel=2.0**-50, abs=0)
        assert high == pytest.approx(most * (1 + times * 2.0**-44), rel=2.0**-50, abs=0)


def test_states_are_balanced_only_where_nothing_is_lost() -> None:
    def balanced(inputs: list[float], outputs: list[float]) -> list[list[float]]:
        given = Buffers(np.ones(1), np.ones((1, 1, 1, 1)), np.array([[inputs]]), np.array([[outputs]]))
        found = given.balanced()
        return [part.ravel().tolist() for part in (found.inputs, found.outputs)]

    assert balanced([2.0**40, 2.0**30], [2.0**-40, 0.0]) == [[1.0, 2.0**-10], [1.0, 0.0]]
    for mixed, small in (([1.0, 3 * 2.0**-1074], [2.0**-600, 0.0]), ([2.0**-600, 0.0], [1.0, 3 * 2.0**-1074])):
        assert balanced(mixed, small) == [mixed, small]


def test_bands_of_a_toeplitz_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    strategy = Strategy("toeplitz", {"coefficients": np.array([1.0, 0.5, 0.25, 0.0])}, 4)
    monkeypatch.setattr(variances, "LARGEST_WORK", 4 * 3**2)
    found = strategy.reading.diagonals(variances.LARGEST_WORK)
    assert found is not None and found.tolist() == [[1, 1, 1, 1], [0.5, 0.5, 0.5, 0], [0.25, 0.25, 0, 0]]
    monkeypatch.setattr(variances, "LARGEST_WORK", 4 * 3**2 - 1)
    assert strategy.reading.diagonals(variances.LARGEST_WORK) is None


def test_work_that_would_take_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """One state: n (2 bands + 1) (2 bands + 2), and n^2 (3 buffers + 1) with redraws."""
    bands = Strategy("banded", {"bands": np.array([[1.0, 1, 1, 1], [0.5, 0.5, 0.5, 0]])}, 4)
    drawn = Strategy("redrawn", redrawn_cases.likely(5).tensors(), 5)
    for strategy, work in ((bands, 4 * 3 * 4), (drawn, 5**2 * 4)):
        asked = strategy, {"kind": "prefix", "n": strategy.n}, {"kind": "mean"}
        monkeypatch.setattr(variances, "LARGEST_WORK", work)
        assert variances.losses(*asked) is not None
        monkeypatch.setattr(variances, "LARGEST_WORK", work - 1)
        assert variances.losses(*asked) is None


def test_inverses_that_grow_too_much() -> None:
    bands = np.array([np.ones(60), [2.0**40] * 59 + [0.0]])
    with pytest.raises(NotEnclosed, match="grows too much"):
        variances.losses(Strategy("banded", {"bands": bands}, 60), {"kind": "prefix", "n": 60}, {"kind": "mean"})

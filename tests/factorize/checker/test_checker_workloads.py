"""Workloads by their definitions, followed step by step in fractions: those of specs, and those of the exact checker."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from checker_files import exact_rows
from flint import arb, ctx
from specs import spec_of

from factorize.checker.arithmetic.balls import ends
from factorize.checker.spec import workloads
from factorize.checker.spec.objectives import weighing_of
from factorize.checker.spec.workloads import balls_of, program_of, toeplitz_column
from factorize.errors import CertificateError

N = 5
ONE = Fraction(1)
RATES = [1.0, 0.5, 0.75, 0.25, 2.0]
ETA = [Fraction(rate) for rate in RATES]
MU, RATE = Fraction(3, 4), Fraction(1, 8)
Vector = list[Fraction]


def sums(values: Vector) -> Vector:
    return [sum(values[: i + 1], Fraction(0)) for i in range(len(values))]


def averages(g: Vector, factor: Fraction) -> Vector:
    """m_i = factor m_{i-1} + g_i."""
    found, m = [], Fraction(0)
    for each in g:
        m = factor * m + each
        found.append(m)
    return found


def stepped(g: Vector, eta: list[Fraction], mu: Fraction, *, nesterov: bool = False) -> Vector:
    m = averages(g, mu)
    moves = [x + mu * y for x, y in zip(g, m, strict=True)] if nesterov else m
    return sums([e * move for e, move in zip(eta, moves, strict=True)])


def decayed(g: Vector, eta: list[Fraction], mu: Fraction, *, coupled: bool) -> Vector:
    """Coupled, the gradient loses rate times the iterate; decoupled, the iterate shrinks by eta times rate itself."""
    found, s, m = [], Fraction(0), Fraction(0)
    for each, e in zip(g, eta, strict=True):
        m = mu * m + each - (RATE * s if coupled else 0)
        s = s + e * m if coupled else (1 - e * RATE) * s + e * m
        found.append(s)
    return found


def corrections() -> Vector:
    """w_i: one over 1 + beta + ... + beta^i, in doubles."""
    return [Fraction(1.0 / sum(0.5**k for k in range(i + 1))) for i in range(N)]


def weighted(g: Vector) -> Vector:
    return [w * m for w, m in zip(corrections(), averages(g, Fraction(1, 2)), strict=True)]


def anchored(g: Vector) -> Vector:
    """2 (j + 2) w_j / ((i + 2) (i + 3)) over j <= i, where w sums the sums of g."""
    w = sums(sums(g))
    return [sum((2 * (j + 2) * w[j] for j in range(i + 1)), Fraction(0)) / ((i + 2) * (i + 3)) for i in range(len(g))]


def recursive(g: Vector) -> Vector:
    """Sums of m_i = 3/4 m_{i-1} + e_i of the estimates e_i = e_{i-1} / 8 + g_i."""
    return sums(averages(averages(g, RATE), MU))


FLAT = [ONE] * N
NESTEROV = {"momentum": 0.75, "nesterov": True}
DEFINITIONS: list[tuple[dict[str, Any], Callable[[Vector], Vector]]] = [
    ({"kind": "identity"}, lambda g: g),
    ({"kind": "prefix"}, sums),
    ({"kind": "decay", "rate": 0.125}, lambda g: averages(g, RATE)),
    ({"kind": "momentum", "momentum": 0.75}, lambda g: stepped(g, FLAT, MU)),
    ({"kind": "momentum", "momentum": 0.75, "nesterov": False}, lambda g: stepped(g, FLAT, MU)),
    ({"kind": "momentum", **NESTEROV}, lambda g: stepped(g, FLAT, MU, nesterov=True)),
    ({"kind": "momentum", **NESTEROV, "learning_rates": RATES}, lambda g: stepped(g, ETA, MU, nesterov=True)),
    ({"kind": "schedule", "learning_rates": RATES}, lambda g: stepped(g, ETA, Fraction(0))),
    *(
        (
            {"kind": "weight_decay", "rate": 0.125, "mode": mode, "momentum": 0.75} | more,
            lambda g, eta=eta, mode=mode: decayed(g, eta, MU, coupled=mode == "coupled"),
        )
        for mode in ("coupled", "decoupled")
        for eta, more in ((FLAT, {}), (ETA, {"learning_rates": RATES}))
    ),
    ({"kind": "adam", "beta": 0.5}, weighted),
    ({"kind": "adam", "beta": 0.5, "output": "moment"}, weighted),
    ({"kind": "adam", "beta": 0.5, "output": "iterate"}, lambda g: sums(weighted(g))),
    ({"kind": "srg", "momentum": 0.75, "decay": 0.125}, recursive),
    ({"kind": "mu2", "output": "q"}, lambda g: sums(g)),
    ({"kind": "mu2", "output": "w"}, lambda g: sums(sums(g))),
    ({"kind": "mu2", "output": "x"}, anchored),
    ({"kind": "window", "width": 2}, lambda g: [sum(g[max(i - 1, 0) : i + 1], Fraction(0)) for i in range(N)]),
]
CONSTANT = [d for d, _ in DEFINITIONS if "learning_rates" not in d and d["kind"] != "adam" and d.get("output") != "x"]


def matrix(definition: Callable[[Vector], Vector]) -> list[Vector]:
    columns = [definition([Fraction(int(i == j)) for i in range(N)]) for j in range(N)]
    return [[column[i] for column in columns] for i in range(N)]


def holds(ball: arb, true: Fraction) -> bool:
    low, high = ends(ball)
    return low <= true <= high < low + Fraction(1, 2**200)


@pytest.mark.parametrize(("document", "definition"), DEFINITIONS, ids=[str(document) for document, _ in DEFINITIONS])
def test_a_workload_is_its_definition(document: dict[str, Any], definition: Callable[[Vector], Vector]) -> None:
    given, wanted = document | {"n": N}, matrix(definition)
    exact = exact_rows(given)
    assert exact is not None and exact.tolist() == wanted
    np.testing.assert_allclose(spec_of(given).workload.dense(), np.array(wanted, dtype=float), rtol=1e-14)
    with ctx.workprec(300):
        found = balls_of(given, {})
    assert found is not None
    for row, true in zip(found.tolist(), wanted, strict=True):
        assert all(holds(value, each) for value, each in zip(row, true, strict=True))
    column = toeplitz_column(given)
    assert (column is not None) == (document in CONSTANT)
    if column is not None:
        assert len(column) == N
        assert all(holds(value, row[0]) for value, row in zip(column, wanted, strict=True))


def test_a_rate_near_1_is_none_of_plain_sums() -> None:
    column = toeplitz_column({"kind": "decay", "rate": float(np.nextafter(1.0, 0.0)), "n": N})
    assert column is not None and len(set(map(ends, column))) == N


def test_matrices_of_a_user() -> None:
    given, array = {"kind": "matrix", "sha256": "a"}, np.array([[1.0, 0.5]])
    given["shape"] = [1, 2]
    found = exact_rows(given, {"a": array, "b": np.ones((2, 2))})
    assert found is not None and found.tolist() == [[1, Fraction(1, 2)]]
    assert balls_of(given, {}) is None and balls_of(given, {"a": array.T}) is None and toeplitz_column(given) is None


def test_kinds_that_are_not_known() -> None:
    for kind in ("other", "x" * 99):
        for read in (lambda given: balls_of(given, {}), program_of, workloads.check_known):
            with pytest.raises(
                CertificateError, match=f"does not know the workload '{kind[:40]}'.*known are identity, prefix"
            ):
                read({"kind": kind, "n": N})
        assert toeplitz_column({"kind": kind, "n": N}) is None
    assert program_of({"kind": "window", "n": N}) is None and program_of({"kind": "matrix"}) is None
    for rates in (RATES[:-1], [*RATES, 1.0], []):
        with pytest.raises(CertificateError, match=f"states {len(rates)} learning rates, but n=5"):
            program_of({"kind": "schedule", "n": N, "learning_rates": rates})


class TestObjectives:
    def test_refusals(self) -> None:
        for kind in ("other", "x" * 99):
            with pytest.raises(CertificateError, match=f"does not know the objective '{kind[:40]}'$"):
                weighing_of({"kind": kind}, 2)
        for weights in ([1.0], [1.0] * 3):
            with pytest.raises(CertificateError, match=f"states {len(weights)} weights, but the workload has 2 rows"):
                weighing_of({"kind": "weighted", "weights": weights}, 2)

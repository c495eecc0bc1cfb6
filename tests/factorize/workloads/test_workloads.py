"""Workloads against the published matrices, and each view of one against its entries; definitions:
test_checker_workloads.py.
"""

from __future__ import annotations

from functools import reduce
from typing import Any

import numpy as np
import pytest
from cases import matrices_of, recursions_of
from specs import spec_of

from factorize.errors import InvalidParameter, InvalidWorkload
from factorize.numbers.triangular import toeplitz_rows
from factorize.workloads import KINDS, UserMatrix, Workload
from factorize.workloads.matrix import check_workload_matrix, from_array
from factorize.workloads.operators import Decay

ETA = [1.0, 1.0, 0.5, 0.25]


def workload(**fields: Any) -> Workload:
    return spec_of(fields).workload


BOTH = {"momentum": 0.9, "learning_rates": ETA}
EXAMPLES: list[dict[str, Any]] = [
    *recursions_of(7).values(),
    *matrices_of(6).values(),
    {"kind": "window", "n": 7, "width": 7},
    {"kind": "momentum", "n": 4, "nesterov": True, **BOTH},
    {"kind": "schedule", "n": 9, "learning_rates": {"kind": "warmup_cosine", "warmup": 3, "final": 0}},
    {"kind": "schedule", "n": 9, "learning_rates": {"kind": "step", "every": 2, "factor": 0.5}},
    {"kind": "weight_decay", "n": 6, "rate": 0.1, "mode": "coupled"},
    {"kind": "weight_decay", "n": 4, "rate": 0.1, "mode": "decoupled", **BOTH},
    {"kind": "weight_decay", "n": 4, "rate": 0.1, "mode": "coupled", **BOTH},
    {"kind": "adam", "n": 5, "beta": 0.75, "output": "iterate"},
]


def accumulation(factors: np.ndarray) -> np.ndarray:
    """A sum that each step multiplies by a factor before the next one adds to it."""
    steps = range(len(factors))
    return np.array([[np.prod(factors[j:i]) if i >= j else 0.0 for j in steps] for i in steps])


def test_every_kind_has_an_example() -> None:
    assert {example["kind"] for example in EXAMPLES} == set(KINDS)


@pytest.mark.parametrize("fields", EXAMPLES, ids=str)
def test_all_views_of_a_workload_agree(fields: dict[str, Any]) -> None:
    given_workload = workload(**fields)
    dense = given_workload.dense()
    m, n = given_workload.m, given_workload.n
    assert dense.shape == (m, n)
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(n, 2)), rng.normal(size=(m, 2))
    np.testing.assert_allclose(given_workload.apply(x), dense @ x, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(given_workload.adjoint(y), dense.T @ y, rtol=1e-12, atol=1e-13)
    for start, stop in ((0, m), (1, m), (m - 1, m), (1, 1)):
        np.testing.assert_allclose(given_workload.row_block(start, stop), dense[start:stop], rtol=1e-13, atol=1e-15)
    if m == n:
        assert not np.triu(dense, 1).any()
    if given_workload.coefficients is not None:
        np.testing.assert_allclose(dense, toeplitz_rows(given_workload.coefficients, 0, n))
    inverse = given_workload.bidiagonal_inverse()
    assert inverse is not None or fields["kind"] not in ("prefix", "identity", "decay")
    if inverse is not None:
        matrix = np.diag(inverse.p) - np.diag(inverse.q[1:], -1)
        np.testing.assert_allclose(matrix @ dense, np.eye(n), atol=1e-12)
    chain = given_workload.chain()
    assert chain is not None or fields["kind"] in ("matrix", "window") or fields.get("mode") == "coupled"
    if chain is not None:
        ahead = np.eye(n) + chain.ahead * accumulation(np.full(n, chain.ahead)) if chain.ahead else np.eye(n)
        inner = reduce(lambda product, factors: accumulation(factors) @ product, chain.inner, ahead)
        np.testing.assert_allclose(accumulation(chain.lam) @ np.diag(chain.eta) @ inner, dense, rtol=1e-12, atol=1e-13)
    space = given_workload.state_space()
    assert (space is None) == (fields["kind"] == "matrix" or fields.get("width", n) < n)
    if space is not None:
        state, followed = np.zeros(space.feed.shape[1]), []
        for i, value in enumerate(x[:, 0]):
            followed.append(space.read[i] @ state + space.through[i] * value)
            state = space.follow[i] @ state + space.feed[i] * value
        np.testing.assert_allclose(followed, dense @ x[:, 0], rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize(
    ("fields", "key"),
    [
        ({"kind": "momentum", "n": 4, "momentum": 0.9}, "B.momentum.n4"),
        ({"kind": "momentum", "n": 4, "momentum": 0.9, "learning_rates": ETA}, "B.momentum_schedule.n4"),
        (
            {"kind": "weight_decay", "n": 4, "rate": 0.1, "mode": "decoupled", "momentum": 0.9, "learning_rates": ETA},
            "B.momentum_schedule_decoupled_wd.n4",
        ),
        (
            {"kind": "weight_decay", "n": 4, "rate": 0.1, "mode": "coupled", "momentum": 0.9, "learning_rates": ETA},
            "B.momentum_schedule_coupled_wd.n4",
        ),
    ],
)
def test_published_matrices(vectors: dict[str, Any], fields: dict[str, Any], key: str) -> None:
    np.testing.assert_allclose(workload(**fields).dense(), vectors[key]["matrix"], rtol=1e-12)


@pytest.mark.parametrize("beta", [0.0, 0.5, 0.999])
def test_adam_averages_over_any_number_of_steps(beta: float) -> None:
    """The weights of a row sum to 1, also where a further step changes no double."""
    moment = workload(kind="adam", n=100, beta=beta).dense()
    np.testing.assert_allclose(moment.sum(axis=1), 1.0, rtol=1e-13)


def test_mu2_and_srg(vectors: dict[str, Any]) -> None:
    maps = vectors["B.mu2.n4"]
    np.testing.assert_allclose(workload(kind="mu2", n=4, output="w").dense(), maps["w_map"], rtol=1e-12)
    np.testing.assert_allclose(workload(kind="mu2", n=4, output="x").dense(), maps["x_map"], rtol=1e-12)
    srg = vectors["B.srg_true.n6"]
    coefficients = workload(kind="srg", n=6, momentum=srg["mu"], decay=srg["c"]).coefficients
    np.testing.assert_allclose(coefficients, srg["toeplitz_coef"], rtol=1e-12)


def test_recursive_estimates_with_changing_factors(vectors: dict[str, Any]) -> None:
    case = vectors["B.srg_L.n3"]
    np.testing.assert_allclose(Decay(np.array(case["c"])).apply(np.eye(3)), case["L"], rtol=1e-12)


def test_named_schedules() -> None:
    def rates(n: int, **schedule: Any) -> list[float]:
        return workload(kind="schedule", n=n, learning_rates=schedule).document()["learning_rates"]

    # torch's CosineAnnealingLR(T_max=4), optax's cosine_decay_schedule(1, 4): (1 + cos(pi i / 4)) / 2.
    assert rates(4, kind="cosine") == pytest.approx([1.0, 0.5 + 8**-0.5, 0.5, 0.5 - 8**-0.5], abs=1e-15)
    assert rates(2, kind="cosine", final=0.5) == [1.0, 0.75] and rates(1, kind="cosine", final=0.5) == [1.0]
    assert rates(3, kind="cosine_to_last", final=0.5) == [1.0, 0.75, 0.5]
    assert rates(3, kind="cosine_to_last") == [1.0, 0.5, 0.0]
    assert rates(1, kind="cosine_to_last", final=0.5) == [1.0]
    assert rates(4, kind="linear_cooldown", steps=2, final=0.5) == [1.0, 1.0, 0.75, 0.5]
    assert rates(5, kind="step", every=2, factor=0.5) == [1.0, 1.0, 0.5, 0.5, 0.25]
    assert rates(4, kind="warmup_cosine", warmup=2, final=0) == pytest.approx([0.5, 1.0, 1.0, 0.5], abs=0)


def test_a_matrix_known_by_its_digest_wants_its_numbers() -> None:
    array = np.array([[2.0, 0.0], [1.0, 3.0]])
    named = from_array(array)
    asked = UserMatrix(kind="matrix", sha256=named.sha256, shape=[2, 2])
    with pytest.raises(InvalidWorkload, match="upload"):
        asked.dense()
    np.testing.assert_array_equal(asked.bind(array).dense(), array)
    with pytest.raises(InvalidWorkload, match="do not hash"):
        asked.bind(array + np.eye(2))


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((2, 2)), "all zeros"),
        (np.array([[1.0, 1e-300], [1.0, 1.0]]), "lower-triangular"),
        (np.array([[np.nan]]), "NaN"),
        (np.array([[np.inf]]), "infinity"),
        (np.ones(3), "two dimensions"),
        (np.ones((0, 3)), "two dimensions"),
    ],
)
def test_matrices_that_cannot_be_workloads(array: np.ndarray, message: str) -> None:
    with pytest.raises(InvalidWorkload, match=message):
        from_array(array)


def test_a_matrix_with_masked_entries_is_refused() -> None:
    with pytest.raises(InvalidParameter, match="has masked entries; fill them first"):
        from_array(np.ma.masked_equal(np.tri(2), 0.0))


def test_a_signalling_nan_is_refused_without_a_warning() -> None:
    signalling = np.frombuffer(b"\x01" + bytes(5) + b"\xf0\x7f")[None]
    with pytest.raises(InvalidWorkload, match="NaN or infinity"):
        check_workload_matrix(signalling)

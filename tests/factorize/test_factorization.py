"""One manifest binds spec, matrices, evidence and certificate; whatever does not fit it is refused."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from specs import spec_of

from factorize.errors import CertificateError, CorruptObject, InvalidParameter, InvalidStrategy, TooLarge
from factorize.factor_file import from_tensors, load
from factorize.factorization import Factorization
from factorize.format.manifest import manifest_digest
from factorize.solution import Outcome, Solution
from factorize.structures.dense import DenseMatrix
from factorize.structures.toeplitz import ToeplitzMatrix

SOLVER = {"mechanism": "dense", "version": "0", "seconds": 0.5, "environment": {"cpus": 2}}


def optimum(vectors: dict[str, Any]) -> Factorization:
    case = vectors["D.opt_prefix.n4"]
    spec = spec_of(4, "dense")
    solution = Solution(DenseMatrix(np.array(case["C"])), Outcome.CONVERGED, 7, {"weights": np.array(case["v"])})
    return Factorization.from_solution(spec, solution, solver=SOLVER)


def square_root(n: int = 6) -> Factorization:
    spec = spec_of(n, "square_root")
    column = np.cumprod([1.0] + [(t - 0.5) / t for t in range(1, n)])
    return Factorization.from_solution(spec, Solution(ToeplitzMatrix(column, n), Outcome.CLOSED_FORM, 0), solver=SOLVER)


@pytest.fixture
def made(vectors: dict[str, Any]) -> Factorization:
    return optimum(vectors)


def test_a_file_opens_with_the_plain_library(made: Factorization, tmp_path: Path) -> None:
    path = tmp_path / "factors.safetensors"
    made.save(path)
    with safe_open(path, framework="numpy") as file:
        assert set(file.keys()) == {"C", "dual.weights"}
        np.testing.assert_array_equal(file.get_tensor("C"), made.rows("C", 0, 4))
        assert json.loads(file.metadata()["manifest"]) == made.manifest


@pytest.mark.parametrize("build", [optimum, lambda _: square_root()])
def test_round_trip(vectors: dict[str, Any], tmp_path: Path, build: Callable[[Any], Factorization]) -> None:
    made = build(vectors)
    path = tmp_path / "factors.safetensors"
    made.save(path)
    loaded = load(path)
    assert loaded.manifest == made.manifest
    assert loaded.certificate == made.certificate
    assert loaded.verify() == made.certificate
    n = made.strategy.n
    dense = made.strategy.dense()
    np.testing.assert_array_equal(loaded.rows("C", 0, n), dense)
    np.testing.assert_allclose(loaded.rows("C_inv", 0, n) @ dense, np.eye(n), atol=1e-14)
    np.testing.assert_allclose(loaded.rows("B", 0, n) @ dense, np.tril(np.ones((n, n))), atol=1e-14)
    # Not bit for bit: how a product is summed may depend on where its operands lie in memory.
    np.testing.assert_allclose(loaded.rows("B", 1, 3), loaded.rows("B", 0, n)[1:3], rtol=1e-14, atol=1e-15)


@pytest.mark.parametrize(
    ("name", "start", "stop"), [("D", 0, 1), ("C", -1, 1), ("C", 2, 1), ("B", 0, 5), ("C_inv", 5, 5)]
)
def test_rows_outside(made: Factorization, name: Any, start: int, stop: int) -> None:
    with pytest.raises(InvalidParameter):
        made.rows(name, start, stop)


@pytest.mark.parametrize("build", [optimum, lambda _: square_root()])
def test_further_matrices_on_request(
    vectors: dict[str, Any], tmp_path: Path, build: Callable[[Any], Factorization]
) -> None:
    made = build(vectors)
    expanded = made.with_matrices(["B", "C", "C_inv"])
    assert expanded.digest != made.digest
    assert expanded.spec_digest == made.spec_digest
    path = tmp_path / "all.safetensors"
    expanded.save(path)
    loaded = load(path)
    assert list(loaded.manifest["matrices"]) == ["B", "C", "C_inv"] or set(loaded.manifest["matrices"]) == {
        "B",
        "C",
        "C_inv",
    }
    assert loaded.verify() == made.certificate
    with safe_open(path, framework="numpy") as file:
        name = "C_inv" if made.strategy.structure == "dense" else "C_inv.coefficients"
        np.testing.assert_allclose(file.get_tensor(name).reshape(-1)[0], made.rows("C_inv", 0, 1)[0, 0])
    with pytest.raises(InvalidParameter, match="'D'"):
        made.with_matrices(["D"])  # type: ignore[list-item]  # a caller's mistake, on purpose


def test_further_matrices_that_would_not_fit() -> None:
    spec = spec_of({"kind": "schedule", "n": 16_385, "learning_rates": {"kind": "cosine_to_last"}}, "identity")
    huge = Factorization(spec, ToeplitzMatrix(np.array([1.0]), 16_385), {}, {"matrices": {"C": {}}})
    with pytest.raises(TooLarge, match="stream its rows"):
        huge.with_matrices(["B"])


def signed(made: Factorization, change: Callable[[Any], None]) -> Factorization:
    """A forger's version: the manifest edited and its digest recomputed."""
    manifest = copy.deepcopy(made.manifest)
    change(manifest)
    manifest["digest"] = manifest_digest(manifest)
    return from_tensors(manifest, made.tensors())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c["sensitivity"].update(value=0.999, hex=(0.999).hex()), "sensitivity"),
        (lambda c: c["loss"].update(rmse=1.0), r"loss\.rmse"),
        (lambda c: c["lower_bound"].update(objective=1.8), "lower bound"),
        (lambda c: c.update(class_lower_bound={"objective": 9.0, "rule": "made up"}), "class_lower_bound"),
        (lambda c: c.update(relative_gap=c["relative_gap"] - 1e-6), "relative gap is claimed as"),
        (lambda c: c.update(lower_bound=None, relative_gap=-0.5), "relative gap is claimed as"),
    ],
)
def test_a_forged_claim_fails_verification(made: Factorization, change: Callable[[Any], None], message: str) -> None:
    forged = signed(made, lambda manifest: change(manifest["certificate"]))
    with pytest.raises(CertificateError, match=message):
        forged.verify()


def test_a_strategy_of_one_result_with_the_claim_of_another_fails(made: Factorization) -> None:
    weaker = DenseMatrix(np.eye(4) * 2)
    mixed = Factorization(made.spec, weaker, made.dual, made.manifest)
    with pytest.raises(CorruptObject, match="do not hash to"):
        mixed.verify()


def test_rows_of_an_inverse_beyond_double_precision_are_refused() -> None:
    """C[0, 0] = 1e-200 beside 1: C^-1 has entries of 1e400."""
    found = Factorization(
        spec_of(3, "toeplitz"),
        ToeplitzMatrix(np.array([1e-200, 1.0, 0.0]), 3),
        {},
        {"matrices": {"C": {"shape": [3, 3]}}},
    )
    assert found.rows("C", 0, 3)[0, 0] == 1e-200
    assert found.rows("C_inv", 0, 1)[0, 0] == pytest.approx(1e200)
    with pytest.raises(InvalidStrategy, match="rows 0:3 of C_inv have entries beyond double precision"):
        found.rows("C_inv", 0, 3)

"""`factorize add`: a strategy of one's own becomes a certified result that answers for nobody else."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from command_line import CommandLine
from specs import spec_text

import factorize
from factorize.errors import InvalidStrategy
from factorize.storage.store import open_store
from factorize.structures.toeplitz import ToeplitzMatrix


def saved(folder: Path, array: np.ndarray) -> Path:
    np.save(folder / "C.npy", array)
    return folder / "C.npy"


def dense(n: int) -> np.ndarray:
    return np.tril(np.random.default_rng(n).random((n, n))) + np.eye(n)


def test_added_strategies_are_certified_and_stored(within: CommandLine, tmp_path: Path) -> None:
    path = saved(tmp_path, dense(8))
    done = within(
        "add", path, "--spec", spec_text(8, participation={"kind": "fixed_epochs", "epochs": 2}), "--output", "json"
    )
    assert done.err == ""
    manifest = done.json()
    assert manifest["spec"]["mechanism"]["kind"] == manifest["solver"]["mechanism"] == "added"
    assert manifest["certificate"]["converged"] is False and manifest["solver"]["outcome"] == "added"
    assert manifest["certificate"]["relative_gap"] > 0
    loaded = open_store(tmp_path / "store").load(manifest["digest"])
    assert (loaded.strategy.dense() == dense(8)).all()
    assert within("verify", manifest["digest"]).code == 0
    assert within("verify", manifest["spec_digest"]).code == 0
    assert within("add", path, "--spec", json.dumps(manifest["spec"]), "--output", "json").json() == manifest


def test_python_certifies_an_array_as_the_command_does(within: CommandLine, tmp_path: Path) -> None:
    """With a lower bound that no matrix beats; for C = I and sums of 8 the mean squared error is that of 1, ..., 8."""
    identity = factorize.certify(np.eye(8))
    assert identity.certificate.loss.mean_squared == pytest.approx(4.5)
    optimum = factorize.solve("prefix", n=8).certificate
    assert identity.certificate.lower_bound is not None and optimum.lower_bound is not None
    assert identity.certificate.lower_bound.objective == pytest.approx(optimum.loss.objective, rel=1e-6)
    participation = {"kind": "fixed_epochs", "epochs": 2}
    own = factorize.certify(dense(8), "prefix", participation=participation)
    text = spec_text(8, participation=participation)
    assert within("add", saved(tmp_path, dense(8)), "--spec", text, "--output", "json").json()["digest"] == own.digest
    assert own.verify().relative_gap == own.certificate.relative_gap
    own_workload = factorize.certify(np.eye(8), np.tril(np.ones((8, 8))))
    assert own_workload.certificate.loss.mean_squared == pytest.approx(4.5)
    with pytest.raises(InvalidStrategy, match=r"shape \(8, 8\), but the spec has n=4"):
        factorize.certify(np.eye(8), "prefix", n=4)
    assert len(own.plot().axes) >= 4


def test_the_names_that_count_are_listed_whatever_was_imported() -> None:
    assert dir(factorize) == sorted([*factorize.__all__, "__version__"]) and "solve" in dir(factorize)


def test_an_added_strategy_does_not_answer_for_a_solver(within: CommandLine, tmp_path: Path) -> None:
    added = within("add", saved(tmp_path, dense(6)), "--spec", spec_text(6), "--output", "json").json()
    solved = within("solve", spec_text(6), "--output", "json").json()
    assert solved["digest"] != added["digest"] and solved["certificate"]["converged"]
    assert "added" in within("solve", json.dumps(added["spec"])).error(2)


def test_toeplitz_matrices_keep_their_structure(within: CommandLine, tmp_path: Path) -> None:
    array = ToeplitzMatrix(np.array([1.0, 0.5, 0.25, 0.125]), 4).dense()
    sparse = spec_text(4, participation={"kind": "min_sep", "min_sep": 2})
    manifest = within("add", saved(tmp_path, array), "--spec", sparse, "--output", "json").json()
    assert manifest["matrices"]["C"]["structure"] == "toeplitz"
    assert manifest["certificate"]["sensitivity"]["kind"] == "exact"


@pytest.mark.parametrize(
    ("array", "n", "code"),
    [
        (np.ones((3, 3)), 3, 2),
        (dense(4), 5, 2),
        (np.diag([1.0, 0.0]), 2, 2),
        (np.eye(60) * 1e-14 + np.tril(np.ones((60, 60)), -1), 60, 3),
    ],
    ids=["above the diagonal", "another n", "singular", "too ill-conditioned"],
)
def test_what_cannot_be_added(within: CommandLine, tmp_path: Path, array: np.ndarray, n: int, code: int) -> None:
    assert within("add", saved(tmp_path, array), "--spec", spec_text(n)).error(code).startswith("error: ")

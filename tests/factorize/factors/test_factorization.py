"""One manifest binds spec, matrices, evidence and certificate; whatever does not fit it is refused."""

from __future__ import annotations

import copy
import hashlib
import json
import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save
from specs import claimed, solved, spec_of

from factorize.encoding import canonical_json
from factorize.errors import CertificateError, CorruptObject, InvalidParameter, InvalidStrategy, TooLarge
from factorize.factors.factor_file import cast, from_container
from factorize.factors.factorization import Factorization
from factorize.factors.solution import Outcome
from factorize.format.container import Container
from factorize.format.manifest import Manifest, manifest_digest
from factorize.structures.banded import BandedMatrix
from factorize.structures.dense import DenseMatrix
from factorize.structures.layouts import describe
from factorize.structures.toeplitz import ToeplitzMatrix


def optimum(vectors: dict[str, Any]) -> Factorization:
    case = vectors["D.opt_prefix.n4"]
    strategy, dual = DenseMatrix(np.array(case["C"])), {"weights": np.array(case["v"])}
    return claimed(spec_of(4, "dense"), strategy, Outcome.CONVERGED, dual=dual)


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


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_factors_may_be_sent_to_a_process_that_is_spawned(dtype: str) -> None:
    """Rows of bands, and those of an endless C, are computed by functions, which stay behind."""
    bands = BandedMatrix(np.array([[1.0] * 6, [0.5] * 5 + [0.0]]))
    sent = cast(claimed(spec_of(6, {"kind": "banded", "bands": 2}, 3), bands), dtype)
    sent = sent.with_matrices(["C_inv"])
    sent.rows("C_inv", 0, 1)
    came = pickle.loads(pickle.dumps(sent))
    assert came.digest == sent.digest and came.tensors().keys() == sent.tensors().keys()
    assert (came.rows("B", 0, 6) == sent.rows("B", 0, 6)).all()
    endless = solved({"workload": {"kind": "prefix", "n": "unbounded"}}, {"kind": "nu_toeplitz", "nu": 0.5})
    assert (pickle.loads(pickle.dumps(endless)).rows("C", 0, 3) == endless.rows("C", 0, 3)).all()


@pytest.mark.parametrize(
    ("name", "start", "stop"), [("D", 0, 1), ("C", -1, 1), ("C", 2, 1), ("B", 0, 5), ("C_inv", 5, 5)]
)
def test_rows_outside(made: Factorization, name: Any, start: int, stop: int) -> None:
    with pytest.raises(InvalidParameter):
        made.rows(name, start, stop)


def test_further_matrices_that_there_are_not_or_that_would_not_fit(made: Factorization) -> None:
    with pytest.raises(InvalidParameter, match="'D'"):
        made.with_matrices(["D"])  # type: ignore[list-item]  # a caller's mistake, on purpose
    spec = spec_of({"kind": "schedule", "n": 16_385, "learning_rates": {"kind": "cosine_to_last"}}, "identity")
    manifest = Manifest(spec=spec.document(), matrices={"C": {"shape": [16_385, 16_385]}})
    huge = Factorization(spec, ToeplitzMatrix(np.array([1.0]), 16_385), {}, manifest)
    with pytest.raises(TooLarge, match="read its rows instead"):
        huge.with_matrices(["B"])


def signed(made: Factorization, change: Callable[[Any], None]) -> Factorization:
    """A forger's version: the manifest edited and its digest recomputed."""
    manifest = copy.deepcopy(made.manifest)
    change(manifest)
    manifest["digest"] = manifest_digest(manifest)
    data = save(made.tensors(), {"manifest": canonical_json(manifest).decode()})
    return from_container(Container(data))


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
    later = Factorization(made.spec, made.strategy, made.dual, made.manifest)
    calibration, later.strategy = later.calibrate(mu=1.0), weaker
    with pytest.raises(CorruptObject, match="the manifest is of another C"):
        later.noise(calibration, 3, seed=1 << 100)
    for believe in (lambda: mixed.sensitivity, lambda: mixed.calibrate(mu=1.0), lambda: mixed.certificate):
        with pytest.raises(CorruptObject, match="the manifest is of another C"):
            believe()


def test_rows_of_an_inverse_beyond_double_precision_are_refused() -> None:
    """C[0, 0] = 1e-200 beside 1: C^-1 has entries of 1e400."""
    found = Factorization(
        spec_of(3, "toeplitz"),
        ToeplitzMatrix(np.array([1e-200, 1.0, 0.0]), 3),
        {},
        Manifest(matrices={"C": {"shape": [3, 3]}}),
    )
    assert found.rows("C", 0, 3)[0, 0] == 1e-200
    assert found.rows("C_inv", 0, 1)[0, 0] == pytest.approx(1e200)
    with pytest.raises(InvalidStrategy, match="rows 0:3 of C_inv have entries beyond the range of doubles"):
        found.rows("C_inv", 0, 3)


def test_the_entry_of_a_manifest_binds_bytes_in_their_order() -> None:
    tensors = {"theta": np.array([0.5, 0.25]), "omega": np.array([0.25, 0.125])}
    entry = describe("C", "blt", tensors, (None, 4))
    digest = hashlib.sha256(struct.pack("<4d", 0.5, 0.25, 0.25, 0.125)).hexdigest()
    assert entry == {
        "structure": "blt", "shape": [None, 4], "dtype": "float64", "tensors": ["C.theta", "C.omega"],
        "sha256": digest, "bytes": 32,
    }  # fmt: skip
    other = describe("C", "blt", dict(reversed(tensors.items())), (None, 4))
    assert other["tensors"] == ["C.omega", "C.theta"] and other["sha256"] != digest
    assert describe("C", "dense", {"": np.eye(4, dtype=np.float32)}, (4, 4))["dtype"] == "float32"

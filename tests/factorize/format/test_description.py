"""What a manifest may say of itself, its matrices, its evidence, its claim, and who takes part; and what the bytes have to be."""

from __future__ import annotations

from contextlib import suppress
from copy import deepcopy
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from checker_files import parts as parts_of
from checker_files import random_result
from manifest_mutations import MISSING, at, changed

from factorize.encoding import canonical_json, json_digest, tensor_digest
from factorize.errors import CorruptObject
from factorize.format.description import (
    check_claim,
    check_description,
    check_participation,
    named_tensors,
    sides_of,
)
from factorize.format.manifest import Manifest, StoredFile, evidence_of, manifest_digest, matrix_of

N = 4


@pytest.fixture(scope="module")
def file() -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    result = random_result(np.random.default_rng(0), "dense", {"kind": "single"}, N)
    manifest, tensors = parts_of(result.with_matrices(["C", "B", "C_inv"]))
    tensors["dual.weights"] = np.ones(N)
    manifest["dual"] = {"tensors": ["dual.weights"], "sha256": tensor_digest([np.ones(N)])}
    return manifest, tensors


@pytest.fixture
def manifest(file: Any) -> dict[str, Any]:
    return deepcopy(file[0])


def test_its_digest_leaves_out_what_varies_and_nothing_else(manifest: dict[str, Any]) -> None:
    own = manifest_digest(manifest)
    solver = {**manifest["solver"], "seconds": 1e9, "environment": {"cpu": "another"}}
    assert manifest_digest({**manifest, "files": [1], "created": "now", "digest": "", "solver": solver}) == own
    for name in set(manifest) - {"digest", "files", "created"}:
        assert manifest_digest({**manifest, name: "changed" if name != "solver" else {}}) != own, name


def test_what_disagrees_with_itself_is_refused(manifest: dict[str, Any]) -> None:
    manifest = resealed(manifest)
    Manifest.check(manifest)
    other = {**manifest, "spec_digest": "0" * 64}
    wrong: list[tuple[dict[str, Any], str]] = [
        ({**manifest, "schema": 2}, "schema 2 is not 1"),
        ({**manifest, "certificate": {}}, "does not hash to its own digest"),
        ({**manifest, "digest": "0" * 64}, "does not hash to its own digest"),
        ({**other, "digest": manifest_digest(other)}, "spec does not hash"),
        ({**manifest, "solver": 5}, "not a manifest"),
        ({**manifest, "solver": float("nan")}, "not a manifest"),
        ({}, "not a manifest"),
    ]
    for changed_manifest, message in wrong:
        with pytest.raises(CorruptObject, match=message):
            Manifest.check(changed_manifest)


def test_the_length_of_a_file_is_a_positive_integer() -> None:
    for length in (0, -1, 1.0, True, "9" * 99):
        with pytest.raises(CorruptObject, match="the length is an integer > 0"):
            _ = Manifest({"files": [{"sha256": "0" * 64, "bytes": length}]}).file
    assert Manifest({"files": [{"sha256": "0" * 64, "bytes": 1}]}).file == StoredFile("0" * 64, 1)


@pytest.mark.parametrize(
    "shape", ["44", None, [4], [4, 4, 4], [0, 4], [4, 0], [4, 4.0], [True, 4], ["unbounded", 4], [10**9] * 2]
)
def test_no_sizes(shape: Any) -> None:
    with pytest.raises(CorruptObject) as refusal:
        sides_of({"workload": {"kind": "matrix", "shape": shape}})
    assert str(refusal.value) == f"the spec states the size {shape}, not a number of steps from 1 to 100,000,000"


WRONG: list[tuple[str, Any, str]] = [
    ("matrices", [], "the matrices are []; C is required, C_inv and B are optional"),
    ("matrices/C", MISSING, "the matrices are ['B', 'C_inv']; C is required"),
    ("matrices/D", {}, "the matrices are ['B', 'C', 'C_inv', 'D']; C is required"),
    ("matrices/C/bytes", MISSING, "C has the fields ['dtype', 'sha256', 'shape', 'structure', 'tensors']; it must have bytes"),
    ("matrices/C/encoder_sensitivity", 1, "C has the fields ['bytes', 'dtype', 'encoder_sensitivity', 'sha256', 'shape'"),
    ("matrices/C/shape", [4, 5], "C is stated to have shape [4, 5], but"),
    ("matrices/C/shape", [4.0, 4], "C is stated to have shape [4.0, 4], but"),
    ("matrices/C/shape", [None, None], "C is stated to have shape [None, None], but"),
    ("matrices/C/shape", [True, True], "C is stated to have shape [True, True], but"),
    ("matrices/C/shape", "44", "C is stated to have shape 44, but"),
    ("matrices/C/dtype", "float16", "C has the unknown dtype 'float16'; it must be one of float64, float32"),
    ("matrices/C/structure", "nu_toeplitz", "structure 'nu_toeplitz' of C is not one of dense, toeplitz, "),
    ("matrices/B/structure", "banded", "structure 'banded' of B is not one of dense, toeplitz; update factorize"),
    ("matrices/C/structure", "toeplitz", "the tensors of C are ['C'], but its structure has ['C.coefficients']"),
    ("matrices/C/tensors", "C", "the tensors of C are not a list of names"),
    ("matrices/C/tensors", ["C", "C"], "the tensors of C are ['C', 'C'], but"),
    ("matrices/C/tensors", ["B"], "the tensors of C are ['B'], but its structure has ['C']"),
    ("matrices/C/bytes", 0, "C is stated to have 0 bytes"),
    ("matrices/C/bytes", True, "C is stated to have True bytes"),
    ("matrices/C/sha256", None, "C has the sha256 'None'"),
    ("matrices/C/sha256", "a" * 99, f"C has the sha256 '{'a' * 70}'"),
    ("dual/x", 1, "the evidence is described by ['sha256', 'tensors', 'x']; it has tensors and sha256"),
    ("dual/tensors", "dual.weights", "the tensors of the evidence are not a list of names"),
    ("dual/tensors", ["dual.weights", "dual.weights"], "the evidence has the tensors ['dual.weights', 'dual.weights'];"),
    ("dual/tensors", ["weights"], "the evidence has the tensors ['weights']; known are dual.factors, "),
    ("dual/sha256", 7, "the evidence has the sha256 '7'"),
    ("spec/participation", {"kind": "x"}, "{'kind': 'x'} is not a participation of n=4 steps"),
    ("certificate/converged", 1, "converged is '1', neither true nor false"),
    ("certificate/loss", [], "the certificate's loss is '[]', not an object"),
    ("certificate/loss/rmse", "1", "the certificate's loss.rmse is '1', not a finite number"),
    ("certificate/loss/rmse", True, "the certificate's loss.rmse is 'True', not a finite number"),
    ("certificate/loss/rmse", float("inf"), "not a manifest: ValueError"),
    ("certificate/loss/rmse", -1.0, "the certificate's loss.rmse is -1.0, below 0"),
    ("certificate/lower_bound", 0, "the certificate's lower_bound is '0', not an object"),
    ("certificate/lower_bound", {"objective": 1.0}, "the field 'rule' of the certificate's lower_bound is missing or unknown"),
    ("certificate/lower_bound", {"objective": None, "rule": "x"}, "the certificate's lower_bound.objective is 'None'"),
    ("certificate/lower_bound", {"objective": -1e-300, "rule": "x"}, "lower_bound.objective is -1e-300, below 0"),
    ("certificate/class_lower_bound", {"objective": 1.0, "rule": 2}, "class_lower_bound.rule is '2', not a text"),
    ("certificate/relative_gap", "0", "the certificate's relative_gap is '0', not a finite number"),
    ("certificate/residual", 0.0, "the certificate's residual is '0.0', not an object"),
    ("certificate/residual/max_abs", None, "the certificate's residual.max_abs is 'None', not a finite number"),
    ("certificate/residual/max_abs", -1e300, "the certificate's residual.max_abs is -1e+300, below 0"),
    ("certificate/warnings", "none", "the certificate's warnings are not a list"),
    ("certificate/warnings", [1], "the certificate's warnings is '1', not a text"),
    ("certificate/sensitivity/kind", "x", "the sensitivity has the kind 'x'; it must be exact or upper_bound"),
]  # fmt: skip


def resealed(manifest: dict[str, Any]) -> dict[str, Any]:
    """The same with its digests made right, where its numbers have one."""
    sealed = {**manifest, "spec_digest": json_digest(manifest["spec"])}
    with suppress(ValueError):
        sealed["digest"] = manifest_digest(sealed)
    return sealed


@pytest.mark.parametrize(("path", "value", "message"), WRONG)
def test_what_is_refused(manifest: dict[str, Any], path: str, value: Any, message: str) -> None:
    with pytest.raises(CorruptObject) as refusal:
        Manifest.check(resealed(changed(manifest, path, value)))
    assert message in str(refusal.value)


@pytest.mark.parametrize(
    "place",
    ["", "spec", "solver", "certificate", "certificate/sensitivity", "certificate/loss", "certificate/residual"],
)
def test_fields_are_those_that_a_reader_knows(manifest: dict[str, Any], place: str) -> None:
    inner = tuple(place.split("/")) if place else ()
    given = at(manifest, inner)
    given["privacy"] = {"epsilon": 0.01}
    with pytest.raises(CorruptObject, match="'privacy' of .* is missing or unknown"):
        Manifest.check(resealed(manifest))
    del given["privacy"]
    Manifest.check(resealed(manifest))
    for name in ("mechanism",) if place == "solver" else set(given) - {"spec", "spec_digest", "digest"}:
        with pytest.raises(
            CorruptObject, match=f"{name}' of .* is missing or unknown|not a manifest: KeyError: '{name}'"
        ):
            Manifest.check(resealed(changed(manifest, (*inner, name), MISSING)))


def test_no_matrix_beside_one_without_end(manifest: dict[str, Any]) -> None:
    manifest["spec"]["workload"] = {"kind": "prefix", "n": "unbounded"}
    for name, matrix in manifest["matrices"].items():
        matrix["shape"] = [None, None]
        if name == "C":
            matrix |= {"structure": "blt", "tensors": ["C.theta", "C.omega"]}
    with pytest.raises(CorruptObject, match="C_inv and B of a strategy without a last step cannot be stored"):
        check_description(manifest)
    del manifest["matrices"]["C_inv"]
    with pytest.raises(CorruptObject, match="cannot be stored"):
        check_description(manifest)
    del manifest["matrices"]["B"]
    check_description(manifest)
    manifest["matrices"]["C"]["tensors"].reverse()  # With other shapes, another order may be of another matrix.
    with pytest.raises(CorruptObject, match="the tensors of C are .'C.omega', 'C.theta'., but its structure has"):
        check_description(manifest)
    with pytest.raises(CorruptObject, match="is not a participation of n=unbounded steps"):
        check_participation({"kind": "x"}, None)


def claimed(value: Any, written: Any = None, **more: Any) -> dict[str, Any]:
    stated = {"value": value, "hex": float(value).hex() if written is None else written, "kind": "exact", "rule": "r"}
    own = {"kind": "single"}
    return {"certificate": {"sensitivity": {**stated, "participation": own, **more}}, "spec": {"participation": own}}


def test_claims() -> None:
    for value in (1.5, 2, 1e-60, 1.7976931348623157e308):
        check_claim(claimed(value))
    check_claim(claimed(1.5, kind="upper_bound"))
    for value in (np.nextafter(1e-60, 0), 0.0, -1.0):
        with pytest.raises(CorruptObject, match=r"outside \[1e-60, 1\.8e308\)|the sensitivity is stated as"):
            check_claim(claimed(float(value)))
    cases: list[tuple[dict[str, Any], str]] = [
        (claimed(1.5, "0x1.9p+0"), "the sensitivity is stated as '0x1.9p+0' and 1.5"),
        (claimed(1.5, "0x1.8000000000000P+0"), "the sensitivity is stated as"),
        (claimed(1.5, "0x1.8000000000000p+12345"), "the sensitivity is stated as"),
        (claimed(1.5, 7), "the sensitivity is stated as '7' and 1.5"),
        (claimed("1.5", "0x1.8000000000000p+0"), "the sensitivity is stated as"),
        (claimed(True, "0x1.0000000000000p+0"), "the sensitivity is stated as"),
        (claimed(1.5, "0x1.9000000000000p+0"), "the sensitivity's value and its hex form are two different numbers"),
        (claimed(1.5, kind="x" * 50), f"has the kind '{'x' * 40}'; it must be exact or upper_bound"),
        (claimed(1.5, rule=None), "has the kind 'exact'; it must be exact"),
        (
            claimed(1.5, participation={"kind": "x"}),
            "is stated for {'kind': 'x'}, but the spec has {'kind': 'single'};",
        ),
    ]
    for manifest, message in cases:
        with pytest.raises(CorruptObject) as refusal:
            check_claim(manifest)
        assert message in str(refusal.value)
    with pytest.raises((CorruptObject, OverflowError)):
        check_claim(claimed(1.5, "0x1.8000000000000p+1024"))


class TestReading:
    def stated(self, text: str, names: tuple[str, ...] = ()) -> Any:
        return SimpleNamespace(manifest_text=text, names=names)

    def test_manifests(self, manifest: dict[str, Any]) -> None:
        manifest["digest"] = manifest_digest(manifest)
        text, names = canonical_json(manifest).decode(), tuple(named_tensors(manifest))
        assert Manifest.read(self.stated(text, names)) == manifest
        assert Manifest.read(self.stated(text, names[::-1])) == manifest
        with pytest.raises(CorruptObject, match=r"do not have the same tensors: \['a', 'b', 'c'\]; it is not a factor"):
            Manifest.read(self.stated(text, (*names, "d", "c", "b", "a")))
        with pytest.raises(CorruptObject, match="not a factor file: the manifest is not JSON: "):
            Manifest.read(self.stated("{"))
        with pytest.raises(CorruptObject, match="the manifest has 1048577 brackets, more than 1048576"):
            Manifest.read(self.stated("[" + "[]," * ((1 << 20) - 1) + "[]]"))
        with pytest.raises(CorruptObject, match="not a factor file: the manifest is not an object"):
            Manifest.read(self.stated("[]"))
        with pytest.raises(CorruptObject, match="hash to its own digest"):
            Manifest.read(self.stated(canonical_json({**manifest, "more": 1}).decode(), names))

    def test_matrices(self, file: Any, manifest: dict[str, Any]) -> None:
        tensors = file[1]
        found = matrix_of(manifest, "C", tensors)
        assert list(found) == [""] and found[""] is tensors["C"]
        changes: list[tuple[str, np.ndarray, str]] = [
            ("C", tensors["C"].astype(np.float32), "C is not stored as 'float64'"),
            ("C", tensors["C"][:3], "C does not have the 128 bytes that the manifest states"),
            ("C", tensors["C"] * 2, "the bytes of C do not hash to"),
        ]
        for name, array, message in changes:
            with pytest.raises(CorruptObject, match=message):
                matrix_of(manifest, name, {**tensors, name: array})
        spoilt = tensors["C"].copy()
        spoilt[0, 3] = 1
        manifest["matrices"]["C"]["sha256"] = tensor_digest([spoilt])
        with pytest.raises(CorruptObject, match="C is not a valid dense matrix: entry"):
            matrix_of(manifest, "C", {**tensors, "C": spoilt})

    def test_one_tensor_of_several_is_of_another_type(self, manifest: dict[str, Any]) -> None:
        theta, omega = np.array([0.5, 0.25]), np.array([0.5, 0.25], np.float32)
        manifest["matrices"]["C"] |= {"structure": "blt", "tensors": ["C.theta", "C.omega"], "bytes": 24}
        manifest["matrices"]["C"]["sha256"] = tensor_digest([theta, omega])
        with pytest.raises(CorruptObject, match="C is not stored as 'float64'"):
            matrix_of(manifest, "C", {"C.theta": theta, "C.omega": omega})
        manifest["dual"] = {"tensors": ["dual.weights", "dual.factors"], "sha256": tensor_digest([theta, omega])}
        with pytest.raises(CorruptObject, match="must be finite numbers in float64"):
            evidence_of(manifest, {"dual.weights": theta, "dual.factors": omega})

    def test_evidence(self, file: Any, manifest: dict[str, Any]) -> None:
        assert evidence_of({**manifest, "dual": None}, {}) == {}
        assert list(evidence_of(manifest, file[1])) == ["weights"]
        wrong = [
            (np.ones(N, np.float32), "the dual evidence must be finite numbers in float64"),
            (np.array([1, 1, 1, np.nan]), "the dual evidence must be finite numbers in float64"),
            (np.full(N, 2.0), "the bytes of the dual evidence do not hash to"),
        ]
        for array, message in wrong:
            with pytest.raises(CorruptObject, match=message):
                evidence_of(manifest, {"dual.weights": array})

"""What the exact checker refuses, one by one: files, tensors, evidence and sizes that it cannot vouch for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checker_files import file_of, parts, random_result, sealed
from safetensors.numpy import save
from specs import solved

from factorize import parse_spec, solvers
from factorize.checker.check import check_factor_file
from factorize.checker.spec.workloads import program_of
from factorize.checker.strategy import Strategy
from factorize.client import load as load_light
from factorize.encoding import canonical_json, json_digest
from factorize.errors import CertificateError, CorruptObject
from factorize.factor_file import load
from factorize.format.manifest import manifest_digest

Manifest = dict[str, Any]
Tensors = dict[str, np.ndarray]

N = 6
ZEROS = np.zeros((N, 2))
BUFFERS = {"diagonal": np.ones(N), "decay": ZEROS, "input": ZEROS, "output": ZEROS}
ONES = {name: np.ones_like(part) for name, part in BUFFERS.items()}


def valid() -> tuple[Manifest, Tensors]:
    return parts(random_result(np.random.default_rng(0), "dense", {"kind": "single"}, N))


MANIFESTS: dict[str, tuple[str, Callable[[Manifest], object]]] = {
    "schema": ("schema 2", lambda m: m.update(schema=2)),
    "matrices": ("C has to be there", lambda m: m.update(matrices={"B": m["matrices"]["C"]})),
    "missing": ("the manifest has a field 'dual' that is missing", lambda m: m.pop("dual")),
    "names": ("tensors of C are not a list of names", lambda m: m["matrices"]["C"].update(tensors="C")),
    "claims": ("the certificate has a field 'loss' that is missing", lambda m: m["certificate"].pop("loss")),
}


@pytest.mark.parametrize("name", MANIFESTS)
def test_manifests_that_are_none(name: str) -> None:
    manifest, tensors = valid()
    message, spoil = MANIFESTS[name]
    spoil(manifest)
    manifest["digest"] = manifest_digest(manifest)
    with pytest.raises(CorruptObject, match=message):
        check_factor_file(file_of(manifest, tensors))


def test_bytes_and_digests_that_disagree() -> None:
    manifest, tensors = valid()
    manifest["spec_digest"] = "0" * 64
    manifest["digest"] = manifest_digest(manifest)
    with pytest.raises(CorruptObject, match="spec digest"):
        check_factor_file(file_of(manifest, tensors))
    manifest["spec_digest"] = json_digest(manifest["spec"])
    manifest["matrices"]["C"]["bytes"] += 8
    manifest["digest"] = manifest_digest(manifest)
    with pytest.raises(CorruptObject, match="does not have the .* bytes that the manifest states"):
        check_factor_file(file_of(manifest, tensors))
    with pytest.raises(CorruptObject, match="the manifest is no object"):
        check_factor_file(save(dict(tensors), {"manifest": canonical_json([1]).decode()}))


def test_a_tree_and_its_array_that_differ() -> None:
    manifest, tensors = parts(solved(N, {"kind": "tree", "decoder": "online"}, tolerance=1e-6))
    tensors["C"] = tensors["C"] * 2
    with pytest.raises(CorruptObject, match="not the same matrix"):
        check_factor_file(sealed(manifest, tensors))


def test_signs_of_structures_with_parameters() -> None:
    assert not Strategy("blt", {"theta": np.array([0.5]), "omega": np.array([0.5])}, N).reading.signed
    assert not Strategy("buffered", dict(ONES), N).reading.signed
    assert Strategy("buffered", {**ONES, "input": -np.ones((N, 2))}, N).reading.signed
    assert Strategy("state_space", {**_without_decay(), "transition": np.ones((N, 2, 2))}, N).bandwidth == N


def _without_decay() -> Tensors:
    return {name: part for name, part in ONES.items() if name != "decay"}


def test_claims_without_evidence() -> None:
    manifest, tensors = parts(solved(N, tolerance=1e-6))
    kept = {name: tensors[name] for name in tensors if not name.startswith("dual")}
    manifest["dual"] = None
    assert any("has no evidence" in text for text in check_factor_file(sealed(manifest, kept)).failed)
    manifest, tensors = parts(solved(N, participation=2, tolerance=1e-6))
    factors = tensors.pop("dual.factors")
    for name in ("dual.other", "dual.row_weights"):
        manifest["dual"] = {"tensors": [name], "sha256": _digest(factors)}
        if name == "dual.other":
            with pytest.raises(CorruptObject, match="known are dual.factors, dual.row_weights, dual.weights"):
                check_factor_file(sealed(manifest, {**tensors, name: factors}))
    tensors["dual.row_weights"] = factors
    assert any("not evaluated here" in text for text in check_factor_file(sealed(manifest, tensors)).not_checked)
    manifest["certificate"]["lower_bound"]["objective"] *= 2
    assert any("above the objective" in text for text in check_factor_file(sealed(manifest, tensors)).failed)


def _digest(array: np.ndarray) -> str:
    import hashlib

    return hashlib.sha256(array.tobytes()).hexdigest()


def test_a_claim_to_have_converged() -> None:
    manifest, tensors = parts(solved(N, tolerance=1e-6))
    assert any("converged: the gap" in text for text in check_factor_file(sealed(manifest, tensors)).checked)
    manifest["spec"]["tolerance"] = 1e-16
    assert any("claims to have converged" in text for text in check_factor_file(sealed(manifest, tensors)).failed)
    manifest["certificate"]["converged"] = False
    assert check_factor_file(sealed(manifest, tensors)).supported
    manifest, tensors = parts(solved(N, participation={"kind": "min_sep", "min_sep": 3}, tolerance=1e-6))
    report = check_factor_file(sealed(manifest, tensors))
    assert report.supported
    assert any("converged: the gap" in text for text in report.checked)
    manifest["certificate"]["class_lower_bound"] = None  # without it nobody can tell
    report = check_factor_file(sealed(manifest, tensors))
    assert report.supported and any("rests on the word of the solver" in text for text in report.not_checked)


def test_workloads_that_are_not_known() -> None:
    with pytest.raises(CertificateError, match="knows no workload 'other'.*known are .*prefix.*schedule"):
        program_of({"kind": "other", "n": 4})
    spec = parse_spec({"workload": {"kind": "matrix", "rows": [[1.0, 0.0], [1.0, 1.0]]}})
    report = check_factor_file(sealed(*parts(solvers.solve(spec))))
    assert report.supported and any("numbers are not known here" in text for text in report.not_checked)


def test_a_claim_for_numbers_of_another_type_is_refused_by_all(tmp_path: Path) -> None:
    """3.0 participations equal 3, but a reader that counts with them may not take them for the same."""
    manifest, tensors = parts(
        random_result(
            np.random.default_rng(0), "toeplitz", {"kind": "min_sep", "min_sep": 2, "max_participations": 3}, N
        )
    )
    manifest["certificate"]["sensitivity"]["participation"]["max_participations"] = 3.0
    manifest["digest"] = manifest_digest(manifest)
    data = file_of(manifest, tensors)
    path = tmp_path / "changed.safetensors"
    path.write_bytes(data)
    for read in (lambda: check_factor_file(data), lambda: load(path), lambda: load_light(path)):
        with pytest.raises(CorruptObject, match="sensitivity is stated for"):
            read()

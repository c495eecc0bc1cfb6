"""What the exact checker refuses, one by one: files, tensors, evidence and sizes that it cannot vouch for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from checker_files import file_of, parts, random_result, sealed
from specs import solved

from factorize.checker.check import check_factor_file
from factorize.client import load as load_light
from factorize.errors import CorruptObject
from factorize.factor_file import load
from factorize.format.manifest import manifest_digest

N = 6


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

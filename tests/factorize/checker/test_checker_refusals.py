"""What the exact checker refuses, one by one: files, tensors, evidence and sizes that it cannot vouch for."""

from __future__ import annotations

import numpy as np
import pytest
from checker_files import parts, sealed
from specs import solved

from factorize.checker.check import check_factor_file
from factorize.errors import CorruptObject

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

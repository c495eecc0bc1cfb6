"""Every claim of a manifest is looked at: whatever of it is changed, with all digests right, is noticed."""

from __future__ import annotations

import copy
from functools import cache
from typing import Any

import pytest
from checker_files import parts, rejected, sealed
from manifest_mutations import Path, nodes
from specs import solved

from factorize.checker.check import check_factor_file
from factorize.factorization import Factorization

N = 8
SPECS: dict[str, dict[str, Any]] = {
    "single": {"tolerance": 1e-6},
    "epochs": {"tolerance": 1e-6, "participation": {"kind": "fixed_epochs", "epochs": 2}},
    "separated": {
        "tolerance": 1e-6,
        "participation": {"kind": "min_sep", "min_sep": 3, "max_participations": 2},
    },
    "Toeplitz": {
        "mechanism": {"kind": "toeplitz"},
        "objective": {"kind": "weighted", "weights": [1.0, 2.0] * (N // 2)},
    },
    "restarts": {"mechanism": {"kind": "square_root"}, "objective": {"kind": "lambda_tau", "tau": 3}},
}
NO_CLAIMS = {"rule", "warnings", "residual"}  # words, and what double precision found: the checker has its own
MADE_RIGHT = {"sha256", "bytes", "tensors"}  # by `sealed`, which reads what the last one names


@cache
def whole(name: str) -> Factorization:
    return solved(N, **SPECS[name]).with_matrices(["C", "B", "C_inv"])


def changed(manifest: dict[str, Any], path: Path, value: Any) -> dict[str, Any]:
    document = copy.deepcopy(manifest)
    place = document
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return document


def others(path: Path, value: Any) -> list[Any]:
    """Other values that a claim could have, and that would be false."""
    if isinstance(value, bool):
        return []  # a result that does not say that it has converged says nothing false
    if isinstance(value, int):
        return [value + 1, value - 1, -value]
    if isinstance(value, float):
        weaker = path[-2:] == ("class_lower_bound", "objective")  # a lower one holds as well
        step = 1e-6 * (1 + abs(value))
        return [value + step, -1.0, *([] if weaker else [value - step])]
    return ["x", 1.0] if isinstance(value, str) else [0.5] if value is None else []


@pytest.mark.parametrize("name", SPECS)
def test_every_claim_matters(name: str) -> None:
    manifest, tensors = parts(whole(name))
    assert check_factor_file(sealed(copy.deepcopy(manifest), tensors)).supported
    tried = 0
    for section in ("certificate", "matrices"):
        for path, value in nodes(manifest[section], (section,)):
            if not (NO_CLAIMS | MADE_RIGHT) & set(path):
                for other in others(path, value):
                    tried += 1
                    assert rejected(sealed(changed(manifest, path, other), tensors)), (path, value, other)
    assert tried > 60


def test_a_gap_without_a_bound() -> None:
    """Convergence is judged by the gap, so nobody may state one without the bound that it is a gap to."""
    manifest, tensors = parts(whole("single"))
    manifest["certificate"]["lower_bound"] = None
    assert any("relative gap" in text for text in check_factor_file(sealed(manifest, tensors)).failed)
    manifest["certificate"]["relative_gap"] = None
    failed = check_factor_file(sealed(manifest, tensors)).failed
    assert len(failed) == 1 and "claims to have converged" in failed[0]
    manifest["certificate"]["converged"] = False
    assert check_factor_file(sealed(manifest, tensors)).supported


def test_an_encoder_whose_bound_is_sold_as_exact() -> None:
    manifest, tensors = parts(whole("single"))
    manifest["matrices"]["B"]["encoder_sensitivity"]["kind"] = "exact"
    failed = check_factor_file(sealed(manifest, tensors)).failed
    assert len(failed) == 1 and "A G + B Z is claimed as" in failed[0]

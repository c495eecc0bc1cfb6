"""Changes of manifests and of claims of sampling, one by one and seeded: what is not refused says nothing that is false.

MUTATIONS is how many of each are tried; `MUTATIONS=5000 pytest` of this file takes some minutes.
"""

from __future__ import annotations

import os
from functools import cache
from itertools import islice
from typing import Any

import numpy as np
import pytest
from checker_files import parts, rejected, sealed
from manifest_mutations import Mutation, Path, changed, mutations, nodes
from specs import solved

from factorize.accounting import calibrate_bins
from factorize.checker.check import check_factor_file
from factorize.checker.sampling.calibrations import check_calibration
from factorize.encoding import canonical_json
from factorize.errors import FactorizeError
from factorize.factors.factor_file import from_container
from factorize.format.container import Container

COUNT = int(os.environ.get("MUTATIONS", "60"))
N = 8
EPOCHS: dict[str, Any] = {"kind": "fixed_epochs", "epochs": 2}
APART: dict[str, Any] = {"kind": "min_sep", "min_sep": 3, "max_participations": 2}
WEIGHTS: dict[str, Any] = {"kind": "weighted", "weights": [1.0, 2.0] * (N // 2)}
SPECS: dict[str, dict[str, Any]] = {
    "dense": {"tolerance": 1e-6},
    "epochs": {"tolerance": 1e-6, "participation": EPOCHS},
    "separated": {"tolerance": 1e-6, "participation": APART},
    "banded": {"mechanism": {"kind": "banded", "bands": 3}, "participation": EPOCHS, "tolerance": 1e-6},
    "Toeplitz": {"mechanism": {"kind": "toeplitz"}, "objective": WEIGHTS},
    "restarts": {"mechanism": {"kind": "square_root"}, "objective": {"kind": "lambda_tau", "tau": 3}},
    "upper bound": {"mechanism": {"kind": "square_root", "normalization": "columns"}, "participation": APART},
}
NO_CLAIMS = {"rule", "warnings", "residual"}  # words, and what double precision found: the checker has its own
MADE_RIGHT = {"sha256", "bytes", "tensors"}  # by `sealed`, which reads what the last one names


@cache
def file(name: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    return parts(solved(N, **SPECS[name]).with_matrices(["C", "B", "C_inv"]))


def accepted(data: bytes) -> bool:
    """As `verify` does, and a publication."""
    try:
        if not check_factor_file(data).supported:
            return False
        from_container(Container(data)).verify()
    except FactorizeError:
        return False
    return True


def is_true(original: dict[str, Any], change: Mutation) -> bool:
    """Whether a change says less than the original, or something else that holds."""
    *outer, last = change.path or ("",)
    place, before = change.document, original
    for key in outer:
        place, before = place[key], before[key]
    new, old = (place.get(last), before[last]) if isinstance(place, dict) and change.path else (None, None)
    match change.path:
        case ("certificate", "class_lower_bound", "objective"):
            return isinstance(new, (int, float)) and 0 <= new < old
        case ("certificate", "converged"):
            return new is False
        case ("certificate", "residual", "max_abs"):
            return isinstance(new, (int, float)) and new >= 0
        case ("certificate", _, "rule"):
            return isinstance(new, str)
        case ("certificate", "class_lower_bound") | ("matrices", "B", "encoder_sensitivity"):
            return new is None and (last in place) == (change.path[0] == "certificate")
        case ("certificate", "warnings"):
            return isinstance(new, list) and len(new) > len(old)
        case ("spec", "tolerance"):
            return isinstance(new, float) and 0 < new < 1
    return False


@pytest.mark.parametrize("name", SPECS)
def test_manifests(name: str) -> None:
    manifest, tensors = file(name)
    assert accepted(sealed(manifest, tensors))
    for change in islice(mutations(manifest, np.random.default_rng(len(name))), COUNT):
        document = change.document
        try:
            data = sealed(document, tensors)
        except (KeyError, TypeError, AttributeError, ValueError):
            continue  # no digest can be made right
        if canonical_json(document) != canonical_json(manifest) and not is_true(manifest, change):
            assert not accepted(data), (change.what, change.path)


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
    manifest, tensors = file(name)
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
    manifest, tensors = file("dense")
    unbounded = changed(manifest, "certificate/lower_bound", None)
    assert any("relative gap" in text for text in check_factor_file(sealed(unbounded, tensors)).failed)
    without_gap = changed(unbounded, "certificate/relative_gap", None)
    failed = check_factor_file(sealed(without_gap, tensors)).failed
    assert len(failed) == 1 and "claims to have converged" in failed[0]
    assert check_factor_file(sealed(changed(without_gap, "certificate/converged", False), tensors)).supported


def test_an_encoder_whose_bound_is_sold_as_exact() -> None:
    manifest, tensors = file("dense")
    sold = changed(manifest, "matrices/B/encoder_sensitivity/kind", "exact")
    failed = check_factor_file(sealed(sold, tensors)).failed
    assert len(failed) == 1 and "A G + B Z is claimed as" in failed[0]


def test_claims_of_sampling() -> None:
    """Of a claim that closed forms prove, with the numbers beside it that have to agree."""
    result = solved(N, **SPECS["epochs"])
    calibration = calibrate_bins(result, epsilon=4.0, delta=1e-4, method="deterministic").document()
    beside = ("sigma_of_sums", "epsilon", "delta", "bins", "epochs", "clip_norm")
    data, document = sealed(*parts(result)), {name: calibration[name] for name in ("claim", *beside)}
    report = check_calibration(data, document)
    assert report.supported, report.failed
    for change in islice(mutations(document, np.random.default_rng(3)), COUNT):
        more_noise = change.path in (("claim", "attempt"),) and change.what == "another number"
        beside = len(change.path) == 1 and change.what == "a part removed"  # which the claim says too
        unknown = not change.path and change.what == "an unknown key"  # of a calibration, which has others
        same = len(change.path) == 1 and change.document == document and type(change.document[change.path[0]]) is int
        if change.path[:1] != ("claim",) and (beside or unknown or same) or more_noise:
            continue
        try:
            found = check_calibration(data, change.document)
        except FactorizeError:
            continue
        assert not found.supported, (change.what, change.path)

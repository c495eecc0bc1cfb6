"""Claims stay verifiable: the very documents of a release, against its golden files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from factorize.checker.sampling.calibrations import check_calibration
from factorize.format.bins_claims import SAMPLINGS

GOLDEN = Path(__file__).parents[1] / "golden"
CLAIMS = sorted((GOLDEN / "claims").glob("*.json"))


def document(path: Path) -> dict[str, Any]:
    held: dict[str, Any] = json.loads(path.read_text())
    return held


def test_every_law_and_kind_of_evidence_has_one() -> None:
    claims = [document(path)["claim"] for path in CLAIMS]
    rules = {
        name: {claim[part]["rule"] for claim in claims if claim["sampling"] == name for part in ("pq", "qp")}
        for name in SAMPLINGS
    }
    assert rules["balls_in_bins"] >= {"bet", "star_bound", "closed_form"}
    assert rules["random_allocation"] == {"loss_distribution"}
    shared = {claim["pq"]["shared"] for claim in claims if claim["pq"]["rule"] == "bet"}
    assert (0.0).hex() in shared and len(shared) > 1


@pytest.mark.parametrize("path", CLAIMS, ids=lambda path: path.stem)
def test_a_claim_of_a_release_is_accepted(path: Path) -> None:
    held = document(path)
    report = check_calibration((GOLDEN / held["file"]).read_bytes(), held)
    assert report.supported, report.failed
    assert report.calibration["claim_digest"] == held["claim_digest"]


@pytest.mark.parametrize("path", CLAIMS, ids=lambda path: path.stem)
def test_less_noise_is_another_claim_and_is_refused(path: Path) -> None:
    held = document(path)
    claim = {**held["claim"], "sigma": (0.97 * float.fromhex(held["claim"]["sigma"])).hex()}
    assert not check_calibration((GOLDEN / held["file"]).read_bytes(), claim).supported

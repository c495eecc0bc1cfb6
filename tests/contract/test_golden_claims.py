"""Claims of each protocol version stay verifiable: the very documents of a release, against its golden files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from factorize import load
from factorize.accounting import BinsClaim, bin_gram, examine
from factorize.accounting.allocation.allocation_claim import AllocationClaim, examine_allocation
from factorize.accounting.allocation.allocation_law import AllocationLaw
from factorize.exact.sampling.calibrations import check_calibration
from factorize.exact.sampling.star_claim import SAMPLINGS

GOLDEN = Path(__file__).parents[1] / "golden"
CLAIMS = sorted((GOLDEN / "claims").glob("*.json"))


def document(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def test_every_protocol_and_kind_of_evidence_has_one() -> None:
    claims = [document(path)["claim"] for path in CLAIMS]
    assert {claim["protocol"] for claim in claims} == set(SAMPLINGS)
    assert {claim["pq"]["rule"] for claim in claims} >= {"bet", "star_bound"}


@pytest.mark.parametrize("path", CLAIMS, ids=lambda path: path.stem)
def test_a_claim_of_a_release_is_accepted_by_the_checker_and_its_makers_test(path: Path) -> None:
    held = document(path)
    file, claim = GOLDEN / held["file"], held["claim"]
    report = check_calibration(file.read_bytes(), {"claim": claim, "claim_digest": held["claim_digest"]})
    assert report.supported, report.failed
    assert report.calibration["claim_digest"] == held["claim_digest"]
    strategy = load(file).strategy
    if claim["sampling"] == "random_allocation":
        anew = AllocationClaim.from_document(claim)
        tests = examine_allocation(anew, AllocationLaw.of(strategy, anew.bins))
        assert anew.digest == held["claim_digest"]
    else:
        kept = BinsClaim.from_document(claim)
        tests = examine(kept, bin_gram(strategy, kept.bins))
        assert kept.digest == held["claim_digest"]
    assert all(test.accepted for test in tests.values())


@pytest.mark.parametrize("path", CLAIMS, ids=lambda path: path.stem)
def test_less_noise_is_another_claim_and_is_refused(path: Path) -> None:
    held = document(path)
    claim = {**held["claim"], "sigma": (0.97 * float.fromhex(held["claim"]["sigma"])).hex()}
    assert not check_calibration((GOLDEN / held["file"]).read_bytes(), claim).supported

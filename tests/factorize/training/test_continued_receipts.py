"""Receipts that a second process continues, and what they say of the first one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import factorize
from factorize.checker.receipt import check_receipt, compare_receipts
from factorize.encoding import read_json
from factorize.errors import InvalidParameter
from factorize.training.auditor import ParticipationAuditor
from factorize.training.receipt import Receipt
from factorize.training.statement import PrivacyStatement

N = 6
COUNTED = {"contributions": 4, "number": 2, "unit": "example"}


@pytest.fixture(scope="module")
def factors() -> Any:
    return factorize.solve("prefix", n=N, epochs=3, mechanism="identity")


def begun(receipt: Receipt, factors: Any, *, ranks: int = 1, noise: str = "1" * 64) -> ParticipationAuditor:
    calibration = factors.calibrate(epsilon=2.0, delta=1e-5)
    auditor = ParticipationAuditor.of(calibration, N)
    about = {"steps": N, "examples": 2, "used": 2, "sampling": "fixed", "unit": "example", "ranks": ranks}
    statement = PrivacyStatement(calibration, factors.digest, **about)
    receipt.begin(statement, [factors], auditor, generator="sfc64", dtype="float32", commitments=[noise])
    return auditor


def take(auditor: ParticipationAuditor, last: int) -> None:
    while auditor.step < last:
        auditor.record([auditor.step % 2])


def supported(path: Path, factors: Any) -> bool:
    factors.save(path.with_suffix(".safetensors"))
    return check_receipt(path.read_bytes(), [path.with_suffix(".safetensors").read_bytes()]).supported


def test_a_process_that_takes_no_step_keeps_what_the_first_has_counted(tmp_path: Path, factors: Any) -> None:
    """It was started to close the receipt, or was killed before it loaded its checkpoint."""
    path = tmp_path / "receipt.json"
    take(begun(Receipt(path), factors), 4)
    again = Receipt(path)
    begun(again, factors)
    assert json.loads(path.read_text())["steps"]["counted"] == COUNTED
    again.close()
    steps = json.loads(path.read_text())["steps"]
    assert (steps["counted"], steps["participations"], steps["separation"]) == (COUNTED, 2, 2)
    assert supported(path, factors)


def test_a_receipt_of_no_steps_is_replaced(tmp_path: Path, factors: Any) -> None:
    """A notebook's cell runs again, with another seed, before anything was released; the first job releases no more."""
    path = tmp_path / "receipt.json"
    first = begun(Receipt(path), factors, noise="1" * 64)
    again = begun(Receipt(path), factors, noise="2" * 64)
    with pytest.raises(InvalidParameter, match="has changed since this run wrote it"):
        take(first, 1)
    take(again, 1)
    with pytest.raises(InvalidParameter, match=r"another run \(noise differs\).*or continue .* release of factorize"):
        begun(Receipt(path), factors, noise="3" * 64)
    assert json.loads(path.read_text())["noise"]["commitments"] == ["2" * 64]


def test_any_number_of_ranks_may_continue_a_receipt(tmp_path: Path, factors: Any) -> None:
    path = tmp_path / "receipt.json"
    first = begun(Receipt(path), factors, ranks=2)
    take(first, 4)
    before = path.read_bytes()
    again = Receipt(path)
    auditor = begun(again, factors, ranks=4)
    auditor.load_state_dict(first.state_dict())
    take(auditor, N)
    again.close()
    assert supported(path, factors) and json.loads(path.read_text())["noise"]["ranks"] == 2
    assert compare_receipts([read_json(before), read_json(path.read_bytes())]).supported


def test_an_auditor_of_another_length_is_refused(tmp_path: Path, factors: Any) -> None:
    """Of half the steps, it would let an example come back after half an epoch of the factorization."""
    calibration = factors.calibrate(epsilon=2.0, delta=1e-5)
    for steps in (3, 2 * N):
        auditor = ParticipationAuditor.of(calibration, steps)
        with pytest.raises(InvalidParameter, match=f"auditor, of {steps} steps, .* with n={N}"):
            factors.noise(calibration, 2, seed=3 << 100, auditor=auditor)
        about = {"steps": N, "examples": 2, "used": 2, "sampling": "fixed", "unit": "example"}
        statement = PrivacyStatement(calibration, factors.digest, **about)
        with pytest.raises(InvalidParameter, match=f"auditor, of {steps} steps"):
            Receipt(tmp_path / "r.json").begin(statement, [factors], auditor, generator="sfc64", dtype="float32")
    factors.noise(calibration, 2, seed=3 << 100, auditor=ParticipationAuditor.of(calibration, N))
    apart = factorize.solve("prefix", n=N, mechanism="identity", min_sep=2)
    planned = apart.calibrate(epsilon=2.0, delta=1e-5)
    apart.noise(planned, 2, seed=3 << 100, auditor=ParticipationAuditor.of(planned, 3))  # the distance is stated

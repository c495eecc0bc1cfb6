"""Runs whose files lie behind a link, or under a path relative to a folder that the job leaves."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import factorize
from factorize.adapters.federated import FederatedRounds
from factorize.errors import InvalidParameter
from factorize.privacy import PrivacyTarget
from factorize.training.auditor import ParticipationAuditor
from factorize.training.receipt import Receipt
from factorize.training.statement import PrivacyStatement


@pytest.fixture(scope="module")
def factors() -> Any:
    return factorize.solve("prefix", n=4, mechanism="identity")


def begun(receipt: Receipt, factors: Any) -> ParticipationAuditor:
    calibration = factors.calibrate(epsilon=2.0, delta=1e-5)
    auditor = ParticipationAuditor.of(calibration, 4)
    about = {"steps": 4, "examples": 4, "used": 4, "sampling": "fixed", "unit": "example"}
    statement = PrivacyStatement(calibration, factors.digest, **about)
    receipt.begin(statement, [factors], auditor, generator="sfc64", dtype="float32")
    return auditor


def rounds(path: Path, factors: Any, receipt: Receipt | None = None) -> FederatedRounds:
    settings: dict[str, Any] = {"clients": 8, "clients_a_round": 2, "clip_norm": 1.0, "seed": 3 << 100}
    settings["receipt"] = receipt
    return FederatedRounds(path, factors, PrivacyTarget(epsilon=4.0, delta=1e-5), [np.zeros(3)], **settings)


def refusal_in_a_fork(act: Any) -> str:
    """Return what another process is told."""
    reader, writer = os.pipe()
    if not (child := os.fork()):
        try:
            act()
        except InvalidParameter as reason:
            os.write(writer, str(reason).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as told:
        text = told.read()
    os.waitpid(child, 0)
    return text


def test_a_receipt_behind_a_link_is_written_where_the_link_leads(tmp_path: Path, factors: Any) -> None:
    link, real = tmp_path / "link.json", tmp_path / "receipt.json"
    link.symlink_to(real)
    auditor = begun(Receipt(link), factors)
    auditor.record([0])
    assert link.is_symlink() and json.loads(real.read_text())["steps"]["processes"] == [[0, 1]]
    for path in (link, real):
        assert f"{real} is in use by process" in refusal_in_a_fork(lambda path=path: begun(Receipt(path), factors))


def test_a_second_server_is_refused_behind_a_link(tmp_path: Path, factors: Any) -> None:
    """Its rounds would have the noise of the first."""
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "state")
    first = rounds(link, factors)
    first.admit(["a", "b"])
    assert "is in use by process" in refusal_in_a_fork(lambda: rounds(link, factors))
    assert link.is_symlink()
    first.stop()


def test_another_process_continues_rounds_that_were_stopped(tmp_path: Path, factors: Any) -> None:
    """As a script does that makes the rounds for a job of NVFlare, whose server makes them again."""
    receipt = Receipt(tmp_path / "receipt.json")
    first = rounds(tmp_path / "state", factors, receipt)
    again = lambda: rounds(tmp_path / "state", factors, Receipt(receipt.path))  # noqa: E731
    assert "is in use by process" in refusal_in_a_fork(again)
    first.stop()
    assert refusal_in_a_fork(again) == ""


def test_a_job_may_change_its_folder(tmp_path: Path, factors: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "first")
    receipt = Receipt("receipt.json")
    auditor = begun(receipt, factors)
    monkeypatch.chdir(tmp_path / "second")
    auditor.record([0])
    receipt.close()
    assert json.loads((tmp_path / "first" / "receipt.json").read_text())["steps"]["processes"] == [[0, 1]]
    assert list((tmp_path / "second").iterdir()) == []

"""Whole numbers of numpy, as sizes of data often are, mean what Python's do: in a law of batches, and in a receipt."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import factorize
from factorize.accounting.amplification import calibrate_amplified
from factorize.accounting.loss_laws import sampling_probability
from factorize.accounting.min_sep_law import min_sep_probability
from factorize.adapters.federated import FederatedRounds
from factorize.adapters.fleet import advise_fleet
from factorize.checker.receipt import check_receipt
from factorize.privacy import BestOf, PrivacyTarget
from factorize.training.auditor import ParticipationAuditor
from factorize.training.bins_audit import BinsAuditor
from factorize.training.orders import balls_in_bins
from factorize.training.receipt import Receipt
from factorize.training.statement import PrivacyStatement

KEY = bytes(range(32))
TARGET = {"epsilon": 2.0, "delta": 1e-5}


@pytest.mark.filterwarnings("error")
def test_a_small_type_does_not_overflow_to_a_smaller_probability() -> None:
    for kind in (np.int16, np.uint16):
        assert min_sep_probability(4, 100_000, kind(12_000)) == 12_000 / 64_000
        assert sampling_probability(4, 100_000, kind(12_000)) == 12_000 / 25_000


def test_bins_count_steps_in_whole_numbers() -> None:
    sizes = np.int16(600), np.int8(100), np.int8(2)
    order = balls_in_bins(*sizes, KEY)
    assert len(order) == BinsAuditor(*sizes).steps == BinsAuditor.of(order).steps == 200
    json.dumps([order.bins, order.examples, order.epochs])


@pytest.mark.filterwarnings("error")
def test_a_fleet_and_its_server_take_them(tmp_path: Path) -> None:
    advice = advise_fleet(np.int16(20_000), np.int16(2_000), np.int64(8), check_in=np.int8(4))
    assert advice == advise_fleet(20_000, 2_000, 8, check_in=4)
    target, sizes = PrivacyTarget(**TARGET), {"clients": np.int64(8), "clients_a_round": np.int64(2)}
    factors = factorize.solve("prefix", n=4, mechanism="identity")
    about: dict[str, Any] = {**sizes, "clip_norm": 1.0, "seed": 5 << 100}
    rounds = FederatedRounds(tmp_path / "state", factors, target, [np.zeros(3)], **about)
    rounds.admit(["a", "b"])
    assert len(rounds.close()) == 1


def fixed(**told: Any) -> tuple[Any, Any, dict[str, Any]]:
    factors = factorize.solve("prefix", n=4, mechanism="identity")
    return factors, factors.calibrate(**TARGET, divisor=np.int64(2)), told


def sampled(**told: Any) -> tuple[Any, Any, dict[str, Any]]:
    factors = factorize.solve("prefix", n=4, mechanism="banded", bands=2, min_sep=2)
    return factors, calibrate_amplified(factors, **TARGET, dataset_size=np.int64(24), batch_size=np.int32(6)), told


@pytest.mark.parametrize(
    ("factors", "calibration", "told"),
    [
        fixed(steps=np.int64(4), examples=np.int64(24), used=np.int32(24), ranks=np.int8(1)),
        fixed(unit="user", users=np.uint16(24)),
        fixed(trials=BestOf(np.int64(4))),
        sampled(),
    ],
    ids=["sizes", "users", "mean", "sampled"],
)
def test_a_receipt_states_them(tmp_path: Path, factors: Any, calibration: Any, told: dict[str, Any]) -> None:
    about = {"steps": 4, "examples": 24, "used": 24, "unit": "example", "sampling": calibration.sampling, **told}
    receipt, auditor = Receipt(tmp_path / "r.json"), ParticipationAuditor.of(calibration, 4, unit=about["unit"])
    statement = PrivacyStatement(calibration, factors.digest, **about)
    receipt.begin(statement, [factors], auditor, generator="sfc64", dtype="float32")
    auditor.record([0])
    receipt.close()
    factors.save(tmp_path / "f.safetensors")
    assert check_receipt(receipt.path.read_bytes(), [(tmp_path / "f.safetensors").read_bytes()]).supported

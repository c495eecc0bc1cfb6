"""Receipts of the papers' systems: each writes one while it trains, and the checker proves it from the factor file."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from factorize.checker.receipt import check_receipt
from factorize.encoding import read_json
from factorize.errors import InvalidParameter
from factorize.privacy import PrivacyTarget
from factorize.solvers import solve
from factorize.spec import parse_spec
from factorize.training import fixed_order
from factorize.training.receipt import Receipt
from papers.algorithms import (
    DIFFERENCED,
    Ball,
    FilteredNoise,
    Lengths,
    Machine,
    Quadratic,
    accelerated_dp_srgd,
    dp_skgd,
    dp_srg,
    full_sketch,
    independent_releases,
    mu2_workload,
    sketch_calibration,
    srg_workload,
    trusted_mu2,
    untrusted_mu2,
)
from papers.training import FactorizationNoise, PrivateSums, Sgd, dp_ftrl, method_spec, ones

N, BATCH, EPOCHS = 6, 4, 2
TARGET = PrivacyTarget(epsilon=2.0, delta=1e-5)
MODEL = Quadratic(np.ones(2), np.ones(2))
ZERO = np.zeros(2)
SGD = Sgd(learning_rate=0.1, momentum=0.5)


def order_of(epochs: int, batch: int = BATCH) -> Any:
    return fixed_order(N // epochs * batch, batch, epochs=epochs)


def ftrl(sums: PrivateSums, epochs: int) -> None:
    dp_ftrl(MODEL, ZERO, order_of(epochs), sums, optimizer=SGD)


def srg(sums: PrivateSums, epochs: int) -> None:
    dp_srg(MODEL, ZERO, order_of(epochs), sums, decay=0.5, optimizer=SGD)


def accelerated(sums: PrivateSums, epochs: int) -> None:
    accelerated_dp_srgd(MODEL, ZERO, order_of(epochs), sums, beta=10.0, project=Ball(2.0))


def untrusted(sums: PrivateSums, epochs: int) -> None:
    untrusted_mu2([Machine(MODEL, order_of(epochs), sums)], ZERO, learning_rate=0.01, project=Ball(2.0))


def trusted(sums: PrivateSums, epochs: int) -> None:
    machines = [Machine(MODEL, order_of(epochs, BATCH // 2)) for _ in range(2)]
    trusted_mu2(machines, ZERO, sums, learning_rate=0.01, project=Ball(2.0))


SYSTEMS: dict[str, tuple[dict[str, Any], Callable[[PrivateSums, int], None], int]] = {
    "DP-MF (K23)": (method_spec("dp_mf", ones(N)), ftrl, 1),
    "DP-MF+ (K23)": (method_spec("dp_mf_plus", ones(N), tau=3), ftrl, 1),
    "DP-MEMF (S24)": (method_spec("dp_memf", ones(N), epochs=EPOCHS), ftrl, EPOCHS),
    "nu-DP-FTRL (C24)": (method_spec("nu_dp_ftrl", ones(N), nu=0.1), ftrl, 1),
    "DP-SRG-MEMF (S24)": (method_spec("dp_memf", srg_workload(N, momentum=0.5, decay=0.5), epochs=EPOCHS), srg, EPOCHS),
    "Accelerated-DP-SRGD (S24)": (method_spec("dp_mf", ones(N)), accelerated, 1),
    "DP-mu^2-FL, untrusted (R24)": (method_spec("dp_mf", mu2_workload(N, "q")), untrusted, 1),
    "DP-mu^2-FL, trusted (R24)": (method_spec("dp_mf", mu2_workload(N, "x")), trusted, 1),
}


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_system_writes_a_receipt_that_is_proved(name: str, tmp_path: Path) -> None:
    spec, train, epochs = SYSTEMS[name]
    factors = solve(parse_spec(spec))
    receipt = Receipt(tmp_path / "receipt.json")
    noise = FactorizationNoise(factors, TARGET, 2, divisor=BATCH, seed=7 << 64)
    train(PrivateSums(noise, receipt=receipt), epochs)
    receipt.close()
    proved(receipt, factors, epochs)


def test_sketched_coordinates(tmp_path: Path) -> None:
    """M24: C = I in units of the clip norm of the drawn coordinates, all examples in every step."""
    lengths, receipt = Lengths(3, 2), Receipt(tmp_path / "receipt.json")
    train = partial(
        dp_skgd, lambda w, u: np.tile((w - 1)[u], (BATCH, 1)), ZERO, full_sketch(2, 1.0), np.ones(2), lengths
    )
    train(sketch_calibration(lengths, TARGET, examples=BATCH), seed=7 << 64, receipt=receipt)
    receipt.close()
    proved(receipt, independent_releases(lengths), N)
    with pytest.raises(InvalidParameter, match="guarantees nothing"):
        train(None, seed=7 << 64, receipt=Receipt(tmp_path / "other.json"))


def proved(receipt: Receipt, factors: Any, epochs: int) -> None:
    factors.save(receipt.path.with_name("factors.safetensors"))
    text = receipt.path.read_bytes()
    report = check_receipt(text, [receipt.path.with_name("factors.safetensors").read_bytes()])
    assert report.supported and not report.unseen, (report.failed, report.unseen)
    document: Any = read_json(text)
    assert (document["epsilon"], document["delta"]) == (TARGET.epsilon, TARGET.delta)
    assert document["steps"]["processes"] == [[0, N]] and document["steps"]["ended"]
    assert document["steps"]["participations"] == epochs
    assert document["data"]["used"] == document["data"]["examples"] == N // epochs * BATCH


def test_noise_without_a_factor_file_and_a_run_of_nobody_have_none(tmp_path: Path) -> None:
    receipt = Receipt(tmp_path / "receipt.json")
    with pytest.raises(InvalidParameter, match="FilteredNoise has none"):
        PrivateSums(FilteredNoise(DIFFERENCED, TARGET, 2, steps=N, seed=1 << 70), receipt=receipt)
    noise = FactorizationNoise(solve(parse_spec(SYSTEMS["DP-MF (K23)"][0])), TARGET, 2, seed=7 << 64)
    with pytest.raises(InvalidParameter, match="a receipt needs the order"):
        PrivateSums(noise, receipt=receipt).release_clipped(ZERO)

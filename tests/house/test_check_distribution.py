"""`factorize-check` alone: numpy, python-flint and safetensors prove receipts of every structure, as the product does."""

from __future__ import annotations

import itertools
import json
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from bare_sites import link, name_of, run
from cases import FAST, PARTICIPATIONS, case_of

import factorize
from factorize.checker.__main__ import main
from factorize.checker.receipt import check_receipt
from factorize.checker.receipt_text import EXIT_OPEN
from factorize.checker.structures import LIMITS, READINGS
from factorize.errors import UnsupportedProblem
from factorize.format.tensors import SCALED
from factorize.solvers import solve
from factorize.training.auditor import ParticipationAuditor
from factorize.training.bins_audit import BinsAuditor
from factorize.training.orders import balls_in_bins
from factorize.training.receipt import Receipt
from factorize.training.statement import PrivacyStatement
from release.check import build

SECOND = 1_700_000_000
REQUIRED = ["numpy", "python-flint", "safetensors"]
MORE: list[dict[str, Any]] = [
    {"mechanism": "buffered_linear", "buffers": 1, "redraws": 1, "epochs": 4, "n": 16},
    {"mechanism": "nu_toeplitz", "nu": 0.1, "n": "unbounded"},
]
"""Structures that the contract suite's small specs do not have."""
COMMAND = "import runpy; runpy.run_module('factorize.checker', run_name='__main__')"
EVERY = {*READINGS, *LIMITS, SCALED} - {"state_space"}  # which C^-1 alone may have
CHECK = """
import json, sys
from pathlib import Path
from factorize.checker.receipt import check_receipt
from factorize.checker.receipt_text import EXIT_OPEN
found = []
for receipt in sorted(Path(sys.argv[1]).glob("*.json")):
    report = check_receipt(receipt.read_bytes(), [receipt.with_suffix(".safetensors").read_bytes()])
    found.append([report.supported, *report.claims])
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel's files, and links to what it requires."""
    folder = tmp_path_factory.mktemp("site")
    wheel = build(tmp_path_factory.mktemp("wheel"), second=SECOND)
    assert wheel.stat().st_size < 165_000
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
        (metadata,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
        lines = archive.read(metadata).decode().splitlines()
    assert "Description-Content-Type: text/markdown" in lines and "# factorize-check" in lines
    needed = [line.removeprefix("Requires-Dist: ") for line in lines if line.startswith("Requires-Dist: ")]
    assert sorted(name_of(entry) for entry in needed if "extra ==" not in entry) == REQUIRED
    link(folder, REQUIRED)
    return folder


def found_of_small_specs() -> Iterator[Any]:
    """Solve running sums by every mechanism of the contract suite under every participation that it answers."""
    for mechanism, participation in itertools.product(FAST, PARTICIPATIONS):
        with suppress(UnsupportedProblem):
            yield solve(case_of(mechanism, "prefix", participation, "mean"), evidence=False)
    yield from (factorize.solve("prefix", **words) for words in MORE)


def test_its_verdict_on_small_specs_is_that_of_the_product(site: Path, tmp_path: Path) -> None:
    structures = set()
    for place, factors in enumerate(found_of_small_specs()):
        structures.add(factors.structure)
        calibration = factors.calibrate(epsilon=2.0, delta=1e-5)
        path = tmp_path / f"{place:03}.json"
        auditor = ParticipationAuditor.of(calibration, min(factors.steps or 16, 16))
        statement = PrivacyStatement(
            calibration,
            factors.digest,
            steps=min(factors.steps or 16, 16),
            examples=16,
            used=16,
            sampling="fixed",
            unit="example",
        )
        Receipt(path).begin(statement, [factors], auditor, generator="sfc64", dtype="float32")
        auditor.record([0])
        factors.save(path.with_suffix(".safetensors"))
    done = run(site, CHECK, str(tmp_path))
    assert done.returncode == 0, done.stderr
    verdicts = json.loads(done.stdout)
    assert len(verdicts) > 100 and structures == EVERY, (len(verdicts), structures)
    for path, (supported, *claims) in zip(sorted(tmp_path.glob("*.json")), verdicts, strict=True):
        report = check_receipt(path.read_bytes(), [path.with_suffix(".safetensors").read_bytes()])
        assert supported and claims == report.claims, path
        assert not report.unseen


def test_a_bet_without_scipy_or_a_signature_without_its_extra_is_not_looked_at(site: Path, tmp_path: Path) -> None:
    """Nothing of a claim under bins is taken on trust where it cannot be tested."""
    factors = factorize.solve("prefix", n=12, epochs=3, mechanism="blt", buffers=1)
    calibration = factors.calibrate(epsilon=2.0, delta=1e-5, sampling="balls_in_bins", bins=4)
    order = balls_in_bins(24, 4, 3, bytes(range(32)))
    statement = PrivacyStatement(
        calibration, factors.digest, steps=12, examples=24, used=24, sampling="balls_in_bins", unit="example"
    )
    receipt, file = tmp_path / "receipt.json", tmp_path / "factors.safetensors"
    auditor = BinsAuditor.of(order)
    Receipt(receipt).begin(statement, [factors], auditor, generator="sfc64", dtype="float32")
    auditor.record(order[0])
    factors.save(file)
    assert main([str(receipt), str(file)]) == EXIT_OPEN
    done = run(site, COMMAND, str(receipt), str(file))
    assert done.returncode == 6 and "factorize-check[sampling]" in done.stderr, done.stderr
    signed = ("--signature", str(receipt), "--public-key", str(receipt))
    done = run(site, COMMAND, str(receipt), str(file), *signed)
    assert done.returncode == 6 and "factorize-check[signing]" in done.stderr, done.stderr

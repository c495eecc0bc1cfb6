"""The code of pages runs as it is printed; the check of the page of trust, without our code, sees a file that is spoilt."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from house import ROOT, blocks
from safetensors.numpy import load_file, save_file

import factorize
from factorize.checker.receipt import check_receipt
from factorize.checker.receipt_text import verdict
from factorize.factors import Factors

DECODERS = ("honaker_online", "honaker_full")


@pytest.mark.parametrize("page", ["README.md", "docs/python.md"])
def test_the_code_of_the_page_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    few = [{"kind": "identity"}, {"kind": "square_root"}]  # all others would take their time here
    monkeypatch.setattr("factorize.solvers.comparing.plan.mechanisms", lambda *_: few)
    names: dict[str, object] = {}
    exec(compile(blocks(page), page, "exec"), names)
    factors = names["factors"]
    assert isinstance(factors, Factors) and factors.certificate.converged
    assert "table" not in names or names["table"].recommended["mechanism"] == "identity"


def test_running_counts() -> None:
    """The code of the page, and each number of its table from a solve of its own."""
    page = ROOT / "docs/counting.md"
    names: dict[str, Any] = {}
    exec(compile(blocks("docs/counting.md"), page, "exec"), names)
    published, true = np.array(names["published"]), np.cumsum(names["visits"])
    told = dict(re.findall(r"^\| .*\(?`(\w+)`.*\| +([\d.]+) \| +\d+ \|$", page.read_text(), re.MULTILINE))
    assert len(told) == 7 and 5 < np.sqrt(np.mean((published - true) ** 2)) < 20
    for kind, rmse in told.items():
        mechanism = {"kind": "tree", "decoder": kind} if kind in ("online", *DECODERS) else {"kind": kind}
        mechanism |= {"buffers": 4} if kind == "buffered_linear" else {}
        factors = factorize.solve("prefix", n=365, mechanism=mechanism)
        assert factors.calibrate(epsilon=1, delta=1e-6).rmse(factors) == pytest.approx(float(rmse), abs=0.005), kind


def test_a_loop_of_ones_own_writes_a_receipt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code = blocks("docs/receipt.md")
    exec(compile(code[code.index("import secrets") :], "docs/receipt.md", "exec"), {})
    report = check_receipt(Path("own.json").read_bytes(), [Path("factors.safetensors").read_bytes()])
    assert report.supported and verdict(report)[1] == 0


def test_the_three_commands_are_one_call() -> None:
    told = re.search(
        r"python -c 'import factorize; print\(factorize\.solve\((.*)\)\)'", (ROOT / "README.md").read_text()
    )
    assert told is not None
    assert factorize.Spec.of(*eval(f"[{told[1].split(',')[0]}]"), n=512).workload.n == 512


def test_a_stranger_checks_a_result_and_sees_one_that_is_spoilt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    factors = factorize.solve("prefix", n=64, epochs=4, to="C.safetensors", progress=False)
    page = compile(blocks("docs/trust.md"), "docs/trust.md", "exec")
    exec(page, {})
    told = capsys.readouterr().out.splitlines()
    assert told[0] == "sensitivity at most 1: True"
    assert float(told[1].split()[1]) == pytest.approx(factors.certificate.loss.rmse, rel=1e-9)
    c = load_file("C.safetensors")["C"]
    c[40, 9] = c[40, 9] + 1e-9
    save_file({"C": c}, "C.safetensors")
    exec(page, {})
    assert capsys.readouterr().out.startswith("sensitivity at most 1: False")

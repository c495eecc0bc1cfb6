"""The page of trust: its check without our code runs as it stands there, and says no where the file is spoilt."""

from __future__ import annotations

from pathlib import Path

import pytest
from pages import blocks
from safetensors.numpy import load_file, save_file

import factorize


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

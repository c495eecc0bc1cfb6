"""The tutorial runs as it is printed, commands included."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import torch
from house import ROOT, blocks

from factorize.api.cli import main

PAGE = "docs/start.md"


@pytest.mark.single_use
def test_the_tutorial_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FACTORIZE_STORE", str(tmp_path / "store"))
    names: dict = {}
    exec(compile(blocks(PAGE), PAGE, "exec"), names)
    assert names["accuracy"] > 0.8  # 0.95 here; one class is a tenth
    assert names["statement"].calibration.epsilon == 4 and names["statement"].sampling == "fixed"
    trained, resumed = names["model"].parameters(), names["again"].parameters()
    assert all(torch.equal(one, other) for one, other in zip(trained, resumed, strict=True))
    assert names["resumed"].noise.step == names["factors"].steps == 300
    capsys.readouterr()
    for command in re.findall(r"^factorize (.*)$", (ROOT / PAGE).read_text(), re.MULTILINE):
        with pytest.raises(SystemExit) as ended:
            main(command.split())
        assert not ended.value.code, command
    assert "proved" in capsys.readouterr().out


def test_the_installed_extras_are_there() -> None:
    extras = re.findall(r"pip install '\.\[(.*?)\]'", (ROOT / PAGE).read_text())
    offered = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert extras and set(extras[0].split(",")) <= set(offered)

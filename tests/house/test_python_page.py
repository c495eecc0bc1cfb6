"""The code of the Python page and of the README runs as it is printed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pages import ROOT, blocks

import factorize
from factorize.any_factors import AnyFactors


@pytest.mark.parametrize("page", ["README.md", "docs/python.md"])
def test_the_code_of_the_page_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    few = [{"kind": "identity"}, {"kind": "square_root"}]  # all others would take their time here
    monkeypatch.setattr("factorize.solvers.comparing.compare.mechanisms", lambda *_: few)
    names: dict[str, object] = {}
    exec(compile(blocks(page), page, "exec"), names)
    factors = names["factors"]
    assert isinstance(factors, AnyFactors) and factors.certificate.converged
    assert "table" not in names or names["table"].recommended["mechanism"] == "identity"


def test_the_three_commands_are_one_call() -> None:
    told = re.search(
        r"python -c 'import factorize; print\(factorize\.solve\((.*)\)\)'", (ROOT / "README.md").read_text()
    )
    assert told is not None
    assert factorize.Spec.of(*eval(f"[{told[1].split(',')[0]}]"), n=512).workload.n == 512

"""Notebooks run as they stand, cell by cell, and come to what they say."""

from __future__ import annotations

import json
from typing import Any

import pytest
from house import ROOT

NOTEBOOKS = sorted((ROOT / "examples/notebooks").glob("*.ipynb"))
CAME_OUT = {
    "choose": lambda names: names["row"] is not None and names["calibration"].epsilon == 2.0,
    "train": lambda names: names["accuracy"] > 0.8,
    "check": lambda names: (
        names["report"].supported and names["refused"] and names["own"].certificate.sensitivity.value > 0
    ),
}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    few = [{"kind": "identity"}, {"kind": "square_root"}]  # all others would take a minute here
    monkeypatch.setattr("factorize.solvers.comparing.compare.mechanisms", lambda *_: few)
    notebook = json.loads(path.read_text())
    names: dict[str, Any] = {}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == [] and cell["execution_count"] is None, (
                "without outputs, which depend on the machine"
            )
            exec(compile("".join(cell["source"]), f"{path.name} {cell['id']}", "exec"), names)
    assert CAME_OUT[path.stem](names)


def test_each_has_an_end_to_come_to() -> None:
    assert {path.stem for path in NOTEBOOKS} == set(CAME_OUT)

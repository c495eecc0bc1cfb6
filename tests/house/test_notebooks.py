"""Notebooks run as they stand, cell by cell, and come to what they say."""

from __future__ import annotations

from typing import Any

import pytest
from notebooks import FOLDER, OF_HUGGING_FACE, run_cells

NOTEBOOKS = sorted(path for path in FOLDER.glob("*.ipynb") if path.stem != OF_HUGGING_FACE)
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
    monkeypatch.setattr("factorize.solvers.comparing.plan.mechanisms", lambda *_: few)
    assert CAME_OUT[path.stem](run_cells(path))


def test_each_has_an_end_to_come_to() -> None:
    assert {path.stem for path in NOTEBOOKS} == set(CAME_OUT)

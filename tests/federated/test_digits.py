"""The example of federated training, in its quick form."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

import numpy as np
import pytest

PATH = Path(__file__).parents[2] / "examples" / "federated_digits.py"


def test_correlated_noise_is_above_flowers_own_clipping(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = importlib.util.spec_from_file_location("federated_digits", PATH)
    assert spec is not None and spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "federated_digits", example)
    spec.loader.exec_module(example)
    monkeypatch.setattr(example, "CLIPS", (0.5,))
    picture = tmp_path / "accuracy.png"
    quick = ["--rounds", "20", "--min-sep", "5", "--runs", "4", "--tuning-runs", "1", "--plot", str(picture)]
    assert example.main(quick) == 0
    found = re.findall(r"^(\w.*?) +clip .* accuracy ([\d.]+) \+- ([\d.]+)$", capsys.readouterr().out, re.MULTILINE)
    assert [name for name, *_ in found] == [example.FLOWER, example.INDEPENDENT, example.CORRELATED]
    (flower, flower_error), _, (ours, our_error) = ((float(mean), float(error)) for _, mean, error in found)
    assert ours - flower > 3 * np.hypot(flower_error, our_error)
    assert ours > 0.8 and picture.read_bytes()[:4] == b"\x89PNG"

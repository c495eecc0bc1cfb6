"""The example of federated training, in its quick form."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest


@pytest.mark.single_use
def test_correlated_noise_is_above_flowers_own_clipping(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "examples")
    example = import_module("federated_digits")
    monkeypatch.setattr(example, "CLIPS", (0.25, 0.5))
    picture = tmp_path / "accuracy.png"
    quick = ["--rounds", "20", "--min-sep", "5", "--runs", "4", "--tuning-runs", "1", "--plot", str(picture)]
    assert example.main(quick) == 0
    found = re.findall(r"^(\w.*?) +clip .* accuracy ([\d.]+) \+- ([\d.]+)$", capsys.readouterr().out, re.MULTILINE)
    assert [name for name, *_ in found] == [example.FLOWER, example.INDEPENDENT, example.CORRELATED]
    (flower, flower_error), _, (ours, our_error) = ((float(mean), float(error)) for _, mean, error in found)
    assert ours - flower > 3 * np.hypot(flower_error, our_error)
    assert ours > 0.8 and picture.read_bytes()[:4] == b"\x89PNG"


@pytest.mark.parametrize("odd", [["--runs", "0"], ["--min-sep", "0"], ["--clients-a-round", "201"]])
def test_numbers_out_of_range_are_refused_before_anything_runs(odd: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "examples")
    with pytest.raises(SystemExit, match="2"):
        import_module("federated_digits").main(odd)

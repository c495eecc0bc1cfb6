"""The page on published mechanisms: its code, its command on a matrix in that format, and the numbers that it repeats."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import CommandLine
from house import ROOT, blocks
from strangers_files import tensor_proto

from factorize.numbers.gaussian import gaussian_epsilon

PAGE = ROOT / "docs/published.md"
NOISE, DELTA = 1.411, 1e-10


def most_of_columns(array: np.ndarray, between: int, times: int) -> float:
    """The squared sensitivity as the notebook of the publication finds it: the best columns, `between` rounds between two."""
    norms, n = (array**2).sum(axis=0), len(array)
    best = np.zeros(n + between + 1)
    for _ in range(times):
        following = np.zeros_like(best)
        for start in reversed(range(n)):
            following[start] = max(following[start + 1], norms[start] + best[start + between + 1])
        best = following
    return float(best[0])


def banded(n: int, bands: int) -> np.ndarray:
    column = np.cumprod(np.concatenate([[1.0], 1 - 0.5 / np.arange(1, bands)]))
    array = np.array([[column[i - j] if 0 <= i - j < bands else 0.0 for j in range(n)] for i in range(n)])
    return array / np.linalg.norm(array, axis=0) * np.sqrt(bands / n) * np.linspace(0.9, 1.0, n)


def test_a_published_matrix_is_proved_with_its_epsilon(within: CommandLine, tmp_path: Path) -> None:
    array, between, times = banded(100, 20), 23, 3
    path = tmp_path / "c_matrix_tensor_pb"
    path.write_bytes(tensor_proto(array))
    spec = json.loads(re.search(r"```json\n(.*?)```", PAGE.read_text(), re.DOTALL)[1])
    assert (spec["workload"]["n"], spec["participation"]["min_sep"]) == (2000, 484 + 1)
    spec["workload"]["n"], spec["participation"]["min_sep"] = 100, between + 1
    verify = ("verify", "--strategy", path, "--spec", json.dumps(spec), "--sigma", NOISE, "--delta", DELTA)
    told = within(*map(str, verify), "--output", "json").json()
    expected = np.sqrt(most_of_columns(array, between, times))
    assert told["verified"] and told["complete"]
    assert told["certificate"]["sensitivity"]["value"] == pytest.approx(expected, rel=1e-12)
    decoder = np.tril(np.ones((100, 100))) @ np.linalg.inv(array)
    assert told["certificate"]["loss"]["rmse"] == pytest.approx(expected * np.sqrt((decoder**2).sum() / 100), rel=1e-9)
    assert told["privacy"]["epsilon"] == pytest.approx(gaussian_epsilon(DELTA, expected / NOISE), rel=1e-9)
    assert f"at delta {DELTA:g}, for a sigma of sums of {NOISE} at clip norm 1" in within(*map(str, verify)).out


def test_what_is_said_beside_a_strategy_has_to_fit(within: CommandLine, tmp_path: Path) -> None:
    path, spec = tmp_path / "C.npy", '{"workload": {"kind": "prefix", "n": 2}}'
    np.save(path, np.eye(2))
    verify: Any = ("verify", "--strategy", str(path))
    assert "--spec sets the participation and the claim" in within(*verify, "--spec", spec, "--claim", "1").error(2)
    assert "one of the two" in within(*verify, "--spec", spec, "--sigma", "1").error(2)
    assert "--spec" in within(*verify, "--participation", "single", "--sigma", "1").error(2)
    assert "work only with --strategy" in within("verify", str(path), "--holds", "C").error(2)
    np.savez(tmp_path / "blt.npz", theta=[0.5], omega=[0.5])
    blt = ("verify", "--strategy", str(tmp_path / "blt.npz"))
    assert "which fits any number of steps; give its spec" in within(*blt, "--participation", "single").error(2)
    assert within(*blt, "--spec", spec).code == 0


def test_the_page_says_what_comes_out() -> None:
    names: dict[str, Any] = {}
    exec(compile(blocks("docs/published.md"), PAGE, "exec"), names)
    assert names["own"].strategy.structure == "blt" and names["own"].certificate.sensitivity.exact
    rows = re.findall(
        r"^\| `bands\w+` \| ([\d.]+) \| \d+, \d \| ([\d.]+) \| ([\d.]+) \|$", PAGE.read_text(), re.MULTILINE
    )
    said = [
        float(number) for number in re.findall(r"sensitivity (\d\.\d+), and the second (\d\.\d+)", PAGE.read_text())[0]
    ]
    assert len(rows) == 2
    for (noise, rho, epsilon), sensitivity in zip(rows, said, strict=True):
        assert float(noise) * np.sqrt(2 * float(rho)) == pytest.approx(sensitivity, rel=2e-5)
        assert gaussian_epsilon(DELTA, sensitivity / float(noise)) == pytest.approx(float(epsilon), abs=2e-5)

"""The frozen reference: code that is the same has no differences from it, and every change of an answer is one."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PARTS = ["--part", "noise", "--part", "answers/identity"]


@pytest.fixture(scope="module")
def frozen() -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT)
        yield import_module("benchmarks.frozen")


@pytest.fixture(scope="module")
def written(frozen: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = Path(tmp_path_factory.mktemp("frozen")) / "reference.json"
    assert frozen.main(["write", str(path), *PARTS]) == 0
    return path


@pytest.fixture
def reference(written: Path, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    return Path(shutil.copy(written, tmp_path))


def changed(path: Path, part: str, entry: str, **values: Any) -> None:
    document = json.loads(path.read_text())
    document[part][entry] |= values
    path.write_text(json.dumps(document))


def test_the_same_code_has_no_differences(frozen: Any, reference: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert frozen.main(["compare", str(reference), *PARTS, "--exact"]) == 0
    entries = re.search(r"^0 differences in (\d+) entries of 2 parts$", capsys.readouterr().out, re.MULTILINE)
    assert entries is not None and int(entries[1]) > 180


def test_it_runs_outside_of_the_tests() -> None:
    """A program of its own has no path of pytest's."""
    program = "from benchmarks.frozen import cases; print(len(cases().MECHANISMS))"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert int(done.stdout) > 20, done.stderr


def test_every_change_is_printed(frozen: Any, reference: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changed(reference, "noise", "0.1.0/banded, sfc64, float64", bits="0" * 64, sigma=1.0)
    changed(reference, "answers/identity", "prefix, single", digest="1" * 64)
    changed(reference, "answers/identity", "decay, single", certificate={"sensitivity": {"kind": "upper_bound"}})
    assert frozen.main(["compare", str(reference), *PARTS]) == 1
    printed = capsys.readouterr().out
    assert "noise > 0.1.0/banded, sfc64, float64 > bits: was" in printed
    assert "noise > 0.1.0/banded, sfc64, float64 > sigma: was 1.0, is" in printed
    assert "answers/identity > prefix, single > digest: was" in printed
    assert 'decay, single > certificate > sensitivity > kind: was "upper_bound", is "exact"' in printed
    assert "decay, single > certificate > loss: is new" in printed


def test_what_is_gone_is_a_difference_and_what_is_new_is_none(
    frozen: Any, reference: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = json.loads(reference.read_text())
    del document["answers/identity"]["prefix, single"]
    document["answers/identity"]["no such workload, single"] = {}
    document["no such part"] = {}
    reference.write_text(json.dumps(document))
    assert frozen.main(["compare", str(reference), *PARTS]) == 1
    printed = capsys.readouterr().out
    assert "answers/identity > prefix, single: is new" in printed
    assert re.search(r"^2 differences in", printed, re.MULTILINE)  # what is new is not counted
    assert "no such workload, single: is gone" in printed
    assert "no such part: is gone" in printed


def test_an_unknown_part_is_refused(frozen: Any, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="no part 'answer'; use golden, noise, specs"):
        frozen.main(["write", str(tmp_path / "reference.json"), "--part", "answer"])


@pytest.mark.parametrize(
    ("before", "now", "alike", "equal"),
    [
        (1.0, 1.0 + 1e-13, True, False),
        (1.0, 1.0 + 1e-11, False, False),
        (0.0, 1e-20, False, False),
        (1, 2, False, False),
        (1, 1.0, False, False),
        (True, 1, False, False),
        ((1.5).hex(), (1.5 + 2.0**-52).hex(), True, False),
        ((1.5).hex(), (1.5 + 2.0**-30).hex(), False, False),
        ("0xaa", "0xab", False, False),
        ("the sensitivity is 1.25 by the rule", "the sensitivity is 1.2500000000000002 by the rule", True, False),
        ("the sensitivity is 1.25 by the rule", "the sensitivity is 1.26 by the rule", False, False),
        ("overstated by 1 units", "overstated by 2 units", False, False),
        ("is at least 1.5", "is at most 1.5", False, False),
        ("0e12", "0e13", False, False),
        ("exact", "exact", True, True),
        ([1.0, 2.0], [1.0], False, False),
        (None, 1.0, False, False),
    ],
)
def test_numbers_may_differ_a_little_and_nothing_else(
    frozen: Any, before: Any, now: Any, alike: bool, equal: bool
) -> None:
    assert (not list(frozen.differences(before, now, exact=False))) == alike
    assert (not list(frozen.differences(before, now, exact=True))) == equal

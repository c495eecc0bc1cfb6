"""One thing of a factor file changed: refused by all readers, or read alike by all, or of no meaning to noise and claims."""

from __future__ import annotations

import copy
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checker_files import file_of, sealed
from manifest_mutations import at
from manifest_mutations import changed as with_value
from reader_mutations import GOLDEN, Original, changed, judge, originals

from factorize.checker.strategy import read_factor_file
from factorize.client import load as load_light
from factorize.errors import CorruptObject
from factorize.factors.factor_file import from_container, load
from factorize.format.container import Container
from factorize.noise.source import source_of

COUNT, SHARES = 300, 2
"""`python -m benchmarks.soak readers` goes through 50,000."""


@pytest.fixture(scope="module")
def files() -> list[Original]:
    return originals()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numbers that are none are among what is tried
@pytest.mark.parametrize("share", range(SHARES))
def test_no_two_readers_read_a_changed_file_in_two_ways(files: list[Original], share: int, tmp_path: Path) -> None:
    rng = np.random.default_rng([12, share])
    outcomes: Counter[bool] = Counter()
    for i in range(COUNT // SHARES):
        what, data = changed(rng, files[i % len(files)])
        verdict = judge(files[i % len(files)], what, data, tmp_path)
        assert not verdict.disagreement, (files[i % len(files)].name, what, verdict.disagreement)
        outcomes[verdict.refused] += 1
    assert outcomes[True] > COUNT // SHARES / 4 and outcomes[False] > COUNT // SHARES / 20  # neither is all there is


def parts_of(files: list[Original], name: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    original = next(original for original in files if original.name == name)
    return copy.deepcopy(original.manifest), dict(original.tensors)


READERS: tuple[Callable[[Path], Any], ...] = (
    load,
    load_light,
    lambda path: from_container(Container(path.read_bytes())),
    lambda path: read_factor_file(path.read_bytes()),
)
SCALES = ("C.row_scale", "C.column_scale")
HIDDEN = ("C", "C_inv", "B", "C.coefficients", "dual.C", "x")
STATED = "certificate/sensitivity/"
REFUSED: list[tuple[str, dict[str, Any], dict[str, np.ndarray], str]] = [
    # The certificate did not look at it, and the client divided its noise by it.
    *((name, {"matrices/C/tensors": lambda held, scale=scale: [*held, scale]}, {scale: np.full(24, 1000.0)}, scale)
      for name in ("dense", "banded", "buffered", "toeplitz", "blt", "redrawn", "tree") for scale in SCALES),
    # The client took it for a strategy without end, whose claim is another one.
    *((name, {"matrices/C/shape": shape}, {}, "stated to have shape")
      for name in ("blt", "dense", "toeplitz") for shape in ([None, None], [None, 40], [40.0, 40.0], "40", None)),
    *(("blt", {"dual/tensors": lambda held, name=name: [*held, name]}, {name: np.eye(40)}, "the evidence has the tensors")
      for name in HIDDEN),
    # `load_file(path)["C"]` was then what stood among the evidence.
    *(("dense", {"matrices/C/tensors": [name], "dual/tensors": lambda held: [*held, "C"]}, {name: np.eye(24)},
       "the tensors of C are") for name in ("C.", "C..", "c", "C_inv", "dual.C")),
    ("buffered", {}, {"x": np.ones(1)}, "do not have the same tensors"),
    ("buffered", {STATED + "value": 1.0}, {}, "two different numbers"),
    ("buffered", {STATED + "hex": "0x1.8p+0"}, {}, "sensitivity is stated as"),
    ("buffered", {STATED + "kind": "x"}, {}, "sensitivity has the kind"),
    ("buffered", {STATED + "participation": {"kind": "fixed_epochs", "epochs": 2}}, {}, "sensitivity is stated for"),
    # 3.0 participations equal 3, but a reader that counts with them may not take them for the same.
    ("banded", {STATED + "participation/max_participations": 3.0}, {}, "sensitivity is stated for"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "changes", "added", "words"), REFUSED)
def test_what_once_passed_a_reader_is_refused_by_all(
    files: list[Original],
    name: str,
    changes: dict[str, Any],
    added: dict[str, np.ndarray],
    words: str,
    tmp_path: Path,
) -> None:
    manifest, tensors = parts_of(files, name)
    for place, value in changes.items():
        held = at(manifest, tuple(place.split("/")))
        manifest = with_value(manifest, place, value(held) if callable(value) else value)
    path = tmp_path / "refused.safetensors"
    path.write_bytes(sealed(manifest, tensors | added))
    for read in READERS:
        with pytest.raises(CorruptObject) as refusal:
            read(path)
        assert words in str(refusal.value)


def test_a_file_that_changes_while_it_is_held_is_refused(files: list[Original], tmp_path: Path) -> None:
    shutil.copy(GOLDEN / "buffered.safetensors", path := tmp_path / "f.safetensors")
    factors = load_light(path)
    manifest, tensors = parts_of(files, "buffered")
    tensors["C.output"] = tensors["C.output"] * 0.5
    path.write_bytes(file_of(manifest, tensors))
    with pytest.raises(CorruptObject, match="do not hash"):
        source_of(factors)

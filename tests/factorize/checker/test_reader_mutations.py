"""One thing of a factor file changed: refused by all readers, or read alike by all, or of no meaning to noise and claims."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from checker_files import file_of
from reader_mutations import GOLDEN, Original, changed, judge, originals, sealed

from factorize.checker.file import read_factor_file
from factorize.client import load as load_light
from factorize.client.noise_source import source_of
from factorize.errors import CorruptObject
from factorize.factor_file import from_container, load
from factorize.format.container import Container

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


def refused_by_all(data: bytes, folder: Path) -> list[str]:
    """What each reader says; fails where one of them reads it."""
    path = folder / "refused.safetensors"
    path.write_bytes(data)
    said = []
    readers = (
        load,
        load_light,
        lambda p: from_container(Container(p.read_bytes())),
        lambda p: read_factor_file(p.read_bytes()),
    )
    for read in readers:
        with pytest.raises(CorruptObject) as refusal:
            read(path)  # type: ignore[operator]  # all of them take a path
        said.append(str(refusal.value))
    return said


def parts_of(files: list[Original], name: str) -> tuple[dict, dict]:  # type: ignore[type-arg]  # a manifest
    import copy

    original = next(original for original in files if original.name == name)
    return copy.deepcopy(original.manifest), dict(original.tensors)


@pytest.mark.parametrize("name", ["dense", "banded", "buffered", "toeplitz", "blt", "redrawn", "tree"])
@pytest.mark.parametrize("scale", ["C.row_scale", "C.column_scale"])
def test_a_scale_beside_what_is_not_scaled_is_refused(
    files: list[Original], name: str, scale: str, tmp_path: Path
) -> None:
    """The certificate did not look at it, and the client divided its noise by it."""
    manifest, tensors = parts_of(files, name)
    tensors[scale] = np.full(manifest["spec"]["workload"]["n"], 1000.0)
    manifest["matrices"]["C"]["tensors"].append(scale)
    for text in refused_by_all(sealed(manifest, tensors), tmp_path):
        assert scale in text


def test_a_shape_without_end_beside_an_n_is_refused(files: list[Original], tmp_path: Path) -> None:
    """The client took it for a strategy without end, whose claim is another one."""
    for name in ("blt", "dense", "toeplitz"):
        for shape in ([None, None], [None, 40], [40], [40.0, 40.0], [True, True], "40", None):
            manifest, tensors = parts_of(files, name)
            manifest["matrices"]["C"]["shape"] = shape
            refused_by_all(sealed(manifest, tensors), tmp_path)


@pytest.mark.parametrize("hidden", ["C", "C_inv", "B", "C.coefficients", "dual.C", "x"])
def test_matrices_among_the_evidence_are_refused(files: list[Original], hidden: str, tmp_path: Path) -> None:
    manifest, tensors = parts_of(files, "blt")
    tensors[hidden] = np.eye(40)
    manifest["dual"]["tensors"].append(hidden)
    refused_by_all(sealed(manifest, tensors), tmp_path)


def test_the_certified_c_under_another_name_is_refused(files: list[Original], tmp_path: Path) -> None:
    """`load_file(path)["C"]` was then what stood among the evidence."""
    for name in ("C.", "C..", "c", "C_inv", "dual.C"):
        manifest, tensors = parts_of(files, "dense")
        tensors[name], tensors["C"] = tensors["C"], np.eye(24)
        manifest["matrices"]["C"]["tensors"] = [name]
        manifest["dual"]["tensors"].append("C")
        refused_by_all(sealed(manifest, tensors), tmp_path)


def test_a_tensor_that_nothing_names_is_refused(files: list[Original], tmp_path: Path) -> None:
    manifest, tensors = parts_of(files, "buffered")
    tensors["x"] = np.ones(1)
    refused_by_all(sealed(manifest, tensors), tmp_path)


def test_a_claim_of_two_numbers_or_for_others_is_refused(files: list[Original], tmp_path: Path) -> None:
    changes = (
        {"value": 1.0},
        {"hex": "0x1.8p+0"},
        {"kind": "x"},
        {"participation": {"kind": "fixed_epochs", "epochs": 2}},
    )
    for change in changes:
        manifest, tensors = parts_of(files, "buffered")
        manifest["certificate"]["sensitivity"] |= change
        path = tmp_path / "f.safetensors"
        path.write_bytes(sealed(manifest, tensors))
        for read in (load, load_light):
            with pytest.raises(CorruptObject, match="sensitivity"):
                read(path)


def test_a_file_that_changes_while_it_is_held_is_refused(files: list[Original], tmp_path: Path) -> None:
    shutil.copy(GOLDEN / "buffered.safetensors", path := tmp_path / "f.safetensors")
    factors = load_light(path)
    manifest, tensors = parts_of(files, "buffered")
    tensors["C.output"] = tensors["C.output"] * 0.5
    path.write_bytes(file_of(manifest, tensors))
    with pytest.raises(CorruptObject, match="do not hash"):
        source_of(factors)

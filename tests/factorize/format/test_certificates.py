"""A certificate as a manifest states it: every reader, the light one too, refuses what is none."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from factorize.checker.file import read_factor_file
from factorize.errors import CorruptObject
from factorize.factor_file import load
from factorize.format.certificates import check_certificate
from factorize.format.container import Container
from factorize.format.reading import check_file

GOLDEN = sorted((Path(__file__).parents[2] / "golden").glob("*/*.safetensors"))


def certificate_of(path: Path) -> dict[str, Any]:
    stated: dict[str, Any] = json.loads(Container(path.read_bytes()).manifest_text)["certificate"]
    return stated


def without(document: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in document.items() if key != name}


def test_fields_are_those_that_a_reader_knows() -> None:
    stated = certificate_of(GOLDEN[0])
    for document in ({**stated, "later": 1}, *(without(stated, name) for name in stated if name != "sensitivity")):
        with pytest.raises(CorruptObject, match="missing or unknown"):
            check_certificate(document)
    for name in ("loss", "residual", "lower_bound"):
        assert isinstance(stated[name], dict)
        for inner in ({**stated[name], "more": None}, *(without(stated[name], key) for key in stated[name])):
            with pytest.raises(CorruptObject, match="missing or unknown"):
                check_certificate({**stated, name: inner})


WRONG = pytest.mark.parametrize(
    ("place", "value"),
    [
        (("loss",), []),
        (("loss", "rmse"), "1"),
        (("loss", "rmse"), True),
        (("lower_bound",), 0),
        (("lower_bound",), {"objective": None, "rule": "x"}),
        (("class_lower_bound",), {"objective": 1.0, "rule": 2}),
        (("relative_gap",), "0"),
        (("residual",), 0.0),
        (("residual", "max_abs"), None),
        (("residual", "max_abs"), -1e300),
        (("loss", "rmse"), -1.0),
        (("lower_bound", "objective"), -1e-300),
        (("converged",), 1),
        (("warnings",), "none"),
        (("warnings",), [1]),
        (("loss", "shape"), None),
        (("loss",), {}),
        (("residual",), {}),
        (("lower_bound",), {"objective": 1.0}),
    ],
)


def spoilt(place: tuple[str, ...], value: Any) -> dict[str, Any]:
    inner = stated = deepcopy(certificate_of(GOLDEN[0]))
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    return stated


def refused_by_all(certificate: dict[str, Any], folder: Path) -> None:
    """With every digest right."""
    from reader_mutations import sealed

    container = Container(GOLDEN[0].read_bytes())
    manifest = {**json.loads(container.manifest_text), "certificate": certificate}
    changed = folder / "changed.safetensors"
    changed.write_bytes(sealed(manifest, {name: container.read(name) for name in container.names}))
    with pytest.raises(CorruptObject):
        load(changed)
    with pytest.raises(CorruptObject):
        check_file(changed)
    with pytest.raises(CorruptObject):
        read_factor_file(changed.read_bytes())


@WRONG
def test_all_readers_refuse_it_alike(place: tuple[str, ...], value: Any, tmp_path: Path) -> None:
    refused_by_all(spoilt(place, value), tmp_path)


def test_a_number_that_is_not_finite_is_refused() -> None:
    for found in (float("inf"), float("nan")):
        with pytest.raises(CorruptObject, match="no finite number"):
            check_certificate(spoilt(("loss", "rmse"), found))

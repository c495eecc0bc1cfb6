"""Factor files as the exact checker opens them, by the reader of all others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from checker_files import parts, random_result, sealed

from factorize.checker.check import check_factor_file
from factorize.errors import CorruptObject


def small(structure: str = "dense") -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    result = random_result(np.random.default_rng(0), structure, {"kind": "single"}, 4)
    return parts(result.with_matrices(["C", "B", "C_inv"]))


@pytest.mark.parametrize(
    ("part", "words"),
    [
        ({"privacy": {"epsilon": 0.01}}, "unknown"),
        ({"workload": {"kind": "identity", "n": 4, "privacy": 1}}, "the manifest's spec is not valid"),
        ({"workload": {"kind": "identity", "n": 4.0}}, "the spec states the size"),
        ({"tolerance": 2.0}, "the manifest's spec is not valid"),
        ({"optimize_for": None}, "not in its canonical form"),
        ({"optimize_for": {"kind": "prefix", "n": 4, "extra": None}}, "the manifest's spec is not valid"),
    ],
)
def test_specs_that_are_none(part: dict[str, Any], words: str) -> None:
    manifest, tensors = small()
    manifest["spec"] |= part
    with pytest.raises(CorruptObject, match=words):
        check_factor_file(sealed(manifest, tensors))


def test_a_loss_is_a_number_where_there_is_a_last_step() -> None:
    manifest, tensors = small()
    manifest["certificate"]["loss"]["rmse"] = None
    with pytest.raises(CorruptObject, match="the manifest is not valid: TypeError"):
        check_factor_file(sealed(manifest, tensors))

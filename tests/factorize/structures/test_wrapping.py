"""What `scaled` wraps: every structure around which it can be written is served by every reader, and the rest by none."""

from __future__ import annotations

import numpy as np
import pytest
from checker_files import parts, sealed
from specs import claimed, spec_of
from structure_cases import strategies

from factorize.checker.check import check_factor_file
from factorize.errors import CorruptObject, InvalidStrategy
from factorize.format.tensors import COLUMN_SCALE, INNER_STRUCTURES
from factorize.noise.source import noise_source
from factorize.structures.layouts import build_matrix
from factorize.structures.scaled import ColumnScaled

N = 12
SCALE = np.linspace(0.5, 1.5, N)
INNER = {strategy.structure: strategy for strategy in reversed(strategies(N).values())}
REFUSED = sorted(set(INNER) - set(INNER_STRUCTURES))


@pytest.mark.parametrize("structure", REFUSED)
def test_what_no_reader_serves_cannot_be_written(structure: str) -> None:
    with pytest.raises(InvalidStrategy, match=f"a {structure} matrix cannot be scaled.*use one of dense, toeplitz"):
        ColumnScaled(INNER[structure], SCALE)


@pytest.mark.parametrize("structure", [name for name in REFUSED if name != "scaled"])
def test_what_cannot_be_written_is_read_by_nobody(structure: str) -> None:
    manifest, tensors = parts(claimed(spec_of(N, "dense"), ColumnScaled(INNER["banded"], SCALE)))
    inner = INNER[structure].tensors()
    scaled = {**inner, COLUMN_SCALE: SCALE}
    del tensors["C.bands"]
    named = {name if name.startswith("tree.") else f"C.{name}".rstrip("."): part for name, part in inner.items()}
    manifest["matrices"]["C"]["tensors"] = [*named, "C.column_scale"]
    data = sealed(manifest, {**tensors, **named})
    with pytest.raises(CorruptObject, match="the tensors of C are .*'C.column_scale'.*, but its structure has"):
        check_factor_file(data)
    with pytest.raises(CorruptObject, match="do not belong to a structure that can be scaled: dense, toeplitz"):
        build_matrix("scaled", scaled, N)
    with pytest.raises(CorruptObject, match="do not belong to a structure that can be scaled: dense, toeplitz"):
        noise_source("scaled", scaled, N, "")

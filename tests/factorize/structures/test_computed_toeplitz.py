"""Inverses of matrices with few diagonals: what is stored is C^-1, and the sensitivity is that of its exact inverse."""

from __future__ import annotations

import numpy as np
import pytest
from specs import solved

from factorize import solvers
from factorize.checker.check import check_factor_file
from factorize.client.noise_source import Streamable, noise_source
from factorize.spec import parse_spec


@pytest.mark.parametrize("normalization", ["none", "columns"])
@pytest.mark.parametrize("participation", [{"kind": "single"}, {"kind": "fixed_epochs", "epochs": 4}], ids=str)
def test_the_square_root_is_stored_so_and_its_noise_keeps_few_vectors(participation, normalization, tmp_path):
    mechanism = {"kind": "banded_inverse_square_root", "bands": 5, "normalization": normalization}
    spec = {"workload": {"kind": "prefix", "n": 64}, "mechanism": mechanism, "participation": participation}
    found = solvers.solve(parse_spec(spec))
    source = noise_source(found.strategy.structure, found.strategy.tensors(), 64, found.digest)
    assert isinstance(source, Streamable)
    assert source.recurrence().vectors == 4
    found.save(tmp_path / "file.safetensors")
    report = check_factor_file((tmp_path / "file.safetensors").read_bytes())
    assert report.supported, report.failed


@pytest.mark.parametrize(
    ("workload", "structure"),
    [
        ({"kind": "momentum", "momentum": 0.9}, "inverse_banded_toeplitz"),
        ({"kind": "decay", "rate": 0.5}, "inverse_banded_toeplitz"),
        ({"kind": "window", "width": 2}, "toeplitz"),  # (1 + x)^(-1/2) alternates
    ],
)
def test_where_the_inverse_has_positive_entries_the_column_is_stored(workload, structure):
    mechanism = {"kind": "banded_inverse_square_root", "bands": 4}
    found = solved({**workload, "n": 64}, mechanism)
    assert found.strategy.structure == structure
    assert found.rows("C_inv", 0, 64) @ found.rows("C", 0, 64) == pytest.approx(np.eye(64), abs=1e-12)

"""Inverses of matrices with few diagonals: what is stored is C^-1, and the sensitivity is that of its exact inverse."""

from __future__ import annotations

import numpy as np
import pytest
from specs import solved

from factorize.noise.source import noise_source


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
    source = noise_source(structure, found.strategy.tensors(), 64, found.digest)
    assert source.cost.vectors == (64 if structure == "toeplitz" else 3)
    assert found.rows("C_inv", 0, 64) @ found.rows("C", 0, 64) == pytest.approx(np.eye(64), abs=1e-12)

"""Inverses of matrices with few diagonals: what is stored is C^-1, and the sensitivity is that of its exact inverse."""

from __future__ import annotations

import numpy as np
import pytest
from specs import solved

from factorize import solvers
from factorize.certificate.sensitivity import sensitivity_of
from factorize.checker.check import check_factor_file
from factorize.checker.sensitivity import squared_sensitivity
from factorize.checker.strategy import Strategy
from factorize.client.noise_source import Streamable, noise_source
from factorize.participation import FixedEpochs, MinSep, Single
from factorize.spec import parse_spec
from factorize.structures.inverse_banded_toeplitz import InverseBandedToeplitz

PARTICIPATIONS = [
    Single(),
    FixedEpochs(kind="fixed_epochs", epochs=4),
    MinSep(kind="min_sep", min_sep=7, max_participations=5),
]
RISING = np.array([1.0, -0.1, -0.8])  # c = 1, 0.1, 0.81, ...


def test_coefficients_that_rise_give_an_upper_bound():
    strategy = InverseBandedToeplitz(RISING, 40)
    found = sensitivity_of(strategy, PARTICIPATIONS[2])
    assert found.kind == "upper_bound"
    true = strategy.dense()[:, ::7][:, :5].sum(axis=1)
    assert found.value >= np.linalg.norm(true)
    bracket = squared_sensitivity(Strategy(strategy.structure, strategy.tensors(), 40), PARTICIPATIONS[2].document())
    assert float(bracket.upper) == pytest.approx(found.value**2, rel=1e-11)
    assert not bracket.exact


@pytest.mark.parametrize("normalization", ["none", "columns"])
@pytest.mark.parametrize("participation", PARTICIPATIONS[:2], ids=lambda p: p.kind)
def test_the_square_root_is_stored_so_and_its_noise_keeps_few_vectors(participation, normalization, tmp_path):
    mechanism = {"kind": "banded_inverse_square_root", "bands": 5, "normalization": normalization}
    spec = {"workload": {"kind": "prefix", "n": 64}, "mechanism": mechanism, "participation": participation.document()}
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

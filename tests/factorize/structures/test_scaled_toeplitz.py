"""Certificates of Toeplitz strategies with scaled columns against those of whole matrices."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from specs import spec_of

import factorize.certificate.certificate as certificates
from factorize import parse_spec
from factorize.errors import CertificateError
from factorize.solution import Outcome
from factorize.structures.blt import BltMatrix
from factorize.structures.dense import DenseMatrix
from factorize.structures.inverse_banded_toeplitz import InverseBandedToeplitz
from factorize.structures.scaled import ColumnScaled
from factorize.structures.toeplitz import ToeplitzMatrix

N = 40
RNG = np.random.default_rng(5)
INNER = {
    "toeplitz": ToeplitzMatrix(1.3 / (1 + np.arange(N)) ** 0.7, N),
    "signed": ToeplitzMatrix(np.array([2.0, -0.7, 0.3, 0.0, -0.1]), N),
    "blt": BltMatrix(np.array([0.9, 0.4]), np.array([0.3, 0.2]), N),
    "inverse": InverseBandedToeplitz(np.array([1.0, -0.5, -0.25]), N),
}
WORKLOADS = [
    {"kind": "prefix", "n": N},
    {"kind": "momentum", "n": N, "momentum": 0.9, "learning_rates": (1 + np.arange(N) % 3).tolist()},
    {"kind": "srg", "n": N, "momentum": 0.8, "decay": 0.9},
    {"kind": "mu2", "n": N, "output": "w"},
]


def scaled(name):
    return ColumnScaled(INNER[name], RNG.uniform(0.5, 2.0, N))


def test_an_inverse_that_overflows_is_no_certificate():
    spec = spec_of(WORKLOADS[0], {"kind": "square_root", "normalization": "columns"})
    matrix = ColumnScaled(ToeplitzMatrix(np.array([1e-20, 1.0]), N), np.ones(N) + 0.1 * np.arange(N))
    with pytest.raises(CertificateError, match="B C differs from A|not finite"):
        certificates.certify(spec.canonical(), matrix, {}, outcome=Outcome.CLOSED_FORM)


@pytest.mark.parametrize("objective", [{"kind": "mean"}, {"kind": "max"}, {"kind": "lambda_tau", "tau": 5}])
@pytest.mark.parametrize("name", INNER)
def test_certificates_are_those_of_the_same_numbers_stored_whole(name, objective):
    """Also without scaling under lambda_tau, whose decoder is not Toeplitz."""
    document = {"workload": WORKLOADS[0], "objective": objective, "mechanism": {"kind": "square_root"}}
    spec = parse_spec(document).canonical()
    for matrix in (scaled(name), INNER[name]):
        ours, theirs = (
            certificates.certify(spec, form, {}, outcome=Outcome.CLOSED_FORM)
            for form in (matrix, DenseMatrix(matrix.dense()))
        )
        assert dataclasses.asdict(ours.loss) == pytest.approx(dataclasses.asdict(theirs.loss), rel=1e-12)
        assert ours.residual < 1e-12
        assert ours.warnings == theirs.warnings

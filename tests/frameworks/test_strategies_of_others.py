"""Strategies of jax_privacy, read by their fields: the same matrices, and the same sensitivity as its own."""

from __future__ import annotations

from pathlib import Path

import jax
import numpy as np
import pytest
from jax_privacy.matrix_factorization import banded, buffered_toeplitz, sensitivity, toeplitz

import factorize
from factorize.factors.strategy_file import read_strategy

STEPS, APART = 48, 12


def test_buffers_bands_and_columns(tmp_path: Path) -> None:
    with jax.enable_x64():
        blt = buffered_toeplitz.BufferedToeplitz.build(buf_decay=[0.99, 0.7], output_scale=[0.05, 0.3])
        given = np.asarray(blt.materialize(STEPS))
        kept = np.asarray(
            banded.ColumnNormalizedBanded.from_banded_toeplitz(STEPS, np.array([1.0, 0.5, 0.25])).materialize()
        )
        columns = banded.ColumnNormalizedBanded.from_banded_toeplitz(STEPS, np.array([1.0, 0.5, 0.25]))
        column = np.asarray(toeplitz.optimal_max_error_strategy_coefs(STEPS))
        noising = np.asarray(toeplitz.optimal_max_error_noising_coefs(8))
        own = read_strategy(blt, n=STEPS)
        whole = read_strategy(columns)
    np.testing.assert_allclose(own.rows(0, STEPS), given, rtol=1e-13)
    assert (whole == kept).all()
    participation = {"kind": "min_sep", "min_sep": APART}
    certified = factorize.certify(blt, "prefix", n=STEPS, participation=participation)
    theirs = sensitivity.get_min_sep_sensitivity_upper_bound(given, min_sep=APART)
    assert certified.certificate.sensitivity.value <= float(theirs) * (1 + 1e-6)
    np.save(tmp_path / "c.npy", column)
    root = factorize.certify(tmp_path / "c.npy", "prefix", n=STEPS, holds="coefficients")
    assert root.certificate.loss.rmse == pytest.approx(
        factorize.solve("prefix", n=STEPS, mechanism="square_root").certificate.loss.rmse, rel=1e-12
    )
    short = read_strategy(noising, n=STEPS, holds="inverse_coefficients")
    assert short.structure == "inverse_banded_toeplitz"

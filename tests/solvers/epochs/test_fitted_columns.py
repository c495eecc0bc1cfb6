"""Columns that share the sensitivity over several epochs: against answers by hand and the worst of all patterns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checker_files import min_sep_patterns
from specs import solved

from factorize.checker.check import check_factor_file

EPOCHS, APART = {"kind": "fixed_epochs", "epochs": 3}, {"kind": "min_sep", "min_sep": 4}
N = 12
RATES = {"kind": "schedule", "n": N, "learning_rates": [1.0 - i / 16 if i % 4 else 0.0 for i in range(N)]}


def fitted(kind: str, participation: Any, workload: Any = N, normalization: str = "fitted", **more: Any) -> Any:
    return solved(workload, {"kind": kind, **more, "normalization": normalization}, participation)


def test_a_diagonal_shares_as_by_hand() -> None:
    """C = diag(f): column i of A has n - i ones, and sum a_i / f_i^2 over a sum of f_i^2 of 1 is (sum sqrt a_i)^2."""
    ones = (N - np.arange(N)).reshape(3, 4)
    for participation, answer in (
        (EPOCHS, (np.sqrt(ones).sum(axis=0) ** 2).sum()),
        (APART, np.sqrt(ones.sum(axis=1)).sum() ** 2),
    ):
        found = fitted("banded_toeplitz", participation, bands=1).certificate
        assert found.loss.objective == pytest.approx(answer / N, rel=1e-8)


@pytest.mark.parametrize(
    ("kind", "participation", "workload"),
    [
        ({"kind": "blt", "buffers": 1}, EPOCHS, N),
        ({"kind": "blt", "buffers": 1}, APART, RATES),
        ({"kind": "toeplitz"}, EPOCHS, RATES),
        ({"kind": "toeplitz"}, APART, N),
    ],
    ids=["blt", "blt apart", "toeplitz", "toeplitz apart"],
)
def test_the_checker_proves_what_is_gained(tmp_path: Path, kind: Any, participation: Any, workload: Any) -> None:
    """The sensitivity is that of the worst pattern, and the error is smaller than with even columns."""
    found = fitted(participation=participation, workload=workload, **kind)
    found.save(tmp_path / "fitted.safetensors")
    report = check_factor_file((tmp_path / "fitted.safetensors").read_bytes())
    assert report.supported and report.status("certificate.sensitivity") == "proved"
    gram = np.abs(found.strategy.dense().T @ found.strategy.dense())
    patterns = min_sep_patterns(N, 4, 3) if participation is APART else [range(j, N, 4) for j in range(4)]
    worst = max(gram[np.ix_(pattern, pattern)].sum() for pattern in patterns)
    assert found.certificate.sensitivity.value**2 == pytest.approx(worst, rel=1e-9)
    plain = fitted(participation=participation, workload=workload, normalization="none", **kind)
    assert found.certificate.loss.objective < 0.98 * plain.certificate.loss.objective


def test_fitted_columns_of_256_steps() -> None:
    """8 epochs: without factors the best Toeplitz matrix has 76.227, and all matrices 64.550."""
    found = fitted("toeplitz", {"kind": "fixed_epochs", "epochs": 8}, 256).certificate
    assert found.loss.objective == pytest.approx(71.8508, rel=1e-5) and found.sensitivity.kind == "exact"

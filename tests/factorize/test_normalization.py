"""Column normalisation of every mechanism that is Toeplitz before it: what it does, and when `auto` keeps it."""

import itertools

import numpy as np
import pytest
from specs import solved

from factorize.errors import TooLarge
from factorize.structures.scaled import ColumnScaled
from factorize.structures.toeplitz import ToeplitzMatrix

MECHANISMS = [
    {"kind": "square_root"},
    {"kind": "nu_toeplitz", "nu": 0.05},
    {"kind": "nu_toeplitz", "nu": "tune"},
    {"kind": "toeplitz"},
    {"kind": "banded_toeplitz", "bands": 5},
    {"kind": "banded_square_root", "bands": 5},
    {"kind": "banded_inverse_square_root", "bands": 3},
    {"kind": "blt", "buffers": 2},
]
PARTICIPATIONS = [
    {"kind": "single"},
    {"kind": "fixed_epochs", "epochs": 3},
    {"kind": "min_sep", "min_sep": 4},
    {"kind": "min_sep", "min_sep": 6, "max_participations": 2},
]


def normalised(mechanism, normalization, participation=PARTICIPATIONS[0], n=24, **more):
    return solved(n, {**mechanism, "normalization": normalization}, participation, **more)


def names(value):
    return "-".join(str(part) for part in value.values())


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=names)
def test_columns_have_norm_one_and_sensitivity_one(mechanism):
    found = normalised(mechanism, "columns")
    norms = np.linalg.norm(found.strategy.dense(), axis=0)
    assert np.allclose(norms, 1.0, rtol=1e-13)
    assert found.certificate.sensitivity.value == pytest.approx(1.0, rel=1e-12)
    assert found.certificate.sensitivity.kind == "exact"
    assert found.manifest["matrices"]["C"]["structure"] == "scaled"


OBJECTIVES = [{"kind": "mean"}, {"kind": "max"}, {"kind": "lambda_tau", "tau": 6}]
ASKED = [*zip(MECHANISMS, 2 * PARTICIPATIONS, itertools.repeat(OBJECTIVES[0]))]
# Over many epochs the square root's late columns take part too rarely to deserve the noise of the early ones.
ASKED.append((MECHANISMS[0], {"kind": "fixed_epochs", "epochs": 12}, OBJECTIVES[0]))
ASKED += itertools.product(MECHANISMS[::3], PARTICIPATIONS[:1], OBJECTIVES[1:])


@pytest.mark.parametrize(("mechanism", "participation", "objective"), ASKED, ids=names)
def test_auto_keeps_what_lowers_the_certified_loss(mechanism, participation, objective):
    plain, scaled, chosen = (
        normalised(mechanism, asked, participation, objective=objective) for asked in ("none", "columns", "auto")
    )
    losses = [found.certificate.loss.objective for found in (plain, scaled, chosen)]
    assert losses[2] <= min(losses[:2]) * (1 + 1e-7)
    kept = chosen.manifest["matrices"]["C"]["structure"] == "scaled"
    if abs(losses[0] - losses[1]) > 1e-6 * losses[0]:
        assert kept == (losses[1] < losses[0])
    chosen.verify()


def test_a_published_value():
    found = normalised({"kind": "square_root"}, "columns", n=8)
    assert found.certificate.loss.mean_squared == pytest.approx(2.2760706554314685, rel=1e-12)


@pytest.mark.parametrize(
    ("kind", "participation"),
    [("banded_toeplitz", {"kind": "min_sep", "min_sep": 10_000}), ("banded_square_root", {"kind": "single"})],
)
def test_few_diagonals_are_normalised_at_any_length(kind, participation):
    n = 17_000
    plain, scaled, chosen = (
        normalised({"kind": kind, "bands": 4}, asked, participation, n=n, evidence=False)
        for asked in ("none", "columns", "auto")
    )
    assert isinstance(chosen.strategy, ColumnScaled)
    assert chosen.certificate.loss.objective == scaled.certificate.loss.objective
    assert scaled.certificate.loss.objective < plain.certificate.loss.objective
    assert scaled.certificate.sensitivity.kind == "exact"
    # The scale only differs from 1 in the last three columns, so that the losses nearly agree.
    assert scaled.certificate.loss.objective == pytest.approx(plain.certificate.loss.objective, rel=1e-3)


def test_long_columns_are_refused_with_the_size():
    with pytest.raises(TooLarge, match="GiB"):
        normalised({"kind": "square_root"}, "columns", n=20_000)
    kept = normalised({"kind": "square_root"}, "auto", n=20_000)
    assert isinstance(kept.strategy, ToeplitzMatrix)

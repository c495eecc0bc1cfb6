"""Every loss that a solver descends on: its gradient is that of central differences, in every variable."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
from specs import spec_of

from factorize.solvers.amplified.column_factors import ColumnFit, ColumnLoss
from factorize.solvers.amplified.families import AllTaps, BufferedTaps, InverseTaps
from factorize.solvers.banded import banded_optimum
from factorize.solvers.banded.gram_descent import Landscape
from factorize.solvers.blt.loss import ClosedLoss, SeriesLoss
from factorize.solvers.blt.parameters import Alternating
from factorize.solvers.buffered.profiles import BufferedLoss
from factorize.solvers.buffered.redrawn_loss import BidiagonalDecoder, RedrawnLoss, RedrawnNumbers
from factorize.solvers.formulas.closed_form import strategy_coefficients
from factorize.solvers.methods.poles import zolotarev_with
from factorize.solvers.problem import Problem
from factorize.solvers.single.bidiagonal import Bidiagonal
from factorize.solvers.single.newton import maximise
from factorize.solvers.toeplitz import toeplitz_optimum
from factorize.solvers.toeplitz.gradients import LeadingPattern, ToeplitzError, ToeplitzLoss

Array = np.ndarray
Loss = Callable[[Array], tuple[float, Array]]
Case = tuple[Loss, Array]


def check_gradient(loss: Loss, at: Array, *, step: float = 1e-5) -> None:
    """The gradient agrees with differences along every axis, to 1e-6 of its largest entry."""
    _, gradient = loss(at)
    assert gradient.shape == at.shape and np.abs(gradient).max() > 0
    axes = step * np.eye(at.size).reshape(at.size, *at.shape)
    differences = [(loss(at + axis)[0] - loss(at - axis)[0]) / (2 * step) for axis in axes]
    np.testing.assert_allclose(gradient.ravel(), differences, rtol=0, atol=1e-6 * np.abs(gradient).max())


def toeplitz() -> Iterator[Case]:
    """Every kind of error with every class of columns."""
    cosine = {"kind": "schedule", "learning_rates": {"kind": "cosine_to_last", "final": 0.0}}
    workloads = ["prefix", {"kind": "momentum", "momentum": 0.9}, cosine]
    participations = ["single", {"kind": "fixed_epochs", "epochs": 4}, {"kind": "min_sep", "min_sep": 5}]
    for workload in workloads:
        for objective in ("mean", {"kind": "lambda_tau", "tau": 3}):
            for participation in participations:
                mechanism = {"kind": "banded_toeplitz", "bands": 8}
                problem = Problem(spec_of(workload, mechanism, participation, objective, n=20))
                for kind in toeplitz_optimum.classes(problem):
                    loss = ToeplitzLoss(20, toeplitz_optimum.error_form(problem), kind.sensitivity)
                    yield loss, strategy_coefficients(20, 0.05)[: kind.bands]


def banded() -> Iterator[Case]:
    """The loss of a banded Gram matrix, by the columns' shares of a pattern and its entries beside the diagonal."""
    n = 11
    for workload in ("prefix", {"kind": "momentum", "momentum": 0.9}, {"kind": "decay", "rate": 0.8}):
        for bands in (2, 6, 11):
            problem = Problem(spec_of(workload, {"kind": "banded", "bands": bands}, n=n))
            landscape = Landscape(banded_optimum.recursion(problem), n, bands, np.arange(n) % 6)
            column = np.tril(np.triu(np.random.default_rng(0).normal(size=(n, n)), -bands + 1)) + 4 * np.eye(n)
            column /= np.linalg.norm(column, axis=0)
            gram = column.T @ column
            inside = np.arange(n) + np.arange(bands)[:, None] < n

            def loss(entries: Array, landscape: Landscape = landscape, inside: Array = inside) -> tuple[float, Array]:
                unknowns = np.zeros(inside.shape)
                unknowns[inside] = entries
                point = landscape(unknowns)
                assert point is not None
                return point.loss, point.gradient[inside]

            shares = np.linspace(-0.5, 0.7, n)
            yield loss, np.concatenate([shares, *(np.diagonal(gram, -d) for d in range(1, bands))])


def uneven(n: int, rng: np.random.Generator) -> tuple[Array, Array]:
    """A workload with a restart."""
    p, q = rng.uniform(0.5, 2, n), rng.uniform(0.5, 2, n)
    q[[0, n // 3]] = 0.0
    return p, q


def buffered() -> Iterator[Case]:
    """Few states and one participation, also over several segments of the adjoints (256 steps)."""
    for n, buffers, seed in ((30, 3, 0), (37, 2, 1), (300, 1, 2)):
        rng = np.random.default_rng(seed)
        p, q = uneven(n, rng)
        structure = Bidiagonal(p, q)
        optimum = maximise(structure, tolerance=1e-9).best
        loss = BufferedLoss(p, q, optimum.v, buffers, optimum.lower_bound, 2)
        loss.use(zolotarev_with(*structure.interval(optimum.v), count=buffers + 1))
        yield loss, 0.3 * rng.normal(size=loss.origin.size)


def redrawn() -> Iterator[Case]:
    """Few states and noise of earlier epochs."""
    for n, epochs, p, q, kink in ((12, 2, 1, 1, 0.0), (18, 3, 2, 1, 0.2), (24, 4, 2, 2, 0.0)):
        rng = np.random.default_rng(n)
        follow, feed = rng.uniform(0.5, 1, n), rng.uniform(0.5, 2, n)
        loss = RedrawnLoss(BidiagonalDecoder(follow, feed), epochs, p, q, 2.0)
        loss.kink = kink
        later = (np.arange(n) >= n // epochs * np.arange(q + 1)[:, None]).astype(float)
        direct = 0.3 * rng.normal(size=(q + 1, n)) * later
        direct[0] = rng.uniform(1, 2, n)
        entries = 0.3 * rng.normal(size=(q + 1, n, p)) * later[:, :, None]
        yield (
            loss,
            loss.pack(RedrawnNumbers(0.5 * rng.normal(size=(n, p)), rng.normal(size=(n, p)), entries, direct)),
        )


def blt() -> Iterator[Case]:
    """Sums of decays, in closed form and through their column."""
    for buffers, n, mean, separation, count in (
        (1, 20, True, 20, 1),
        (3, 40, False, 40, 1),
        (2, 60, True, 20, 3),
        (3, 60, False, 7, 9),
        (2, 12, True, 1, 12),
    ):
        at = np.random.default_rng(n).normal(size=2 * buffers)
        at[-1] = -1.0 - abs(at[-1])  # an inverse that does not grow, where its last decay is free
        yield ClosedLoss(buffers, n, mean=mean, separation=separation, count=count), at
        weights = np.arange(n, 0, -1) / n if mean else np.ones(n)
        loss = ToeplitzLoss(n, ToeplitzError(np.ones(n), weights), LeadingPattern(separation, count, n))
        yield SeriesLoss(Alternating(buffers, free_end=count == 1), loss), at
        yield ClosedLoss(buffers, n, mean=mean, separation=separation, count=count, last=n - 1.0), at


def amplified() -> Iterator[Case]:
    """Every family of columns under balls in bins."""
    n, bins = 24, 6
    error = ToeplitzError(np.ones(n), np.arange(n, 0, -1.0) / n)
    forms = np.random.default_rng(1).random((3, bins, bins))
    families = (
        AllTaps(n, error, bins, n // bins),
        InverseTaps(n, error, bins, n // bins, taps=4),
        BufferedTaps(n, error, bins, n // bins, buffers=2),
    )
    for family in families:
        sensitivity = family.sensitivity(forms + forms.transpose(0, 2, 1))
        for start in family.starts():
            yield lambda z, family=family, sensitivity=sensitivity: family.loss_at(z, sensitivity), start


def amplified_factors() -> Iterator[Case]:
    """Factors of the columns under balls in bins."""
    sampling = {"kind": "balls_in_bins", "epsilon": 4.0, "delta": 1e-4}
    mechanism = {"kind": "toeplitz", "normalization": "fitted"}
    spec = spec_of(12, mechanism, 3, {"kind": "weighted", "weights": [0.0] * 11 + [1.0]}, sampling=sampling)
    rng = np.random.default_rng(3)
    fit = ColumnFit(Problem(spec), spec.sampling, np.sort(rng.random(12))[::-1] + 0.5)
    forms = rng.random((3, 4, 4))
    yield ColumnLoss(fit.error, fit.products, forms + forms.transpose(0, 2, 1)), rng.standard_normal(12)


LOSSES = [
    toeplitz,
    banded,
    buffered,
    redrawn,
    blt,
    amplified,
    amplified_factors,
]


@pytest.mark.parametrize("cases", LOSSES, ids=lambda cases: cases.__name__)
def test_the_gradient_is_that_of_differences(cases: Callable[[], Iterator[Case]]) -> None:
    for loss, at in cases():
        check_gradient(loss, at)

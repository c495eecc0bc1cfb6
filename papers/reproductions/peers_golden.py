"""jax_privacy's golden values, reproduced by our solvers and sensitivities.

Published are the tests of google-deepmind/jax_privacy at commit 8967688 (2026-08-20), tests/matrix_factorization.
Where a test accepts a range, ours must be inside it.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy.linalg import solve_triangular, toeplitz

from factorize.certificate.sensitivity import sensitivity_of
from factorize.factorization import Factorization
from factorize.participation import FixedEpochs, MinSep, Single
from factorize.solvers import solve
from factorize.solvers.blt.closed_loss import ClosedLoss
from factorize.solvers.blt.starts import minimise, progressions
from factorize.spec import parse_spec
from factorize.structures.dense import DenseMatrix
from factorize.structures.toeplitz import ToeplitzMatrix
from papers.reproductions.comparison import Comparison

TITLE = "jax_privacy's golden values (tests/matrix_factorization at 8967688)"

NEAR_OPTIMAL = (
    (10, 1, 1.04),
    (100, 2, 1.03),
    (100, 3, 1.03),
    (1_000, 2, 1.04),
    (1_000, 3, 1.03),
    (10_000, 1, 1.45),
    (10_000, 3, 1.03),
    (10_000, 4, 1.03),
    (100_000, 2, 1.16),
    (100_000, 4, 1.03),
    (1_000_000, 5, 1.05),
    (10_000_000, 2, 1.40),
    (10_000_000, 4, 1.05),
    (10_000_000, 6, 1.06),
    (10_000_000, 8, 1.10),
    (100_000_000, 2, 1.60),
    (100_000_000, 7, 1.05),
)
"""test_optimize_single_participation_near_optimal: n, buffers, root of the largest loss over 1 + ln(n) / pi."""

GOLDEN = {"theta": (0.9999528892, 0.9857068667), "omega": (0.0122853238, 0.1878393665)}
"""test_optimize_single_participation_golden: n = 100,000, 2 buffers, to 1e-5."""

BASELINES = {
    1: ((0.9877027559462715,), (0.10595704738115597,)),
    2: ((0.993433070819512, 0.6342644427247973), (0.07538320617916519, 0.5144060910151949)),
    3: (
        (0.9934331427558322, 0.6342832547407998, 0.6342732636848848),
        (0.07538346317367392, 0.4808525558278832, 0.0335536865929295),
    ),
}
"""test_optimize_better_than_baseline: decays and scales for 2 participations, 5 steps apart; compared at n = 1000."""

LARGEST_CERTIFIED = 100_000
"""Up to here the value is the certificate's; above, the solver's closed form, which makes no vector of n numbers."""


def run(comparison: Comparison) -> None:
    """Compare grid, parameters, losses, coefficients and sensitivities."""
    comparison.remark("no noise multiplier: losses at sensitivity 1")
    near_optimal(comparison, 1000 if comparison.quick else 10**8)
    golden(comparison, 1000 if comparison.quick else 100_000)
    baselines(comparison)
    full_participation(comparison)
    small(comparison)
    sensitivities(comparison)


def solved(n: int, mechanism: dict[str, Any], **parts: Any) -> Factorization:
    """Return a mechanism for n prefix sums."""
    return solve(parse_spec({"workload": {"kind": "prefix", "n": n}, "mechanism": mechanism, **parts}))


def near_optimal(comparison: Comparison, largest: int) -> None:
    """The grid of buffered Toeplitz mechanisms: published is what the test accepts at most."""
    comparison.heading("root of the largest loss over 1 + ln(n)/pi; published: what their test accepts at most")
    for n, buffers, accepted in NEAR_OPTIMAL:
        if n > largest:
            continue
        found = root_of_largest(n, buffers) / (1 + math.log(n) / math.pi)
        comparison.row(f"n = {n:.0e}, {buffers} buffers", None, found)
        comparison.claim(f"n = {n:.0e}, {buffers} buffers: at most {accepted}", found <= accepted)


def root_of_largest(n: int, buffers: int) -> float:
    """Return the root of the largest squared error at sensitivity 1."""
    if n <= LARGEST_CERTIFIED:
        found = solved(n, {"kind": "blt", "buffers": buffers}, objective={"kind": "max"})
        return math.sqrt(found.certificate.loss.objective)
    loss = ClosedLoss(buffers, n, mean=False)
    best = minimise(loss, progressions(loss.parameters, n, n), tolerance=1e-7, report=lambda step: None)
    return math.exp(loss(best.variables)[0] / 2)


def golden(comparison: Comparison, n: int) -> None:
    """The decays and scales of one optimum, which their test pins to 1e-5."""
    comparison.heading(f"the best 2 buffers for n = {n:,}, objective max")
    found = solved(n, {"kind": "blt", "buffers": 2}, objective={"kind": "max"}).tensors()
    for name, values in GOLDEN.items():
        for index, value in enumerate(values):
            comparison.row(f"{name}[{index}]", value, float(found[f"C.{name}"][index]), tolerance=1e-5 * value)


def baselines(comparison: Comparison) -> None:
    """Optima for 2 participations at least 5 steps apart, beside the constants of their test."""
    comparison.heading("largest squared error, n = 1000, 2 participations 5 apart; their constants, then our optimum")
    participation = {"kind": "min_sep", "min_sep": 5, "max_participations": 2}
    for buffers, (theta, omega) in BASELINES.items():
        theirs = largest_error(np.array(theta), np.array(omega), 1000, 5)
        found = solved(
            1000, {"kind": "blt", "buffers": buffers}, objective={"kind": "max"}, participation=participation
        )
        ours = found.certificate.loss.objective
        comparison.row(f"{buffers} buffers, their constants", None, theirs)
        comparison.row(f"{buffers} buffers, ours", None, ours)
        by_hand = largest_error(found.tensors()["C.theta"], found.tensors()["C.omega"], 1000, 5)
        name = f"{buffers} buffers, ours by hand beside certificate"
        comparison.row(name, None, by_hand, check=ours, tolerance=1e-9 * ours)
        comparison.claim(
            f"{buffers} buffers: below 1.001 of their constants, as their test wants", ours < 1.001 * theirs
        )


def largest_error(theta: np.ndarray, omega: np.ndarray, n: int, separation: int) -> float:
    """Return sensitivity^2 (two participations) times the last row's error, from the column of C by hand."""
    column = np.concatenate([[1.0], (theta[None, :] ** np.arange(n - 1)[:, None]) @ omega])
    twice = column.copy()
    twice[separation:] += column[:-separation]
    impulse = np.zeros(n)
    impulse[0] = 1.0
    decoder = np.cumsum(solve_triangular(np.asarray(toeplitz(column, impulse)), impulse, lower=True))
    return float(twice @ twice) * float(decoder @ decoder)


def full_participation(comparison: Comparison) -> None:
    """Where everybody takes part in every step, C = I is the best, and buffers must come close."""
    comparison.heading("every step by everybody, objective max: published is the loss of C = I, tolerance their 1 %")
    for n, buffers in ((3, 2), (16, 4), (32, 3), (33, 3)):
        participation = {"kind": "fixed_epochs", "epochs": n}
        found = solved(n, {"kind": "blt", "buffers": buffers}, objective={"kind": "max"}, participation=participation)
        comparison.row(f"n = {n}, {buffers} buffers", n * n, found.certificate.loss.objective, tolerance=0.01 * n * n)


def small(comparison: Comparison) -> None:
    """Coefficients and errors that they write out."""
    comparison.heading("coefficients and errors of small matrices")
    found = solved(8, {"kind": "banded_inverse_square_root", "bands": 5}).rows("C_inv", 7, 8)[0, ::-1]
    for lag, value in enumerate((1, -1 / 2, -1 / 8, -1 / 16, -5 / 128)):
        comparison.row(f"banded inverse square root, coefficient {lag}", value, found[lag], tolerance=1e-12)
    root = solved(100, {"kind": "square_root"}).rows("C", 0, 100)
    comparison.row("square root squared - prefix sum", 0.0, np.abs(root @ root - np.tri(100)).max(), tolerance=1e-12)
    tree = solved(2, {"kind": "tree", "decoder": "honaker_full"}).rows("B", 0, 2)
    for query in range(2):
        comparison.row(f"full Honaker, n = 2, query {query}", 2 / 3, float(tree[query] @ tree[query]), tolerance=1e-12)
    lower = np.array([[1.0, 0.0], [0.5, 1.0]])
    decoder = DenseMatrix(lower).right_solve(np.tri(2))
    for query, value in enumerate((1.0, 1.25)):
        comparison.row(
            f"C = [[1, 0], [1/2, 1]], query {query}", value, float(decoder[query] @ decoder[query]), tolerance=1e-12
        )


def sensitivities(comparison: Comparison) -> None:
    """The matrices of sensitivity_test.py and toeplitz_test.py; rows with a negative diagonal change sign here."""
    comparison.heading("squared sensitivities")
    bands = np.array([[1.0, 0, 0, 0], [2, 1, 0, 0], [0, 1, 1, 0], [0, 0, -1, 6]])
    full = np.array([[1.0, 0, 0, 0], [2, 1, 0, 0], [0.5, 1, 1, 0], [-0.4, 0, -1, 6]])
    steep = np.array([[1.0, 0, 0, 0], [2, 1, 0, 0], [0, 1, 1, 0], [0, 0, -3, 6]])
    apart = MinSep(kind="min_sep", min_sep=2, max_participations=None)
    often = MinSep(kind="min_sep", min_sep=1, max_participations=None)
    diagonal = np.diag([1e-9, 3.0, 1e-9, 1.0, 2.0])
    for name, published, participation, matrix in (
        ("single participation", 36.0, Single(), DenseMatrix(steep)),
        ("its leading 3 steps", 5.0, Single(), DenseMatrix(steep[:3, :3])),
        ("bands, 2 apart", 41.0, apart, DenseMatrix(bands)),
        ("bands, 3 apart", 41.0, MinSep(kind="min_sep", min_sep=3, max_participations=None), DenseMatrix(bands)),
        ("bands, once", 36.0, MinSep(kind="min_sep", min_sep=2, max_participations=1), DenseMatrix(bands)),
        ("all steps: sum of |C^T C|", float(np.abs(full.T @ full).sum()), often, DenseMatrix(full)),
        ("diagonal, 2 apart", 13.0, apart, DenseMatrix(diagonal)),
        ("identity, 4 epochs of 16 steps", 4.0, FixedEpochs(kind="fixed_epochs", epochs=4), DenseMatrix(np.eye(16))),
        ("prefix sum, first 4 of 11 steps", _prefix(11, 4), _first(4), ToeplitzMatrix(np.ones(11), 11)),
    ):
        value = sensitivity_of(matrix, participation).value ** 2
        comparison.row(name, published, value, tolerance=1e-9 * published)


def _first(participations: int) -> MinSep:
    return MinSep(kind="min_sep", min_sep=1, max_participations=participations)


def _prefix(n: int, participations: int) -> float:
    """Return their formula: the sum of the squared sums of the first columns."""
    return float((np.tri(n)[:, :participations].sum(axis=1) ** 2).sum())

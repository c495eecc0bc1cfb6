"""jax_privacy's golden values, reproduced by our solvers.

Published are the tests of google-deepmind/jax_privacy at commit 8967688 (2026-08-20), tests/matrix_factorization.
Where a test accepts a range, ours must be inside it.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.linalg import solve_triangular, toeplitz

from factorize.solvers.blt.loss import ClosedLoss
from factorize.solvers.blt.parameters import minimise, progressions
from papers.reproductions.comparison import Comparison
from papers.reproductions.kept_results import prefix_sums

TITLE = "jax_privacy's golden values (tests/matrix_factorization at 8967688)"

NEAR_OPTIMAL_CASES = (
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

GOLDEN_NUMBERS = {"theta": (0.9999528892, 0.9857068667), "omega": (0.0122853238, 0.1878393665)}
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

MAX_N_CERTIFIED = 100_000
"""Up to this n the value is the certificate's; above, the solver's closed form, which makes no vector of n numbers."""


def run(comparison: Comparison) -> None:
    """Compare grid, parameters and losses."""
    comparison.remark("no noise multiplier: losses at sensitivity 1")
    near_optimal(comparison, 1000 if comparison.quick else 10**8)
    golden(comparison, 1000 if comparison.quick else 100_000)
    baselines(comparison)


def near_optimal(comparison: Comparison, largest: int) -> None:
    """Compare the grid of buffered Toeplitz mechanisms: published is what the test accepts at most."""
    comparison.heading("root of the largest loss over 1 + ln(n)/pi; published: what their test accepts at most")
    for n, buffers, accepted in NEAR_OPTIMAL_CASES:
        if n > largest:
            continue
        found = root_of_largest(n, buffers) / (1 + math.log(n) / math.pi)
        comparison.row(f"n = {n:.0e}, {buffers} buffers", None, found)
        comparison.claim(f"n = {n:.0e}, {buffers} buffers: at most {accepted}", found <= accepted)


def root_of_largest(n: int, buffers: int) -> float:
    """Return the root of the largest squared error at sensitivity 1."""
    if n <= MAX_N_CERTIFIED:
        found = prefix_sums(n, {"kind": "blt", "buffers": buffers}, objective={"kind": "max"})
        return math.sqrt(found.certificate.loss.objective)
    loss = ClosedLoss(buffers, n, mean=False)
    best = minimise(loss, progressions(loss.parameters, n, n), tolerance=1e-7, report=lambda step: None)
    return math.exp(loss(best.variables)[0] / 2)


def golden(comparison: Comparison, n: int) -> None:
    """Compare the decays and scales of one optimum, which their test pins to 1e-5."""
    comparison.heading(f"the best 2 buffers for n = {n:,}, objective max")
    found = prefix_sums(n, {"kind": "blt", "buffers": 2}, objective={"kind": "max"}).tensors()
    for name, values in GOLDEN_NUMBERS.items():
        for index, value in enumerate(values):
            comparison.row(f"{name}[{index}]", value, float(found[f"C.{name}"][index]), tolerance=1e-5 * value)


def baselines(comparison: Comparison) -> None:
    """Compare optima for 2 participations at least 5 steps apart with the constants of their test."""
    comparison.heading("largest squared error, n = 1000, 2 participations 5 apart; their constants, then our optimum")
    participation = {"kind": "min_sep", "min_sep": 5, "max_participations": 2}
    for buffers, (theta, omega) in BASELINES.items():
        theirs = largest_error(np.array(theta), np.array(omega), 1000, 5)
        found = prefix_sums(
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

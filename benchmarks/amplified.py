"""Balls in bins at n = 2048 and 8 epochs: optima, claims, their verification, bounds, and checks by other routes.

For each mechanism and privacy: C is optimised under the sampling, its sigma is claimed and tested, and the claim is
tested again with a seed of the verifier's own. Each mechanism stands without column factors and with them.
Seconds are of the wall clock; the note of each row has the processor's. A thousand forged claims are a benchmark of
their own, `forged_claims`.
"""

from __future__ import annotations

import math
import time
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np

from benchmarks import forged_claims
from benchmarks.report import Report
from factorize import parse_spec, solvers
from factorize.accounting import bin_gram, calibrate_bins
from factorize.accounting.bins_lower_bound import bins_lower_bound
from factorize.accounting.gram_matrix import BinGram
from factorize.accounting.loss_laws import AllocationLaw
from factorize.accounting.star_estimate import StarEstimate
from factorize.checker.sampling.calibrations import check_calibration
from factorize.solvers.evidence_search import evidence
from factorize.solvers.problem import Reporter
from factorize.spec import Spec
from factorize.structures.toeplitz import ToeplitzMatrix

N, EPOCHS = 2048, 8
ALL, TWO, FOUR = (
    {"kind": "toeplitz"},
    {"kind": "blt", "buffers": 2},
    {"kind": "banded_inverse_toeplitz", "bands": 4},
)
NAMES = {"toeplitz": "all taps", "blt": "BLT of 2", "banded_inverse_toeplitz": "4 taps"}


class Target(NamedTuple):
    """A privacy target and a mechanism."""

    epsilon: float
    delta: float
    mechanism: dict[str, Any]


TARGETS = (
    Target(8.0, 1e-5, ALL),
    Target(8.0, 1e-5, TWO),
    Target(8.0, 1e-5, FOUR),
    Target(2.0, 1e-6, ALL),
    Target(2.0, 1e-10, ALL),
)


class Clock:
    """Seconds of the wall clock and of the processor since it was made."""

    def __init__(self) -> None:
        self._wall, self._processor = time.perf_counter(), time.process_time()

    @property
    def wall(self) -> float:
        """Return the seconds of the wall clock."""
        return time.perf_counter() - self._wall

    @property
    def processor(self) -> float:
        """Return the processor's seconds of all threads."""
        return time.process_time() - self._processor


def spec_of(mechanism: dict[str, Any], epsilon: float, delta: float, *, n: int, epochs: int) -> Spec:
    """Return prefix sums under balls in bins."""
    return parse_spec(
        {
            "workload": {"kind": "prefix", "n": n},
            "participation": {"kind": "fixed_epochs", "epochs": epochs},
            "mechanism": mechanism,
            "sampling": {"kind": "balls_in_bins", "epsilon": epsilon, "delta": delta},
        }
    )


def run(report: Report) -> None:
    """Report errors, times, checks by other routes, other sizes."""
    n, epochs = (64, 4) if report.quick else (N, EPOCHS)
    solvers.solve(spec_of(TWO | {"normalization": "fitted"}, 4.0, 1e-3, n=16, epochs=2))  # this compiles
    bounds: dict[float, float] = {}
    for target in TARGETS[:3] if report.quick else TARGETS:
        if target.delta not in bounds:
            bounds[target.delta] = lower_bound(report, target, n, epochs)
        for normalization in ("none", "fitted"):
            optimum(report, target, normalization, bounds[target.delta], n, epochs)
    routes(report)
    if not report.quick:
        wide(report)
        longest(report)
    report.remark("forged claims: python -m benchmarks forged_claims")


def lower_bound(report: Report, target: Target, n: int, epochs: int) -> float:
    """Return the certified error that no matrix beats."""
    clock = Clock()
    spec = parse_spec({**spec_of(ALL, 1.0, 0.5, n=n, epochs=epochs).document(), "mechanism": {"kind": "dense"}})
    plain = spec.model_copy(update={"sampling": None})
    found = bins_lower_bound(
        plain, evidence(plain, Reporter(lambda _: None)), epsilon=target.epsilon, delta=target.delta
    )
    if found is None:
        raise RuntimeError("no bound over all matrices")
    title = f"bound over all C, ({target.epsilon:g}, {target.delta:g})"
    report.row(title, seconds=clock.wall, ratio=found.rmse, of="= RMSE", note=found.rule)
    return found.rmse


def optimum(report: Report, target: Target, normalization: str, bound: float, n: int, epochs: int) -> None:
    """Solve, claim and verify: three rows."""
    given = {} if normalization == "none" else {"normalization": normalization}
    title = f"{NAMES[target.mechanism['kind']]}, {normalization}, ({target.epsilon:g}, {target.delta:g})"
    clock = Clock()
    found = solvers.solve(spec_of(target.mechanism | given, target.epsilon, target.delta, n=n, epochs=epochs))
    solving, processor = clock.wall, clock.processor
    unit = found.certificate.loss.rmse / found.certificate.sensitivity.value
    held = bin_gram(found.strategy, n // epochs)
    clock = Clock()
    noise = calibrate_bins(found, epsilon=target.epsilon, delta=target.delta)
    claiming, claimed = clock.wall, clock.processor
    clock = Clock()
    accepted = check_calibration(forged_claims.data_of(found), noise.document(), fresh=True).supported
    checking = clock.wall
    rmse = noise.sigma_of_sums * unit
    report.row(
        f"optimum, {title}",
        seconds=solving,
        ratio=rmse / bound,
        of="the bound over all C",
        note=f"verified RMSE {rmse:.4g}; processor {processor:.1f} s",
        rmse=rmse,
    )
    estimate = StarEstimate(held, seed=99).sigma(target.epsilon, target.delta)
    report.row(
        f"claim, {title}",
        seconds=claiming,
        ratio=noise.sigma_of_sums / estimate,
        of="the estimate",
        note=f"{noise.samples} samples; processor {claimed:.1f} s; by bounds {noise.deterministic_sigma * unit:.4g}",
    )
    report.row(
        f"verification, {title}",
        seconds=checking,
        ratio=checking / claiming,
        of="its making",
        note="accepted" if accepted else "REFUSED with a seed of the verifier's own",
    )


def routes(report: Report) -> None:
    """Compare estimates with quadrature (b = 2, 3) and dp_accounting (one bin)."""
    for bins, wanted in ((2, 4.982612e-2), (3, 3.397075e-2)):
        entries = [[2.0, 0.7, 0.2], [0.7, 1.5, 0.9], [0.2, 0.9, 1.8]]
        against(report, f"quadrature, b={bins}", np.array(entries)[:bins, :bins], 2.0, wanted, 1e-6)
    if find_spec("dp_accounting"):
        from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism

        wanted = from_gaussian_mechanism(1.0, value_discretization_interval=1e-5).get_delta_for_epsilon(1.0)
        against(report, "dp_accounting, C = I, b=1", np.ones((1, 1)), 1.0, wanted, 1e-4)
        allocation(report)
    else:
        report.remark("dp_accounting is not installed")
    if find_spec("jax_privacy"):
        monte_carlo(report, *((64, 16, 2_000) if report.quick else (N, N // EPOCHS, 20_000)))
    else:
        report.remark("jax_privacy is not installed here; tests/frameworks/test_monte_carlo.py compares with it")


def allocation(report: Report) -> None:
    """Report random allocation at C = I beside dp_accounting's Poisson sampling, a law of as many steps on average."""
    from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism

    bins = N // EPOCHS
    for epsilon, delta in ((8.0, 1e-5), (2.0, 1e-6)):
        clock = Clock()
        sigma = AllocationLaw(N, bins, 1.0, signed=False).sigma(epsilon, delta)
        seconds, low, high = clock.wall, sigma / 2, 2 * sigma
        while high - low > 1e-3 * sigma:
            middle = (low + high) / 2
            step = from_gaussian_mechanism(middle, sampling_prob=1 / bins, value_discretization_interval=1e-3)
            holds = step.self_compose(N).get_delta_for_epsilon(epsilon) <= delta
            low, high = (low, middle) if holds else (middle, high)
        title = f"random allocation, C = I, n={N}, ({epsilon:g}, {delta:g})"
        report.row(title, seconds=seconds, ratio=sigma / high, of="dp_accounting's Poisson sampling")


def monte_carlo(report: Report, n: int, bins: int, samples: int) -> None:
    """Compare delta with jax_privacy's Monte Carlo of the same pair: other code, plain samples of the loss."""
    from jax_privacy import batch_selection
    from jax_privacy.experimental.monte_carlo import sample_generation

    column = forged_claims.truncated_root(n, 32)
    held = bin_gram(ToeplitzMatrix(column, n), bins)
    sigma, epsilon = StarEstimate(held, seed=5).sigma(2.0, 1e-2), 2.0
    strategy = batch_selection.BallsInBinsSampling(iterations=n, cycle_length=bins)
    for included in (True, False):
        clock = Clock()
        losses, _ = sample_generation.get_privacy_loss_sample(
            strategy, sigma, column, seed=3, positive_sample=included, num_samples=samples
        )
        seen = np.maximum(-np.expm1(epsilon - losses), 0.0)
        theirs, spread = float(seen.mean()), float(seen.std()) / math.sqrt(samples)
        estimate = StarEstimate(held, seed=4)
        ours = estimate.forward(sigma, epsilon) if included else estimate.reverse(sigma, epsilon)
        away = abs(ours.delta - theirs) / math.hypot(spread, ours.relative_error * ours.delta)
        report.row(
            f"jax_privacy's Monte Carlo, n={n}, b={bins}, {'removal' if included else 'addition'}",
            seconds=clock.wall,
            ratio=ours.delta / theirs,
            of="the other route's delta",
            note=f"{away:.1f} standard errors apart; {samples} samples of theirs, {estimate.samples} of ours",
        )


def against(report: Report, name: str, gram: np.ndarray, epsilon: float, wanted: float, error: float) -> None:
    """Report an estimate of delta in standard errors from another route's."""
    clock = Clock()
    found = StarEstimate(BinGram(gram, len(gram)), seed=4, samples=1 << 17).forward(1.0, epsilon)
    spread = math.hypot(found.relative_error, error)
    away = float(abs(found.delta / wanted - 1) / spread)
    note = f"{away:.1f} standard errors apart"
    report.row(name, seconds=clock.wall, ratio=found.delta / wanted, of="the other route's delta", note=note)


def wide(report: Report) -> None:
    """Report a claim at 1000 bins."""
    for epsilon, delta in ((8.0, 1e-5), (2.0, 1e-10)):
        found = forged_claims.factorization(forged_claims.truncated_root(4000, 125), 4)
        clock = Clock()
        noise = calibrate_bins(found, epsilon=epsilon, delta=delta)
        report.row(
            f"claim, 1000 bins, 125 taps, ({epsilon:g}, {delta:g})",
            seconds=clock.wall,
            ratio=noise.deterministic_sigma / noise.sigma_of_sums,
            of="times less than the bound without samples",
            note=f"{noise.samples} samples; processor {clock.processor:.1f} s",
        )


def longest(report: Report) -> None:
    """Report the optimum of two buffers at n = 10,000 and 16 epochs."""
    clock = Clock()
    found = solvers.solve(spec_of(TWO, 8.0, 1e-5, n=10_000, epochs=16))
    seconds, processor = clock.wall, clock.processor
    noise = calibrate_bins(found, epsilon=8.0, delta=1e-5)
    rmse = noise.sigma_of_sums * found.certificate.loss.rmse / found.certificate.sensitivity.value
    report.row(
        "optimum, BLT of 2, n=10000, 16 epochs",
        seconds=seconds,
        ratio=noise.deterministic_sigma / noise.sigma_of_sums,
        of="times less than the bound without samples",
        note=f"verified RMSE {rmse:.4g}; processor {processor:.1f} s",
    )

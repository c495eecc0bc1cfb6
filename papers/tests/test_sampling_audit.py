"""Claims that count on sampling: a job that samples passes both audits, and one that does not is caught by each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.stats import binom
from training_cases import nothing

from factorize.accounting import calibrate_bins
from factorize.accounting.amplification import AmplifiedCalibration, calibrate_amplified
from factorize.errors import InvalidParameter
from factorize.factors.factorization import Factorization
from factorize.noise.generator import NoiseGenerator
from factorize.noise.source import noise_source
from factorize.numbers.gaussian import gaussian_epsilon
from factorize.privacy import Calibration, PrivacyTarget, calibrate
from factorize.solvers import solve
from factorize.spec import parse_spec
from factorize.training.sampling import CyclicPoisson
from papers.training import PrivateSums
from papers.training.audit import AuditReport, audit, likelihood_ratio
from papers.training.clip import contributions_at
from papers.training.neighbours import neighbours
from papers.training.sampling_audit import SamplingReport, _critical, _detectable, audit_sampling

N, EXAMPLES, BATCH, D = 24, 480, 10, 2
CANARY = 2
CANARIES = (CANARY, 3, 77, 300)
LONG = np.array([60.0, 80.0])
Batches = Callable[[int], list[np.ndarray]]


def factored(bands: int) -> Factorization:
    mechanism = {"kind": "identity"} if bands == 1 else {"kind": "banded_square_root", "bands": bands}
    participation = {"kind": "min_sep", "min_sep": bands}
    spec = {"workload": {"kind": "prefix", "n": N}, "mechanism": mechanism, "participation": participation}
    return solve(parse_spec(spec))


@pytest.fixture(scope="module")
def job() -> tuple[Factorization, AmplifiedCalibration]:
    """(1, 1e-5)-DP with sampling: three bands."""
    factors = factored(3)
    sizes = {"dataset_size": EXAMPLES, "batch_size": BATCH}
    return factors, calibrate_amplified(factors, epsilon=1.0, delta=1e-5, **sizes)


def sampling(claim: AmplifiedCalibration) -> Batches:
    return lambda seed: list(CyclicPoisson(EXAMPLES, claim, steps=N, seed=seed))


def never(claim: AmplifiedCalibration) -> Batches:
    """Every step takes the whole group: the reviewer's job, which never samples."""
    return lambda seed: [np.arange(step % claim.groups, EXAMPLES, claim.groups) for step in range(N)]


def fixed(claim: AmplifiedCalibration) -> Batches:
    """One order for all runs: the right rate, and nothing about it is secret."""
    return lambda seed: list(CyclicPoisson(EXAMPLES, claim, steps=N, seed=11 << 64))


def once(claim: AmplifiedCalibration) -> Batches:
    """A group is sampled once, and the same batch comes in each of its steps: the right rate, not independently."""

    def batches(seed: int) -> list[np.ndarray]:
        drawn = list(CyclicPoisson(EXAMPLES, claim, steps=N, seed=seed))
        return [drawn[step % claim.groups] for step in range(N)]

    return batches


def twice_as_often(claim: AmplifiedCalibration) -> Batches:
    return sampling(replace(claim, sampling_probability=2 * claim.sampling_probability))


def other_groups(claim: AmplifiedCalibration) -> Batches:
    """Every step samples from all examples: with several bands an example meets its own noise."""
    rate = claim.sampling_probability / claim.groups

    def batches(seed: int) -> list[np.ndarray]:
        rng = np.random.default_rng(seed)
        return [np.flatnonzero(rng.random(EXAMPLES) < rate) for _ in range(N)]

    return batches


def run_of(factors: Factorization, claim: AmplifiedCalibration, batches: Batches) -> Callable[[int, int], float]:
    """A whole job with its noise: the canary's contribution is the longest that clipping lets through."""
    worlds = neighbours(nothing, CANARY, LONG, "zero_out")
    taken = np.zeros((N, D))
    taken[CANARY % claim.groups :: claim.groups] = LONG / 100 / BATCH
    score = likelihood_ratio(factors.rows("C", 0, N), taken)
    source = noise_source(factors.strategy.structure, factors.strategy.tensors(), N, factors.digest)

    def trial(world: int, seed: int) -> float:
        noise = NoiseGenerator(source, claim, D, seed=seed, precision="float64", auditor="not_looked_at")
        door = PrivateSums(noise, claim)
        releases = [
            door.release(contributions_at(worlds[world], np.zeros(D), batch)) if len(batch) else noise.next()
            for batch in batches(seed + 1)
        ]
        return score(np.array(releases))

    return trial


def watched(batches: Batches, claim: Calibration, **options: Any) -> SamplingReport:
    settings: dict[str, Any] = {"steps": N, "canaries": CANARIES, "runs": 150, "seed": 5}
    return audit_sampling(batches, claim, **(settings | options))


def measured(job: tuple[Factorization, AmplifiedCalibration], batches: Batches, trials: int) -> AuditReport:
    factors, claim = job
    return audit(run_of(factors, claim, batches), claim, trials=trials, seed=3)


def test_a_job_that_samples_passes_both_audits(job: tuple[Factorization, AmplifiedCalibration]) -> None:
    report = measured(job, sampling(job[1]), trials=200)
    assert not report.refutes and report.sampling == "cyclic_poisson"
    assert report.claimed_epsilon == 1.0 < report.reach
    assert not watched(sampling(job[1]), job[1]).refutes


def test_a_job_that_never_samples_is_caught_by_both(job: tuple[Factorization, AmplifiedCalibration]) -> None:
    """What it gives is the epsilon without sampling, with which the claim was compared until now: it passed."""
    report = measured(job, never(job[1]), trials=400)
    without = gaussian_epsilon(1e-5, job[1].mu)
    assert without > 6 and report.epsilon_direct < without
    assert report.refutes and report.epsilon_direct > 1.5 * report.claimed_epsilon
    found = watched(never(job[1]), job[1])
    assert found.refutes and found.rate == 1.0
    assert any("is taken in 150 of 150 runs" in text for text in found.findings)


def test_the_reviewers_claim() -> None:
    """DP-SGD, epsilon 1 at 1e-5 with sampling; without it the noise gives 12.25."""
    factors, n = factored(1), N
    claim = calibrate_amplified(factors, epsilon=1.0, delta=1e-5, dataset_size=2 * EXAMPLES, batch_size=BATCH)
    assert gaussian_epsilon(1e-5, claim.mu) > 10 and n == claim.compositions
    report = audit(run_of(factors, claim, never(claim)), claim, trials=240, seed=1)
    assert report.refutes and report.mu < claim.mu


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (fixed, "of 300 runs"),
        (once, "two steps take an example together"),
        (twice_as_often, "of their steps"),
    ],
)
def test_sampling_that_is_not_the_claims(
    job: tuple[Factorization, AmplifiedCalibration], wrong: Any, says: str
) -> None:
    report = watched(wrong(job[1]), job[1], canaries=tuple(range(0, 60)), runs=300)
    assert any(says in text for text in report.findings), report


def test_groups_that_are_not_kept(job: tuple[Factorization, AmplifiedCalibration]) -> None:
    report = watched(other_groups(job[1]), job[1])
    assert report.refutes and "takes part in steps of several of 3 groups" in report.findings[0]


def test_a_true_sampler_is_hardly_ever_refuted(job: tuple[Factorization, AmplifiedCalibration]) -> None:
    """At confidence 0.9 at most one in ten: 8 audits of 60 runs refute it at most 4 times, but for one in 10^3."""
    refuted = sum(watched(sampling(job[1]), job[1], runs=60, seed=i, confidence=0.9).refutes for i in range(8))
    assert refuted <= 4 and binom.sf(4, 8, 0.1) < 1e-3


def test_the_power_that_is_stated_is_met(job: tuple[Factorization, AmplifiedCalibration]) -> None:
    """A rate of `detects_rate` is found with probability 0.95: in 6 audits at least 3 times, but for one in 10^4."""
    claim = job[1]
    stated = watched(sampling(claim), claim, runs=60)
    assert claim.sampling_probability < stated.detects_rate < stated.detects < 1
    more = sampling(replace(claim, sampling_probability=stated.detects_rate))
    found = sum(watched(more, claim, runs=60, seed=100 + i).refutes for i in range(6))
    assert found >= 3 and binom.cdf(2, 6, 0.95) < 1e-4


def test_critical_counts_are_those_of_the_binomial_law() -> None:
    for trials, rate, level in ((60, 0.05, 1e-3), (500, 0.3, 1e-6), (20, 0.5, 1e-12), (30, 1 / 7, 0.01)):
        count = _critical(trials, rate, level)
        assert binom.sf(count - 1, trials, rate) <= level < binom.sf(count - 2, trials, rate)
        found = _detectable(trials, count)
        if count > trials:
            assert found == np.inf
        else:
            assert binom.sf(count - 1, trials, found) == pytest.approx(0.95)


class TestBins:
    """Balls in bins: one step of each epoch, the same in all, each with probability 1 / bins."""

    BINS = 8

    @pytest.fixture
    def claim(self) -> Calibration:
        spec = {"workload": {"kind": "prefix", "n": N}, "mechanism": {"kind": "identity"}}
        factors = solve(parse_spec(spec | {"participation": {"kind": "fixed_epochs", "epochs": N // self.BINS}}))
        return calibrate_bins(factors, epsilon=8.0, delta=1e-3, bins=self.BINS, method="deterministic")

    def batches(self, bins: np.ndarray) -> list[np.ndarray]:
        return [np.flatnonzero(bins == step % self.BINS) for step in range(N)]

    def drawn(self, seed: int) -> np.ndarray:
        return np.random.default_rng(seed).integers(0, self.BINS, EXAMPLES)

    def test_bins_that_are_drawn_pass(self, claim: Calibration) -> None:
        assert not watched(lambda seed: self.batches(self.drawn(seed)), claim).refutes

    def test_bins_that_are_fixed_are_caught(self, claim: Calibration) -> None:
        report = watched(lambda seed: self.batches(np.arange(EXAMPLES) % self.BINS), claim)
        assert report.refutes and "is taken in 150 of 150 runs" in report.findings[0]

    def test_bins_that_change_between_epochs_are_caught(self, claim: Calibration) -> None:
        def batches(seed: int) -> list[np.ndarray]:
            epochs = [self.batches(self.drawn(seed + k))[: self.BINS] for k in range(N // self.BINS)]
            return [batch for epoch in epochs for batch in epoch]

        assert "comes in other steps of later epochs" in watched(batches, claim).findings[0]

    def test_examples_that_are_left_out_are_caught(self, claim: Calibration) -> None:
        def batches(seed: int) -> list[np.ndarray]:
            return self.batches(np.where(np.arange(EXAMPLES) == CANARY, -1, self.drawn(seed)))

        assert watched(batches, claim).findings == (f"example {CANARY} does not take part once in each epoch",)


@pytest.mark.parametrize(
    ("changes", "match"),
    [({"runs": 5}, "at least 20"), ({"canaries": (1, 1)}, "that differ"), ({"canaries": ()}, "0 canaries"),
     ({"confidence": 1.0}, "confidence"), ({"steps": N - 1}, f"has {N} batches")],
)  # fmt: skip
def test_audits_that_could_say_nothing(
    job: tuple[Factorization, AmplifiedCalibration], changes: dict[str, Any], match: str
) -> None:
    with pytest.raises(InvalidParameter, match=match):
        watched(sampling(job[1]), job[1], **changes)


def test_a_claim_without_sampling_has_none_to_audit() -> None:
    claim = calibrate(factored(1).certificate.sensitivity, PrivacyTarget(epsilon=1.0, delta=1e-5))
    with pytest.raises(InvalidParameter, match="does not assume sampling"):
        watched(lambda seed: [], claim)


def test_trials_that_could_not_refute_the_claim_are_refused(job: tuple[Factorization, AmplifiedCalibration]) -> None:
    """An epsilon of 8 would need thousands of runs: fewer end without an answer, not with one that says nothing."""
    factors, claim = job
    large = replace(claim, epsilon=8.0)
    with pytest.raises(InvalidParameter, match=r"they could not refute the claim.* use more than \d+"):
        audit(lambda world, seed: 0.0, large, trials=400, seed=0)
    with pytest.raises(InvalidParameter, match="below its own 1e-05"):
        audit(lambda world, seed: 0.0, claim, trials=400, seed=0, delta=1e-6)

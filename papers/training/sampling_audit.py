"""An audit of the sampling that an amplified epsilon counts on: in which steps does a canary really take part?

Make the job's batches many times, each time from a new seed, and count the steps in which a few fixed examples come up.
Cyclic Poisson sampling takes an example in each step of its group with one probability, independently; balls in bins
take it in the same step of every epoch, each with probability 1 / bins. Whoever takes it more often somewhere, for
certain in the extreme (a fixed order, a shuffle with one seed), gives less privacy than is claimed, however much noise
there is. Every test is an exact binomial one, and all together refute a true sampler with at most 1 - confidence.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from factorize.errors import InvalidParameter, extras_named
from factorize.privacy import Calibration, Presence
from papers.training.audit import run_seeds

Batches = Callable[[int], Iterable[Any]]
"""A function of a seed to the batches of one run, as arrays of indices: what the job does, all randomness anew."""

MIN_RUNS = 20
_DETECTION_RATE = 0.95


@dataclass(frozen=True)
class SamplingReport:
    """The runs' evidence about the sampling.

    Attributes:
        findings: what a true sampler does with less than 1 - confidence in all; empty where nothing was found.
        rate: share of an example's steps in which it was taken, over all canaries and runs.
        claimed_rate: probability of each of these steps.
        detects: a step that takes a canary with this probability or more is found with probability 0.95.
        detects_rate: the same for the probability of all steps together.
        confidence: confidence with which a finding refutes the claim.
        runs: made.
    """

    findings: tuple[str, ...]
    rate: float
    claimed_rate: float
    detects: float
    detects_rate: float
    confidence: float
    runs: int

    @property
    def refutes(self) -> bool:
        """Return whether the job does not sample as the claim counts on."""
        return bool(self.findings)


@extras_named("an audit of sampling")
def audit_sampling(
    batches: Batches,
    claim: Calibration,
    *,
    steps: int,
    canaries: Sequence[int],
    runs: int,
    seed: int,
    confidence: float = 0.999,
) -> SamplingReport:
    """Compare the steps in which examples take part with the sampling that a calibration counts on.

    Args:
        batches: a function to the batches of one run of the job, from a seed that decides all that is random in them.
        claim: the answer of `calibrate_amplified` or `calibrate_bins`.
        steps: n of a run.
        canaries: indices of the examples to watch; different ones, of several groups.
        runs: at least 20; `detects` of the report says what so many find.
        seed: seed of the audit; each run gets one of its own.
        confidence: probability that a job which samples as claimed is not refuted.

    Raises:
        InvalidParameter: a claim without sampling, no or equal canaries, too few runs or steps, a confidence outside
            (0, 1), or a run with another number of batches.
    """
    if claim.presence is None:
        raise InvalidParameter(
            f"a {type(claim).__name__} does not assume sampling, so there is none to audit; give a calibration of "
            "calibrate_amplified or calibrate_bins",
            field="claim",
        )
    law = _Law(*claim.presence)
    distinct = len(set(canaries)) == len(canaries) > 0
    if not distinct or runs < MIN_RUNS or steps < law.period or not 0 < confidence < 1:
        raise InvalidParameter(
            f"runs={runs}, steps={steps}, confidence={confidence}, {len(canaries)} canaries: need at least {MIN_RUNS} "
            f"runs and {law.period} steps, a confidence in (0, 1), and canaries that differ",
            field="runs",
        )
    taken = np.array([_presence(batches(one), canaries, steps) for one in run_seeds(seed, runs)])
    findings, cells, trials = [], len(canaries) * law.cells(steps), 0
    level = (1 - confidence) / 3  # single steps, all steps, and pairs of steps get a third each
    total = 0
    for place, canary in enumerate(canaries):
        own, odd = law.split(taken[:, place])
        findings += [f"example {canary} {odd}"] if odd else []
        findings += _often(own, f"example {canary}", law, level / cells)
        total, trials = total + int(own.sum()), trials + own.size
    together = _together(taken, law, level)
    findings += together
    if law.independent and total >= _critical(trials, law.probability, level):
        rate = total / trials
        findings.append(f"examples are taken in {rate:.3g} of their steps, and {law.probability:.3g} is claimed")
    return SamplingReport(
        findings=tuple(findings),
        rate=total / trials,
        claimed_rate=law.probability,
        detects=_detectable(runs, _critical(runs, law.probability, level / cells)),
        detects_rate=_detectable(trials, _critical(trials, law.probability, level)),
        confidence=confidence,
        runs=runs,
    )


class _Law(Presence):
    """The law by which a true sampler takes one example, step by step."""

    def cells(self, steps: int) -> int:
        """The steps in which one example may be taken, each with a test of its own."""
        return -(-steps // self.period) if self.independent else self.period

    def split(self, taken: np.ndarray) -> tuple[np.ndarray, str]:
        """Return what one example's own steps have, shape (runs, cells), and what no true sampler does."""
        if self.independent:
            starts = [s for s in range(self.period) if taken[:, s :: self.period].any()]
            if len(starts) > 1:
                return taken[:, starts[0] :: self.period], f"takes part in steps of several of {self.period} groups"
            return taken[:, (starts or [0])[0] :: self.period], ""
        first, whole = taken[:, : self.period], taken.shape[1] // self.period * self.period
        epochs = taken[:, :whole].reshape(len(taken), -1, self.period)
        if (epochs != first[:, None]).any():
            return first, "comes in other steps of later epochs than of the first"
        return first, "" if (first.sum(axis=1) == 1).all() else "does not take part once in each epoch"


def _presence(batches: Iterable[object], canaries: Sequence[int], steps: int) -> np.ndarray:
    """Return whether each canary is in each batch of a run, shape (canaries, steps)."""
    presence = [np.isin(canaries, np.asarray(batch).reshape(-1)) for batch in batches]
    if len(presence) != steps:
        raise InvalidParameter(f"a run has {len(presence)} batches, but steps={steps} are audited", field="steps")
    return np.array(presence).T


def _often(own: np.ndarray, who: str, law: _Law, level: float) -> list[str]:
    """Return steps that take an example more often than chance explains: the one that does so most."""
    counts, runs = own.sum(axis=0), len(own)
    worst = int(counts.argmax())
    if counts[worst] < _critical(runs, law.probability, level):
        return []
    claimed = f"with probability {law.probability:.3g} is claimed"
    return [f"{who} is taken in {counts[worst]} of {runs} runs at step {worst} of its own, and {claimed}"]


def _together(taken: np.ndarray, law: _Law, level: float) -> list[str]:
    """Return neighbouring steps of one example that come together more often than independent ones."""
    if not law.independent:
        return []
    both, count = 0, 0
    for example in range(taken.shape[1]):
        own = law.split(taken[:, example])[0]
        pairs = own[:, : own.shape[1] // 2 * 2].reshape(len(own), -1, 2)
        both, count = both + int(pairs.all(axis=2).sum()), count + pairs.shape[0] * pairs.shape[1]
    if not count or both < _critical(count, law.probability**2, level):
        return []
    chance = law.probability**2
    return [f"two steps take an example together in {both / count:.3g} of all cases, and by chance in {chance:.3g}"]


def _critical(trials: int, probability: float, level: float) -> int:
    """Return the smallest count that at most a share `level` of binomial counts reaches; trials + 1 where none is."""
    from scipy.stats import binom

    return int(binom.isf(level, trials, probability)) + 1


def _detectable(trials: int, critical: int) -> float:
    """Return the probability whose counts reach the critical one with probability 0.95; infinite where none does."""
    from scipy.special import betaincinv

    return float("inf") if critical > trials else float(betaincinv(critical, trials - critical + 1, _DETECTION_RATE))

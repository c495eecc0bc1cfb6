"""An empirical audit: how well can an adversary tell two neighbouring data sets apart by what was released?

Run the algorithm many times on each of two data sets that differ in one example, with the worst contributions that the
clipping lets through; turn each run's releases into a score by the best test there is; and bound the error rates of the
test by Clopper and Pearson. Every pair of error rates is a lower bound on the privacy loss. A measured epsilon above
the claim refutes it. One far below the claim says that the attack is weak, or the noise too large. A claim that counts
on sampling is compared with its own, amplified epsilon; the sampling itself is audited by `sampling_audit`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from factorize.errors import InvalidParameter, extras_named
from factorize.noise.normals import MIN_SEED
from factorize.numbers.gaussian import gaussian_epsilon
from factorize.privacy import Calibration

Trial = Callable[[int, int], float]
"""A function of (world, seed) to a score, larger where releases look like world 1; worlds 0 and 1 are neighbours."""

MIN_TRIALS = 100


@dataclass(frozen=True)
class AuditReport:
    """The measurements of an audit, each number a lower bound at the stated confidence.

    Attributes:
        mu: mu of Gaussian differential privacy: no mu-GDP algorithm with a smaller mu has error rates this small.
        epsilon: that mu's exact epsilon at the delta of the claim, where the mechanism is Gaussian; a sampled one is
            not, and has `epsilon_direct` alone.
        epsilon_direct: largest log((1 - miss - delta) / false alarm), which assumes nothing about the noise.
        claimed_mu: mu of the calibration, without sampling.
        claimed_epsilon: epsilon of the calibration, at `delta`, with the sampling that it counts on.
        delta: delta of the comparison.
        confidence: probability with which each bound holds.
        trials: per world, half for the choice of the threshold and half for the bounds.
        sampling: the sampling that the claim counts on, None where it does not.
        reach: largest `epsilon_direct` that so many trials can measure, where no error is met.
    """

    mu: float
    epsilon: float
    epsilon_direct: float
    claimed_mu: float
    claimed_epsilon: float
    delta: float
    confidence: float
    trials: int
    sampling: str | None
    reach: float

    @property
    def refutes(self) -> bool:
        """Return whether the releases were told apart better than the claim allows."""
        return self.mu > self.claimed_mu or self.epsilon_direct > self.claimed_epsilon


@extras_named("an audit")
def audit(
    trial: Trial, claim: Calibration, *, trials: int, seed: int, delta: float | None = None, confidence: float = 0.95
) -> AuditReport:
    """Measure how well a score tells two worlds apart, and compare it with a claim.

    A claim with amplification says nothing of Gaussian differential privacy beyond what the noise gives without it: its
    epsilon can be refuted directly alone, up to about log(trials) - 2, and trials that could not are refused.

    Args:
        trial: runs the algorithm once; it must draw all its noise from the seed it is given.
        claim: the calibration whose guarantee is audited.
        trials: runs per world, at least 100.
        seed: seed of the whole audit; each run gets one of its own.
        delta: the delta at which epsilons are compared; the claim's by default.
        confidence: confidence of the bounds.

    Raises:
        InvalidParameter: too few trials, no delta, one that an amplified claim is not for, a confidence outside
            (0, 1), trials that could not refute an amplified claim, or scores that are not finite.

    Reference:
        Clopper, Pearson 1934; Nasr et al. 2023, "Tight auditing of differentially private machine learning" (the bound
        on mu); Jagielski et al. 2020 (the direct one).
    """
    at = claim.delta if delta is None else delta
    if trials < MIN_TRIALS or at is None or not 0 < at < 1 or not 0 < confidence < 1:
        raise InvalidParameter(
            f"trials={trials}, delta={at}, confidence={confidence}: need at least {MIN_TRIALS} trials, a delta (the "
            "claim has none unless it was asked for) and a confidence, both in (0, 1)",
            field="trials",
        )
    half = trials // 2
    claimed, reach = _claimed_epsilon(claim, at), _reach(trials - half, confidence, at)
    sampling = claim.sampling if claim.amplified else None
    if sampling is not None and claimed >= reach:
        enough = 4 * math.exp(claimed) * math.log(2 / (1 - confidence))
        raise InvalidParameter(
            f"{trials} trials can show an epsilon of at most {reach:.3g}, below the claimed {claimed:.3g}, so they "
            f"could not refute the claim; use more than {enough:.0f}",
            field="trials",
        )
    seeds = run_seeds(seed, 2 * trials)
    scores = np.array([trial(i % 2, one) for i, one in enumerate(seeds)]).reshape(trials, 2).T
    if not np.isfinite(scores).all():
        raise InvalidParameter("a trial's score is not finite, so no test can be made of it", field="trial")
    strength = _mu if sampling is None else partial(_direct_epsilon, delta=at)
    candidates = np.quantile(scores[:, :half], np.linspace(0.02, 0.98, 97)).tolist()
    threshold = max(candidates, key=lambda value: strength(*_error_bounds(scores[:, :half], value, confidence)))
    miss, alarm = _error_bounds(scores[:, half:], threshold, confidence)
    mu = max(0.0, _mu(miss, alarm))
    return AuditReport(
        mu=mu,
        epsilon=gaussian_epsilon(at, mu) if mu > 1e-8 else 0.0,
        epsilon_direct=_direct_epsilon(miss, alarm, at),
        claimed_mu=claim.mu,
        claimed_epsilon=claimed,
        delta=at,
        confidence=confidence,
        trials=trials,
        sampling=sampling,
        reach=reach,
    )


def run_seeds(seed: int, runs: int) -> list[int]:
    """Return a seed for each run of an audit, as long as a secret one."""
    drawn = np.random.SeedSequence(seed).generate_state(runs, np.uint64)
    return [MIN_SEED + int(one) for one in drawn]


def _claimed_epsilon(claim: Calibration, delta: float) -> float:
    """Return the epsilon that is claimed at delta; an amplified one holds at its own delta and at larger ones."""
    if not claim.amplified:
        return gaussian_epsilon(delta, claim.mu)
    if claim.epsilon is None or claim.delta is None or delta < claim.delta:
        raise InvalidParameter(
            f"the claim assumes sampling, and covers no delta below its own {claim.delta}, such as delta={delta:g}; "
            "leave delta out",
            field="delta",
        )
    return claim.epsilon


def _reach(counted: int, confidence: float, delta: float) -> float:
    """Return the largest direct epsilon that this many runs of each world can show: those without an error."""
    least = clopper_pearson_upper(0, counted, 1 - (1 - confidence) / 2)
    return _direct_epsilon(least, least, delta)


def clopper_pearson_upper(count: int, trials: int, confidence: float) -> float:
    """Return the upper confidence bound on a probability after `count` of `trials`.

    Reference: Clopper, Pearson 1934.
    """
    from scipy.special import betaincinv

    return 1.0 if count >= trials else float(betaincinv(count + 1, trials - count, confidence))


def likelihood_ratio(strategy: np.ndarray, difference: np.ndarray) -> Callable[[np.ndarray], float]:
    """Return the most powerful test between releases C^-1 (C G + Z) of two worlds: the score of Neyman and Pearson.

    C times the releases is C G plus independent noise, so the score is its product with C times the difference of the
    worlds, scaled to norm 1.

    Args:
        strategy: C, shape (n, n).
        difference: what world 1 contributes minus what world 0 does, shape (n, d).
    """
    direction = strategy @ difference
    aim = strategy.T @ direction / np.linalg.norm(direction)

    def score(releases: np.ndarray) -> float:
        return float((releases.reshape(aim.shape) * aim).sum())

    return score


def _error_bounds(scores: np.ndarray, threshold: float, confidence: float) -> tuple[float, float]:
    """Return upper bounds on the rates of misses and false alarms, which hold together with the confidence."""
    each = 1 - (1 - confidence) / 2
    count = scores.shape[1]
    misses, alarms = int((scores[1] <= threshold).sum()), int((scores[0] > threshold).sum())
    return clopper_pearson_upper(misses, count, each), clopper_pearson_upper(alarms, count, each)


def _direct_epsilon(miss: float, alarm: float, delta: float) -> float:
    """Return the epsilon below which these error rates are impossible at delta (Kairouz et al. 2015, theorem 2.1)."""
    pairs = ((1 - miss - delta, alarm), (1 - alarm - delta, miss))
    return max(0.0, *(math.log(hit / error) for hit, error in pairs if hit > 0 and error > 0), 0.0)


def _mu(miss: float, alarm: float) -> float:
    """Return the mu of Gaussian differential privacy below which these error rates are impossible."""
    from statistics import NormalDist

    hit, missed = (NormalDist().inv_cdf(min(max(rate, 1e-300), 1 - 1e-16)) for rate in (1 - alarm, miss))
    return hit - missed

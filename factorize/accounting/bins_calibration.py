"""The calibration that counts on random batches: sigma, epsilon or delta, its claim, and what holds without secrecy."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from factorize.accounting.bins_law import BinsLaw
from factorize.accounting.claim import NoiseClaim, prefixed
from factorize.accounting.claim_search import LEAST_EPSILON, WORK, ClaimSearch
from factorize.accounting.gram_matrix import bin_gram
from factorize.accounting.law import Law
from factorize.accounting.loss_laws import AllocationLaw
from factorize.accounting.sampling_scheme import Method
from factorize.errors import InvalidParameter, extras_named
from factorize.format.claims import Sensitivity
from factorize.format.factors import CertifiedFactors, certified
from factorize.numbers.gaussian import mu_of, rho_of
from factorize.numbers.scalars import finite_real, multiplier_of, within_scale
from factorize.privacy import Adjacency, Calibration, check_zero_out
from factorize.privacy_question import GivenNoise, question_of
from factorize.structures.endless import AnyStrategy


@dataclass(frozen=True, kw_only=True)
class BinsCalibration(Calibration):
    """A calibration whose epsilon counts on one step of each example in every epoch; `rho` and `mu` do not.

    Attributes:
        sampling: the law: `balls_in_bins`, one draw for good, or `random_allocation`, a draw in every epoch.
        bins: b; each example draws one of them in secret.
        epochs: steps of an example, at most.
        method: `verified` by a claim whose bets were won, or `deterministic`, by bounds alone.
        claim: the document, with everything that a verifier needs beside C.
        samples: drawn for it.
        seconds: that it took.
        deterministic_sigma: of the bounds that need no sampling.
        epsilon_without_secrecy: at the same delta, if the draws, batches or batch sizes become known.
        signed: whether |C| stood in for a C that has, or may have, negative entries.
        absolute_cost: sensitivity of |C| over that of C for these participations, 1 where nothing was lost; None where
            the latter is not known.
    """

    sampling: str
    bins: int
    epochs: int
    method: Method
    claim: NoiseClaim
    samples: int
    seconds: float
    deterministic_sigma: float
    epsilon_without_secrecy: float
    signed: bool
    absolute_cost: float | None

    def check_belongs(self, mine: Sensitivity, strategy: Callable[[], Any], *, digest: str | None = None) -> None:
        """Refuse another factorization, also one of equal sensitivity: its columns may be more alike."""
        super().check_belongs(mine, strategy, digest=digest)
        if digest is not None and prefixed(digest) != self.claim.factors:
            raise InvalidParameter(
                f"the claim is for the factorization {self.claim.factors[:19]}, this one is {prefixed(digest)[:19]}, "
                "and amplification counts on all of C; calibrate this one",
                field="calibration",
            )

    def _wanted(self, mine: Sensitivity, strategy: Callable[[], Any]) -> Sensitivity:
        """Return the certificate's sensitivity where it is for these epochs, else that of the law on C."""
        if dict(mine.participation) == dict(self.sensitivity.participation):
            return mine
        c = strategy()
        return law_of(c, self.sampling, self.bins).stated(c)

    def document(self) -> dict[str, Any]:
        """Return the plain JSON form."""
        names = ("sampling", "bins", "epochs", "method", "deterministic_sigma", "epsilon_without_secrecy", "signed")
        own = {name: getattr(self, name) for name in (*names, "absolute_cost", "samples", "seconds")}
        return {**super().document(), **own, "claim": self.claim.document(), "claim_digest": self.claim.digest}


def law_on(factorization: Any, sampling: str, bins: int | None) -> Law:
    """Return the law of a sampling on a `factorize.Factorization`; by default with the bins of its epochs."""
    return law_of(factorization.strategy, sampling, bins_of(factorization) if bins is None else bins)


def law_of(strategy: AnyStrategy, sampling: str, bins: int) -> Law:
    """Return the law of a sampling; it raises as `bin_gram` and `AllocationLaw.of` do."""
    if sampling == BinsLaw.name:
        return BinsLaw(bin_gram(strategy, bins))
    if sampling == AllocationLaw.name:
        return AllocationLaw.of(strategy, bins)
    raise InvalidParameter(
        f"sampling={str(sampling)[:20]!r} draws no bins; give {BinsLaw.name} or {AllocationLaw.name}, for other runs "
        "use calibrate_sampling, or dp_accounting's own distributions",
        field="sampling",
    )


@extras_named("a calibration for bins")
def calibrate_bins(
    factorization: CertifiedFactors,
    *,
    epsilon: float | None = None,
    delta: float | None = None,
    sigma: float | None = None,
    sampling: str = BinsLaw.name,
    bins: int | None = None,
    divisor: int | None = None,
    clip_norm: float = 1.0,
    adjacency: Adjacency | str = Adjacency.ZERO_OUT,
    method: Method = "verified",
    work: int = WORK,
) -> BinsCalibration:
    """Return the noise where each example takes one secret step of every epoch, or what a given noise is worth.

    Two of epsilon, delta and sigma are given; the claim is about the third.

    Args:
        factorization: a `factorize.Factorization`, or factors that have a file.
        epsilon: of (epsilon, delta)-DP; None where it is asked for.
        delta: of (epsilon, delta)-DP; None where it is asked for.
        sigma: standard deviation per entry of Z, for sums; None where it is asked for.
        sampling: `balls_in_bins`, for any C; `random_allocation`, for C = I.
        bins: b; by default the steps of an epoch of the spec's participation.
        divisor: the fixed public divisor where steps are means, never the size of a random batch; None for sums.
        clip_norm: bound on one contribution.
        adjacency: `zero_out` only.
        method: `verified` tests a claim (seconds); `deterministic` uses bounds alone (7 to 25 % more noise).
        work: samples times bins of one direction of a claim, at most.

    Raises:
        UnsupportedAdjacency: replace_one or add/remove.
        InvalidParameter: a value outside its range, bins that are not known, or a C without end.
        ConditionNotMet: random allocation of a C with more than one band.
        TooLarge: more than 4096 bins, or a C beyond the limits of the checker.

    Reference:
        docs/amplification.md; docs/notes/amplification-proofs.md, theorems 4, 5, 7 and 9.
    """
    check_zero_out(adjacency)
    question = question_of(epsilon=epsilon, delta=delta, rho=None, mu=None, sigma=sigma)
    clip = within_scale("clip_norm", finite_real("clip_norm", clip_norm, remedy="give the norm of clipping"))
    if method not in ("verified", "deterministic"):
        raise InvalidParameter(f"method={str(method)[:20]!r} is not verified or deterministic", field="method")
    held: Any = certified(factorization).opened()
    started = time.perf_counter()
    law = law_on(held, sampling, bins)
    accepted = ClaimSearch(law, question, clip_norm=clip, work=work if method == "verified" else 0).claim(held)
    claim, bounded = accepted.claim, accepted.bounded.multiplier
    if isinstance(question, GivenNoise) and claim.epsilon > LEAST_EPSILON:
        bounded = law.sigma(claim.epsilon, claim.delta)
    noise_multiplier = multiplier_of(claim.sigma, clip_norm=clip, sensitivity=law.sensitivity)
    of_c = isinstance(law, BinsLaw) and law.steps % law.bins == 0
    same_epochs = of_c and held.spec.participation.passes is not None and bins_of(held) == law.bins
    sensitivity = held.sensitivity if same_epochs else law.stated(held.strategy)
    return BinsCalibration(
        noise_multiplier=noise_multiplier,
        sigma_of_sums=within_scale("sigma", claim.sigma),
        sensitivity=sensitivity,
        clip_norm=clip,
        adjacency=Adjacency.ZERO_OUT,
        epsilon=claim.epsilon,
        delta=claim.delta,
        rho=rho_of(noise_multiplier),
        mu=mu_of(noise_multiplier),
        divisor=divisor,
        sampling=law.name,
        bins=law.bins,
        epochs=law.epochs,
        method="verified" if claim.sampled else "deterministic",
        claim=claim,
        samples=accepted.samples,
        seconds=time.perf_counter() - started,
        deterministic_sigma=bounded * clip if claim.sampled or isinstance(question, GivenNoise) else claim.sigma,
        epsilon_without_secrecy=claim.unamplified_epsilon,
        signed=law.signed,
        absolute_cost=max(law.sensitivity / sensitivity.value, 1.0) if of_c else None,
    )


def bins_of(factorization: Any) -> int:
    """Return the steps of an epoch, n if there is one; raise InvalidParameter for a participation without epochs."""
    participation, n = factorization.spec.participation, factorization.strategy.finite().n
    if participation.passes is not None:
        return n // participation.passes
    raise InvalidParameter(
        f"the spec's participation {participation.kind!r} has no epochs that bins could be; give bins, the steps of an "
        "epoch",
        field="bins",
    )

"""The calibration that relies on random batches: sigma, epsilon or delta, its claim, and epsilon without secrecy."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar, get_args

from factorize.accounting.bins_law import BinsLaw
from factorize.accounting.claim import NoiseClaim, prefixed
from factorize.accounting.claim_search import MIN_EPSILON, ClaimSearch
from factorize.accounting.gram_matrix import bins_of
from factorize.accounting.loss_laws import AllocationLaw
from factorize.accounting.min_sep_law import MinSepLaw
from factorize.errors import InvalidParameter
from factorize.format.claims import Sensitivity
from factorize.format.manifest import CertifiedFactors, certified
from factorize.format.quantities import MAX_EPSILON, at_most
from factorize.numbers.gaussian import mu_of, rho_of
from factorize.numbers.scalars import check_choice, finite_real, multiplier_of, within_scale
from factorize.privacy import Calibration, Presence
from factorize.privacy.adjacency import Adjacency
from factorize.privacy.question import WORK, GivenNoise, Method, Question, SamplingOptions


@dataclass(frozen=True, kw_only=True)
class BinsCalibration(Calibration):
    """A calibration whose epsilon relies on one secret step of each example in every epoch; `rho` and `mu` do not.

    Attributes:
        law: the law of participation on the C that this noise is for.
        bins: b; each example draws one of them in secret.
        epochs: the largest number of steps that an example takes part in.
        claim: the document, with everything that a verifier needs except C.
        samples: number of samples that were drawn for the claim.
        seconds: time that the calibration took.
        deterministic_sigma: the sigma by the bounds that need no sampling.
        epsilon_without_secrecy: epsilon at the same delta, if the draws, batches or batch sizes become known.
        signed: whether |C| stood in for a C that has, or may have, negative entries.
        absolute_cost: sensitivity of |C| over that of C for these participations, 1 where nothing was lost; None where
            the latter is not known.
    """

    amplified: ClassVar[bool] = True
    law: BinsLaw | AllocationLaw | MinSepLaw = field(repr=False, compare=False)
    bins: int
    epochs: int
    claim: NoiseClaim
    samples: int
    seconds: float
    deterministic_sigma: float
    epsilon_without_secrecy: float
    signed: bool
    absolute_cost: float | None

    @property
    def presence(self) -> Presence:
        """Return the law of one bin for each example, drawn with equal chances."""
        return Presence(self.bins, 1.0 / self.bins, independent=False)

    @property
    def without_secrecy(self) -> str:
        """A sentence on the epsilon that holds if the draws become known."""
        return f" If bins, batches or batch sizes become known, epsilon is {at_most(self.epsilon_without_secrecy)}."

    def _level_holds(self, mu: float) -> bool:
        """Return whether epsilon and delta at this noise are what the claim says."""
        said = self.claim
        return (said.sigma, said.clip_norm, said.epsilon, said.delta) == (
            self.sigma_of_sums,
            self.clip_norm,
            self.epsilon,
            self.delta,
        )

    def check_belongs(self, mine: Sensitivity, strategy: Callable[[], Any], *, digest: str | None = None) -> None:
        """Refuse another factorization, even one of equal sensitivity: its columns may be more alike."""
        super().check_belongs(mine, strategy, digest=digest)
        if digest is not None and prefixed(digest) != self.claim.factors:
            raise InvalidParameter(
                f"the calibration is for the factorization {self.claim.factors[:19]}, but this one is "
                f"{prefixed(digest)[:19]}, and amplification depends on all of C; calibrate this one",
                field="calibration",
            )

    def _wanted(self, mine: Sensitivity, strategy: Callable[[], Any]) -> Sensitivity:
        """Return the certificate's sensitivity where it is for these epochs, else that of the law on C."""
        if dict(mine.participation) == dict(self.sensitivity.participation):
            return mine
        c = strategy()
        assert not isinstance(self.law, MinSepLaw)  # calibrations of a MinSepLaw override this method
        return self.law.of(c, self.bins).stated(c)

    def document(self) -> dict[str, Any]:
        """Return the plain JSON form."""
        names = ("bins", "epochs", "method", "deterministic_sigma", "epsilon_without_secrecy", "signed")
        own = self._stated(*names, "absolute_cost", "samples", "seconds")
        return {**super().document(), **own, "claim": self.claim.document(), "claim_digest": self.claim.digest}


@dataclass(frozen=True, kw_only=True)
class MinSepCalibration(BinsCalibration):
    """A calibration whose epsilon relies on secret steps of each example, at least `bins` apart.

    Attributes:
        dataset_size: N, public.
        batch_size: expected number of examples of a step; it divides nothing.
    """

    law: MinSepLaw = field(repr=False, compare=False)
    dataset_size: int
    batch_size: int

    @property
    def sampling_probability(self) -> float:
        """The probability p of a step for an example that took part in none of the last `bins` - 1 steps."""
        return self.law.probability

    @property
    def groups(self) -> int:
        """The smallest distance between two steps of an example."""
        return self.bins

    @property
    def presence(self) -> Presence:
        """Return the chance of every step at any time; two steps that are near never come together."""
        return Presence(1, self.batch_size / self.dataset_size, independent=True)

    def _wanted(self, mine: Sensitivity, strategy: Callable[[], Any]) -> Sensitivity:
        """Return the sensitivity of steps at least `bins` apart; raise InvalidParameter for a C with more bands."""
        c = strategy().finite()
        if c.bandwidth() > self.bins:
            raise InvalidParameter(
                f"the calibration is for a C of at most {self.bins} bands, but this C has {c.bandwidth()}; calibrate "
                "this one",
                field="calibration",
            )
        return self.law.stated(c)

    def document(self) -> dict[str, Any]:
        """Return the plain JSON form."""
        return {**super().document(), **self._stated("sampling_probability", "dataset_size", "batch_size")}


Made = TypeVar("Made", bound=BinsCalibration)


def calibrate_bins(
    kind: type[Made],
    factorization: CertifiedFactors,
    make_law: Callable[[Any], BinsLaw | AllocationLaw | MinSepLaw],
    question: Question,
    asked: SamplingOptions,
    **own: object,
) -> Made:
    """Return the noise where each example's steps are drawn in secret, or the privacy of a given noise.

    Args:
        kind: the class of the calibration.
        factorization: a `factorize.Factorization`, or factors that have a file.
        make_law: a function that takes the factorization and returns the law on its C.
        question: two of epsilon, delta and sigma; the claim is about the third.
        asked: divisor, clip norm, method and work.
        **own: the fields that calibrations of this class have beyond those for bins.

    Reference:
        docs/amplification.md; docs/notes/amplification-proofs.md, theorems 4, 5, 7 and 9.
    """
    clip = within_scale(
        "clip_norm", finite_real("clip_norm", asked.clip_norm, remedy="give the norm that contributions are clipped to")
    )
    check_choice("method", asked.method, get_args(Method))
    if question.epsilon is not None and question.epsilon > MAX_EPSILON:
        raise InvalidParameter(
            f"epsilon={question.epsilon!r} is above the limit of {MAX_EPSILON:g} for this sampling; use a smaller one",
            field="epsilon",
        )
    held: Any = certified(factorization).opened()
    started = time.perf_counter()
    law = make_law(held)
    most = 0 if asked.method == "deterministic" else WORK if asked.work is None else asked.work
    accepted = ClaimSearch(law, question, clip_norm=clip, work=most).claim(held)
    claim, bounded = accepted.claim, accepted.bounded.multiplier
    if isinstance(question, GivenNoise) and claim.epsilon > MIN_EPSILON:
        bounded = law.sigma(claim.epsilon, claim.delta)
    noise_multiplier = multiplier_of(claim.sigma, clip_norm=clip, sensitivity=law.sensitivity)
    of_c = isinstance(law, BinsLaw) and law.steps % law.bins == 0
    same_epochs = of_c and held.spec.participation.passes is not None and bins_of(held) == law.bins
    sensitivity = held.sensitivity if same_epochs else law.stated(held.strategy)
    return kind(
        noise_multiplier=noise_multiplier,
        sigma_of_sums=within_scale("sigma", claim.sigma),
        sensitivity=sensitivity,
        clip_norm=clip,
        adjacency=Adjacency.ZERO_OUT,
        epsilon=claim.epsilon,
        delta=claim.delta,
        rho=rho_of(noise_multiplier),
        mu=mu_of(noise_multiplier),
        divisor=asked.divisor,
        total_variation=law.total_variation(multiplier_of(claim.sigma, clip_norm=clip)),
        sampling=law.name,
        law=law,
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
        **own,
    )

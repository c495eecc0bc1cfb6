"""The calibration that counts on balls in bins: sigma, its claim, and what holds if the bins are not secret."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

from factorize.accounting.bins_claim import BinsClaim
from factorize.accounting.bins_search import WORK, BinsQuestion, FoundClaim, find_claim
from factorize.accounting.gram_matrix import BinGram, bin_gram
from factorize.accounting.levels.bins_level import LEAST_EPSILON, find_delta, find_epsilon
from factorize.accounting.levels.given_noise import Question, multiplier_of, question_of
from factorize.accounting.star_bound import StarEvaluator, bins_sigma
from factorize.certificate.sensitivity import Sensitivity, sensitivity_of
from factorize.errors import InvalidParameter, UnsupportedAdjacency, extras_named
from factorize.format.claims import CertifiedFactors, certified
from factorize.numbers.gaussian import mu_of, rho_of
from factorize.numbers.scalars import finite_real
from factorize.participation import FixedEpochs, Single
from factorize.privacy import Adjacency, Calibration, CertifiedSensitivity, PrivacyTarget, within_scale
from factorize.structures.endless import AnyStrategy

Method = Literal["verified", "deterministic"]


class OpenedFactors(CertifiedFactors, Protocol):
    """Factors with their C in memory (`factorize.Factorization`)."""

    @property
    def strategy(self) -> AnyStrategy:
        """C."""

    @property
    def spec(self) -> Any:
        """What was asked, with the participation."""


@dataclass(frozen=True, kw_only=True)
class BinsCalibration(Calibration):
    """A calibration whose epsilon counts on balls in bins; `rho` and `mu` are what the noise gives without them.

    Attributes:
        bins: b; each example draws one of them, once, in secret.
        epochs: steps of an example, at most.
        method: `verified` by a claim that was tested, or `deterministic`, by bounds alone.
        claim: the document, with everything that a verifier needs beside C.
        samples: drawn for it.
        seconds: that it took.
        deterministic_sigma: of the bounds that need no sampling.
        epsilon_without_secrecy: at the same delta, if the bins, batches or batch sizes become known.
        signed: whether |C| stood in for a C that has, or may have, negative entries.
        absolute_cost: sensitivity of |C| over that of C for these participations, 1 where nothing was lost; None where
            the latter is not known.
        sampling: the law of participation.
    """

    bins: int
    epochs: int
    method: Method
    claim: BinsClaim
    samples: int
    seconds: float
    deterministic_sigma: float
    epsilon_without_secrecy: float
    signed: bool
    absolute_cost: float | None
    sampling: str = field(default="balls_in_bins", init=False)

    def check_belongs(
        self, mine: CertifiedSensitivity, strategy: Callable[[], Any], *, digest: str | None = None
    ) -> None:
        """Refuse another factorization, also one of equal sensitivity: its columns may be more alike.

        Raises:
            InvalidParameter: another sensitivity, or another digest than the claim's.
        """
        super().check_belongs(mine, strategy, digest=digest)
        if digest is not None and prefixed(digest) != self.claim.factors:
            raise InvalidParameter(
                f"the claim is for the factorization {self.claim.factors[:19]}, this one is {prefixed(digest)[:19]}, "
                "and amplification counts on all of C; calibrate this one",
                field="calibration",
            )

    def _wanted(self, mine: CertifiedSensitivity, strategy: Callable[[], Any]) -> CertifiedSensitivity:
        """Return the certificate's sensitivity where it is for these epochs, else that of the bins of C."""
        if dict(mine.participation) == dict(self.sensitivity.participation):
            return mine
        c = strategy()
        return sensitivity_of_bins(c, bin_gram(c, self.bins))

    def document(self) -> dict[str, Any]:
        """Return the plain JSON form."""
        return {
            **super().document(),
            "sampling": self.sampling,
            "bins": self.bins,
            "epochs": self.epochs,
            "method": self.method,
            "deterministic_sigma": self.deterministic_sigma,
            "epsilon_without_secrecy": self.epsilon_without_secrecy,
            "signed": self.signed,
            "absolute_cost": self.absolute_cost,
            "samples": self.samples,
            "seconds": self.seconds,
            "claim": self.claim.document(),
            "claim_digest": self.claim.digest,
        }


@extras_named("a calibration for bins")
def calibrate_bins(
    factorization: CertifiedFactors,
    *,
    epsilon: float | None = None,
    delta: float | None = None,
    sigma: float | None = None,
    bins: int | None = None,
    divisor: int | None = None,
    clip_norm: float = 1.0,
    adjacency: Adjacency | str = Adjacency.ZERO_OUT,
    method: Method = "verified",
    work: int = WORK,
) -> BinsCalibration:
    """Return the noise of any C under balls-in-bins sampling, or what a given noise is worth.

    Two of epsilon, delta and sigma are given; the claim is about the third.

    Args:
        factorization: a `factorize.Factorization`, or factors that have a file.
        epsilon: of (epsilon, delta)-DP; None where it is asked for.
        delta: of (epsilon, delta)-DP; None where it is asked for.
        sigma: standard deviation per entry of Z, for sums; None where it is asked for.
        bins: b; by default the steps of an epoch of the spec's participation.
        divisor: the fixed public divisor where steps are means, never the size of a random batch; None for sums.
        clip_norm: bound on one contribution.
        adjacency: `zero_out` only.
        method: `verified` tests a claim (seconds); `deterministic` uses bounds alone (7 to 25 % more noise).
        work: samples times bins of one direction of a claim, at most.

    Raises:
        UnsupportedAdjacency: replace_one or add/remove.
        InvalidParameter: a value outside its range, bins that are not known, or a C without end.
        TooLarge: more than 4096 bins, or a C whose entries cannot be enclosed at this n.

    Reference:
        docs/amplification.md.
    """
    asked, clip = asked_of(epsilon, delta, sigma, clip_norm, adjacency)
    verified = _method(method) == "verified"
    started = time.perf_counter()
    held: OpenedFactors = certified(factorization).opened()
    gram = bin_gram(held.strategy, bins_of(held) if bins is None else bins)
    question = BinsQuestion(
        factors=prefixed(held.digest),
        gram=gram,
        epsilon=1.0 if asked.epsilon is None else asked.epsilon,
        delta=0.5 if asked.delta is None else asked.delta,
        clip_norm=clip,
    )
    found = _find(question, asked, work if verified else 0)
    return _calibration(held, question, found, divisor, time.perf_counter() - started)


def _find(question: BinsQuestion, asked: Question, work: int) -> FoundClaim:
    """Return the claim about what is not given."""
    if isinstance(asked, PrivacyTarget):
        return find_claim(question, work=work)
    find = find_delta if asked.delta is None else find_epsilon
    found = find(question, asked.sigma, work=work)
    if found.claim.epsilon <= LEAST_EPSILON:
        return found
    level = {"epsilon": found.claim.epsilon, "delta": found.claim.delta}
    return replace(found, deterministic_multiplier=bins_sigma(question.gram, **level))


def _calibration(
    held: OpenedFactors, question: BinsQuestion, found: FoundClaim, divisor: int | None, seconds: float
) -> BinsCalibration:
    gram = question.gram
    sensitivity, certified = _sensitivity(held, gram)
    return BinsCalibration(
        **stated_numbers(found.claim, gram, divisor),
        sensitivity=sensitivity,
        method="verified" if found.sampled else "deterministic",
        samples=found.samples,
        seconds=seconds,
        deterministic_sigma=question.sigma(found.deterministic_multiplier),
        absolute_cost=max(gram.sensitivity / sensitivity.value, 1.0) if certified else None,
    )


class ClaimedLaw(Protocol):
    """What a claim is about: the bins of a C, or another law of participation on it."""

    @property
    def bins(self) -> int:
        """B."""

    @property
    def epochs(self) -> int:
        """Ceil(n / b)."""

    @property
    def sensitivity(self) -> float:
        """Without secrecy."""

    @property
    def signed(self) -> bool:
        """Whether |C| stood in for C."""


def asked_of(
    epsilon: float | None, delta: float | None, sigma: float | None, clip_norm: float, adjacency: Adjacency | str
) -> tuple[Question, float]:
    """Return what is asked about a law of participation, and the clipping norm.

    Raises:
        UnsupportedAdjacency: replace_one or add/remove.
        InvalidParameter: no question, or a value outside its range.
    """
    refuse_other_adjacency(adjacency)
    asked = question_of(epsilon=epsilon, delta=delta, rho=None, mu=None, sigma=sigma)
    return asked, within_scale("clip_norm", finite_real("clip_norm", clip_norm, remedy="give the norm of clipping"))


def stated_numbers(claim: BinsClaim, law: ClaimedLaw, divisor: int | None) -> dict[str, Any]:
    """Return the fields of a calibration that follow from its claim."""
    noise_multiplier = multiplier_of(claim.sigma, clip_norm=claim.clip_norm, sensitivity=law.sensitivity)
    return {
        "noise_multiplier": noise_multiplier,
        "sigma_of_sums": within_scale("sigma", claim.sigma),
        "clip_norm": claim.clip_norm,
        "adjacency": Adjacency.ZERO_OUT,
        "epsilon": claim.epsilon,
        "delta": claim.delta,
        "rho": rho_of(noise_multiplier),
        "mu": mu_of(noise_multiplier),
        "divisor": divisor,
        "bins": law.bins,
        "epochs": law.epochs,
        "claim": claim,
        "epsilon_without_secrecy": claim.unamplified_epsilon,
        "signed": law.signed,
    }


def epsilon_bins(
    factorization: CertifiedFactors,
    *,
    sigma: float,
    epsilons: Sequence[float],
    bins: int | None = None,
    clip_norm: float = 1.0,
    method: Method = "deterministic",
) -> list[tuple[float, float]]:
    """Return the privacy profile: (epsilon, delta) pairs that all hold at once for this noise.

    Args:
        factorization: as for `calibrate_bins`.
        sigma: standard deviation per entry of Z, for sums.
        epsilons: where delta is asked for, at least 0 (above 0 for `verified`).
        bins: b.
        clip_norm: bound on one contribution.
        method: `deterministic`, by bounds; `verified` tests a claim for each epsilon, and all of them are true except
            with probability 2^-127 for each.
    """
    held: OpenedFactors = certified(factorization).opened()
    gram = bin_gram(held.strategy, bins_of(held) if bins is None else bins)
    noise = finite_real("sigma", sigma, remedy="give the standard deviation of Z")
    clip = finite_real("clip_norm", clip_norm, remedy="give the norm of clipping")
    verified = _method(method) == "verified"
    levels = [finite_real("epsilon", one, strict=verified, remedy="give finite epsilons") for one in epsilons]
    asked = [
        BinsQuestion(factors=prefixed(held.digest), gram=gram, epsilon=one, delta=0.5, clip_norm=clip) for one in levels
    ]
    if verified:
        return [(one.epsilon, find_delta(one, noise).claim.delta) for one in asked]
    star = StarEvaluator(gram)
    return [(one.epsilon, star.delta(one.multiplier(noise), one.epsilon).delta) for one in asked]


def refuse_other_adjacency(adjacency: Adjacency | str) -> None:
    """Refuse what the proofs do not cover.

    Raises:
        UnsupportedAdjacency: replace_one, add/remove, or an unknown name.
    """
    if Adjacency.parse(adjacency) is not Adjacency.ZERO_OUT:
        raise UnsupportedAdjacency(
            "adjacency='replace_one' is not covered under balls in bins: twice the sigma is not proved to suffice; use "
            "zero_out, or calibrate without sampling",
            field="adjacency",
        )


def bins_of(factorization: OpenedFactors) -> int:
    """Return the steps of an epoch: n / epochs of fixed epochs, n of a single participation.

    Raises:
        InvalidParameter: the spec's participation has no epochs.
    """
    participation, n = factorization.spec.participation, factorization.strategy.finite().n
    if participation.passes is not None:
        return n // participation.passes
    raise InvalidParameter(
        f"the spec's participation {participation.kind!r} has no epochs that bins could be; give bins, the steps of an "
        "epoch",
        field="bins",
    )


def sensitivity_of_bins(matrix: AnyStrategy, gram: BinGram) -> Sensitivity:
    """Return the sensitivity of examples that take part in the steps of one bin, without amplification."""
    if gram.steps % gram.bins == 0:
        participation = FixedEpochs(kind="fixed_epochs", epochs=gram.epochs) if gram.epochs > 1 else Single()
        return sensitivity_of(matrix, participation)
    pattern = {"kind": "balls_in_bins", "bins": gram.bins, "epochs": gram.epochs}
    return Sensitivity(gram.sensitivity, "upper_bound", "absolute column sums of the bins", pattern)


def _sensitivity(held: OpenedFactors, gram: BinGram) -> tuple[CertifiedSensitivity, bool]:
    """Return the sensitivity, and whether it is one of C rather than of |C|."""
    participation = held.spec.participation
    same = participation.passes is not None and bins_of(held) == gram.bins
    if same and gram.steps % gram.bins == 0:
        return held.sensitivity, True
    return sensitivity_of_bins(held.strategy, gram), gram.steps % gram.bins == 0


def _method(method: object) -> object:
    if method not in ("verified", "deterministic"):
        raise InvalidParameter(f"method={str(method)[:20]!r} is not verified or deterministic", field="method")
    return method


def prefixed(digest: str) -> str:
    """Return a digest with what names its kind."""
    return digest if digest.startswith("sha256:") else f"sha256:{digest}"

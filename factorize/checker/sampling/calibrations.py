"""Calibrations under random bins, and whether the bytes of C bear out a claim of docs/notes/bins-1.md.

The claim's law of sampling and C bound the shift by one example; each direction has a closed form or a bet.
"""

from __future__ import annotations

import hashlib
import math
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import Any

from flint import arb, ctx

from factorize.checker.arithmetic.balls import PLACES, ball, double_above
from factorize.checker.arithmetic.machine import check_products
from factorize.checker.arithmetic.near import NotEnclosed, double_below
from factorize.checker.report import Report
from factorize.checker.sampling import bets, curved_field, losses, min_sep, star
from factorize.checker.sampling.bins import gram
from factorize.checker.sensitivity import bracket_sensitivity
from factorize.checker.strategy import Strategy, read_factor_file
from factorize.errors import CorruptObject, FactorizeError, TooLarge
from factorize.format.bins_claims import MAX_BOOST, MAX_CHAIN_ORDER, Claim, read_claim
from factorize.format.claims import MIN_SENSITIVITY
from factorize.format.quantities import ClaimRefused, at_most, integer, real, require

FRESH_CHUNKS = 4
"""How many times the claim's samples a verifier's own seed may take, which Ville's inequality allows."""
MAX_NORMALS = 1 << 37
"""The most normals, or pairs of picks, that one bet may draw."""
_NAMES = {"pq": "its contributions taken out", "qp": "its contributions put in"}
_TOLERANCE = 1e-9  # The stated epsilon without secrecy is a root, and may be off by this share.


@dataclass
class CalibrationReport(Report):
    """A report with the numbers of the claim and those that the checker found."""

    stated: tuple[str, ...] = ("calibration.unamplified", "calibration.pq", "calibration.qp")
    calibration: dict[str, Any] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        """Return the JSON form."""
        return super().document() | {"calibration": dict(self.calibration)}


def check_calibration(data: bytes, document: Mapping[str, Any], *, fresh: bool = False) -> CalibrationReport:
    """Check a claim about the amplified privacy of a factor file, from its bytes.

    Args:
        data: the whole factor file.
        document: the claim, or an object with the claim under `claim` and perhaps its digest under `claim_digest`.
        fresh: whether to draw with a new seed in place of the claim's.

    Returns:
        The report; `supported` says whether both directions were accepted.

    Raises:
        CorruptObject: the factor file's bytes disagree with their digests.
        TooLarge: C, bins or samples are beyond the limits of this checker.
    """
    file = read_factor_file(data)
    report = check_claim(file.manifest["digest"], file.strategy, document, fresh=fresh)
    report.checked.insert(0, "every byte of the file belongs to a tensor or the manifest, and every digest agrees")
    return report


@ctx.workprec(PLACES)
def check_claim(
    digest: str, strategy: Callable[[], Strategy], document: Mapping[str, Any], *, fresh: bool = False
) -> CalibrationReport:
    """Check a claim about the amplified privacy of the C of a digest; see `check_calibration`."""
    report = CalibrationReport()
    try:
        check_products()
        claim = read_claim(document)
        c = strategy()
        _check_factors(claim, digest, c.n)
        _check(report, claim, c, fresh)
    except ClaimRefused as reason:
        report.refute(str(reason))
    except (TooLarge, CorruptObject):
        raise
    except (FactorizeError, NotEnclosed) as error:
        report.refute(str(error))
    return report


def _check_factors(claim: Claim, digest: str, n: int) -> None:
    mechanism = claim.document["mechanism"]
    own = "sha256:" + digest.removeprefix("sha256:")
    require(mechanism["factors"] == own, f"the claim is about {str(mechanism['factors'])[:80]}, but the file is {own}")
    require(claim.n == n, f"the claim is about n={claim.n} steps, but C has {n}")
    epochs, stated = -(-claim.n // claim.bins), mechanism["epochs"]
    require(
        stated == epochs, f"{claim.bins} bins of n={claim.n} steps make {epochs} epochs, but the claim states {stated}"
    )


def _check(report: CalibrationReport, claim: Claim, strategy: Strategy, fresh: bool) -> None:
    document = report.calibration
    document |= {"epsilon": claim.epsilon, "delta": claim.delta, "sigma_of_sums": claim.sigma}
    document |= {"bins": claim.bins, "sampling": claim.document["sampling"]}
    document |= {"claim_digest": "sha256:" + hashlib.sha256(claim.canonical).hexdigest()}
    document |= {"seed": "fresh" if fresh else "claim"}
    bounds = BOUNDS[claim.document["sampling"]](claim, strategy)
    tiny = f"C has a sensitivity below {MIN_SENSITIVITY:g}, which no certificate states"
    require(bounds.norm >= Fraction(MIN_SENSITIVITY) ** 2, tiny)
    report.prove(bounds.proved)
    _check_unamplified(report, claim, bounds)
    sampled = [_check_direction(report, claim, bounds, direction, fresh) for direction in ("pq", "qp")]
    if report.supported:
        by_closed_forms = "accepted: both directions are proved by closed forms, without samples"
        by_bets = "accepted: false with probability at most 2^-127 over the seed"
        document["accepted"] = by_bets if any(sampled) else by_closed_forms
        report.prove(document["accepted"])
    _state_assumptions(report, any(sampled))


def _check_unamplified(report: CalibrationReport, claim: Claim, bounds: Bounds) -> None:
    """Check the epsilon for known bins, which is that of a Gaussian mechanism with the largest norm of a class."""
    stated = claim.unamplified
    delta = _gaussian(claim, bounds, arb(stated) * (1 + _TOLERANCE) + _TOLERANCE)
    report.require(
        delta <= arb(claim.delta) * (1 + _TOLERANCE),
        f"if the bins become known, epsilon is at most {at_most(stated)} at this delta",
        f"without secrecy epsilon is claimed to be {stated!r} at delta {claim.delta!r}; there delta is {_shown(delta)}",
        of="calibration.unamplified",
    )


def scale_of(claim: Claim) -> float:
    """Return a lower bound of the sigma of an entry of Z, for contributions of norm 1."""
    return double_below(Fraction(claim.sigma) / Fraction(claim.clip_norm))


def _gaussian(claim: Claim, bounds: Bounds, epsilon: arb) -> arb:
    """Return delta of the Gaussian mechanism with the largest norm of a class."""
    return star.gaussian_delta(epsilon, ball(bounds.norm).sqrt() / scale_of(claim))


def _check_direction(report: CalibrationReport, claim: Claim, bounds: Bounds, direction: str, fresh: bool) -> bool:
    """Check one direction, and return whether it was sampled."""
    part = claim.document[direction]
    if not isinstance(bounds, AllocationBounds) and "samples" in part:  # That law has no bets.
        return _check_bet(report, claim, bounds, direction, fresh)
    if part["rule"] == "gaussian":
        above, rule = _gaussian(claim, bounds, arb(claim.epsilon)), "the Gaussian mechanism without amplification"
    else:
        above, rule = bounds.shown(direction, part)
    report.calibration[direction] = {"rule": part["rule"], "delta": double_above(above)}
    report.require(
        above <= claim.delta,
        f"delta with {_NAMES[direction]} is at most {_shown(above)} by {rule}",
        f"delta {claim.delta!r} with {_NAMES[direction]} is not proved: {rule} gives {_shown(above)}",
        of=f"calibration.{direction}",
    )
    return False


def _shown(value: arb) -> str:
    return at_most(double_above(value)) if value < 1e300 else f"10^{math.ceil(float(value.log() / arb(10).log()))}"


def _check_bet(
    report: CalibrationReport, claim: Claim, bounds: BinBounds | MinSepBounds, direction: str, fresh: bool
) -> bool:
    part = claim.document[direction]
    rate, samples = real(part, "lambda"), integer(part, "samples", bets.CHUNK, 1 << 30)
    require(samples % bets.CHUNK == 0, f"{direction}.samples is {samples}, not a multiple of {bets.CHUNK}")
    weights = bounds.weights(direction, part)
    if weights.bound <= claim.delta:
        result = f"delta with {_NAMES[direction]} is at most {_shown(weights.bound)}: no bet is needed"
        report.prove(result, of=f"calibration.{direction}")
        return False
    least = 1 / (weights.bound - claim.delta)
    require(
        rate < least,
        f"{direction}.lambda {rate!r} is not below {float(least):.6g}, so the bet could lose more than it has",
    )
    if samples * max(bounds.normals, _pairs(part)) > MAX_NORMALS:
        raise TooLarge(
            f"{samples} samples over {bounds.normals} bins or steps, of order {part.get('m')}, exceed {MAX_NORMALS} "
            "normals or pairs of picks, the limit here"
        )
    key = (secrets.randbits(64), secrets.randbits(64)) if fresh else claim.key(direction)
    chunks = samples // bets.CHUNK * (FRESH_CHUNKS if fresh else 1)
    outcome = bets.bet(weights, claim.delta, rate, key, chunks)
    report.calibration[direction] = {
        "rule": part["rule"],
        "samples": outcome.samples,
        "log_wealth": outcome.log_wealth,
        "needed": bets.MIN_WEALTH,
        "estimate": outcome.mean,
        "weight_bound_over_delta": float(weights.bound / claim.delta),
    }
    result = f"{outcome.log_wealth:.4g} nats from {outcome.samples} samples whose mean is {outcome.mean:.6g}"
    report.require(
        outcome.accepted,
        f"delta with {_NAMES[direction]}: the bet was won, {result}; {bets.MIN_WEALTH:.4g} were needed",
        f"delta {claim.delta!r} with {_NAMES[direction]} is not accepted: {result}; {bets.MIN_WEALTH:.4g} are needed",
        of=f"calibration.{direction}",
    )
    return True


def _pairs(part: Mapping[str, Any]) -> int:
    return integer(part, "m", 2, star.MAX_ORDER) ** 2 if "m" in part else 0


def _state_assumptions(report: CalibrationReport, sampled: bool) -> None:
    left = report.not_checked
    drawn = BOUNDS[report.calibration["sampling"]].drawn.format(bins=report.calibration["bins"])
    left.append(
        f"the sampling itself: every example {drawn}, uniformly, independently and in secret; the divisor is public, "
        "and neither batch sizes nor logs show the draws"
    )
    left.append("the noise of the job: independent normals with the standard deviation sigma")
    if sampled:
        left.append("assumed: Philox acts as a random function of its key, and the drawn normals have the ideal law")
        if report.calibration["seed"] == "claim":
            left.append("assumed: SHA-256 acts as a random function of the claim; --seed fresh does without")
    left.append(
        "the file's own claims, such as its sensitivity and its mechanism: `factorize verify FILE` checks these"
    )


class BinBounds:
    """Bounds on delta for balls in bins, by the Gram matrix of the bins, at the sigma and epsilon of a claim.

    `drawn` says how examples are drawn, `proved` what the bytes of C prove, and `norm` is at least the squared norm of
    the largest shift by one example.
    """

    drawn = "draws one of {bins} bins and keeps it"

    def __init__(self, claim: Claim, strategy: Strategy) -> None:
        self.claim, self.normals = claim, claim.bins
        self._gram = gram(strategy, claim.bins)
        self.norm = Fraction(float(self._gram.high.diagonal().max()))
        self.proved = f"column sums of |C| over {claim.bins} bins, their Gram matrix, rounded up from the bytes of C"

    def shown(self, direction: str, part: Mapping[str, Any]) -> tuple[arb, str]:
        """Return an upper bound of delta in a direction by theorem 4, 7 or 7 b, without samples, and its rule."""
        if part["rule"] == "closed_form":
            bound = star.addition(self._gram, scale_of(self.claim), self.claim.epsilon)
            return bound, "the closed forms of theorems 7 and 7 b"
        order = integer(part, "m", 2, star.MAX_ORDER)
        kernel = star.scale_gram(self._gram.high, scale_of(self.claim))
        return star.log_ceiling(kernel, order, self.claim.epsilon).exp(), f"the star bound with m={order}"

    def weights(self, direction: str, part: Mapping[str, Any]) -> bets.Weights:
        """Return the weights of a bet on a direction (theorem 5 or 7)."""
        common = self._gram.high, scale_of(self.claim), self.claim.epsilon
        shared = real(part, "shared")
        if direction == "pq":
            return bets.removal(*common, integer(part, "m", 2, star.MAX_ORDER), shared)
        return bets.addition(*common, real(part, "eta"), shared)


class AllocationBounds:
    """Bounds for one step of every epoch, drawn anew, by the largest entry of a C with one band; see `BinBounds`."""

    drawn = "draws one of the {bins} steps of every epoch anew"

    def __init__(self, claim: Claim, strategy: Strategy) -> None:
        self.claim = claim
        require(claim.n % claim.bins == 0, f"{claim.bins} bins do not divide the n={claim.n} steps into blocks")
        self._square, self._number = losses.largest_square(strategy), claim.n // claim.bins
        self.norm = self._square * self._number
        self.proved = "C has one band; its largest entry, rounded up from the bytes of C"

    @cached_property
    def _losses(self) -> losses.Losses:
        return losses.losses_of_blocks(self._square, scale_of(self.claim), self.claim.bins, self._number)

    def shown(self, direction: str, part: Mapping[str, Any]) -> tuple[arb, str]:
        """Return an upper bound of delta in a direction by theorem 9, and its rule."""
        bound = self._losses.removal if direction == "pq" else self._losses.addition
        return bound(self.claim.epsilon), "the loss distribution on a grid"


class MinSepBounds:
    """Bounds for random steps, `bins` or more apart, on a C of at most as many bands; see `BinBounds`."""

    drawn = "takes part in a step with the claim's probability where it did in none of the {bins} - 1 steps before"

    def __init__(self, claim: Claim, strategy: Strategy) -> None:
        self.claim, self.normals = claim, claim.n
        probability = real(claim.document["mechanism"], "sampling_probability")
        columns = min_sep.columns_of(strategy, claim.bins)
        self._law = min_sep.MinSepSteps(columns, scale_of(claim), probability)
        self.norm = bracket_sensitivity(strategy, {"kind": "min_sep", "min_sep": claim.bins}).upper
        self.proved = f"C has {strategy.bandwidth} bands, at most {claim.bins}; its columns, rounded up from its bytes"

    def shown(self, direction: str, part: Mapping[str, Any]) -> tuple[arb, str]:
        """Return an upper bound of delta in a direction without samples, and its rule (theorems 11 to 12 b)."""
        if part["rule"] == "closed_form":
            field = min_sep.Field(self._law, real(part, "rate"))
            return star.lognormal_put(field.less, field.square, self.claim.epsilon), "the closed form of theorem 12"
        if part["rule"] == "curved_bound":
            return curved_field.ceiling(self._curved(part), self.claim.epsilon), "the curved bound of theorem 12 b"
        tuples = self._tuples(part)
        bound = min_sep.log_ceiling(tuples, self.claim.epsilon).exp()
        return bound, f"the {part['rule'].replace('_', ' ')} with m={tuples.order}"

    def weights(self, direction: str, part: Mapping[str, Any]) -> bets.Weights:
        """Return the weights of a bet on a direction (theorem 11, 11 b, 12 or 12 b)."""
        if direction == "pq":
            boost = integer(part, "boost", 1, MAX_BOOST) if "boost" in part else 1
            require(boost & (boost - 1) == 0, f"pq.boost is {boost}, no power of two")
            return min_sep.removal(self._tuples(part), self.claim.epsilon, boost)
        if part["rule"] == "curved_bet":
            return curved_field.addition(self._curved(part), self.claim.epsilon)
        return min_sep.addition(self._law, self.claim.epsilon, real(part, "eta"), real(part, "rate"))

    def _curved(self, part: Mapping[str, Any]) -> curved_field.CurvedField:
        """Return the curved bound of a rule."""
        return curved_field.CurvedField(self._law, real(part, "eta"), real(part, "rate"), real(part, "reach"))

    def _tuples(self, part: Mapping[str, Any]) -> min_sep.Tuples:
        """Return the draw of the rule's tuples."""
        chained = part["rule"] in ("chain_bet", "chain_bound")
        order = integer(part, "m", 2, MAX_CHAIN_ORDER if chained else star.MAX_ORDER)
        return min_sep.ChainedTuples(self._law, order) if chained else min_sep.Centres(self._law, order)


Bounds = BinBounds | AllocationBounds | MinSepBounds
BOUNDS: dict[str, type[Bounds]] = {
    "balls_in_bins": BinBounds,
    "random_allocation": AllocationBounds,
    "b_min_sep": MinSepBounds,
}
"""The class of bounds for each law of sampling."""

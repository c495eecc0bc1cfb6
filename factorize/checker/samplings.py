"""Samplings in a receipt: the steps that one example may have, and the proof of the epsilon that counts on them.

Fields that follow from others are computed again and compared; the receipt's reader checks that its fields agree. The
least distance of two steps does not show that an order has fixed epochs, so the receipt also states the greatest common
divisor of all distances.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from factorize.checker.arithmetic.balls import double_above
from factorize.checker.arithmetic.near import double_below
from factorize.checker.participation import Allowed, allowed
from factorize.checker.report import Report
from factorize.checker.sampling.calibrations import check_claim
from factorize.checker.sampling.losses import losses_of_samples
from factorize.checker.sensitivity import bracket_sensitivity
from factorize.checker.strategy import FactorFile
from factorize.format.labels import describe_part
from factorize.format.quantities import at_most, number, require

PRIVACY = "receipt.privacy"
_Document = Mapping[str, Any]


class SecretOrder(NamedTuple):
    """A sampling whose order is secret.

    Attributes:
        parts: field with b, the number of parts that the steps or the examples are split into.
        turns: field with the number of times that each part comes, ceil(n / b).
        steps: returns from these two the steps that one example may have, for a sensitivity without secrecy.
        prove: proves or refutes epsilon of a receipt from the factor file, given delta without secrecy.
    """

    parts: str
    turns: str
    steps: Callable[[int, int], Allowed]
    prove: Callable[[Report, _Document, FactorFile, float], None]


def _prove_losses(report: Report, receipt: _Document, file: FactorFile, without: float) -> None:
    """Prove epsilon where the groups take turns and a step samples each example of its group independently."""
    stated, strategy = receipt["calibration"], file.strategy()
    groups, largest = stated["groups"], number(stated, "largest_column")
    require(strategy.bandwidth <= groups, f"C has {strategy.bandwidth} bands, more than the {groups} groups")
    columns = bracket_sensitivity(strategy, {"kind": "single"})
    require(largest**2 >= columns.upper, f"a column of C has a norm above the {float(largest)!r} that is stated")
    scale = double_below(number(stated, "sigma_of_sums") / number(stated, "clip_norm"))
    probability, epsilon = float(stated["sampling_probability"]), float(stated["epsilon"])
    above = without
    if above > stated["delta"]:
        losses = losses_of_samples(largest**2, scale, probability, stated["compositions"])
        above = max(double_above(bound(epsilon)) for bound in (losses.removal, losses.addition))
    report.require(
        above <= stated["delta"],
        f"delta at epsilon {at_most(epsilon)} is at most {at_most(above)}, by the losses on a grid or without sampling",
        f"delta {stated['delta']!r} at epsilon {epsilon!r} is not proved: the loss distribution gives {at_most(above)}",
        of=PRIVACY,
    )
    text = (
        "the sampling: the job states that each step draws each example of its group with probability "
        f"{at_most(probability)}"
    )
    report.leave(f"{text}, independently and in secret")


def _prove_claim(report: Report, receipt: _Document, file: FactorFile, without: float) -> None:
    """Test the claim that the calibration rests on."""
    tested = check_claim(file.manifest["digest"], file.strategy, receipt["calibration"])
    for say, texts in ((report.prove, tested.checked), (report.refute, tested.failed)):
        for text in texts:
            say(text, of=PRIVACY)
    report.not_checked += tested.not_checked[:-1]  # The last one is about the file's claims, which are checked here.


SECRET_ORDERS = {
    "cyclic_poisson": SecretOrder("groups", "compositions", lambda b, turns: Allowed(b, turns, False), _prove_losses),
    "balls_in_bins": SecretOrder("bins", "epochs", lambda b, turns: Allowed(b, turns, True), _prove_claim),
    "b_min_sep": SecretOrder("bins", "epochs", lambda b, turns: Allowed(b, turns, False), _prove_claim),
    "random_allocation": SecretOrder("bins", "epochs", lambda _, turns: Allowed(1, turns, False), _prove_claim),
}
"""The register of secret orders, by the sampling's name; any other sampling is a fixed order."""


def check_order(receipt: _Document, n: int | None, taken: int) -> None:
    """Raise ClaimRefused where the sensitivity is for other steps of an example than the sampling allows.

    Args:
        receipt: the receipt as it was read.
        n: number of steps of the factorization, None where there is no last one.
        taken: number of steps that the run took.

    Raises:
        ClaimRefused: the steps differ, or counts and steps contradict each other.
        InvalidParticipation: the participation does not fit n.
    """
    stated, drawn = receipt["calibration"], SECRET_ORDERS.get(receipt["calibration"]["sampling"])
    form, named = allowed(stated["participation"], n), describe_part(stated["participation"])
    if drawn is not None:
        parts, turns = stated[drawn.parts], stated[drawn.turns]
        split = f"{parts} {drawn.parts} of n={n} steps"
        require(n is not None and parts <= n, f"{split} are too many, or there is no last step")
        most, own = -(-int(n or 0) // parts), drawn.steps(parts, turns)
        require(turns == most, f"{split} make {most} {drawn.turns}, but {turns} are stated")
        require(form == own or form.most == own.most == 1, f"{split} do not make {named}, which the sensitivity is for")
        return
    most, apart, period = (receipt["steps"][name] for name in ("participations", "separation", "period"))
    counted = f"the auditor counted {most} steps of one, {apart or 'no'} or more apart, by multiples of {period or 1}"
    within = apart is None or apart * (most - 1) < taken
    require(most <= taken and within, f"{counted}, but {taken} steps were taken")
    multiple = form.separation if form.periodic else 1
    fits = apart is None or (apart >= form.separation and period % multiple == 0)
    require(most <= form.most and fits, f"{counted}, but the sensitivity is for {named}")

"""Orders of the data in a receipt: one table of what each sampling and participation says of every count.

What follows from other fields is computed again and compared. A least distance of two steps does not show that an order
is that of fixed epochs, so the greatest common divisor of all distances is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any, NamedTuple

from factorize.checker.participation import Allowed, allowed
from factorize.format.labels import describe_part
from factorize.format.quantities import number, require

_Document = Mapping[str, Any]
COUNTS = ("participations", "separation", "period")


class Drawn(NamedTuple):
    """A sampling in secret.

    Attributes:
        parts: field with the number of parts, b, that the steps or the examples are split into.
        turns: field with the number of times that each part comes, ceil(n / b).
        steps: from b and that number to the steps that one example may have, for a sensitivity without secrecy.
    """

    parts: str
    turns: str
    steps: Callable[[int, int], Allowed]


DRAWN = {
    "cyclic_poisson": Drawn("groups", "compositions", lambda parts, turns: Allowed(parts, turns, False)),
    "balls_in_bins": Drawn("bins", "epochs", lambda parts, turns: Allowed(parts, turns, True)),
    "random_allocation": Drawn("bins", "epochs", lambda _, turns: Allowed(1, turns, False)),
}


def check_order(receipt: _Document, n: int | None, taken: int) -> None:
    """Raise ClaimRefused where sampling, participation, data and counts contradict each other.

    Args:
        receipt: as it was read.
        n: steps of the factorization, None where there is no last one.
        taken: steps that were taken.

    Raises:
        ClaimRefused: they do; or somebody took part in steps that the sensitivity is not for.
        InvalidParticipation: the participation does not fit n.
    """
    calibration, data, counted = receipt["calibration"], receipt["data"], receipt["steps"]["counted"]
    users, unit = data["users"], receipt["unit"]
    for name, most in (("used", data["examples"]), ("users", data["examples"])):
        require((data[name] or 0) <= most, f"{data[name]} are {name} of {most} examples")
    require((unit == "user") == (users is not None), f"the unit is one {unit}, and the data are of {users} users")
    require(counted["unit"] == unit, f"the unit is one {unit}, and the auditor counted {counted['unit']}s")
    counts = {**counted, **{name: receipt["steps"][name] for name in COUNTS}}
    del counts["unit"]
    drawn = DRAWN.get(calibration["sampling"])
    if drawn is None:
        require(not number(receipt, "overflow_delta"), "a fixed order has no batches that overflow")
        _check_counts(calibration["participation"], n, taken, counts, data["used"] if users is None else users)
        return
    shown = [name for name, count in counts.items() if count is not None]
    require(not shown, f"{shown[:1]} is stated, and counts of an order that is secret show what was drawn")
    require(receipt["noise"]["ranks"] == 1, "several ranks tell each other their batches, which have to be secret")
    _check_drawn(drawn, calibration, n, data)


def _check_drawn(drawn: Drawn, stated: _Document, n: int | None, data: _Document) -> None:
    """Compare what a sampling in secret states with what follows from its parts and the data."""
    require(stated["adjacency"] == "zero_out", "an order that is secret is for zero_out alone")
    parts, turns = stated[drawn.parts], stated[drawn.turns]
    require(n is not None and parts <= n, f"{parts} {drawn.parts} are more than n={n} steps, or there is no last step")
    most = -(-int(n or 0) // parts)
    require(turns == most, f"{parts} {drawn.parts} of n={n} steps make {most} {drawn.turns}, and {turns} are stated")
    form, own = allowed(stated["participation"], n), drawn.steps(parts, turns)
    fits = form == own or form.most == own.most == 1
    require(
        fits,
        f"the sensitivity is for {describe_part(stated['participation'])}, which {parts} {drawn.parts} do not make",
    )
    if "batch_size" in stated:
        batch, group = stated["batch_size"], stated["dataset_size"] // parts
        known = f"{stated['dataset_size']} examples in {parts} groups and batches of {batch}"
        require(stated["dataset_size"] <= data["examples"], f"{known} are not of {data['examples']} examples")
        same = batch <= group and number(stated, "sampling_probability") == Fraction(batch / group)
        require(same, f"{known} do not make the sampling probability {stated['sampling_probability']!r}")


def _check_counts(participation: _Document, n: int | None, taken: int, counts: _Document, units: int) -> None:
    """Compare what the auditor counted with the participation, and the counts with each other."""
    known = [counts[name] for name in ("number", "contributions", "participations")]
    require(None not in known, "the receipt does not say how often an example took part")
    number_of, contributions, most = known
    apart, period = counts["separation"], counts["period"]
    stated = ", ".join(f"{name} {count}" for name, count in counts.items() if count is not None)
    several = most > 1
    require(
        (apart is not None) == (period is not None) == several,
        f"{stated} contradict each other: distances are known where, and only where, somebody took part twice",
    )
    require(
        max(number_of, most) <= contributions <= number_of * most and number_of <= units,
        f"{stated} contradict each other, or the {units} that there are",
    )
    require(
        most <= taken and (not several or (0 < period <= apart < taken / (most - 1) and apart % period == 0)),
        f"{stated} contradict each other, or the {taken} steps that were taken",
    )
    form = allowed(participation, n)
    multiple = form.separation if form.periodic else 1
    require(
        most <= form.most and (not several or (apart >= form.separation and period % multiple == 0)),
        f"the auditor counted {stated}, and the sensitivity is for {describe_part(participation)}",
    )

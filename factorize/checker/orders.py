"""Orders of the data in a receipt: one table of what each sampling and participation says of every count.

What follows from other fields is computed again and compared; what the receipt's own fields say of each other, its
reader compares. A least distance of two steps does not show that an order is that of fixed epochs, so the greatest
common divisor of all distances is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from factorize.checker.participation import Allowed, allowed
from factorize.format.labels import describe_part
from factorize.format.quantities import require

_Document = Mapping[str, Any]


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
    """Raise ClaimRefused where the steps of one example are not those that the sensitivity is for.

    Args:
        receipt: as it was read.
        n: steps of the factorization, None where there is no last one.
        taken: steps that were taken.

    Raises:
        ClaimRefused: they are not, or counts and steps contradict each other.
        InvalidParticipation: the participation does not fit n.
    """
    stated, drawn = receipt["calibration"], DRAWN.get(receipt["calibration"]["sampling"])
    form, named = allowed(stated["participation"], n), describe_part(stated["participation"])
    if drawn is not None:
        parts, turns = stated[drawn.parts], stated[drawn.turns]
        split = f"{parts} {drawn.parts} of n={n} steps"
        require(n is not None and parts <= n, f"{split} are too many, or there is no last step")
        most, own = -(-int(n or 0) // parts), drawn.steps(parts, turns)
        require(turns == most, f"{split} make {most} {drawn.turns}, and {turns} are stated")
        require(form == own or form.most == own.most == 1, f"{split} do not make {named}, which the sensitivity is for")
        return
    most, apart, period = (receipt["steps"][name] for name in ("participations", "separation", "period"))
    counted = f"the auditor counted {most} steps of one, {apart or 'no'} or more apart, by multiples of {period or 1}"
    within = apart is None or apart * (most - 1) < taken
    require(most <= taken and within, f"{counted}, and {taken} steps were taken")
    multiple = form.separation if form.periodic else 1
    fits = apart is None or (apart >= form.separation and period % multiple == 0)
    require(most <= form.most and fits, f"{counted}, and the sensitivity is for {named}")

"""Attempts of a comparison: which mechanisms are tried, in which order, and how many at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from factorize.checker.bounds.evidence import LowerBound
from factorize.client.download import Held
from factorize.encoding import JsonObject
from factorize.errors import Cancelled
from factorize.solvers.comparing.comparison_table import Refused, Row
from factorize.solvers.comparing.sampled_rows import Solved
from factorize.solvers.comparing.table_rows import named
from factorize.solvers.methods.compiled import CORES
from factorize.solvers.problem import Estimate, machine_memory
from factorize.spec import Spec

_MEMORY_SHARE = 0.5  # what runs at a time may take this part of the machine's memory


class OutOfTime(Cancelled):
    """A mechanism would take too long, or took much longer than its estimate."""


@dataclass(eq=False)
class Attempt:
    """A mechanism to try, and what came of it.

    Attributes:
        mechanism: the mechanism as plain data.
        sampling: the sampling to optimise it for, as plain data, or None.
        lead: whether it stands for its kind in a hurry: solved first, to a loose tolerance, and to the end.
        spec: spec of the whole solve; None where it is refused.
        held: what answers it already, or None.
        needed: its cost.
        entries: rows, and why there are none.
        bound: the bound that its certificate holds.
        solved: kept where it is calibrated under sampling.
    """

    mechanism: JsonObject
    sampling: JsonObject | None = None
    lead: bool = False
    spec: Spec | None = None
    held: Held | None = None
    needed: Estimate = field(default_factory=lambda: Estimate(0.0, 0))
    entries: list[Row | Refused] = field(default_factory=list)
    bound: LowerBound | None = None
    solved: Solved | None = None

    @property
    def always(self) -> bool:
        """Return whether it is tried however little time there is: leads, and what all others are set against."""
        return self.lead or self.mechanism["kind"] == "identity"

    @property
    def late(self) -> bool:
        """Return whether it is left out for lack of time."""
        return any(isinstance(entry, Refused) and entry.out_of_time for entry in self.entries)

    @property
    def gap(self) -> float | None:
        """Return how far its squared error is above its own bound, as a part of it; None without both."""
        if self.bound is None or self.solved is None:
            return None
        return self.solved.row.loss.objective / self.bound.objective - 1

    def refuse(self, reason: str, *, out_of_time: bool = False) -> None:
        """Leave it out, and say why."""
        self.spec = None
        self.entries.append(Refused(*named(self.mechanism), reason, out_of_time))

    def smaller(self) -> Iterator[Attempt]:
        """Yield the same with half as many buffers, a quarter, down to one; nothing for a mechanism without buffers."""
        buffers = self.mechanism.get("buffers", 0) // 2
        while buffers:
            yield Attempt({**self.mechanism, "buffers": buffers}, self.sampling, self.lead)
            buffers //= 2

    def repeats(self, other: Attempt) -> bool:
        """Return whether the other one asks for the same, to the same tolerance."""
        return self.lead == other.lead and self.stands_for(other)

    def stands_for(self, other: Attempt) -> bool:
        """Return whether the other one asks for the same, to whichever tolerance."""
        own, theirs = ((_plain(one.mechanism), one.sampling) for one in (self, other))
        return own == theirs


def _plain(mechanism: dict[str, object]) -> dict[str, object]:
    """Return a mechanism without a normalisation of `none`, which is the same as none named."""
    return {key: value for key, value in mechanism.items() if (key, value) != ("normalization", "none")}


def distinct(attempts: Iterable[Attempt]) -> list[Attempt]:
    """Return the attempts without those that repeat an earlier one."""
    kept: list[Attempt] = []
    for attempt in attempts:
        if not any(attempt.repeats(other) for other in kept):
            kept.append(attempt)
    return kept


def groups(plans: list[Attempt], *, hurried: bool) -> list[list[Attempt]]:
    """Return what runs one after the other; nu is tuned once, for scaled columns too.

    Args:
        plans: all.
        hurried: the time may end before all have run: the leads of each way to take part come first, then C = I, then
            the whole searches of leads in bins, which gain most, then cheap ones. Otherwise long ones do, which would
            run alone at the end.
    """
    tuned = [plan for plan in plans if plan.mechanism.get("nu") == "tune"]
    groups = [[plan] for plan in plans if plan not in tuned] + ([tuned] if tuned else [])
    if not hurried:
        return sorted(groups, key=_seconds)[::-1]
    gaining = [lead for lead in plans if lead.lead and lead.sampling]

    def place(group: list[Attempt]) -> tuple[bool, bool, bool, float]:
        whole = any(lead.stands_for(group[0]) for lead in gaining)
        return not group[0].lead, not group[0].always, not whole, _seconds(group)

    return sorted(groups, key=place)


def _seconds(group: list[Attempt]) -> float:
    return sum(plan.needed.seconds for plan in group)


def worker_count(needed: list[int]) -> int:
    """Return how many solves may run at a time: what the processors and the memory allow."""
    largest = sorted(needed, reverse=True)
    workers = CORES
    while workers > 1 and sum(largest[:workers]) > _MEMORY_SHARE * machine_memory():
        workers -= 1
    return workers

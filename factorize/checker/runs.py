"""Several receipts beside each other: copies and continuations of one run, and noise that two runs have used."""

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

from factorize.checker.report import Report
from factorize.format.receipts import is_state_of, steps_of

RUNS = "receipts.noise"


def compare_receipts(receipts: Sequence[Mapping[str, Any]]) -> Report:
    """Prove that no two of several receipts, each of which was checked for itself, used one noise twice."""
    report = Report(stated=(RUNS,))
    for (i, one), (j, other) in combinations(enumerate(receipts, 1), 2):
        two = f"the receipts {i} and {j}"
        mine, theirs = (set(each["noise"]["commitments"]) for each in (one, other))
        steps = min(steps_of(one), steps_of(other))
        if one["run"] == other["run"]:
            report.require(
                is_state_of(one, other) or is_state_of(other, one),
                f"{two} are of one run: the same receipt, or one before the other",
                f"{two} are of one run, which went on twice from one state: what both released after that has the same "
                "noise, and may differ by gradients alone",
                of=RUNS,
            )
        elif not (mine and theirs):
            report.leave(f"whether {two} are of one noise: one does not commit to its own", of=[RUNS])
        else:
            report.require(
                not (mine & theirs and steps),
                f"{two} are of two runs, and no step of one has the noise of the other",
                f"{two} are of two runs with one noise, of which both took the steps 0 to {steps}: what they released "
                "may differ by gradients alone",
                of=RUNS,
            )
    return report

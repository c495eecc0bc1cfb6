"""Several receipts beside each other: copies and continuations of one run, and noise that two runs have used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

from factorize.checker.report import Report

RUNS = "receipts.noise"


def compare_receipts(receipts: Sequence[Mapping[str, Any]]) -> Report:
    """Prove that no two of several receipts, each of which was checked for itself, used one noise twice."""
    report = Report(stated=(RUNS,))
    for (i, one), (j, other) in combinations(enumerate(receipts, 1), 2):
        shared = set(one["noise"]["commitments"]) & set(other["noise"]["commitments"])
        steps = min(_taken(one), _taken(other))
        if one["run"] == other["run"]:
            report.require(
                _is_state_of(one, other) or _is_state_of(other, one),
                f"the receipts {i} and {j} are of one run: the same receipt, or one before the other",
                f"the receipts {i} and {j} are of one run, which went on twice from one state: what both released "
                "after that has the same noise, and may differ by gradients alone",
                of=RUNS,
            )
        elif shared:
            report.require(
                steps == 0,
                f"the receipts {i} and {j} are of one noise, of which one has taken no step",
                f"the receipts {i} and {j} are of two runs with one noise, of which both took the steps 0 to {steps}: "
                "what they released may differ by gradients alone",
                of=RUNS,
            )
        elif one["noise"]["commitments"] and other["noise"]["commitments"]:
            report.prove(f"the receipts {i} and {j} are of two runs, each with noise of its own", of=RUNS)
        else:
            report.leave(f"whether the receipts {i} and {j} are of one noise: one does not name its own", of=[RUNS])
    return report


def _taken(receipt: Mapping[str, Any]) -> int:
    return max((last for _, last in receipt["steps"]["processes"]), default=0)


def _is_state_of(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether the run of the second receipt has been in the state of the first."""
    if one["steps"]["ended"]:
        return one["digest"] == other["digest"]
    changing = ("steps", "digest", "model")
    if any(one[name] != other[name] for name in one.keys() - set(changing)):
        return False
    (mine, own), (theirs, longer) = ((r["steps"]["processes"], r["steps"]["chain"]) for r in (one, other))
    count = len(mine)
    if own != longer[:count] or mine[: count - 1] != theirs[: max(count - 1, 0)]:
        return False
    return not count or (mine[-1][0] == theirs[count - 1][0] and mine[-1][1] <= theirs[count - 1][1])

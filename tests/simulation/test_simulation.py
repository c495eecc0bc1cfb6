"""Runs of the simulated cluster. `make simulate` plays thousands."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.simulation.run import Item, Plan, draw_plan, play, read_plan, shortest

KEPT = sorted((Path(__file__).parent / "kept").glob("*.json"))
"""Plans that once failed, and of what: they stay as they are when seeds draw other plans."""
FRESH = 16
ROOT = Path(__file__).parents[2]


def fresh_seed() -> int:
    """Return SEED of the environment, else a number of this commit's own; the same commit plays the same seeds."""
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False).stdout
    return int(os.environ.get("SEED") or int(head.strip()[:8] or "c0ffee", 16))


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
def test_a_plan_that_once_failed_holds(path):
    play(read_plan(path.read_text()))


def test_fresh_seeds_hold_and_one_repeats_to_the_step(capsys):
    first = fresh_seed()
    with capsys.disabled():
        print(f"\npython -m tests.simulation --seed {first} --count {FRESH}")
    worlds = []
    for seed in (first, *range(first, first + FRESH)):
        try:
            worlds.append(play(draw_plan(seed)).world)
        except Exception as error:
            raise AssertionError(
                f"python -m tests.simulation --seed {seed} prints the shortest plan: {error}"
            ) from error
    once, again = worlds[:2]
    assert (once.steps, once.log) == (again.steps, again.log) and once.steps > 10


def test_a_plan_is_shortened_to_what_fails_and_read_as_it_was_written():
    items = [Item(number, float(number), "get", ((number, None), "x")) for number in range(40)]
    small = shortest(Plan(0, {}, items), lambda plan: {7, 31} <= {item.number for item in plan.items})
    assert [item.number for item in small.items] == [7, 31]
    assert read_plan(small.text()) == small

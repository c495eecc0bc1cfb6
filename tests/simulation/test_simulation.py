"""Runs of the simulated cluster. `make simulate` plays thousands."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.simulation.mutants import MUTANTS, Mutant, mutated
from tests.simulation.run import Item, Plan, read_plan, shortest

FRESH = 4
ROOT = Path(__file__).parents[2]


def fresh_seed() -> int:
    """Return SEED of the environment, else a number of this commit's own; the same commit plays the same seeds."""
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False).stdout
    return int(os.environ.get("SEED") or int(head.strip()[:8] or "c0ffee", 16))


def test_fresh_seeds_and_kept_plans_hold_and_a_seed_repeats_in_another_process(capsys):
    first = fresh_seed()
    commands = [
        ["-m", "tests.simulation", "--seed", str(first), *more] for more in (("--count", str(FRESH)), ("--kept",))
    ]
    with capsys.disabled():
        print("\npython", *commands[0])
    begun = [
        subprocess.Popen(
            [sys.executable, *command], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        for command in commands
    ]
    printed = [process.communicate()[0] for process in begun]
    assert [process.returncode for process in begun] == [0, 0], "\n".join(printed)
    logs = [line for text in printed for line in text.splitlines() if line.startswith(f"seed {first} has the log ")]
    assert len(logs) == 2 and len(set(logs)) == 1


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.what)
def test_what_a_mutant_changes_stands_once_in_its_module(mutant: Mutant) -> None:
    place = find_spec(mutant.module)
    assert place is not None and place.origin is not None
    path = Path(place.origin)
    text = mutated(mutant, path)
    assert text != path.read_text()
    compile(text, path, "exec")


def test_a_plan_is_shortened_to_what_fails_and_read_as_it_was_written():
    items = [Item(number, float(number), "get", ((number, None), "x")) for number in range(40)]
    small = shortest(Plan(0, {}, items), lambda plan: {7, 31} <= {item.number for item in plan.items})
    assert [item.number for item in small.items] == [7, 31]
    assert read_plan(small.text()) == small

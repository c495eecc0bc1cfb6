"""docs/extending.md is true: toys added by its steps, in as many files as it states, are solved, checked and trained with."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from toys import ROOT, TOYS, Toy, copy_packages

HEADINGS = {
    "workload": "A workload",
    "participation": "A participation",
    "structure": "A structure of C",
    "mechanism": "A mechanism",
    "solver": "A solver",
    "rule": "A rule of the checker",
    "sampling": "A sampling",
    "adapter": "An adapter",
    "route": "A route",
    "command": "A command",
}


def stated(name: str) -> tuple[int, int]:
    """How many files and entries of registers the page states."""
    page = (ROOT / "docs/extending.md").read_text()
    section = page.split(f"\n## {HEADINGS[name]}\n")[1].split("\n## ")[0]
    found = re.search(r"^It is (\d) files?(?: and (\d) entr(?:y|ies) of)?", section, re.MULTILINE)
    assert found, f"the page does not count the files of {name}"
    return int(found[1]), int(found[2] or 0)


@pytest.mark.parametrize(("name", "toy"), TOYS.items(), ids=list(TOYS))
def test_the_page_states_how_many_files_and_entries(name: str, toy: Toy) -> None:
    assert toy.counts == stated(name)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Our packages with all toys."""
    found = tmp_path_factory.mktemp("toys")
    copy_packages(found)
    for toy in TOYS.values():
        toy.add_to(found)
    return found


def run(tree: Path, *command: str) -> str:
    """Python in a process that has the packages of the tree."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("FACTORIZE_", "XDG_"))}
    path = os.pathsep.join([str(tree), str(ROOT / "tests/support")])
    done = subprocess.run(
        [sys.executable, *command],
        capture_output=True,
        text=True,
        cwd=tree,
        env=kept | {"PYTHONPATH": path, "HOME": str(tree), "COLUMNS": "100"},
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-4000:] + done.stdout[-4000:]
    return done.stdout


@pytest.fixture(scope="module")
def answers(tree: Path) -> Any:
    return json.loads(run(tree, str(ROOT / "tests/toys/serve.py"), str(tree)).splitlines()[-1])


def test_solved_certified_and_checked_exactly(tree: Path, answers: Any) -> None:
    assert answers["from"] == str(tree)
    found, (sensitivity, loss) = answers["process"], answers["by_hand"]
    assert found["structure"] == "bidiagonal"
    assert found["sensitivity"] == [pytest.approx(sensitivity, rel=1e-12), "exact"]
    assert found["loss"] == pytest.approx(loss, rel=1e-12)
    assert found["supported"] and found["failed"] == [] and found["unseen"] == []
    assert any("its second diagonal is the share" in text for text in found["checked"])


def test_noise_from_the_last_row_alone(answers: Any) -> None:
    found = answers["training"]
    assert (found["vectors"], found["steps"]) == (1, 12)
    assert found["off"] < 1e-15
    assert found["refused"]


def test_sampled_by_a_coin_and_proved(answers: Any) -> None:
    """Half of a group: the noise is that of cyclic Poisson sampling with that probability."""
    found = answers["coin"]
    assert found["asked"] and found["noise"][0] == found["noise"][1]
    assert len(set(found["sizes"])) > 1 and max(found["sizes"]) <= 12 and len(found["sizes"]) == 12
    assert "(coin order, participation {'kind': 'min_sep', 'min_sep': 2" in found["words"]
    assert found["supported"] and found["failed"] == []


def test_independent_noise_is_the_optimum_of_the_identity(answers: Any) -> None:
    """By hand: the loss of one gradient an output is 1, and no matrix has less."""
    found = answers["solver"]
    assert (found["outcome"], found["supported"], found["unseen"]) == ("closed_form", True, [])
    assert [found["loss"], found["lower_bound"]] == pytest.approx([1.0, 1.0], rel=1e-9)


def test_a_rule_of_receipts_refuses_a_run_that_goes_on(answers: Any) -> None:
    found = answers["coin"]
    assert "the run goes on" in found["early"] and found["ended"]


def test_noise_of_a_list_asks_the_auditor(answers: Any) -> None:
    found = answers["adapter"]
    assert found["refused"] and found["released"] == found["noise"] and found["left"] == 0


def test_listed_by_a_command_and_over_http(tree: Path) -> None:
    """The toy mechanism among the others, from both doors."""
    listed = json.loads(run(tree, "-m", "factorize.api.cli", "mechanisms", "--output", "json"))
    assert "neighbours" in listed
    assert json.loads(run(tree, str(ROOT / "tests/toys/ask.py"), str(tree))) == listed

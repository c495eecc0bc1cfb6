"""The rooms: one name per idea, few files to a room, and imports that point to the own room or a lower one."""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from pathlib import Path

import pytest
from house import PACKAGES, ROOT, files, imported_modules, modules, public_classes

ROOT_MODULES, ROOM_MODULES, DEPTH = 14, 16, 3
MIRRORS = {"structures", "structures/kernels", "client/recurrences"}
"""Rooms of `factorize` with one file per structure, each of the structure's name."""
ORDER = """
errors former_names numbers encoding plain_data participation format workloads structures mechanisms solution objective
keywords spec certificate privacy accounting factorization factor_file rounded storage client auditor training
adapters exact predict plan factorize
solvers.budget solvers.problem solvers.methods solvers.single solvers.epochs solvers.evidence solvers.formulas
solvers.toeplitz solvers.banded solvers.blt solvers.amplified solvers.endless solvers.semidefinite solvers.buffered solvers.frequency
solvers.automatic solvers.register solvers.warm_start solvers.solving solvers.comparing solvers
api api.telemetry api.isolated api.child_protocol api.processes api.settings api.auditing api.terminal api.proof api.forms api.stages api.local api.comparing api.recommending api.python api.pictures api.jobs api.access api.measures api.batches
api.children api.stored_forms api.catalog api.row_blocks api.results api.listing api.service api.http api.commands api.cli
""".split()
"""Rooms and single modules of the roots, from the lowest up."""


def package_of(path: Path) -> str:
    """The exact checker shares no code with the rest of `factorize`, and is a program with names of its own."""
    parts = path.relative_to(ROOT).parts
    return "factorize/exact" if parts[:2] == ("factorize", "exact") else parts[0]


def named_twice() -> dict[tuple[str, str], list[str]]:
    found: dict[tuple[str, str], list[str]] = defaultdict(list)
    for path in modules().values():
        package = package_of(path)
        within = str(path.parent.relative_to(ROOT / package))
        if path.stem in ("__init__", "base", "kernels") or (
            package == "factorize" and within in MIRRORS - {"structures"}
        ):
            continue
        found[package, path.stem].append(within)
    return {key: rooms for key, rooms in found.items() if len(rooms) > 1}


def test_no_file_name_stands_for_two_things() -> None:
    assert not named_twice()


SERVING = {"__init__", "base", "state_rounding"}
"""Files of the recurrences that are no structure's."""


def test_a_mirror_has_only_names_of_structures_and_what_serves_them() -> None:
    structures = {path.stem for path in (ROOT / "factorize/structures").glob("*.py")} - {"__init__", "base"}
    recurrences = {path.stem for path in (ROOT / "factorize/client/recurrences").glob("*.py")} - SERVING
    assert recurrences < structures
    kernels = {path.stem for path in (ROOT / "factorize/structures/kernels").glob("*.py")} - {"__init__"}
    assert kernels & structures


def test_no_public_class_name_stands_for_two_things() -> None:
    counted = Counter(name for path in modules().values() for name in public_classes(path))
    assert not {name for name, count in counted.items() if count > 1}


def test_rooms_are_small_and_near_the_door() -> None:
    for package in PACKAGES:
        rooms = Counter(path.parent for path in files(package) if path.stem != "__init__")
        assert rooms[ROOT / package] <= ROOT_MODULES, package
        for room, count in rooms.items():
            assert count <= ROOM_MODULES, f"{room.relative_to(ROOT)} has {count} modules"
            assert len(room.relative_to(ROOT).parts) <= DEPTH, room


def room_of(name: str) -> str:
    """The room of a module, or the module itself where it stands in a root."""
    parts = name.split(".")[1:]
    return ".".join(parts[: 2 if parts[:1] in (["solvers"], ["api"]) else 1]) or "factorize"


def upward() -> list[tuple[str, str]]:
    rank = {room: at for at, room in enumerate(ORDER)}
    return [
        (name, other)
        for name, path in modules().items()
        for other in sorted(imported_modules(path))
        if room_of(other) not in ("factorize", "solvers", "api") and rank[room_of(other)] > rank[room_of(name)]
    ]


def test_every_room_has_its_place() -> None:
    assert {room_of(name) for name in modules()} == set(ORDER)


def test_imports_point_to_the_own_room_or_a_lower_one() -> None:
    assert not upward()


@pytest.mark.parametrize("noun", ["participation", "objective", "spec"])
def test_what_is_asked_knows_no_strategy(noun: str) -> None:
    """Plain data: who asks of it what holds for a matrix, does so in a room above both."""
    rooms = {room_of(name) for name in imported_modules(ROOT / f"factorize/{noun}.py")}
    assert not rooms & {"structures", "certificate", "client", "exact", "factorization"}


def test_module_docstrings_begin_with_their_noun() -> None:
    questions = ("What", "Which", "Where", "How", "Whether", "When", "Who", "From", "Reading")
    for path in modules().values():
        first = path.read_text().removeprefix('"""').split(maxsplit=1)[0]
        assert first not in questions, path.relative_to(ROOT)


def test_what_tests_ask_for_has_one_helper() -> None:
    helpers = {"document_of", "solve", "solved", "spec", "spec_of", "spec_text"}
    for path in (ROOT / "tests").rglob("*.py"):
        if path.name != "specs.py" and "toys" not in path.parts:
            defined = {n.name for n in ast.parse(path.read_text()).body if isinstance(n, ast.FunctionDef)}
            assert not defined & helpers, f"{path.name} has another {defined & helpers}; use tests/support/specs.py"


def test_no_two_files_of_tests_have_one_name() -> None:
    """Pytest imports them by their names alone, and a run of all of them ends where two are alike."""
    names = Counter(path.name for path in (ROOT / "tests").rglob("test_*.py"))
    assert not [name for name, count in names.items() if count > 1]

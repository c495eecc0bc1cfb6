"""Kinds are asked, not told apart: who wants to know something of a participation or an objective calls its method.

Counted is every `isinstance` with a class of the noun, and every comparison of its `kind` or `structure` with a name,
outside the noun's own room, the functions that say whether a solver supports a spec, and the exact checker's spec.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import get_args

import pytest
from house import PACKAGES, ROOT, files, tree_of

from factorize.objective import AnyObjective
from factorize.participation import AnyParticipation
from factorize.structures import layouts
from factorize.structures.base import Matrix
from factorize.structures.endless import EndlessMatrix
from factorize.workloads import KINDS

MOST = {"participation": 0, "objective": 6, "workload": 2, "structure": 7}
"""By noun: how many are left; the numbers may only fall."""
ROOMS = {
    "participation": ("factorize/participation.py",),
    "objective": ("factorize/objective.py",),
    "workload": ("factorize/workloads/",),
    "structure": ("factorize/structures/",),
}
ASKING = (ast.MatchClass, ast.Call, ast.Compare)
EXACT_SPEC = "factorize/exact/spec/"


def every_class_below(kind: type) -> set[str]:
    return {name for below in kind.__subclasses__() for name in {below.__name__, *every_class_below(below)}}


def classes() -> dict[str, set[str]]:
    """By noun: the names of its classes."""
    assert layouts.BUILDERS  # has imported every structure
    return {
        "participation": {kind.__name__ for kind in get_args(AnyParticipation)},
        "objective": {kind.__name__ for kind in get_args(get_args(AnyObjective)[0])},
        "workload": {kind.__name__ for kind in KINDS.values()},
        "structure": {
            name
            for base in (Matrix, EndlessMatrix)
            for name in {base.__name__, *every_class_below(base)}
            if not name.startswith("_")
        },
    }


def outside_supports(tree: ast.AST) -> Iterator[ast.AST]:
    """Every node but those in functions named `supports`."""
    for node in ast.iter_child_nodes(tree):
        if not (isinstance(node, ast.FunctionDef) and node.name == "supports"):
            yield node
            yield from outside_supports(node)


def last_names(node: ast.AST) -> set[str]:
    names = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
    return names | {part.attr for part in ast.walk(node) if isinstance(part, ast.Attribute)}


def asked_by_class(node: ast.AST, names: set[str]) -> bool:
    """Whether a node is `isinstance(..., one of the names)`, or a match for one of them."""
    if isinstance(node, ast.MatchClass):
        return bool(last_names(node.cls) & names)
    called = (
        isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("isinstance", "issubclass")
    )
    if not called or "torch" in last_names(node.args[1]):  # its classes are nobody's kinds here: torch.optim.Adam
        return False
    return bool(last_names(node.args[1]) & names)


def asked_by_kind(node: ast.AST, noun: str) -> bool:
    """Whether a node compares `noun.kind` with something; for a structure, `.structure`."""
    if not isinstance(node, ast.Compare):
        return False
    for side in (node.left, *node.comparators):
        if isinstance(side, ast.Attribute):
            if noun == "structure" and side.attr == "structure":
                return True
            if side.attr == "kind" and noun in last_names(side.value):
                return True
    return False


@cache
def asking_nodes(path: Path) -> list[ast.AST]:
    """The nodes of a file that may ask for a class or a kind."""
    return [node for node in outside_supports(tree_of(path)) if isinstance(node, ASKING)]


def told_apart(noun: str) -> list[str]:
    names = classes()[noun]
    found = []
    for path in (path for package in PACKAGES for path in files(package)):
        name = str(path.relative_to(ROOT))
        if name.startswith((EXACT_SPEC, *ROOMS[noun])):
            continue
        nodes = asking_nodes(path)
        asked = (node for node in nodes if asked_by_class(node, names) or asked_by_kind(node, noun))
        found += [f"{name}:{getattr(node, 'lineno', 0)}" for node in asked]
    return found


@pytest.mark.parametrize("noun", MOST)
def test_kinds_are_told_apart_in_their_own_room(noun: str) -> None:
    found = told_apart(noun)
    assert len(found) <= MOST[noun], found


@pytest.mark.parametrize(
    "line",
    [
        "isinstance(spec.participation, Single)",
        "isinstance(p, (MinSep, int))",
        "isinstance(p, MinSep | int)",
        "isinstance(p, participation.FixedEpochs)",
        "spec.participation.kind == 'single'",
        "'single' != problem.spec.participation.kind",
        "participation.kind in ('single', 'min_sep')",
    ],
)
def test_every_way_to_tell_apart_is_seen(line: str) -> None:
    names = classes()["participation"]
    assert names == {"Single", "FixedEpochs", "MinSep"}
    body = f"def solve(p):\n    return {line}\n"

    def seen(source: str) -> int:
        return sum(
            asked_by_class(n, names) or asked_by_kind(n, "participation") for n in outside_supports(ast.parse(source))
        )

    assert seen(body) == 1
    assert seen(body.replace("solve", "supports")) == 0

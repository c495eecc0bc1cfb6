"""Docs are tested: what the code offers is on a page, and the README's promises are targets of the Makefile."""

from __future__ import annotations

import ast
import itertools
import re
from pathlib import Path
from typing import get_args, get_type_hints

import pytest
from sentences import rewritten

from factorize import errors, participation
from factorize.spec import mechanisms, objective
from factorize.structures.layouts import BUILDERS, ENDLESS_BUILDERS
from factorize.workloads import KINDS
from factorize.workloads.schedule import Named

ROOT = Path(__file__).parents[2]


def page(name: str) -> str:
    return (ROOT / name).read_text()


def members(union: object) -> tuple[type, ...]:
    """Classes of a union, which may be annotated."""
    return get_args(get_args(union)[0]) or get_args(union)


UNIONS = (participation.AnyParticipation, objective.AnyObjective, mechanisms.AnyMechanism, Named)


@pytest.mark.parametrize("member", [*KINDS.values(), *itertools.chain(*map(members, UNIONS))])
def test_every_kind_is_documented_with_its_fields(member: type) -> None:
    fields = getattr(member, "model_fields", None) or getattr(member, "__dataclass_fields__", {})
    kind = get_args(get_type_hints(member)["kind"])[0]
    row = re.search(rf"^\| `{kind}` \|.*$", page("docs/spec.md"), re.MULTILINE)
    assert row, f"docs/spec.md has no row for {kind}"
    assert all(field in row.group() for field in fields if field != "kind"), kind


def test_every_structure_is_documented() -> None:
    for structure in {*BUILDERS, *ENDLESS_BUILDERS}:
        assert f"| `{structure}` |" in page("docs/file-format.md")


_RULES = ("rule", "TWO_STAGE", "LONGEST_PATH", "ALL_PATTERNS", "BOUNDED_PATH")


def sensitivity_rules() -> set[str]:
    """What the code may write into `sensitivity.rule`."""
    found: set[str] = set()
    for name in ("checker/sensitivity", "checker/longest_path", "factors/sensitivity"):
        for node in ast.walk(ast.parse(page(f"factorize/{name}.py"))):
            texts: list[ast.expr] = []
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                texts = [node.value] if node.targets[0].id in _RULES else []
            elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("Bracket", "_attained_by_all"):
                texts = node.args[2:3]
            elif isinstance(node, ast.Call):
                texts = [keyword.value for keyword in node.keywords if keyword.arg == "rule"]
            constants = (part for text in texts for part in ast.walk(text) if isinstance(part, ast.Constant))
            found |= {part.value for part in constants if isinstance(part.value, str)}
    return found


def test_every_rule_of_a_sensitivity_is_explained() -> None:
    rules, explained = sensitivity_rules(), " ".join(page("docs/sensitivity.md").split())
    assert {"column norms", "two-stage Gram bound", "absolute sums of all patterns", "limit of column norms"} < rules
    assert not {rule for rule in rules if f"`{rule}`" not in explained}


def test_a_line_of_prose_is_a_sentence() -> None:
    folders = ("docs", "papers", "factorize", "deploy", "release", "tests", ".github")
    pages = [*ROOT.glob("*.md"), *(path for folder in folders for path in (ROOT / folder).rglob("*.md"))]
    other = [str(path.relative_to(ROOT)) for path in pages if rewritten(path.read_text()) != path.read_text()]
    assert other == [], "python tests/support/sentences.py rewrites pages so"


def test_a_paragraph_is_divided_after_its_sentences() -> None:
    page = "- See [a. B](x.md) and\n  `c. D` (e.g. F. G) in [0, 1). By 30. Of Lee et al. I know\n\n1. One. 2 more.\n\n| A. B |\n"
    assert rewritten(page) == (
        "- See [a. B](x.md) and `c. D` (e.g. F. G) in [0, 1).\n  By 30.\n  Of Lee et al. I know\n\n"
        "1. One.\n   2 more.\n\n| A. B |\n"
    )
    assert rewritten(rewritten(page)) == rewritten(page)


def test_what_is_cited_can_be_looked_up() -> None:
    sources = re.findall(r"^([A-Z]+\d\d): ", page("docs/notation.md"), re.MULTILINE)
    for package in ("factorize", "solvers", "api", "tests", "benchmarks", "docs"):
        for path in [*(ROOT / package).rglob("*.py"), *(ROOT / package).rglob("*.md")]:
            text = path.read_text()
            assert set(re.findall(r"\b[A-Z]{1,2}2\d\b", text)) <= set(sources), path
            assert not re.search(r"\bmathematics,? [A-N]\.?\d*\b", text), f"{path} cites a page that is not here"
            for cited in re.findall(r"\bdocs/[\w/-]+\.md", text):
                assert (ROOT / cited).exists(), f"{path} cites {cited}"


def test_every_error_is_in_the_drawn_tree() -> None:
    tree = errors.__doc__ or ""
    classes = [value for value in vars(errors).values() if isinstance(value, type)]
    for error in (c for c in classes if issubclass(c, errors.FactorizeError)):
        assert re.search(rf"\b{error.__name__}\b", tree), error.__name__
        slugs = [c.slug for c in classes if issubclass(c, errors.FactorizeError)]
        assert slugs.count(error.slug) == 1


def test_every_room_stands_in_the_table_of_the_architecture() -> None:
    rooms = [
        folder.parent.name for folder in (ROOT / "factorize").glob("*/__init__.py") if not folder.parent.is_symlink()
    ]
    named = {f"factorize/{room}" for room in rooms}
    named |= {
        f"{top}/{found.parent.name}" for top in ("solvers", "api") for found in (ROOT / top).glob("*/__init__.py")
    }
    assert sorted(room for room in named if f"`{room}`" not in page("docs/architecture.md")) == []


def test_every_page_has_a_place_in_the_site() -> None:
    placed = re.findall(r"^ +- (?:\w+: )?([\w/-]+\.md)$", page("mkdocs.yml"), re.MULTILINE)
    for path in sorted((ROOT / "docs").rglob("*.md")):
        name = str(path.relative_to(ROOT / "docs"))
        assert placed.count(name) == 1, f"`nav` in mkdocs.yml should name docs/{name} once"


def test_every_link_leads_somewhere() -> None:
    for source in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", source.read_text()):
            assert (source.parent / target).exists(), f"{source.name} links to {target}"
        for mentioned in re.findall(
            r"(?<![\w/])((?:docs|examples|factorize|solvers|api|tests)/[\w./-]+\.\w+)", source.read_text()
        ):
            assert (ROOT / mentioned).exists(), f"{source.name} mentions {mentioned}"


def test_the_readme_keeps_its_promises() -> None:
    makefile = page("Makefile")
    for target in ("demo", "test"):
        assert f"make {target}" in page("README.md")
        assert re.search(rf"^{target}:", makefile, re.MULTILINE)
    targets = re.search(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)
    assert targets is not None and len(targets[1].split()) <= 17  # what is run more rarely is in docs/extending.md
    assert re.search(r"^make .*\btest\b", page(".ci/run"), re.MULTILINE) and " docs" in page(".ci/run")


def test_nothing_names_the_machine_it_was_made_on() -> None:
    own = Path(__file__).name
    for path in ROOT.rglob("*"):
        parts = path.relative_to(ROOT).parts
        if (
            path.suffix in {".py", ".md", ".toml", ".yml", ".lock"}
            and path.name != own
            and parts[0] not in (".venv", ".venv-frameworks", ".venv-docs", ".git", ".demo", "build")
        ):
            text = path.read_text()
            assert "/work/" not in text, path
            assert "pythonhosted" not in text, path

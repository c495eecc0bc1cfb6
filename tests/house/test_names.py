"""Names say what things are: a class has its name alone, what acts has a verb, and numbers of exceptions only fall."""

from __future__ import annotations

import ast
import re
from collections import Counter
from functools import cache

from house import PACKAGES, ROOT, files
from test_architecture import tree_of

PARTICIPLE = re.compile(
    r"(ed|told|kept|found|made|held|begun|shown|drawn|taken|given|sent|lost|said|known|written|chosen)$"
)
NO_PARTICIPLES = {"need", "feed", "seed", "embed", "speed", "proceed", "exceed", "red", "shed", "reed", "weed", "fed"}
MAX_LATE_IMPORTS = 60
"""Imports of our own modules inside functions: each spares a library, or a circle. Lower it with every one that goes."""

MAX_UNTYPED = 527
"""Annotations that say `Any` or `Document`. Lower it with every one that gets a type."""

MAX_LINES, MAX_MIRRORS = 420, 13
"""Lines of a file, of which four are above 401; and names that several files have, such as a structure and its second
statement for the checker. Lower both with every one that goes."""


@cache
def places() -> list[tuple[str, ast.AST]]:
    """Return the classes, functions and subscripts of the packages, with their files."""
    paths = [path for package in PACKAGES for path in files(package)]
    return [
        (str(path.relative_to(ROOT)), node)
        for path in paths
        for node in ast.walk(tree_of(path))
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef, ast.Subscript))
    ]


def acts(function: ast.AST) -> bool:
    """Whether a function does more than return an expression."""
    return any(
        isinstance(node, (ast.With, ast.AsyncWith))
        or (isinstance(node, ast.Expr) and isinstance(node.value, (ast.Call, ast.Await)))
        for node in ast.walk(function)
    )


def test_a_class_has_its_name_alone() -> None:
    names = Counter(node.name for _, node in places() if isinstance(node, ast.ClassDef) and node.name[0] != "_")
    assert [name for name, count in names.items() if count > 1] == []


def test_what_acts_has_a_verb() -> None:
    found = set()
    for file, node in places():
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            first = node.name.strip("_").split("_")[0]
            is_property = any("property" in ast.unparse(decorator) for decorator in node.decorator_list)
            if PARTICIPLE.search(first) and first not in NO_PARTICIPLES and not is_property and acts(node):
                found.add((file, node.name))
    assert not found


def test_manifests_are_read_by_their_type() -> None:
    """Strings are keys of manifests in the format and the checker alone."""
    read = {
        (file, ast.unparse(node))
        for file, node in places()
        if isinstance(node, ast.Subscript)
        and isinstance(node.slice, ast.Constant)
        and isinstance(node.slice.value, str)
        and "manifest" in (getattr(node.value, "id", ""), getattr(node.value, "attr", ""))
        and not file.startswith(("factorize/format/", "factorize/checker/"))
    }
    assert not read


def test_our_modules_are_imported_at_the_top() -> None:
    late = [
        (file, inner.lineno)
        for file, node in places()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        for inner in ast.walk(node)
        if isinstance(inner, ast.ImportFrom) and (inner.module or "").split(".")[0] == "factorize"
    ]
    assert len(late) <= MAX_LATE_IMPORTS


def test_what_is_read_by_name_has_a_type() -> None:
    annotations = [
        annotation
        for path in (path for package in PACKAGES for path in files(package))
        for node in ast.walk(tree_of(path))
        for annotation in [
            *([node.returns] if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) else []),
            *([node.annotation] if isinstance(node, (ast.AnnAssign, ast.arg)) else []),
        ]
        if annotation is not None
    ]
    untyped = [one for one in annotations if re.search(r"\b(Any|Document)\b", ast.unparse(one))]
    assert len(untyped) <= MAX_UNTYPED, len(untyped)


def test_a_file_is_short_and_shares_its_name_with_mirrors_alone() -> None:
    paths = [path for package in PACKAGES for path in files(package) if path.name != "__init__.py"]
    assert [str(path) for path in paths if len(path.read_text().splitlines()) > MAX_LINES] == []
    assert sum(count > 1 for count in Counter(path.name for path in paths).values()) <= MAX_MIRRORS

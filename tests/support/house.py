"""The house as its tests see it: our files, the modules in them, and what each imports."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("factorize", "solvers", "api")
IMPORTERS = ("import_module", "__import__")


def files(package: str) -> list[Path]:
    """Files of one folder; `factorize/solvers` and `factorize/api` are links to the other two, and no part of it."""
    links = [ROOT / "factorize" / name for name in ("solvers", "api")] if package == "factorize" else []
    return sorted(p for p in (ROOT / package).rglob("*.py") if not any(link in p.parents for link in links))


def module_name(path: Path) -> str:
    """Return the name under which a file is imported: all of ours begin with `factorize`."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    parts = parts[:-1] if parts[-1] == "__init__" else parts
    return ".".join(parts if parts[0] == "factorize" else ("factorize", *parts))


@cache
def modules() -> dict[str, Path]:
    """Return all of our modules by name."""
    return {module_name(path): path for package in PACKAGES for path in files(package)}


def called_names(tree: ast.AST) -> Iterator[str | None]:
    """What `import_module(...)` and `__import__(...)` import, by whatever path and name; None for no constant."""
    froms = (node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom))
    renamed = {alias.asname for node in froms for alias in node.names if alias.name in IMPORTERS}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called in IMPORTERS or called in renamed:
                name = node.args[0] if node.args else None
                yield name.value if isinstance(name, ast.Constant) and isinstance(name.value, str) else None


@cache
def tree_of(path: Path) -> ast.Module:
    """Return what a file parses to; do not change it."""
    return ast.parse(path.read_text())


@cache
def imported_names(path: Path) -> tuple[str, ...]:
    """Return the dotted name of all that a file imports: at its top, in functions, for type checkers, by import_module."""
    tree = tree_of(path)
    found = [name for name in called_names(tree) if name is not None]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path}: relative import"
            found += [f"{node.module}.{alias.name}" for alias in node.names]
    return tuple(found)


def imported_modules(path: Path) -> set[str]:
    """Return those of our modules from which a file takes something."""
    known = modules()
    found = {name if name in known else name.rpartition(".")[0] for name in imported_names(path)}
    return found & set(known)

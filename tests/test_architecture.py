"""The layers are a test, not a wish: api -> solvers -> factorize, and heavy libraries stay behind their doors."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("factorize", "solvers", "api")
FORBIDDEN = {
    "factorize": {"solvers", "api", "cvxpy", "scs", "fastapi", "uvicorn", "distributed", "dask", "sqlalchemy"},
    "solvers": {"api", "fastapi", "uvicorn", "distributed", "dask", "sqlalchemy"},
    "api": {"cvxpy", "scs"},
}
MAY_IMPORT_CVXPY = {"solvers/semidefinite.py", "solvers/frequency/spectral.py"}
MAY_IMPORT_SOLVERS = {
    "api/service.py",
    "api/child.py",
    "api/local.py",
    "api/comparing.py",
}  # behind HTTP, in its children, on the command line


def modules(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def imports(path: Path) -> Iterator[str]:
    """Every imported top-level name, also those inside functions."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path}: relative import"
            yield node.module.split(".")[0]


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_point_one_way(package: str) -> None:
    for path in modules(package):
        wrong = set(imports(path)) & FORBIDDEN[package]
        assert not wrong, f"{path.relative_to(ROOT)} imports {wrong}"


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported_modules(path: Path, known: set[str]) -> set[str]:
    """Modules of ours that a file takes names from: at its top, in functions and for type checkers only."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in known else node.module for name in inner}
    return found & known


def test_no_module_imports_itself_in_a_circle() -> None:
    files = {module_name(path): path for package in PACKAGES for path in modules(package)}
    graph = {name: imported_modules(path, set(files)) - {name} for name, path in files.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" <- ".join(error.args[1]))


def test_only_the_reference_solvers_import_cvxpy() -> None:
    users = {str(p.relative_to(ROOT)) for p in modules("solvers") if {"cvxpy", "scs"} & set(imports(p))}
    assert users <= MAY_IMPORT_CVXPY


def test_only_the_three_that_solve_import_solvers() -> None:
    users = {str(p.relative_to(ROOT)) for p in modules("api") if "solvers" in set(imports(p))}
    assert users <= MAY_IMPORT_SOLVERS


def loaded_by(statement: str) -> set[str]:
    code = f"import sys\n{statement}\nprint(*{{name.split('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    return set(done.stdout.split())


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        ("import factorize", {"numpy", "scipy", "pydantic", "numba", "cvxpy", "scs", "fastapi", "dask", "distributed"}),
        ("from factorize import Spec, certify, load", {"numba", "cvxpy", "scs", "fastapi", "dask", "matplotlib"}),
        ("import factorize.client", {"pydantic", "scipy", "numba", "cvxpy", "fastapi", "dask", "matplotlib"}),
        ("import factorize.adapters, factorize.auditor", {"torch", "jax", "scipy", "numba", "cvxpy", "matplotlib"}),
        ("import solvers", {"numba", "cvxpy", "scs", "fastapi", "dask", "matplotlib"}),
        ("import api.cli", {"numba", "cvxpy", "scs", "fastapi", "dask", "distributed", "matplotlib", "sqlalchemy"}),
    ],
)
def test_imports_are_light(statement: str, absent: set[str]) -> None:
    assert not loaded_by(statement) & absent


def test_public_names_are_sorted_and_exist() -> None:
    import factorize

    assert sorted(factorize.__all__) == list(factorize.__all__)
    assert all(getattr(factorize, name) is not None for name in factorize.__all__)
    with pytest.raises(AttributeError, match="nothing_of_that_name"):
        _ = factorize.nothing_of_that_name


@pytest.mark.parametrize("package", PACKAGES)
def test_nothing_is_left_unfinished(package: str) -> None:
    marks = ("TODO", "FIXME", "XXX", 'NotImplementedError("', "pass  # later")
    for path in modules(package):
        text = path.read_text()
        assert not any(mark in text for mark in marks), path.relative_to(ROOT)

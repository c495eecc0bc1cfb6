"""The layers are a test, not a wish: api -> solvers -> factorize, and heavy libraries stay behind their doors."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("factorize", "solvers", "api")
FORBIDDEN = {
    "factorize": {"solvers", "api", "cvxpy", "scs", "fastapi", "uvicorn", "distributed", "dask", "sqlalchemy"},
    "solvers": {"api", "fastapi", "uvicorn", "distributed", "dask", "sqlalchemy"},
    "api": {"cvxpy", "scs"},
}
IMPORT_CVXPY = {"solvers/semidefinite.py", "solvers/frequency/spectral.py"}
IMPORT_SOLVERS = {
    "api/service.py",
    "api/jobs/child.py",
    "api/local.py",
    "api/comparing/child_comparison.py",
}  # behind HTTP, in its children, on the command line
IMPORT_BY_A_TABLE = {"factorize/__init__.py", "factorize/accounting/__init__.py"}
"""Where the name of what is imported is no constant: the public names and their homes, all of them our own."""
IMPORTERS = ("import_module", "__import__")


def modules(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def called_names(tree: ast.AST) -> Iterator[str | None]:
    """What `import_module(...)` and `__import__(...)` import, by whatever path and name; None for no constant."""
    froms = (node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom))
    renamed = {alias.asname for node in froms for alias in node.names if alias.name in IMPORTERS}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called in IMPORTERS or called in renamed:
                name = node.args[0] if node.args else None
                constant = isinstance(name, ast.Constant) and isinstance(name.value, str)
                yield str(name.value) if constant else None  # type: ignore[union-attr]  # constant says so


def imports(path: Path) -> Iterator[str]:
    """Every imported top-level name, also those inside functions and of `import_module`."""
    tree = ast.parse(path.read_text())
    yield from (name.split(".")[0] for name in called_names(tree) if name is not None)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path}: relative import"
            yield node.module.split(".")[0]


def users(package: str, *names: str) -> set[str]:
    """Files of a package that import one of the names."""
    return {str(path.relative_to(ROOT)) for path in modules(package) if set(names) & set(imports(path))}


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
    assert set().union(*(users(package, "cvxpy", "scs") for package in PACKAGES)) == IMPORT_CVXPY


def test_only_four_modules_of_the_service_import_solvers() -> None:
    assert users("api", "solvers") == IMPORT_SOLVERS


@pytest.mark.parametrize(
    "line",
    [
        "import cvxpy",
        "import cvxpy.atoms as atoms",
        "from cvxpy import Variable",
        "cp = import_module('cvxpy')",
        "cp = importlib.import_module('cvxpy.atoms')",
        "cp = __import__('cvxpy')",
        "from importlib import import_module as take; cp = take('cvxpy')",
    ],
)
def test_every_way_to_import_is_seen(line: str, tmp_path: Path) -> None:
    path = tmp_path / "hidden.py"
    path.write_text(f"def solve():\n    {line}\n")
    assert "cvxpy" in set(imports(path))


def test_what_is_imported_by_name_is_a_constant_or_one_of_ours() -> None:
    files = [path for package in PACKAGES for path in modules(package)]
    unseen = {str(p.relative_to(ROOT)) for p in files if None in set(called_names(ast.parse(p.read_text())))}
    assert unseen == IMPORT_BY_A_TABLE
    import factorize
    import factorize.accounting

    homes = {*factorize._HOMES.values(), *factorize.accounting._HOMES.values()}
    assert {home.split(".")[0] for home in homes} == {"factorize"}


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
        (
            "import factorize.api.cli",
            {"numba", "cvxpy", "scs", "fastapi", "dask", "distributed", "matplotlib", "sqlalchemy"},
        ),
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

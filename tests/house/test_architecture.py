"""The layers are a test, not a wish: api -> solvers -> factorize, and heavy libraries stay behind their doors."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from importlib import import_module
from pathlib import Path

import pytest
from house import PACKAGES, ROOT, files

from factorize.moved_modules import NEW_PATHS

IMPORTERS = ("import_module", "__import__")
MAY_IMPORT = {
    "factorize": {"factorize"},
    "solvers": {"factorize", "factorize.solvers"},
    "api": {"factorize", "factorize.solvers", "factorize.api"},
}
"""By folder: the layers that its files may import."""
HEAVY = {
    "factorize": {"cvxpy", "scs", "fastapi", "uvicorn", "distributed", "dask", "sqlalchemy"},
    "solvers": {"fastapi", "uvicorn", "distributed", "dask", "sqlalchemy"},
    "api": {"cvxpy", "scs"},
}
IMPORT_CVXPY = {"solvers/semidefinite.py"}
IMPORT_SOLVERS = {
    "api/service.py",
    "api/workers/pool.py",
    "api/questions/registry.py",
    "api/local.py",
    "api/calls.py",
    "api/questions/comparison.py",
}  # behind HTTP, in its workers, on the command line, in Python
IMPORT_BY_A_TABLE = {
    "factorize/__init__.py",
    "factorize/accounting/__init__.py",
    "factorize/factors/__init__.py",
    "factorize/moved_modules.py",
    "api/commands/application.py",
    "api/jobs/database.py",
    "api/proof.py",
    "api/questions/registry.py",
    "api/terminal/spec_command.py",
    "api/workers/worker_process.py",
    "solvers/register.py",
}
"""Where the name of what is imported is no constant: public names and their homes, pictures, modules that moved, what workers load,
dialects of SQL, models whose fields are options, and solvers."""


ABSENT = {
    "import factorize": {"lzma", "numpy", "scipy", "pydantic", "numba", "cvxpy", "scs", "fastapi", "dask"},
    "import factorize.client": {"lzma", "pydantic", "scipy", "numba", "cvxpy", "fastapi", "dask", "matplotlib"},
    "import factorize.factors.plain_sensitivity": {"pydantic", "scipy", "numba", "flint"},
    "import factorize.adapters, factorize.training.auditor": {"torch", "jax", "scipy", "numba", "cvxpy", "matplotlib"},
    "from factorize import Spec, certify, load": {"numba", "cvxpy", "scs", "fastapi", "dask", "matplotlib"},
    "import factorize.solvers": {"numba", "cvxpy", "scs", "fastapi", "dask", "distributed", "matplotlib"},
    "import factorize.api.cli": {"numba", "cvxpy", "scs", "fastapi", "dask", "distributed", "matplotlib", "sqlalchemy"},
}
"""What an import does not load, also not after those above it."""


def module_name(path: Path) -> str:
    """Return the name under which a file is imported: all of ours begin with `factorize`."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    parts = parts[:-1] if parts[-1] == "__init__" else parts
    return ".".join(parts if parts[0] == "factorize" else ("factorize", *parts))


HOUSES = [
    "factorize",
    *(f"factorize.{room}" for room in ("adapters", "api", "checker", "client", "solvers", "storage")),
]
"""The packages whose rooms build on each other."""
CIRCLE = ("factors", "samplings")
"""`Factors.calibrate` looks up samplings, which build on factors."""


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


def layer(name: str) -> str | None:
    """The layer that an imported name belongs to; None for what is not ours."""
    parts = name.split(".")
    if parts[0] != "factorize":
        return None
    return ".".join(parts[:2]) if parts[1:2] in (["solvers"], ["api"]) else "factorize"


def outside(path: Path) -> set[str]:
    """Every imported top-level name, also those inside functions and of `import_module`."""
    return {name.split(".")[0] for name in imported_names(path)}


def users(package: str, *names: str) -> set[str]:
    """Files of a package that import one of the names, or what is below it."""
    found = {path: set(imported_names(path)) for path in files(package)}
    return {
        str(path.relative_to(ROOT))
        for path, imported in found.items()
        if any(f"{n}.".startswith(f"{name}.") for n in imported for name in names)
    }


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_point_one_way(package: str) -> None:
    for path in files(package):
        assert {layer(name) for name in imported_names(path)} - {None} <= MAY_IMPORT[package], path.relative_to(ROOT)
        assert not outside(path) & (HEAVY[package] | {"solvers", "api", "papers", "benchmarks"}), path.relative_to(ROOT)


def test_no_module_imports_itself_in_a_circle() -> None:
    graph = {name: imported_modules(path) - {name} for name, path in modules().items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" <- ".join(error.args[1]))


@pytest.mark.parametrize("house", HOUSES)
def test_rooms_import_each_other_one_way(house: str) -> None:
    """A room is a folder, or a module beside folders."""

    def rooms(names: Iterable[str]) -> set[str]:
        return {name.removeprefix(f"{house}.").split(".")[0] for name in names if name.startswith(f"{house}.")}

    graph: dict[str, set[str]] = {}
    for name, path in modules().items():
        for room in rooms([name]):
            graph.setdefault(room, set()).update(rooms(imported_modules(path)) - {room})
    if house == "factorize":
        graph[CIRCLE[0]].remove(CIRCLE[1])
    assert any(graph.values()), "no room imports another, so nothing was compared"
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" <- ".join(error.args[1]))


def test_the_root_holds_four_modules() -> None:
    """All others stand in a room."""
    assert len(list((ROOT / "factorize").glob("[!_]*.py"))) <= 4


def test_only_the_reference_solver_imports_cvxpy() -> None:
    assert set().union(*(users(package, "cvxpy", "scs") for package in PACKAGES)) == IMPORT_CVXPY


def test_only_six_modules_of_the_doors_import_solvers() -> None:
    assert users("api", "factorize.solvers") == IMPORT_SOLVERS


def test_what_is_imported_by_name_is_a_constant_or_one_of_ours() -> None:
    paths = [path for package in PACKAGES for path in files(package)]
    unseen = {str(p.relative_to(ROOT)) for p in paths if None in set(called_names(tree_of(p)))}
    assert unseen == IMPORT_BY_A_TABLE
    import factorize
    import factorize.accounting
    from factorize.api.workers.worker import PROVER, SOLVER
    from factorize.factors import _PICTURES

    homes = {home for room in (factorize, factorize.accounting) for home in room._HOMES.values()}
    homes |= {SOLVER, PROVER, _PICTURES}
    assert {home.split(".")[0] for home in homes} == {"factorize"}


def test_imports_are_light() -> None:
    """In one process, one after the other: what may load less comes first."""
    told = "print(*{name.split('.')[0] for name in sys.modules})"
    code = "import sys\n" + "".join(f"{statement}\n{told}\n" for statement in ABSENT)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    for (statement, absent), loaded in zip(ABSENT.items(), done.stdout.splitlines(), strict=True):
        assert not set(loaded.split()) & absent, statement


@pytest.mark.parametrize(
    ("earlier", "new"),
    [(earlier, new) for earlier, new in NEW_PATHS.items() if not new.startswith("factorize.adapters")],
)
def test_the_earlier_path_of_a_module_names_the_same_module(earlier: str, new: str) -> None:
    file = ROOT / earlier.replace(".", "/")
    assert not file.is_dir() and not file.with_suffix(".py").exists(), "a module at the earlier path hides the new one"
    sys.modules.pop(earlier, None)
    with pytest.warns(DeprecationWarning, match=re.escape(f"{earlier} has moved to {new}")):
        assert import_module(earlier) is import_module(new)
    assert getattr(import_module(earlier.rpartition(".")[0]), earlier.rpartition(".")[2]) is import_module(new)


def test_an_earlier_path_of_nothing_is_not_found() -> None:
    with pytest.raises(ModuleNotFoundError, match="factorize.certificate.nothing"):
        import_module("factorize.certificate.nothing")


def test_public_names_are_sorted_and_exist() -> None:
    import factorize

    assert sorted(factorize.__all__) == list(factorize.__all__)
    assert set(factorize.__all__) <= set(factorize._HOMES) and set(factorize.__all__) <= set(dir(factorize))
    typed = {
        alias.name: node.module
        for node in ast.parse((ROOT / "factorize/__init__.pyi").read_text()).body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert typed == factorize._HOMES
    assert all(getattr(factorize, name) is not None for name in factorize.__all__)
    with pytest.raises(AttributeError, match="nothing_of_that_name"):
        _ = factorize.nothing_of_that_name


def test_no_test_changes_the_clock_of_the_process() -> None:
    """A service of other tests runs in it, and would never wake up from a sleep that begins on such a clock."""
    changed = re.compile(r'setattr\(\s*("time\.|time,)')
    assert [str(path) for path in files("tests") + files("papers") if changed.search(path.read_text())] == []

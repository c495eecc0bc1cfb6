"""Each extra brings what its name promises and no more, and what is asked of it beyond that says which extra has it."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from bare_sites import PROJECT, closure, required, run, site_of
from house import PACKAGES, files
from specs import spec_text

from factorize.errors import EXTRAS, MissingExtra, extras_named

SOLVED = """
import sys
from factorize import parse_spec
from factorize.solvers import solve
factors = solve(parse_spec(sys.argv[1]))
factors.save(sys.argv[2])
print(factors.verify().sensitivity.value)
"""
WITHOUT_CVXPY = """
from factorize import parse_spec
from factorize.solvers.comparing import compare as comparing
asked = parse_spec('{"workload": {"kind": "prefix", "n": 4}}')
comparing.mechanisms = lambda *_: [{"kind": "identity"}, {"kind": "semidefinite"}]
found = comparing.compare(asked)
print(len(found.rows), [refused.reason for refused in found.refused if refused.mechanism == "semidefinite"])
"""
COMMAND = "from factorize.api.cli import main; main(sys.argv[1:])"
_IMPORT = re.compile(r"^\s*(?:from|import) (\w+)(?:[\w.]* import .*)?(?: as \w+)?$", re.MULTILINE)


@pytest.fixture(scope="module")
def cli_site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return site_of(tmp_path_factory.mktemp("cli"), "cli")


def test_extras_bring_no_more_than_their_name() -> None:
    heavy = {"cvxpy", "scs", "fastapi", "uvicorn", "distributed", "dask", "sqlalchemy"}
    assert not closure(required("cli")) & heavy
    assert not closure(required("solve")) & (heavy | {"typer", "rich", "matplotlib", "pydantic-settings"})
    assert closure(required("conic")) & heavy == {"cvxpy", "scs"}
    assert not closure(required("cluster")) & {"fastapi", "uvicorn"}


def test_every_package_that_we_import_is_brought_by_the_extra_that_errors_name() -> None:
    texts = [path.read_text() for package in PACKAGES for path in files(package)]
    ours = {name for text in texts for name in _IMPORT.findall(text)}
    base = {"factorize", "numpy", "pydantic", "pydantic_core", "safetensors", "IPython"}
    assert not ours - set(EXTRAS) - base - set(sys.stdlib_module_names)
    brought = {extra: closure(required(extra)) for extra in ("solve", "conic", "cli", "cluster", "serve", "cloud")}
    for package, extra in EXTRAS.items():
        assert extra in PROJECT["optional-dependencies"], extra
        name = {"jwt": "pyjwt", "flint": "python-flint"}.get(package, package.replace("_", "-"))
        assert name in brought.get(extra, {name}), (package, extra)


def test_the_command_line_needs_neither_the_service_nor_a_cluster(cli_site: Path, tmp_path: Path) -> None:
    file = tmp_path / "x.safetensors"
    done = run(cli_site, SOLVED, spec_text("prefix", n=8, mechanism="identity"), str(file))
    assert done.returncode == 0 and float(done.stdout) == 1.0, done.stderr
    done = run(cli_site, COMMAND, "calibrate", str(file), "--rho", "0.5", "--output", "json")
    assert done.returncode == 0 and json.loads(done.stdout)["sigma_of_sums"] == pytest.approx(1.0), done.stderr


def test_a_comparison_leaves_out_what_needs_another_extra(cli_site: Path) -> None:
    done = run(cli_site, WITHOUT_CVXPY)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("1 [") and "pip install 'factorize[conic]'" in done.stdout


@pytest.mark.parametrize(
    ("order", "extra"),
    [
        (["serve"], "serve"),
        (["worker", "--scheduler", "tcp://127.0.0.1:1"], "cluster"),
        (["solve", spec_text("prefix", n=8, mechanism="semidefinite")], "conic"),
    ],
)
def test_a_command_names_the_extra_that_it_needs(cli_site: Path, tmp_path: Path, order: list[str], extra: str) -> None:
    done = run(cli_site, COMMAND, *order, "--store", str(tmp_path / "store"))
    assert done.returncode == 2 and f"pip install 'factorize[{extra}]'" in done.stderr, done.stderr
    assert "Traceback" not in done.stderr


def test_only_packages_of_extras_are_named() -> None:
    with pytest.raises(MissingExtra, match=r"a picture needs matplotlib.*pip install 'factorize\[cli\]'") as found:
        with extras_named("a command"), extras_named("a picture"):
            raise ModuleNotFoundError("No module named 'matplotlib'", name="matplotlib.pyplot")
    assert found.value.name == "matplotlib" and isinstance(found.value, ModuleNotFoundError)
    with pytest.raises(ModuleNotFoundError, match="mine"):
        with extras_named("a command"):
            raise ModuleNotFoundError("No module named 'mine'", name="mine")

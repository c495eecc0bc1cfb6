"""Each extra brings what its name promises and no more, and what is asked of it beyond that says which extra has it."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from bare_sites import PROJECT, closure, name_of, required, run, site_of
from house import PACKAGES, ROOT, files
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
from factorize.solvers.comparing import compare as comparing, plan
asked = parse_spec('{"workload": {"kind": "prefix", "n": 4}}')
plan.mechanisms = lambda *_: [{"kind": "identity"}, {"kind": "semidefinite"}]
found = comparing.compare(asked)
print(len(found.rows), [refused.reason for refused in found.refused if refused.mechanism == "semidefinite"])
"""
COMMAND = "from factorize.api.cli import main; main(sys.argv[1:])"
JOB = """
import json, sys
import numpy as np
from factorize import Spec
from factorize.training.auditor import ParticipationAuditor
from factorize.client import Service, load
from factorize.training import fixed_order

for path in sys.argv[1:]:
    factors = load(path)
    scale = factors.calibrate(epsilon=2.0, delta=1e-6)
    noise = factors.noise(scale, 1000, seed=5 << 64)
    for row in noise:
        assert abs(row).max() > 0
    auditor = ParticipationAuditor.of(scale, factors.steps)
    for batch in fixed_order(2 * factors.steps, 2):
        auditor.record(batch)
    whole = factors.opened()
    assert whole.digest == factors.digest
    matrix, inverse, decoder = (whole.rows(name, 0, factors.steps) for name in ("C", "C_inv", "B"))
    assert np.allclose(matrix @ inverse, np.eye(factors.steps), atol=1e-12)
    assert np.allclose(decoder, np.cumsum(inverse, axis=0), atol=1e-12)
    for name, every in (("C", matrix), ("C_inv", inverse), ("B", decoder)):
        assert np.allclose(whole.rows(name, 5, 9), every[5:9], atol=1e-14)
        assert np.allclose(list(factors.rows(name)), every, atol=1e-14)
    try:
        whole.verify()
    except ModuleNotFoundError as error:
        assert "factorize[solve]" in str(error), error
    Spec.model_validate(factors.spec).document()
    assert noise.step == factors.steps
    print(factors.structure)
def needing():
    from factorize.client import load
    import factorize
    return [
        lambda: factorize.solve("prefix", n=8, mechanism="dense"),
        lambda: factorize.compare("prefix", n=8),
        lambda: load(path).calibrate(epsilon=1.0, delta=1e-6, sampling="balls_in_bins", bins=4),
        lambda: factorize.solve("prefix", n=8, mechanism="semidefinite"),
        lambda: load(path, signature=path, public_key=path),
    ]
for call in needing():
    try:
        call()
    except ModuleNotFoundError as error:
        assert "pip install 'factorize[" in str(error), error
    else:
        raise AssertionError("there was nothing to miss")
found = {name.split(".")[0] for name in sys.modules} - set(sys.stdlib_module_names)
print(json.dumps(sorted(found)))
"""
GOLDEN = ROOT / "tests/golden/0.1.0"
STREAMED = ["banded", "banded-toeplitz", "blt", "buffered", "dense", "inverse-banded-toeplitz", "redrawn", "scaled"]
STREAMED += ["toeplitz", "tree"]
"""Golden files of running sums, one of each structure with an end."""
_IMPORT = re.compile(r"^\s*(?:from|import) (\w+)(?:[\w.]* import .*)?(?: as \w+)?$", re.MULTILINE)


@pytest.fixture(scope="module")
def cli_site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return site_of(tmp_path_factory.mktemp("cli"), "cli")


@pytest.fixture(scope="module")
def bare_site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of packages that holds the base dependencies, and this project's package: what a training image needs."""
    return site_of(tmp_path_factory.mktemp("site"))


def test_extras_bring_no_more_than_their_name() -> None:
    heavy = {"cvxpy", "scs", "fastapi", "uvicorn", "distributed", "dask", "sqlalchemy"}
    assert not closure(required("cli")) & heavy
    assert not closure(required("solve")) & (heavy | {"typer", "rich", "matplotlib", "pydantic-settings"})
    assert closure(required("conic")) & heavy == {"cvxpy", "scs"}
    assert not closure(required("cluster")) & {"fastapi", "uvicorn"}


def test_every_package_that_we_import_is_brought_by_the_extra_that_errors_name() -> None:
    texts = [path.read_text() for package in PACKAGES for path in files(package)]
    ours = {name for text in texts for name in _IMPORT.findall(text)}
    base = {"factorize", "numpy", "pydantic", "pydantic_core", "safetensors"}
    theirs = {"IPython", "trl"}  # whoever calls a function about them has them
    base |= {"trl"}  # is installed by its own name, beside the extra of Hugging Face (docs/adapters.md)
    assert not ours - set(EXTRAS) - base - theirs - set(sys.stdlib_module_names)
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


def test_the_base_is_small_and_nothing_else_is_on_the_path(bare_site: Path) -> None:
    assert [name_of(entry) for entry in required()] == ["numpy", "pydantic", "safetensors"]
    assert "No module named 'scipy'" in run(bare_site, "import scipy").stderr


def test_loads_calibrates_audits_and_makes_noise(bare_site: Path) -> None:
    done = run(bare_site, JOB, *(str(GOLDEN / f"{name}.safetensors") for name in STREAMED))
    assert done.returncode == 0, done.stderr
    *lines, modules = done.stdout.splitlines()
    assert [line.split()[0].replace("_", "-") for line in lines] == STREAMED
    assert set(json.loads(modules)) & {"numpy", "safetensors", "pydantic"}


def test_the_command_line_says_what_it_needs(bare_site: Path) -> None:
    done = run(bare_site, "from factorize.api.cli import main; main(['jobs', 'ls'])")
    assert done.returncode == 2 and "pip install 'factorize[cli]'" in done.stderr and "Traceback" not in done.stderr


def test_every_extra_is_declared_and_documented() -> None:
    extras = PROJECT["optional-dependencies"]
    text = (ROOT / "docs" / "adapters.md").read_text()
    assert {"solve", "conic", "cli", "cluster", "serve", "torch", "jax", "accounting"} < set(extras)
    for name in set(extras) - {"test", "example"}:
        assert f"`[{name}]`" in text, name

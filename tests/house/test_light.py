"""A training image needs the base dependencies alone: run with these, and nothing else, on the path."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from importlib.metadata import distribution
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

JOB = """
import json, sys
from pathlib import Path
from factorize import Spec, load as open_whole
from factorize.auditor import ParticipationAuditor
from factorize.client import Service, load
from factorize.training import fixed_order

for path in sorted(Path(sys.argv[1]).glob("*.safetensors")):
    factors = load(path)
    scale = factors.calibrate(epsilon=2.0, delta=1e-6)
    noise = factors.noise(scale, 1000, seed=5)
    for row in noise:
        assert abs(row).max() > 0
    auditor = ParticipationAuditor.of(scale, factors.steps)
    for batch in fixed_order(64, 2):
        auditor.record(batch)
    assert open_whole(path).digest == factors.digest
    Spec.model_validate(factors.spec).document()
    print(path.stem, factors.structure, noise.step)
found = {name.split(".")[0] for name in sys.modules} - set(sys.stdlib_module_names)
print(json.dumps(sorted(found)))
"""


def base_dependencies() -> list[str]:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    return [re.split(r"[<>=!~ ;\[]", entry)[0] for entry in declared]


def closure(names: list[str]) -> set[str]:
    """The distributions and all that they require without extras."""
    found: set[str] = set()
    while names:
        name = names.pop()
        if name not in found:
            found.add(name)
            required = distribution(name).requires or []
            names += [re.split(r"[<>=!~ ;\[(]", entry)[0] for entry in required if "extra ==" not in entry]
    return found


@pytest.fixture(scope="module")
def bare_site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of packages that holds the base dependencies, and this project's package."""
    site = tmp_path_factory.mktemp("site")
    for name in closure(base_dependencies()):
        files = distribution(name).files or []
        for top in {file.parts[0] for file in files if file.parts[0] not in ("..", "__pycache__")}:
            (site / top).symlink_to(Path(str(distribution(name).locate_file(top))))
    (site / "factorize").symlink_to(ROOT / "factorize")
    return site


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from factorize import Spec
    from factorize.solvers import solve

    folder = tmp_path_factory.mktemp("files")
    mechanisms = [
        {"kind": "dense"},
        {"kind": "buffered_linear", "buffers": 2},
        {"kind": "banded_toeplitz", "bands": 3},
        {"kind": "square_root"},
        {"kind": "square_root", "normalization": "columns"},
        {"kind": "tree", "decoder": "honaker_full"},
        {"kind": "blt", "buffers": 2},
    ]
    for i, mechanism in enumerate(mechanisms):
        spec = Spec.model_validate({"workload": {"kind": "prefix", "n": 32}, "mechanism": mechanism})
        solve(spec).save(folder / f"{i}-{mechanism['kind']}.safetensors")
    return folder


def run(site: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    """Python without its own site-packages, in a process that sees `site` alone."""
    code = f"import sys; sys.path.insert(0, {str(site)!r}); exec(sys.argv.pop(1))"
    return subprocess.run([sys.executable, "-I", "-S", "-c", code, *argv], capture_output=True, text=True, cwd=site)


def test_the_base_is_small() -> None:
    assert sorted(base_dependencies()) == ["numpy", "pydantic", "safetensors"]


def test_nothing_else_is_on_the_path(bare_site: Path) -> None:
    assert "No module named 'scipy'" in run(bare_site, "import scipy").stderr


def test_loads_calibrates_audits_and_makes_noise(bare_site: Path, files: Path) -> None:
    done = run(bare_site, JOB, str(files))
    assert done.returncode == 0, done.stderr
    *lines, modules = done.stdout.splitlines()
    assert len(lines) == 7 and all(line.endswith(" 32") for line in lines)
    assert {line.split()[1] for line in lines} >= {"dense", "buffered", "banded_toeplitz", "toeplitz", "blt", "tree"}
    assert set(json.loads(modules)) & {"numpy", "safetensors", "pydantic"}


def test_the_command_line_says_what_it_needs(bare_site: Path) -> None:
    done = run(bare_site, "from factorize.api.cli import main; main(['jobs', 'ls'])")
    assert done.returncode == 2 and "pip install 'factorize[serve]'" in done.stderr and "Traceback" not in done.stderr


def test_every_extra_is_declared_and_documented() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    text = (ROOT / "docs" / "adapters.md").read_text()
    for name in ("solve", "serve", "torch", "jax", "accounting"):
        assert name in extras and f"`[{name}]`" in text

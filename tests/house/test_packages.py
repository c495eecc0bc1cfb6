"""The distribution: one name in site-packages, whatever a user's own packages are called."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from house import ROOT


def python(code: str, *arguments: str, cwd: Path = ROOT) -> str:
    done = subprocess.run([sys.executable, "-c", code, *arguments], cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def wheel_of(folder: Path, to: Path) -> Path:
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir"]
    done = subprocess.run([*command, str(to), str(folder)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return next(to.glob("*.whl"))


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    return next(built.glob("*.whl"))


PAGE_FILES = {".html", ".css", ".js", ".svg"}


def names(wheel: Path) -> set[str]:
    return set(zipfile.ZipFile(wheel).namelist())


def test_a_wheel_has_one_name(wheel: Path) -> None:
    tops = {name.split("/")[0] for name in names(wheel)}
    assert {re.sub(r"-[\d.]+\d", "", top) for top in tops} == {"factorize", "factorize.dist-info"}
    assert {"factorize/solvers/register.py", "factorize/api/cli.py"} < names(wheel)
    page = {path.relative_to(ROOT) for path in (ROOT / "api/http/console").rglob("*") if path.suffix in PAGE_FILES}
    assert {f"factorize/{path}" for path in page} < names(wheel)


def test_a_source_distribution_makes_the_same_wheel(built: Path, wheel: Path, tmp_path: Path) -> None:
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        archive.extractall(tmp_path / "unpacked", filter="data")
    again = wheel_of(next((tmp_path / "unpacked").iterdir()), tmp_path / "again")
    assert names(again) == names(wheel)


@pytest.fixture
def site(wheel: Path, tmp_path: Path) -> Path:
    """A folder of packages: ours as installed, and a user's own `api` and `solvers`."""
    site = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(site)
    for name in ("api", "solvers"):
        (site / name).mkdir()
        (site / name / "__init__.py").write_text("OWNER = 'user'\n")
    return site


def test_ours_and_a_users_packages_stand_side_by_side(site: Path) -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import api, solvers, factorize.solvers, factorize.api.cli\n"
        "assert (api.OWNER, solvers.OWNER) == ('user', 'user')\n"
        "assert factorize.__file__.startswith(sys.argv[1])\n"
        "spec = factorize.parse_spec({'workload': {'kind': 'prefix', 'n': 8}, 'mechanism': {'kind': 'identity'}})\n"
        "print(factorize.solvers.solve(spec).manifest['spec']['workload']['n'])\n"
        "try:\n    import solvers.register\nexcept ModuleNotFoundError: print('theirs')\n"
    )
    assert python(code, str(site), cwd=site).split() == ["8", "theirs"]

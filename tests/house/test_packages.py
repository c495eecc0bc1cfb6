"""The distribution: the whole product from any archive, and one name in site-packages whatever a user's own are called."""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest
from house import ROOT

from release import distributions

LINKS = {"factorize/api", "factorize/solvers"}


def git(*words: str) -> str:
    return subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=True).stdout


def checkout(how: str, to: Path, built: Path) -> Path:
    """The sources as one gets them; Python's `zipfile` turns links into files, as many tools do, and pip by it."""
    if how == "clone":
        git("clone", "--quiet", "-c", "core.symlinks=false", str(ROOT), str(to))
    elif how == "sdist":
        with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
            archive.extractall(to, filter="data")
    elif how == "tar":
        git("archive", "--format=tar", "--prefix=factorize-main/", "--output", str(to.with_suffix(".tar")), "HEAD")
        with tarfile.open(to.with_suffix(".tar")) as archive:
            archive.extractall(to, filter="data")
    else:
        git("archive", "--format=zip", "--prefix=factorize-main/", "--output", str(to.with_suffix(".zip")), "HEAD")
        with zipfile.ZipFile(to.with_suffix(".zip")) as archive:
            archive.extractall(to)
    return to if how == "clone" else next(to.iterdir())


def files_of_the_package(how: str) -> set[str]:
    """What git holds, by the names of a wheel: an archive and a clone have a commit, ours the files of today."""
    held = distributions.tracked() if how == "sdist" else git("ls-tree", "-r", "--name-only", "HEAD").splitlines()
    inside = {name for name in held if name.startswith(("factorize/", "api/", "solvers/"))} - LINKS
    return {name if name.startswith("factorize/") else f"factorize/{name}" for name in inside}


@pytest.mark.parametrize("how", ["zip", "tar", "sdist", "clone"])
def test_any_archive_gives_the_whole(how: str, built: Path, tmp_path: Path) -> None:
    sources, made, site = checkout(how, tmp_path / "sources", built), tmp_path / "made", tmp_path / "site"
    assert all((sources / link).is_dir() for link in LINKS) == (how == "tar")
    made.mkdir()
    with zipfile.ZipFile(distributions.run_hook("build_wheel", sources, made, second=1_700_000_000)) as wheel:
        names = {name for name in wheel.namelist() if not re.match(r"factorize-[\d.]+\.dist-info/", name)}
        wheel.extractall(site)
    (described,) = [path.read_text() for path in site.glob("*.dist-info/METADATA")]
    assert "\n# factorize\n" in described and not re.search(r"\]\((?!https:)", described)
    assert names == files_of_the_package(how)
    if how in ("zip", "sdist"):  # links that are files, and none; the others have the same files by other ways
        solve_beside_packages_of_a_user(site)


def test_a_wheel_runs_without_being_unpacked(built: Path) -> None:
    (wheel,) = built.glob("factorize-*.whl")
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from factorize.numbers.kernel_compiler import compile_late\n"
        "from factorize.numbers.scalars import root_above\n"
        "from factorize.solvers.amplified.families import TABLE\n"
        "compile_late(root_above)\n"  # does not compile before it is called
        "print(root_above.__code__.co_filename.startswith(sys.argv[1]), len(TABLE.read_bytes()) > 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(wheel)], cwd=built, capture_output=True, text=True)
    assert done.stdout.split() == ["True", "True"], done.stderr


def test_half_a_checkout_is_refused(built: Path, tmp_path: Path) -> None:
    sources = checkout("sdist", tmp_path / "sources", built)
    (sources / "solvers").rename(tmp_path / "solvers")
    with pytest.raises(RuntimeError, match="'solvers' does not exist"):
        distributions.run_hook("build_wheel", sources, tmp_path, second=1_700_000_000)


def solve_beside_packages_of_a_user(site: Path) -> None:
    """Solve with an installed wheel, beside a user's own `api` and `solvers`."""
    for name in ("api", "solvers"):
        (site / name).mkdir()
        (site / name / "__init__.py").write_text("OWNER = 'user'\n")
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import api, solvers, factorize.solvers, factorize.api.cli\n"
        "assert (api.OWNER, solvers.OWNER) == ('user', 'user')\n"
        "assert factorize.__file__.startswith(sys.argv[1])\n"
        "spec = factorize.parse_spec({'workload': {'kind': 'prefix', 'n': 8}, 'mechanism': {'kind': 'identity'}})\n"
        "print(factorize.solvers.solve(spec).manifest['spec']['workload']['n'])\n"
        "try:\n    import solvers.register\nexcept ModuleNotFoundError: print('theirs')\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(site)], cwd=site, capture_output=True, text=True)
    assert done.stdout.split() == ["8", "theirs"], done.stderr


def test_a_checkout_whose_path_is_not_ascii_is_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment's `.pth` names the checkout."""
    venv.create(tmp_path / "env")
    (site,) = (tmp_path / "env").glob("lib/python*/site-packages")
    (site / "own.pth").write_text(f"{tmp_path}/gr\u00f6\u00dfer\n{sysconfig.get_path('purelib')}\n", encoding="utf-8")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "env/bin/python"))
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "one"\nversion = "1"\n')
    assert distributions.run_hook("build_wheel", tmp_path, tmp_path, second=1_700_000_000).suffix == ".whl"

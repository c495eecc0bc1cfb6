"""Distributions built so that the same commit gives the same bytes, whoever builds it and wherever."""

from __future__ import annotations

import gzip
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
SETTINGS = ("pyproject.toml", "setup.py", "README.md", "LICENSE", "MANIFEST.in", "release/place.toml")
PACKED = ("factorize", "solvers", "api", *SETTINGS)
_BUILD = """
import os, sys
from setuptools import build_meta
os.umask(0o022)
print(getattr(build_meta, sys.argv[2])(sys.argv[1]))
"""


def tracked(root: Path = ROOT) -> list[str]:
    """Return the files of the distributions that git holds, as it names them, in order; links to folders are none."""
    command = ["git", "ls-files", "-z", "--", *PACKED]
    listed = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout
    return sorted(name for name in listed.split("\0") if name and (root / name).is_file())


def commit_of(root: Path = ROOT) -> tuple[str, int]:
    """Return the commit that is checked out, and the second in which it was made."""
    command = ["git", "log", "-1", "--format=%H %ct"]
    name, second = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout.split()
    return name, int(second)


def changed(root: Path = ROOT) -> list[str]:
    """Return what differs from the commit, of what the distributions are made from."""
    command = ["git", "status", "--porcelain", "--", *PACKED, "release"]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout.splitlines()


def build(to: Path, *, second: int, root: Path = ROOT) -> list[Path]:
    """Build wheel and source distribution with the setuptools of this environment, and return their paths.

    Args:
        to: an existing folder.
        second: since 1970, which all files inside carry.
        root: the checkout.

    Raises:
        RuntimeError: the build failed; with what it has said.
    """
    with tempfile.TemporaryDirectory(prefix="factorize-build-") as folder:
        sources, made = Path(folder) / "sources", Path(folder) / "made"
        made.mkdir()
        _copy(root, sources)
        for hook in ("build_sdist", "build_wheel"):
            run_hook(hook, sources, made, second=second)
        found = []
        for path in sorted(made.iterdir()):
            target = to / path.name
            if path.name.endswith(".tar.gz"):
                target.write_bytes(_repacked(path.read_bytes(), second))
            else:
                shutil.copyfile(path, target)
            found.append(target)
        return found


def run_hook(hook: str, sources: Path, to: Path, *, second: int) -> Path:
    """Run a hook of setuptools, of this environment, in a folder, and return the file that it made.

    Args:
        hook: `build_sdist` or `build_wheel`.
        sources: with a pyproject.toml.
        to: an existing folder.
        second: since 1970, which all files inside carry.

    Raises:
        RuntimeError: the build failed; with what it has said.
    """
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(second), "PYTHONHASHSEED": "0", "TZ": "UTC"}
    environment["LC_ALL"] = "C.UTF-8"  # in C, the environment's `.pth` may not name a checkout that is not ASCII
    command = [sys.executable, "-I", "-c", _BUILD, str(to.absolute()), hook]
    done = subprocess.run(command, cwd=sources, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{hook} failed: {done.stderr[-2000:]}")
    return to / done.stdout.splitlines()[-1]


def _copy(root: Path, to: Path) -> None:
    """Copy the tracked files, with modes that do not depend on who has checked them out."""
    for name in tracked(root):
        source, target = root / name, to / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
        target.chmod(0o644)


def _repacked(data: bytes, second: int) -> bytes:
    """Return a .tar.gz with its files in order, and without the time and the user of the build."""
    out = io.BytesIO()
    with (
        tarfile.open(fileobj=io.BytesIO(data)) as old,
        tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as new,
    ):
        for member in sorted(old.getmembers(), key=lambda member: member.name):
            member.mtime, member.uid, member.gid, member.uname, member.gname = second, 0, 0, "", ""
            member.mode = 0o755 if member.isdir() else 0o644
            member.pax_headers = {}
            new.addfile(member, old.extractfile(member) if member.isfile() else None)
    return gzip.compress(out.getvalue(), compresslevel=9, mtime=0)

"""Folders of packages that hold what an extra brings and nothing else, as `pip install factorize[extra]` would make them."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from house import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
_NAME = re.compile(r"[A-Za-z0-9._-]+")
_EXTRAS = re.compile(r"\[([^]]*)\]")


def required(*extras: str) -> list[str]:
    """The requirements of a plain install and of extras, our own extras among them followed."""
    found, waiting = list(PROJECT["dependencies"]), list(extras)
    while waiting:
        for entry in PROJECT["optional-dependencies"][waiting.pop()]:
            own = entry.startswith("factorize[")
            waiting += _EXTRAS.findall(entry)[0].split(",") if own else []
            found += [] if own else [entry]
    return sorted(set(found))


def name_of(entry: str) -> str:
    """The name in a requirement."""
    return _NAME.match(entry)[0].lower().replace("_", "-")


def closure(requirements: list[str]) -> set[str]:
    """The names of distributions, and of all that they require; of theirs with markers, those that are installed."""
    found: set[str] = set()
    waiting = list(requirements)
    while waiting:
        entry = waiting.pop()
        name = name_of(entry)
        if name in found or ("extra ==" in entry and "[" not in entry.partition(";")[0] and ";" in entry):
            continue
        try:
            further = distribution(name).requires or []
        except PackageNotFoundError:
            assert ";" in entry, f"{name} is required and not installed"  # its marker is for another machine
            continue
        found.add(name)
        waiting += [one for one in further if "extra ==" not in one]
    return found


def link(folder: Path, requirements: list[str]) -> None:
    """Put links to distributions, and to all that they require, into a folder."""
    for name in closure(requirements):
        for top in {file.parts[0] for file in distribution(name).files or []} - {"..", "__pycache__"}:
            if not (folder / top).exists():
                (folder / top).symlink_to(Path(str(distribution(name).locate_file(top))))


def site_of(folder: Path, *extras: str) -> Path:
    """A folder with links to what a plain install and the extras bring, and to this project's package."""
    link(folder, required(*extras))
    (folder / "factorize").symlink_to(ROOT / "factorize")
    return folder


def run(site: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    """Python without its own site-packages, in a process that sees `site` alone."""
    code = f"import sys; sys.path.insert(0, {str(site)!r}); exec(sys.argv.pop(1))"
    return subprocess.run([sys.executable, "-I", "-S", "-c", code, *argv], capture_output=True, text=True, cwd=site)

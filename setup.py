"""Packages and their folders: `factorize.api` and `factorize.solvers` are folders of the top level.

The links in `factorize/` let interpreters, editors and type checkers import both from a checkout. The build does not
read them, because many archives and some clones turn links into files. Folders of data count as packages, as
setuptools wants it.
"""

import re
import tomllib
from pathlib import Path

from setuptools import find_namespace_packages, setup

FOLDERS = {"factorize": "factorize", "factorize.api": "api", "factorize.solvers": "solvers"}
LEFT_OUT = ["api", "api.*", "solvers", "solvers.*", "*__pycache__"]


def read_place() -> dict[str, str]:
    """Return what a person fills in before the first release; a source archive without it has no addresses."""
    path = Path("release/place.toml")
    return {name: text for name, text in tomllib.loads(path.read_text()).items() if text} if path.exists() else {}


def describe(repository: str | None) -> str:
    """Return the README for a package's page, where only text and whole addresses mean something.

    Its pictures are left out. Links to pages beside it become whole addresses, or plain words without a repository.
    """
    text = Path("README.md").read_text(encoding="utf-8")
    text = re.sub(r"!\[[^]]*\]\((?!https:)[^)]*\)\n*", "", text)
    if repository:
        return re.sub(r"\]\((?!https:)", f"]({repository}/blob/main/", text)
    text = re.sub(r"\[([^]]*)\]\((?!https:)[^)]*\)", r"\1", text)
    return f"{text}\nThe pages named here are in the repository.\n"


REPOSITORY = read_place().get("repository")
LINKS = {"Source": "", "Changelog": "/blob/main/CHANGELOG.md", "Documentation": "/blob/main/docs/index.md"}

setup(
    long_description=describe(REPOSITORY),
    long_description_content_type="text/markdown",
    project_urls={name: REPOSITORY + path for name, path in LINKS.items()} if REPOSITORY else {},
    package_dir=FOLDERS,
    packages=[
        package
        for top, folder in FOLDERS.items()
        for package in (top, *(f"{top}.{name}" for name in find_namespace_packages(folder, exclude=LEFT_OUT)))
    ],
)

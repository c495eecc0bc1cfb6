"""Packages and their folders: `factorize.api` and `factorize.solvers` are folders of the top level.

The links in `factorize/` let interpreters, editors and type checkers import both from a checkout. The build does not
read them, because many archives and some clones turn links into files. Folders of data count as packages, as
setuptools wants it.
"""

import re
from pathlib import Path

from setuptools import find_namespace_packages, setup

FOLDERS = {"factorize": "factorize", "factorize.api": "api", "factorize.solvers": "solvers"}
LEFT_OUT = ["api", "api.*", "solvers", "solvers.*", "*__pycache__"]


def describe() -> str:
    """Return the README for a package's page, where only text and whole addresses mean something.

    Its pictures and pages lie beside it in the source, which has no public address.
    """
    text = Path("README.md").read_text(encoding="utf-8")
    text = re.sub(r"!\[[^]]*\]\((?!https:)[^)]*\)\n*", "", text)
    text = re.sub(r"\[([^]]*)\]\((?!https:)[^)]*\)", r"\1", text)
    return f"{text}\nThe pages named here are in the source archive.\n"


setup(
    long_description=describe(),
    long_description_content_type="text/markdown",
    package_dir=FOLDERS,
    packages=[
        package
        for top, folder in FOLDERS.items()
        for package in (top, *(f"{top}.{name}" for name in find_namespace_packages(folder, exclude=LEFT_OUT)))
    ],
)

"""Packages and their folders: `factorize.api` and `factorize.solvers` are folders of the top level.

The links in `factorize/` let interpreters, editors and type checkers import both from a checkout. The build does not
read them, because many archives and some clones turn links into files.
"""

from setuptools import find_packages, setup

FOLDERS = {"factorize": "factorize", "factorize.api": "api", "factorize.solvers": "solvers"}
LINKS = ["api", "api.*", "solvers", "solvers.*"]

setup(
    package_dir=FOLDERS,
    packages=[
        package
        for top, folder in FOLDERS.items()
        for package in (top, *(f"{top}.{name}" for name in find_packages(folder, exclude=LINKS)))
    ],
)

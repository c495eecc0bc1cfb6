"""`python3.14 release/newer_python.py [FOLDER ...]`: whether the sources are ones of the interpreter that runs this.

It needs no dependency, so it runs on a Python that numpy has no wheel for yet: CPython as WebAssembly, say. Every file
compiles with all warnings as errors, and every name of the standard library that a file uses is there. Names that one
platform lacks are printed too; the suites themselves run wherever the dependencies have wheels.
"""

from __future__ import annotations

import ast
import importlib
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

FOLDERS = ("factorize", "solvers", "api", "release", "library", "examples", "benchmarks", "papers", "tests")


def missing(source: str, name: str) -> Iterator[str]:
    """Yield what a file has that this interpreter does not take."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            compile(source, name, "exec")
        except (SyntaxError, Warning) as error:
            yield str(error)
            return
    tree, modules = ast.parse(source), {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for one in node.names:
                if one.name.partition(".")[0] in sys.stdlib_module_names:
                    modules[one.asname or one.name] = one.name
                    yield from _absent(one.name)
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            if node.module.partition(".")[0] in sys.stdlib_module_names:
                for one in node.names:
                    yield from _absent(node.module, one.name)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
            yield from _absent(modules[node.value.id], node.attr)


def _absent(module: str, name: str = "") -> Iterator[str]:
    """Yield the name where neither an attribute nor a module has it."""
    try:
        if not name or hasattr(importlib.import_module(module), name):
            importlib.import_module(module)
        else:
            importlib.import_module(f"{module}.{name}")
    except ImportError:
        yield f"{module}.{name}".rstrip(".")


def main(folders: list[str]) -> int:
    """Look at all sources; the exit status is 1 where something is not there."""
    root = Path(__file__).parents[1]
    files = [path for folder in folders or FOLDERS for path in sorted((root / folder).rglob("*.py"))]
    files = [path for path in files if path.name != Path(__file__).name]
    found = {
        (str(path.relative_to(root)), what) for path in files for what in missing(path.read_text("utf-8"), str(path))
    }
    print(f"Python {sys.version.split()[0]}: {len(files)} files, {len(found)} names are not there")
    for path, what in sorted(found):
        print(f"  {path}: {what}")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""`python -m release.check [--to FOLDER]`: builds the distribution `factorize-check`, of what its command imports.

It is the checker and the format as they are in this repository, and is not to be installed beside `factorize`, which
has the same modules and the same command.
"""

from __future__ import annotations

import argparse
import ast
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from release.distributions import ROOT, commit_of, run_hook

ENTRY = "factorize.checker.__main__"


def modules(entry: str = ENTRY, root: Path = ROOT) -> dict[str, Path]:
    """Return the modules of this project that one imports, now or when it runs, and their files."""
    found: dict[str, Path] = {}
    waiting = [entry]
    while waiting:
        name = waiting.pop()
        path = _file(root, name)
        if name in found or path is None:
            continue
        found[name] = path
        waiting += [name.rpartition(".")[0], *_imported(ast.parse(path.read_text()))]
    return found


def _file(root: Path, name: str) -> Path | None:
    folder = root.joinpath(*name.split("."))
    candidates = folder.with_suffix(".py"), folder / "__init__.py"
    return next((path for path in candidates if name and path.is_file()), None)


def _imported(tree: ast.AST) -> Iterator[str]:
    """Yield what a module imports, but for the types that only its checker reads."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        yield from _imported(node)


def build(to: Path, *, second: int) -> Path:
    """Build the wheel, and return its path.

    Args:
        to: an existing folder.
        second: since 1970, which all files inside carry.

    Raises:
        RuntimeError: the build failed; with what it has said.
    """
    with tempfile.TemporaryDirectory(prefix="factorize-check-") as folder:
        sources = Path(folder) / "sources"
        for path in modules().values():
            target = sources / path.relative_to(ROOT)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
        shutil.copyfile(ROOT / "release" / "check.toml", sources / "pyproject.toml")
        shutil.copyfile(ROOT / "LICENSE", sources / "LICENSE")
        return run_hook("build_wheel", sources, to, second=second)


def main(arguments: list[str] | None = None) -> int:
    """Build the wheel and print its path."""
    parser = argparse.ArgumentParser(prog="python -m release.check", description=__doc__)
    parser.add_argument("--to", type=Path, default=ROOT / "dist", help="folder for the file")
    given = parser.parse_args(arguments)
    given.to.mkdir(parents=True, exist_ok=True)
    print(build(given.to, second=commit_of()[1]))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The distribution `factorize-check`: a wheel of what its command imports, which `python -m release` builds.

It is the checker and the format as they are in this repository, and is not to be installed beside `factorize`, which
has the same modules and the same command.
"""

from __future__ import annotations

import ast
import shutil
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path

from release.distributions import ROOT, run_hook

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
    """Yield what a module imports, but for the types that only its checker reads, and what it does without.

    The latter is tried, with another way where it is not there: the compiler of loops, which needs numba.
    """
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.Try) and any("ImportError" in ast.unparse(each.type or node) for each in node.handlers):
            continue
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        yield from _imported(node)


def build(to: Path, *, second: int, root: Path = ROOT) -> Path:
    """Build the wheel, and return its path.

    Args:
        to: an existing folder.
        second: since 1970, which all files inside carry.
        root: the checkout.

    Raises:
        RuntimeError: the build failed; with what it has said.
    """
    with tempfile.TemporaryDirectory(prefix="factorize-check-") as folder:
        sources = Path(folder) / "sources"
        copied = {path: path.relative_to(root) for path in modules(root=root).values()}
        copied |= {path: path.relative_to(root) for path in root.glob("factorize/checker/pages/*")}
        copied |= {root / "release" / "check.toml": Path("pyproject.toml"), root / "LICENSE": Path("LICENSE")}
        copied |= {root / "release" / "check.md": Path("README.md")}
        for path, name in copied.items():
            target = sources / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
            target.chmod(0o644)
        if repository := tomllib.loads((root / "release" / "place.toml").read_text())["repository"]:
            with (sources / "pyproject.toml").open("a") as settings:
                settings.write(f'\n[project.urls]\nSource = "{repository}"\n')
                settings.write(f'Documentation = "{repository}/blob/main/docs/receipt.md"\n')
        return run_hook("build_wheel", sources, to, second=second)

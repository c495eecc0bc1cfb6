"""`python -m benchmarks.mutation [MODULE ...] [--each K] [--seed S]`: do the tests notice when the store is wrong?

Changes one thing of a module at a time (a comparison, a constant, an operator, a condition, a statement left out), runs
that module's tests on a copy of the repository, and counts the changes that no test notices, each with its line.
"""

from __future__ import annotations

import argparse
import ast
import copy
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
_STORE = ("test_store.py", "test_store_contract.py", "test_fsck.py", "test_gc.py", "test_revocation.py")
TESTS = {
    "encoding": ("test_encoding.py", "test_spec.py", "test_golden.py"),
    "blobs": ("test_blobs.py", "test_store.py"),
    "records": _STORE,
    "index": ("test_store.py", "test_store_contract.py", "test_revocation.py"),
    "store": (*_STORE, "test_store_crash.py"),
    "objects": ("test_files.py", "test_store.py", "test_fsck.py", "test_store_crash.py"),
    "files": ("test_files.py", "test_store.py", "test_store_crash.py"),
    "fsck": ("test_fsck.py", "test_revocation.py", "test_store.py"),
    "gc": ("test_gc.py",),
    "revocation": ("test_revocation.py", "test_fsck.py"),
    "manifest": ("test_factorization.py", "test_store.py", "test_files.py"),
}
SECONDS = 300
_COMPARISONS = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
_OPERATORS = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv,
    ast.LShift: ast.RShift, ast.BitOr: ast.BitAnd, ast.BitAnd: ast.BitOr,
}  # fmt: skip


def changes(tree: ast.Module) -> Iterator[tuple[str, ast.Module]]:
    """Iterate over changed copies of a module, each with its line and what was done."""
    types = {id(part) for node in ast.walk(tree) for part in _annotations(node)}
    for index, node in enumerate(ast.walk(tree)):
        for name in _possible(node) if id(node) not in types else ():
            changed = copy.deepcopy(tree)
            target = next(n for i, n in enumerate(ast.walk(changed)) if i == index)
            before = ast.unparse(target)[:60]
            _apply(name, target)
            yield f"{getattr(node, 'lineno', 0)}: {name}: {before.splitlines()[0]}", ast.fix_missing_locations(changed)


def _possible(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Compare) and type(node.ops[0]) in _COMPARISONS:
        return ["comparison"]
    if isinstance(node, ast.BoolOp):
        return ["and/or"]
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return ["operator"]
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return ["constant"]
    if isinstance(node, ast.Constant) and type(node.value) is bool:
        return ["truth"]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return ["not"]
    if isinstance(node, ast.If | ast.While | ast.IfExp):
        return ["condition"]
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        return ["left out"]
    if isinstance(node, ast.Return) and node.value is not None and not isinstance(node.value, ast.Constant):
        return ["returns None"]
    return []


def _annotations(node: ast.AST) -> Iterator[ast.AST]:
    """The parts of a node's annotations, which change nothing at run time."""
    for name in ("annotation", "returns"):
        found = getattr(node, name, None)
        if found is not None:
            yield from ast.walk(found)


def _apply(name: str, node: ast.AST) -> None:
    match node:
        case ast.Compare():
            node.ops[0] = _COMPARISONS[type(node.ops[0])]()
        case ast.BoolOp():
            node.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        case ast.BinOp():
            node.op = _OPERATORS[type(node.op)]()
        case ast.Constant():
            node.value = (not node.value) if name == "truth" else node.value + 1
        case ast.UnaryOp():
            node.op, node.operand = ast.Not(), ast.UnaryOp(ast.Not(), node.operand)
        case ast.If() | ast.While() | ast.IfExp():
            node.test = ast.Constant(False) if isinstance(node, ast.While) else ast.UnaryOp(ast.Not(), node.test)
        case ast.Expr():
            node.value = ast.Constant(None)
        case ast.Return():
            node.value = ast.Constant(None)


def survives(folder: Path, tests: tuple[str, ...]) -> bool:
    """Whether a changed copy passes the tests; one that hangs does not."""
    chosen = [f"tests/{name}" for name in tests]
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *chosen]
    environment = os.environ | {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def run(module: str, each: int, seed: int, folder: Path) -> tuple[int, list[str]]:
    """Return how many changes of a module were tried, and those that survived."""
    path = folder / "factorize" / f"{module}.py"
    original = path.read_text()
    found = list(changes(ast.parse(original)))
    chosen = random.Random(seed).sample(found, min(each, len(found)))
    survivors: list[str] = []
    if not survives(folder, TESTS[module]):
        raise SystemExit(f"the tests of factorize/{module}.py fail as it is: {', '.join(TESTS[module])}")
    for name, tree in chosen:
        path.write_text(ast.unparse(tree))
        if survives(folder, TESTS[module]):
            survivors.append(f"factorize/{module}.py:{name}")
            print(f"  survives {survivors[-1]}", flush=True)
    path.write_text(original)
    return len(chosen), survivors


def main() -> None:
    """Run the modules that are asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mutation", description=__doc__.splitlines()[0])
    parser.add_argument("modules", nargs="*", default=list(TESTS), metavar="MODULE", help=", ".join(TESTS))
    parser.add_argument("--each", type=int, default=10**6, help="changes per module, drawn (all)")
    parser.add_argument("--seed", type=int, default=2026)
    given = parser.parse_args()
    tried, survived = 0, 0
    with tempfile.TemporaryDirectory(prefix="factorize-mutation-") as name:
        folder = Path(name)
        for part in ("factorize", "solvers", "api", "tests", "pyproject.toml"):
            source = ROOT / part
            if source.is_dir():
                shutil.copytree(source, folder / part, ignore=shutil.ignore_patterns("*.nbi", "*.nbc"))
            else:
                shutil.copy(source, folder / part)
        for module in given.modules:
            count, survivors = run(module, given.each, given.seed, folder)
            print(f"{module}: {count - len(survivors)} of {count} changes are noticed", flush=True)
            tried, survived = tried + count, survived + len(survivors)
    print(f"{tried - survived} of {tried} changes are noticed: {100 * (1 - survived / max(tried, 1)):.1f} %")


if __name__ == "__main__":
    main()

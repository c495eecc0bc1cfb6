"""Small changes of code that only computes, and whether the tests notice, in forked processes.

`python -m benchmarks.mutants factorize/exact --tests tests/test_exact*.py`

The tests are collected once. For each change a child process takes over the changed function's code and runs them,
quickest first, until one fails; one that runs far longer than all of them counts as noticed. Compiled functions, what
modules run when they are imported, and the text of messages are left alone. Nothing is written to the source tree.
"""

from __future__ import annotations

import argparse
import ast
import copy
import importlib
import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

import pytest

OPERATORS: dict[type, type] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Pow: ast.Mult,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
    ast.And: ast.Or,
    ast.Or: ast.And,
}
CALLS = {"max": "min", "min": "max", "all": "any", "any": "all", "abs": "float", "hypot": "fsum"}


class Mutant(NamedTuple):
    """One change of one function."""

    module: str
    function: str
    line: int
    what: str
    code: CodeType


def changes(node: ast.AST) -> Iterator[tuple[str, Callable[[], None]]]:
    """Ways to change one node in place, each with its words."""
    if isinstance(node, (ast.BinOp, ast.BoolOp, ast.AugAssign)) and type(node.op) in OPERATORS:
        new = OPERATORS[type(node.op)]
        yield f"{type(node.op).__name__} to {new.__name__}", lambda: setattr(node, "op", new())
    if isinstance(node, ast.Compare):
        for place, old in enumerate(node.ops):
            other = OPERATORS[type(old)]

            def replace(place: int = place, other: type = other) -> None:
                node.ops[place] = other()

            yield f"{type(old).__name__} to {other.__name__}", replace
    if isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield f"{node.value} to {not node.value}", lambda: setattr(node, "value", not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int):
        number = node.value
        yield f"{number} to {number + 1}", lambda: setattr(node, "value", number + 1)
    if isinstance(node, (ast.If, ast.IfExp, ast.While)):
        yield "condition negated", lambda: setattr(node, "test", ast.UnaryOp(ast.Not(), node.test))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.Not)):
        yield f"{type(node.op).__name__} left out", lambda: setattr(node, "op", _Keep())
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in CALLS:
        name = node.func
        yield f"{name.id} to {CALLS[name.id]}", lambda: setattr(name, "id", CALLS[name.id])
    alone = isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
    if alone or isinstance(node, (ast.Raise, ast.AugAssign)):
        yield f"{type(node).__name__} left out", lambda: _drop(node)


class _Keep(ast.UAdd):
    """Stands for an operator that was taken away."""


def _drop(node: ast.AST) -> None:
    node.__class__ = ast.Pass
    for name in list(vars(node)):
        if name not in ("lineno", "col_offset", "end_lineno", "end_col_offset"):
            delattr(node, name)


def _nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Nodes of a function whose change could matter, in a fixed order: no messages or annotations."""
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list") or isinstance(node, ast.JoinedStr):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not isinstance(child, (ast.FunctionDef, ast.JoinedStr)):
                yield child
                if not isinstance(child, ast.Raise):
                    yield from _nodes(child)


def functions(module: ModuleType) -> Iterator[tuple[str, FunctionType]]:
    """Functions and methods that a module defines in Python, with their qualified names."""
    for owner in [module, *(v for v in vars(module).values() if isinstance(v, type))]:
        if owner is not module and owner.__module__ != module.__name__:
            continue
        for value in vars(owner).values():
            inner = getattr(value, "fget", None) or getattr(value, "__func__", None) or value
            inner = value.func if isinstance(value, cached_property) else inner
            if isinstance(inner, FunctionType) and inner.__module__ == module.__name__:
                while hasattr(inner, "__wrapped__"):
                    inner = inner.__wrapped__
                yield inner.__qualname__, inner


def mutants(module: ModuleType) -> Iterator[Mutant]:
    """All changes of a module's functions."""
    assert module.__file__
    tree = ast.parse(Path(module.__file__).read_text())
    known = dict(functions(module))
    for path, function in _definitions(tree):
        if path not in known:
            continue
        for index, node in enumerate(_nodes(function)):
            for which, (what, _) in enumerate(changes(node)):
                code = _changed(function, module.__file__, path, index, which)
                if code is not None and code.co_freevars == known[path].__code__.co_freevars:
                    yield Mutant(module.__name__, path, getattr(node, "lineno", function.lineno), what, code)


def _definitions(tree: ast.Module) -> Iterator[tuple[str, ast.FunctionDef]]:
    for item in tree.body:
        if isinstance(item, ast.FunctionDef):
            yield item.name, item
        elif isinstance(item, ast.ClassDef):
            yield from ((f"{item.name}.{m.name}", m) for m in item.body if isinstance(m, ast.FunctionDef))


def _changed(original: ast.FunctionDef, file: str, path: str, index: int, which: int) -> CodeType | None:
    """The code of one function after one change."""
    function = copy.deepcopy(original)
    node = list(_nodes(function))[index]
    list(changes(node))[which][1]()
    for part in ast.walk(function):
        if isinstance(part, ast.UnaryOp) and isinstance(part.op, _Keep):
            part.op = ast.Not() if isinstance(part.operand, ast.Compare) else ast.UAdd()
            if isinstance(part.op, ast.Not):
                part.operand = ast.UnaryOp(ast.Not(), part.operand)
    body: list[ast.stmt] = [function]
    if "." in path:
        body = [ast.ClassDef(path.split(".")[0], [], [], [function], [])]
    function.decorator_list = []
    whole = ast.fix_missing_locations(ast.Module(body, []))
    future = importlib.import_module("__future__").annotations.compiler_flag
    try:
        return _find(compile(whole, file, "exec", flags=future), path.split("."))
    except (SyntaxError, ValueError):
        return None


def _find(code: CodeType, names: list[str]) -> CodeType:
    for name in names:
        code = next(c for c in code.co_consts if isinstance(c, CodeType) and c.co_name == name)
    return code


class Runner:
    """Collects the tests once, and runs them once for every mutant, in a child each."""

    def __init__(self, chosen: list[Mutant], spare: float) -> None:
        self.chosen, self.spare = chosen, spare
        self.found: list[tuple[Mutant, bool]] = []

    def pytest_runtestloop(self, session: Any) -> bool:
        """Take over from pytest."""
        timed = []
        for item in session.items:
            began = time.monotonic()
            if not _passes(item):
                raise SystemExit(f"{item.nodeid} fails without any change")
            timed.append((time.monotonic() - began, item))
        items = [item for _, item in sorted(timed, key=lambda pair: pair[0])]
        limit = self.spare * sum(seconds for seconds, _ in timed) + 10
        again = self._child(None, items, limit)
        if again is not None:
            raise SystemExit(f"{items[again % len(items)].nodeid} fails when it is run again, without any change")
        for number, mutant in enumerate(self.chosen, 1):
            failing = self._child(mutant, items, limit)
            self.found.append((mutant, failing is not None))
            if failing is not None and failing < len(items):  # the next one is probably found by the same test
                items.insert(0, items.pop(failing))
            words = "SURVIVED" if failing is None else f"killed by {items[0].name}"
            place = f"{mutant.module}:{mutant.line} {mutant.function}"
            sys.stderr.write(f"{number}/{len(self.chosen)} {words} {place}: {mutant.what}\n")
            sys.stderr.flush()
        return True

    def _child(self, mutant: Mutant | None, items: list[Any], limit: float) -> int | None:
        """Which test failed, their number if none came to an end, None if all passed."""
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            signal.setitimer(signal.ITIMER_REAL, limit)
            quiet = os.open(os.devnull, os.O_WRONLY)
            os.dup2(quiet, 1)
            os.dup2(quiet, 2)
            if mutant is not None:
                dict(functions(sys.modules[mutant.module]))[mutant.function].__code__ = mutant.code
            failing = next((place for place, item in enumerate(items) if not _passes(item)), -1)
            os.write(writing, str(failing).encode())
            os._exit(0)
        os.close(writing)
        answer = os.read(reading, 20)
        os.close(reading)
        os.waitpid(child, 0)
        return len(items) if not answer else None if answer == b"-1" else int(answer)


def _passes(item: Any) -> bool:
    from _pytest.runner import runtestprotocol

    item.funcargs = {}
    return all(report.passed for report in runtestprotocol(item, log=False, nextitem=None))


def main() -> None:
    """Draw mutants, run the tests over them, and print the share that was noticed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mutants", description=__doc__)
    parser.add_argument("folder", type=Path, help="of a package, or one module")
    parser.add_argument("--tests", nargs="+", required=True)
    parser.add_argument("--count", type=int, default=300, help="mutants that are drawn, 0 for all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    files = [asked.folder] if asked.folder.is_file() else sorted(asked.folder.glob("*.py"))
    modules = [importlib.import_module(".".join(f.with_suffix("").parts).removesuffix(".__init__")) for f in files]
    everything = [mutant for module in modules for mutant in mutants(module)]
    count = min(asked.count or len(everything), len(everything))
    drawn = random.Random(asked.seed).sample(everything, count)
    runner = Runner(sorted(drawn, key=lambda mutant: mutant[:4]), spare=3)
    pytest.main(["-q", "-x", "-p", "no:cacheprovider", *asked.tests], plugins=[runner])
    if len(runner.found) < count:
        raise SystemExit("the tests fail without any change, see above")
    survivors = [f"{m.module}:{m.line} {m.function}: {m.what}" for m, killed in runner.found if not killed]
    killed = count - len(survivors)
    print(f"{killed} of {count} mutants killed ({100 * killed / count:.1f} %), drawn from {len(everything)}")
    print("\n".join(survivors))
    if asked.json:
        asked.json.write_text(json.dumps({"killed": killed, "drawn": count, "survivors": survivors}, indent=1))


if __name__ == "__main__":
    main()

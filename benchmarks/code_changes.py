"""Small changes of a module's functions, one at a time: an operator, a constant, a condition, a statement left out.

Compiled functions, what a module runs when it is imported (defaults of arguments and module constants among it), the
text of messages, assertions and `strict=True` are left alone: the last two state what always holds.
"""

from __future__ import annotations
import __future__

import ast
import copy
from collections.abc import Callable, Container, Iterator
from functools import cached_property
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

_OPERATORS: dict[type, type] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult, ast.LShift: ast.RShift, ast.RShift: ast.LShift,
    ast.BitOr: ast.BitAnd, ast.BitAnd: ast.BitOr,
}  # fmt: skip
_CALLS = {"max": "min", "min": "max", "all": "any", "any": "all", "abs": "float", "hypot": "fsum"}
_Definition = ast.FunctionDef | ast.AsyncFunctionDef


class Mutant(NamedTuple):
    """One change of one function.

    Attributes:
        module: its name.
        function: its qualified name.
        line: of what is changed.
        text: the first line of the changed statement, as it is after the change; with module and function it says
            which change this is, whatever the line.
        lines: of the statement, to tell which tests come by.
        target: the function.
        code: what it runs instead.
    """

    module: str
    function: str
    line: int
    text: str
    lines: range
    target: FunctionType
    code: CodeType

    def __str__(self) -> str:
        """Say where it is and what it does."""
        return f"{self.module}:{self.line} {self.function}: {self.text}"


def mutants(module: ModuleType, only: Container[str] | None = None) -> Iterator[Mutant]:
    """Iterate over all changes of a module's functions, or of some by qualified name, that make another program."""
    assert module.__file__
    known = {(f.__qualname__, f.__code__.co_firstlineno): f for f in _functions(module)}
    for path, definition in _definitions(ast.parse(Path(module.__file__).read_text())):
        first = min(node.lineno for node in (definition, *definition.decorator_list))
        target = known.get((path, first))
        if target is None or (only is not None and path not in only):
            continue
        for index, (node, statement) in enumerate(_nodes(definition)):
            for which in range(len(list(_changes(node)))):
                changed = copy.deepcopy(definition)
                node_copy, statement_copy = list(_nodes(changed))[index]
                left_out = ast.unparse(statement_copy).splitlines()[0]
                list(_changes(node_copy))[which]()
                text = ast.unparse(ast.fix_missing_locations(statement_copy)).splitlines()[0]
                if text == "pass":
                    text = f"left out: {left_out}"
                code = _code(changed, module.__file__, path)
                if code is not None and code.co_freevars == target.__code__.co_freevars:
                    lines = range(statement.lineno, _end_of_head(statement) + 1)
                    yield Mutant(module.__name__, path, getattr(node, "lineno", lines[0]), text, lines, target, code)


def _changes(node: Any) -> Iterator[Callable[[], object]]:
    """Ways to change one node in place."""
    match node:
        case ast.Compare():
            for place in range(len(node.ops)):
                yield lambda p=place: node.ops.__setitem__(p, _OPERATORS[type(node.ops[p])]())
        case ast.BinOp() | ast.BoolOp() | ast.AugAssign() if type(node.op) in _OPERATORS:
            yield lambda: setattr(node, "op", _OPERATORS[type(node.op)]())
        case ast.Constant(value=bool()):
            yield lambda: setattr(node, "value", not node.value)
        case ast.Constant(value=int()):
            yield lambda: setattr(node, "value", node.value + 1)
        case ast.If() | ast.IfExp() | ast.While():
            yield lambda: setattr(node, "test", ast.UnaryOp(ast.Not(), node.test))
        case ast.UnaryOp(op=ast.USub()):
            yield lambda: setattr(node, "op", ast.UAdd())
        case ast.UnaryOp(op=ast.Not()):
            yield lambda: setattr(node, "operand", ast.UnaryOp(ast.Not(), node.operand))
        case ast.Call(func=ast.Name(id=name)) if name in _CALLS:
            yield lambda: setattr(node.func, "id", _CALLS[name])
        case ast.Return(value=ast.expr()) if not (isinstance(node.value, ast.Constant) and node.value.value is None):
            yield lambda: setattr(node, "value", ast.Constant(None))
    alone = isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
    if alone or isinstance(node, (ast.Raise, ast.AugAssign)):
        yield lambda: _leave_out(node)


def _leave_out(statement: ast.stmt) -> None:
    place = {name: getattr(statement, name) for name in statement._attributes}
    statement.__class__ = ast.Pass  # type: ignore[assignment]  # the statement that holds it is not known here
    statement.__dict__ = place


def _nodes(node: ast.AST, statement: Any = None) -> Iterator[tuple[ast.AST, Any]]:
    """Nodes of a function whose change could matter, each with its statement, in a fixed order."""
    for name, value in ast.iter_fields(node):
        outside = name in ("annotation", "returns", "decorator_list")
        if outside or isinstance(node, ast.Assert) or (name == "args" and isinstance(node, _Definition)):
            continue
        for child in value if isinstance(value, list) else [value]:
            strict = isinstance(child, ast.keyword) and child.arg == "strict"
            if isinstance(child, ast.AST) and not isinstance(child, ast.JoinedStr) and not strict:
                inner = child if isinstance(child, ast.stmt) else statement
                yield child, inner
                if not isinstance(child, ast.Raise):
                    yield from _nodes(child, inner)


def _end_of_head(statement: Any) -> int:
    """The last line of a statement, without the statements that it holds."""
    body = getattr(statement, "body", None) or getattr(statement, "cases", None)
    if not body:
        return int(statement.end_lineno)
    first = body[0].pattern if isinstance(body[0], ast.match_case) else body[0]
    return max(int(statement.lineno), first.lineno - 1)


def _functions(module: ModuleType) -> Iterator[FunctionType]:
    """Functions and methods that a module defines in Python."""
    for owner in [module, *(v for v in vars(module).values() if isinstance(v, type))]:
        if owner is not module and owner.__module__ != module.__name__:
            continue
        for value in list(vars(owner).values()):
            inner = getattr(value, "fget", None) or getattr(value, "__func__", None) or value
            inner = value.func if isinstance(value, cached_property) else inner
            while hasattr(inner, "__wrapped__") and not hasattr(inner, "py_func"):  # compiled functions have both
                inner = inner.__wrapped__
            if isinstance(inner, FunctionType) and inner.__module__ == module.__name__:
                yield inner


def _definitions(tree: ast.Module) -> Iterator[tuple[str, _Definition]]:
    for item in tree.body:
        if isinstance(item, _Definition):
            yield item.name, item
        elif isinstance(item, ast.ClassDef):
            yield from ((f"{item.name}.{m.name}", m) for m in item.body if isinstance(m, _Definition))


def _code(function: _Definition, file: str, path: str) -> CodeType | None:
    """Compile one changed function; None if it is no program any more."""
    body: list[ast.stmt] = [function]
    if "." in path:
        body = [ast.ClassDef(path.split(".")[0], [], [], [function], [])]
    function.decorator_list = []
    whole = ast.fix_missing_locations(ast.Module(body, []))
    try:
        code = compile(whole, file, "exec", flags=__future__.annotations.compiler_flag, dont_inherit=True)
    except (SyntaxError, ValueError):
        return None
    for name in path.split("."):
        code = next(c for c in code.co_consts if isinstance(c, CodeType) and c.co_name == name)
    return code

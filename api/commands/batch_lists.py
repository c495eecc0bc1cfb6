"""Lists of specs: a TOML grid for people, JSONL for programs. Reading only; nothing is solved here.

A grid is a `[spec]` table that all specs share, a `[grid]` table with a list of values per field, and any number of
`[[exclude]]` tables. Fields are dotted paths into the spec; `n` is short for `workload.n`. The specs are all
combinations, the last field varying fastest, less those in which an `[[exclude]]` table matches.
"""

import copy
import itertools
import json
import math
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from factorize.api.commands.batch_report import Item
from factorize.encoding import MAX_JSON_BYTES
from factorize.errors import FactorizeError, InvalidParameter
from factorize.format.container import read_whole
from factorize.spec import parse_spec

MAX_SPECS = 100_000
MAX_FILE_BYTES = 1 << 28
_TABLES = ("spec", "grid", "exclude")
_SHORT_NAMES = {"n": "workload.n"}


def each_spec(path: Path) -> Iterator[Item]:
    """Read a grid (`.toml`) or a list of specs (anything else, one JSON object per line), one entry at a time.

    Yields:
        One entry per spec, in order; those that are no specs are `bad` and carry their error.

    Raises:
        InvalidParameter: the file as a whole cannot be used.
        OSError: it cannot be read.
    """
    size, count = path.stat().st_size, 0
    if size > MAX_FILE_BYTES:
        raise InvalidParameter(f"{path} has {size} bytes, more than {MAX_FILE_BYTES}; split the list")
    entries = _read_grid(path) if path.suffix.lower() == ".toml" else _read_lines(path)
    for count, entry in enumerate(entries, start=1):
        _check_count(count, path)
        yield entry
    if not count:
        raise InvalidParameter(f"{path} contains no spec; give at least one line, or exclude less of the grid")


def _entry(label: str, text: bytes | str) -> Item:
    try:
        return Item(label, "to solve", spec=parse_spec(text))
    except FactorizeError as error:
        return Item(label, "bad", error=error)


def _read_lines(path: Path) -> Iterator[Item]:
    with path.open("rb") as file:
        for number, line in enumerate(iter(lambda: file.readline(MAX_JSON_BYTES + 1), b""), start=1):
            if len(line) > MAX_JSON_BYTES:
                raise InvalidParameter(
                    f"{path} is no list of specs: line {number} is longer than {MAX_JSON_BYTES} bytes, the limit of a "
                    "spec; write one JSON object per line"
                )
            if line.strip():
                yield _entry(f"line {number}", line.strip())


def _check_count(count: int, path: Path) -> None:
    if count > MAX_SPECS:
        raise InvalidParameter(f"{path} lists {count} specs or more, above {MAX_SPECS}; split it into several files")


def _read_grid(path: Path) -> Iterator[Item]:
    try:
        document = tomllib.loads(read_whole(path).decode("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidParameter(f"{path} is not TOML: {error}") from None
    unknown = sorted(set(document) - set(_TABLES))
    if unknown:
        raise InvalidParameter(f"{path}: unknown table [{unknown[0]}]; a grid has [spec], [grid] and [[exclude]]")
    base = _table(document, "spec", path)
    axes = _axes(_table(document, "grid", path), path)
    excluded = [_flat(table) for table in _excludes(document, path)]
    leaves = (_flat({field: value}) for field, values in axes.items() for value in values)
    _check_exclude_fields(excluded, set(_flat(base)).union(*leaves), path)
    _check_count(math.prod(map(len, axes.values())), path)
    for chosen in itertools.product(*axes.values()):
        values = dict(zip(axes, chosen, strict=True))
        if not any(_matches(base, values, rule) for rule in excluded):
            # The entry is read as JSON by the one strict reader; a TOML date becomes a refused string.
            yield _entry(_label(values), json.dumps(_merged(base, values), default=str))


def _table(document: Mapping[str, object], name: str, path: Path) -> dict[str, object]:
    table = document.get(name, {})
    if not isinstance(table, dict):
        raise InvalidParameter(f"{path}: {name} must be a table, written [{name}]")
    return table


def _excludes(document: Mapping[str, object], path: Path) -> list[dict[str, object]]:
    tables = document.get("exclude", [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) and table for table in tables):
        raise InvalidParameter(f"{path}: exclude must be a list of tables that are not empty, written [[exclude]]")
    return tables


def _flat(table: Mapping[str, object], prefix: str = "") -> dict[str, Any]:
    """Return leaves by dotted path; `participation.epochs = 2` is the same quoted and unquoted."""
    leaves: dict[str, object] = {}
    for key, value in table.items():
        path = prefix + key
        found = _flat(value, f"{path}.") if isinstance(value, dict) else {_SHORT_NAMES.get(path, path): value}
        if twice := sorted(leaves.keys() & found):
            raise InvalidParameter(f"one table of the grid has {twice[0]!r} in two spellings; keep one")
        leaves |= found
    return leaves


def _axes(grid: Mapping[str, object], path: Path) -> dict[str, list[object]]:
    axes = _flat(grid)
    for field, values in axes.items():
        if not isinstance(values, list):
            raise InvalidParameter(f"{path}: the grid's field {field!r} needs a list of values; write [{values!r}]")
        if not values:
            raise InvalidParameter(f"{path}: the grid's field {field!r} lists no value; give one at least")
    for outer, inner in itertools.permutations(axes, 2):
        if inner.startswith(f"{outer}."):  # one would overwrite the other
            raise InvalidParameter(
                f"{path}: the grid varies both {outer!r} and {inner!r}, a part of it; list the combinations as "
                f"tables under {outer!r}"
            )
    return axes


def _check_exclude_fields(excluded: list[dict[str, object]], fields: set[str], path: Path) -> None:
    """Refuse a misspelt field, which would exclude nothing, silently."""
    for field in itertools.chain(*excluded):
        if field not in fields:
            raise InvalidParameter(
                f"{path}: [[exclude]] names {field!r}, which neither [grid] nor [spec] sets; "
                f"they set {', '.join(sorted(fields)) or 'nothing'}"
            )


def _matches(base: Mapping[str, object], values: Mapping[str, object], rule: Mapping[str, object]) -> bool:
    """Say whether an [[exclude]] table has the values of a combination; 1 and true are not equal here."""
    leaves = {field: (isinstance(value, bool), value) for field, value in _flat(_merged(base, values)).items()}
    return all(leaves.get(field) == (isinstance(value, bool), value) for field, value in rule.items())


def _merged(base: Mapping[str, Any], values: Mapping[str, object]) -> dict[str, object]:
    merged = copy.deepcopy(dict(base))
    for field, value in values.items():
        *folders, last = field.split(".")
        table = merged
        for folder in folders:
            table = table.setdefault(folder, {})
            if not isinstance(table, dict):
                raise InvalidParameter(f"the grid sets {field!r}, but {folder!r} in [spec] is a value; make it a table")
        table[last] = value
    return merged


def _label(values: Mapping[str, object]) -> str:
    return " ".join(f"{field}={_short_text(value)}" for field, value in values.items()) or "the spec"


def _short_text(value: object) -> str:
    if isinstance(value, dict) and "kind" in value:
        rest = ",".join(f"{key}={inner}" for key, inner in value.items() if key != "kind")
        return f"{value['kind']}({rest})"[:60] if rest else str(value["kind"])
    return str(value)[:60]

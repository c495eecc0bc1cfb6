"""Manifests and claims of sampling with one thing changed that no reader may let pass, every digest made right."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from factorize.encoding import canonical_json

Path = tuple[Any, ...]
OTHER_TYPES: tuple[Any, ...] = (None, True, False, 0, 1, 1.0, "", "1", "0x1p+0", [], [1], {}, {"epsilon": 0.01})
NUMBERS = (-1.0, -1e300, -5e-324, -0.5, 5e-324, 2.0**-1023, 1e-161, 1e161, 1e300, 1.7e308, -1, 10**14, 10**6)
KEYS = ("privacy", "epsilon", "value", "certificate", "x", "", "digest", "C")
FREE = (("solver",), ("digest",), ("spec_digest",))
"""The fields that say where a file comes from, on which nothing rests; and digests, which are made right."""


class Mutation(NamedTuple):
    """A changed document, and what was done to it."""

    what: str
    path: Path
    document: dict[str, Any]


def nodes(document: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Yield every value within a document, itself first."""
    yield path, document
    inner = (
        document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    )
    for key, value in inner:
        yield from nodes(value, (*path, key))


def at(document: Any, path: Path) -> Any:
    """Return the value at a place."""
    for key in path:
        document = document[key]
    return document


MISSING = object()


def changed(document: dict[str, Any], path: Path | str, value: Any) -> dict[str, Any]:
    """Return a copy with another value at a place, written as keys or as keys with slashes between; with `MISSING`, none."""
    *outer, last = path.split("/") if isinstance(path, str) else path
    copied = copy.deepcopy(document)
    holder = at(copied, tuple(outer))
    if value is MISSING:
        del holder[last]
    else:
        holder[last] = value
    return copied


def mutations(original: dict[str, Any], rng: np.random.Generator) -> Iterator[Mutation]:
    """Yield mutations without end, of every kind in turn."""
    places = [(path, value) for path, value in nodes(original) if path[:1] not in FREE]
    kinds = (_key, _type, _number, _removed, _integer_as_real, _item)
    while True:
        for kind in kinds:
            path, value = places[int(rng.integers(len(places)))]
            document = copy.deepcopy(original)
            what = kind(document, path, value, rng)
            if what is not None and canonical_json(document) != canonical_json(original):  # 1.0 is not 1
                yield Mutation(what, path, document)


def _put(document: Any, path: Path, value: Any) -> None:
    at(document, path[:-1])[path[-1]] = value


def _key(document: Any, path: Path, value: Any, rng: np.random.Generator) -> str | None:
    if not isinstance(value, dict):
        return None
    name = KEYS[int(rng.integers(len(KEYS)))]
    if name in value:
        return None
    at(document, path)[name] = OTHER_TYPES[int(rng.integers(len(OTHER_TYPES)))]
    return "an unknown key"


def _type(document: Any, path: Path, value: Any, rng: np.random.Generator) -> str | None:
    other = OTHER_TYPES[int(rng.integers(len(OTHER_TYPES)))]
    if not path or type(other) is type(value):
        return None
    _put(document, path, other)
    return "another type"


def _number(document: Any, path: Path, value: Any, rng: np.random.Generator) -> str | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    _put(document, path, NUMBERS[int(rng.integers(len(NUMBERS)))])
    return "another number"


def _removed(document: Any, path: Path, value: Any, rng: np.random.Generator) -> str | None:
    if not path:
        return None
    del at(document, path[:-1])[path[-1]]
    return "a part removed"


def _integer_as_real(document: Any, path: Path, value: Any, rng: np.random.Generator) -> str | None:
    if type(value) is not int:
        return None
    _put(document, path, bool(value) if value in (0, 1) and rng.random() < 0.5 else float(value))
    return "a real"


def _item(document: Any, path: Path, value: Any, rng: np.random.Generator) -> str | None:
    if not isinstance(value, list) or not value:
        return None
    kept = at(document, path)
    if rng.random() < 0.5:
        kept.append(kept[int(rng.integers(len(kept)))])
    else:
        kept.pop(int(rng.integers(len(kept))))
    return "an item more or less"

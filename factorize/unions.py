"""Plain data as one of several models told apart by a tag, with every problem reported at its field."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from factorize.errors import InvalidSpec, Violation

Model = TypeVar("Model")
_MOST_VIOLATIONS = 20


def read_union(adapter: TypeAdapter[Model], tags: Container[str], document: Mapping[str, Any]) -> Model:
    """Return the model that a document describes.

    Args:
        adapter: of the union.
        tags: the values of its discriminator, which stand in pydantic's locations and are no fields of the document.
        document: plain data that came through the strict JSON reader, or a caller's dictionary.

    Raises:
        InvalidSpec: it describes none; one violation per problem (the first 20), each with a pointer to its field.
    """
    try:
        return adapter.validate_python(dict(document))
    except ValidationError as error:
        entries = error.errors(include_url=False)[:_MOST_VIOLATIONS]
        raise InvalidSpec([_violation(entry, tags) for entry in entries]) from None


def _violation(entry: Any, tags: Container[str]) -> Violation:
    path = [part for part in entry["loc"] if part not in tags]
    given = entry.get("input")
    shown = f"; got {str(given)[:40]!r}" if isinstance(given, (str, int, float, bool)) else ""
    return Violation("".join(f"/{part}" for part in path), f"{entry['msg']}{shown}")

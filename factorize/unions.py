"""Plain data as a pydantic model, with every problem reported at its field of the document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from factorize.errors import InvalidSpec, Violation

Model = TypeVar("Model")
MAX_VIOLATIONS = 20


def read_union(adapter: TypeAdapter[Model], document: Mapping[str, Any]) -> Model:
    """Return the model that a document describes.

    Args:
        adapter: of the model, or of a union told apart by a tag.
        document: plain data that came through the strict JSON reader, or a caller's dictionary.

    Raises:
        InvalidSpec: it describes none; one violation per problem (the first 20), each with a pointer to its field.
    """
    data = dict(document)
    try:
        return adapter.validate_python(data)
    except ValidationError as error:
        raise InvalidSpec(violations(data, error, page="the documentation")) from None


def violations(data: Any, error: ValidationError, *, page: str) -> list[Violation]:
    """Return what pydantic found in a document, in our words.

    Args:
        data: the document.
        error: what was raised.
        page: where the fields are listed, for unknown ones.
    """
    return [_violation(data, entry, page) for entry in error.errors(include_url=False)[:MAX_VIOLATIONS]]


def _violation(data: Any, entry: Any, page: str) -> Violation:
    message = entry["msg"].removeprefix("Value error, ")
    given = entry.get("input")
    if entry["type"] == "extra_forbidden":
        message = f"unknown field; the contract's fields are listed in {page}"
    elif entry["type"] != "value_error" and isinstance(given, (str, int, float, bool)):
        message = f"{message}; got {str(given)[:40]!r}"
    return Violation(_pointer(data, entry["loc"]), message)


def _pointer(data: Any, location: tuple[int | str, ...]) -> str:
    """Drop the union tags that pydantic puts into a location, which are no fields of the document."""
    pointer = ""
    last = len(location) - 1
    for position, part in enumerate(location):
        if isinstance(data, dict) and part in data:
            data = data[part]
        elif isinstance(data, list) and isinstance(part, int) and part < len(data):
            data = data[part]
        elif position != last or not isinstance(data, dict) or _is_tag(part, data) or "[" in str(part):
            continue
        pointer += f"/{str(part).replace('~', '~0').replace('/', '~1')}"
    return pointer


def _is_tag(part: int | str, data: dict[str, Any]) -> bool:
    return part in (data.get("kind"), data.get("system"))

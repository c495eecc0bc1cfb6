"""Fields of plain data: the names of the classes of a union, and the fields of each, read from the classes themselves.

Errors, the command line's options and its completion all read this, so that they know every kind that is added.
"""

import dataclasses
from collections.abc import Iterator
from functools import cache
from typing import Literal, NamedTuple, get_args, get_origin, get_type_hints

from pydantic import BaseModel

from factorize.numbers.light_data import LightData

TAGS = ("kind", "system")
"""The names of the fields that tell the classes of a union apart."""


class PlainField(NamedTuple):
    """One field of a class.

    Attributes:
        name: name in the contract.
        annotation: its type.
        required: whether it has no default.
    """

    name: str
    annotation: object
    required: bool


@cache
def fields_of(owner: type) -> dict[str, PlainField]:
    """Return the fields of a class of plain data by name, the tag included."""
    if issubclass(owner, BaseModel):
        return {
            (field.alias or name): PlainField(field.alias or name, field.annotation, field.is_required())
            for name, field in owner.model_fields.items()
        }
    hints = get_type_hints(owner, include_extras=True)
    assert issubclass(owner, LightData)
    return {
        field.name: PlainField(field.name, hints[field.name], field.default is dataclasses.MISSING)
        for field in dataclasses.fields(owner)
    }


def classes_in(annotation: object) -> tuple[type, ...]:
    """Return the classes of plain data that a type is made of, in their order."""
    classes = (part for part in _leaves(annotation) if isinstance(part, type))
    return tuple(dict.fromkeys(part for part in classes if issubclass(part, BaseModel | LightData)))


def kinds_in(annotation: object) -> dict[str, type]:
    """Return the classes of a type that have a tag, by each of its values."""
    return {tag: owner for owner in classes_in(annotation) for tag in _tags_of(owner)}


def takes_numbers(annotation: object) -> bool:
    """Return whether a type allows a number."""
    return bool({int, float} & set(_leaves(annotation)))


def takes_list(annotation: object) -> bool:
    """Return whether a type allows a list."""
    return get_origin(annotation) is list or any(map(takes_list, get_args(annotation)))


def literals_in(annotation: object) -> tuple[str, ...]:
    """Return the words that a type allows."""
    return tuple(part for part in _leaves(annotation) if isinstance(part, str))


def tag_of(owner: type) -> str | None:
    """Return the first value of the class's tag, or None where it has none."""
    return next(iter(_tags_of(owner)), None)


def _tags_of(owner: type) -> tuple[str, ...]:
    """Return the values that the class's tag may have."""
    fields = fields_of(owner)
    annotation = next((fields[name].annotation for name in TAGS if name in fields), None)
    return tuple(map(str, get_args(annotation))) if get_origin(annotation) is Literal else ()


def taken_by(owner: type, name: str | None = None) -> str:
    """Return the fields of a class, or of one of its kinds, in words: `banded takes bands`."""
    name = name or _NAMES.get(owner.__name__) or tag_of(owner) or "it"
    fields = [field for field in fields_of(owner).values() if field.name not in TAGS]
    needed = [f"{field.name}{_choices(field.annotation)}" for field in fields if field.required]
    free = [field.name for field in fields if not field.required]
    if not fields:
        return f"{name} takes no other field"
    text = ", ".join(needed)
    if free:
        text += (", and optionally " if needed else "optionally ") + ", ".join(free)
    return f"{name} takes {text}"


def _choices(annotation: object) -> str:
    return f" ({', '.join(map(str, get_args(annotation)))})" if get_origin(annotation) is Literal else ""


def about(owner: type) -> str:
    """Return the first line of a class's docstring."""
    return (owner.__doc__ or "").strip().split("\n")[0].rstrip(".")


_NAMES = {
    "Spec": "a spec",
    "BinsSampling": "a sampling",
    "CompareRequest": "a comparison",
    "RecommendRequest": "a training job",
    "CalibrationRequest": "a calibration",
    "PredictionRequest": "a prediction",
}


def _leaves(annotation: object) -> Iterator[object]:
    """Yield the classes of a type and the words of its literals."""
    if get_origin(annotation) is Literal:
        yield from get_args(annotation)
        return
    arguments = get_args(annotation)
    if hasattr(annotation, "__metadata__"):
        arguments = arguments[:1]
    if not arguments:
        yield annotation
    for part in arguments:
        yield from _leaves(part)

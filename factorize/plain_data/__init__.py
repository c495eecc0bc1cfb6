"""Plain data for specs: frozen, strict, unknown fields refused, every problem reported at its field.

A problem is reported with the nearest name and with the values that are allowed there.
"""

import difflib
import json
import re
from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Discriminator, Field, Tag, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from factorize.encoding import DIGEST
from factorize.errors import InvalidSpec, Violation
from factorize.numbers.scalars import MAX_STEPS
from factorize.plain_data.fields import TAGS, about, classes_in, fields_of, kinds_in, tag_of, taken_by, takes_numbers


def _fold_zero(value: float) -> float:
    return value + 0.0  # -0.0 + 0.0 is 0.0, and every other double is itself


Real = Annotated[float, Field(allow_inf_nan=False), AfterValidator(_fold_zero)]
"""A finite double; `1` and `1.0` are the same value, and so are `0` and `-0.0`."""
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False), AfterValidator(_fold_zero)]
Fraction = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False), AfterValidator(_fold_zero)]
"""A real in [0, 1)."""
OpenUnit = Annotated[float, Field(gt=0, lt=1, allow_inf_nan=False)]
"""A real in (0, 1), such as a delta."""
UnitInterval = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False), AfterValidator(_fold_zero)]
Count = Annotated[int, Field(ge=1, le=MAX_STEPS)]
"""A number of steps, epochs or bands: 1 to 10^8."""
Examples = Annotated[int, Field(ge=1, le=10**12)]
"""A number of examples, clients or rounds: 1 to 10^12."""
CountOrEndless = Annotated[
    Annotated[Count, Tag("number")] | Annotated[Literal["unbounded"], Tag("text")],
    Discriminator(lambda value: "text" if isinstance(value, str) else "number"),
]
"""A number of steps, or `unbounded`; the type tells them apart, so that a bad value is refused once."""
Long = Field(fail_fast=True)
"""The mark of lists that may be long: a bad list is refused at its first bad entry."""
Sha256 = Annotated[str, Field(pattern=f"^{DIGEST}$")]


class Frozen(BaseModel):
    """Immutable plain data: strict types, unknown fields refused, equal by value."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", ignored_types=(), allow_inf_nan=False)

    def __eq__(self, other: object) -> bool:
        """Compare the fields alone: nothing that was computed from them, such as an array."""
        if type(other) is not type(self):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in type(self).model_fields)

    def __hash__(self) -> int:
        """Return a number for the fields, which may be lists."""
        return hash(self.model_dump_json())

    def document(self) -> dict[str, Any]:
        """Return the plain JSON form: every field but those left out, in the contract's names."""
        return self.model_dump(mode="json", exclude_none=True)

    def model_copy(self, *, update: Mapping[str, object] | None = None, deep: bool = False) -> Self:
        """Return a copy with other values, without anything that was computed from the old ones."""
        copied = super().model_copy(update=update, deep=deep)
        for name in copied.__dict__.keys() - type(self).model_fields:
            del copied.__dict__[name]
        return copied


def read_union(document: object, of: object) -> Any:
    """Return the model that a document describes, of a class or of a union with a tag.

    Raises:
        InvalidSpec: the document is no JSON object, or describes no model; one violation per problem (the first 20),
            each with a pointer to its field.
    """
    if not isinstance(document, Mapping):
        kinds = {list: "an array", str: "a string", int: "a number", float: "a number", bool: "a boolean"}
        raise InvalidSpec([Violation("", f"a JSON object is expected; got {kinds.get(type(document), 'null')}")])
    data = dict(document)
    try:
        return _adapter_of(of).validate_python(data)
    except ValidationError as error:
        raise InvalidSpec(violations(data, error, of)) from None


_adapter_of = cache(TypeAdapter)


MAX_VIOLATIONS = 20
"""The most problems of one document that are reported."""
_MAX_CHARACTERS = 40
"""The most characters of a name or value that a message repeats."""
_OBJECT_ERRORS = ("model_attributes_type", "model_type", "dict_type", "dataclass_type")
"""Pydantic's types of errors for a value that is no object."""
_NUMBER = re.compile(r"-?\d+(\.\d+)?([eE][-+]?\d+)?")


def violations(data: object, error: ValidationError, of: Any) -> list[Violation]:
    """Return pydantic's problems with a document of a type in our words; the first 20."""
    # One entry more than is shown is read, since a document may have 80,000 unknown fields.
    entries = error.errors(include_url=False)[: 2 * MAX_VIOLATIONS]
    places = [_place(entry["loc"], data, of) for entry in entries]
    pairs = zip(places, entries, strict=True)
    reported = [(place, entry) for place, entry in pairs if not _said(place, entry, places, entries)]
    return [Violation(place.pointer, _message(entry, place)) for place, entry in reported[:MAX_VIOLATIONS]]


class FaultPlace(NamedTuple):
    """The place of a problem.

    Attributes:
        pointer: RFC 6901 pointer.
        name: name of the field.
        owners: classes that the object with the field may be of.
        annotation: type of the field, or None where there is no such field.
        kinds: classes among which the object's `kind` has chosen.
    """

    pointer: str
    name: str
    owners: tuple[type, ...]
    annotation: object
    kinds: tuple[type, ...] = ()


def _place(location: tuple[int | str, ...], data: Any, of: Any) -> FaultPlace:
    """Follow a location through types and document; tags of unions, which pydantic puts there, are no fields."""
    owners, annotation, pointer, name = classes_in(of), of, "", ""
    kinds: tuple[type, ...] = ()
    for position, part in enumerate(location):
        last = position == len(location) - 1
        tagged = [owner for owner in owners if tag_of(owner) == part]
        if tagged and (len(owners) > 1 or annotation is of):
            owners, kinds = (tagged[0],), owners
            annotation = tagged[0]
            continue
        held = [fields_of(owner)[part] for owner in owners if part in fields_of(owner)] if isinstance(part, str) else []
        known = isinstance(data, dict) and part in data
        if not (held or known or isinstance(part, int) or (last and isinstance(data, dict) and "[" not in part)):
            continue  # the part is a branch of a union
        pointer += f"/{str(part).replace('~', '~0').replace('/', '~1')}"
        name = str(part)
        data = data[part] if known else data[part] if isinstance(data, list) and isinstance(part, int) else None
        if last:
            return FaultPlace(pointer, name, owners, held[0].annotation if held else None, kinds)
        annotation = held[0].annotation if held else annotation
        owners = classes_in(annotation)
    return FaultPlace(pointer, name, owners, annotation)


def _said(place: FaultPlace, entry: Any, places: list[FaultPlace], entries: list[Any]) -> bool:
    """Return whether another branch of the same union reports it better."""
    same = [other["type"] for at, other in zip(places, entries, strict=True) if at.pointer == place.pointer]
    if entry["type"] != "literal_error" and "literal_error" in same:
        return True
    below = any(at.pointer.startswith(f"{place.pointer}/") for at in places)
    return (entry["type"] == "list_type" and (below or len(same) > 1)) or (entry["type"] in _OBJECT_ERRORS and below)


def describe_violation(entry: ErrorDetails) -> str:
    """Return what pydantic says of one problem, and the value where it is text or a number that a field has taken."""
    message, value = entry["msg"].removeprefix("Value error, "), entry.get("input")
    shown = isinstance(value, (str, int, float, bool)) and entry["type"] not in ("value_error", "extra_forbidden")
    return f"{message}; got {str(value)[:_MAX_CHARACTERS]!r}" if shown else str(message)


def _message(entry: Any, place: FaultPlace) -> str:
    kind, value, message = entry["type"], entry.get("input"), describe_violation(entry)
    if kind == "value_error":
        return message
    if kind in ("extra_forbidden", "unexpected_keyword_argument"):  # types for a model, and for a dataclass
        return _unknown(place)
    if kind == "missing":
        return f"{place.name} is required; {_taken(place)}"
    if kind == "union_tag_invalid":
        tag, kinds = str(entry["ctx"]["tag"]), list(_kinds(place))
        listed = "; or give a list of numbers" if takes_numbers(place.annotation) else ""
        listed += "; for an optimizer, use `recommend`" if place.name == "workload" and "sgd" not in kinds else ""
        return f"unknown kind {tag[:_MAX_CHARACTERS]!r}{_nearest(tag, kinds)}; the kinds are {', '.join(kinds)}{listed}"
    if kind == "union_tag_not_found":
        return f"the kind is missing; the kinds are {', '.join(_kinds(place))}"
    if kind in _OBJECT_ERRORS and not isinstance(value, dict):
        return _no_object(value, place)
    if kind == "literal_error" and takes_numbers(place.annotation):
        message = describe_violation(entry | {"msg": f"Input should be a number or {entry['ctx']['expected']}"})
    if isinstance(value, str) and _NUMBER.fullmatch(value[:_MAX_CHARACTERS]) and takes_numbers(place.annotation):
        message += f", which is text; write {value[:_MAX_CHARACTERS]} without quotes"
    return message


def _unknown(place: FaultPlace) -> str:
    known = [name for owner in place.owners for name in fields_of(owner)]
    near = _nearest(place.name, known)
    described = [] if near or len(place.owners) != 1 or tag_of(place.owners[0]) is None else [about(place.owners[0])]
    takers = [str(tag_of(kind)) for kind in place.kinds if place.name in fields_of(kind)]
    described += [f"it is a field of {', '.join(takers)}"] if takers else []
    return "; ".join([f"unknown field {place.name[:_MAX_CHARACTERS]!r}{near}", _taken(place), *described])


def _taken(place: FaultPlace) -> str:
    return "; ".join(taken_by(owner) for owner in place.owners[:3]) or "docs/spec.md lists the fields"


def _kinds(place: FaultPlace) -> dict[str, type]:
    return kinds_in(place.annotation) or {str(tag_of(owner)): owner for owner in place.owners if tag_of(owner)}


def _no_object(given: object, place: FaultPlace) -> str:
    kinds = _kinds(place)
    if not kinds:
        return f"write an object, {{...}}; got {json.dumps(given, default=str)[:_MAX_CHARACTERS]}"
    named = given if isinstance(given, str) and given in kinds else next(iter(kinds))
    tag = next(name for name in TAGS if name in fields_of(kinds[named]))
    taken = f"; {taken_by(kinds[named])}" if named == given else ""
    shown = json.dumps(given, default=str)[:_MAX_CHARACTERS]
    return f"write an object such as {json.dumps({tag: named})}; got {shown}{taken}"


def _nearest(given: str, known: list[str]) -> str:
    matches = difflib.get_close_matches(given[:_MAX_CHARACTERS], known, n=1, cutoff=0.6)
    return f" (did you mean {matches[0]!r}?)" if matches else ""

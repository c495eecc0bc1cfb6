"""Words: a nested document made of flat names, as a command line or keywords give them.

`{"workload": "prefix", "n": 64, "epochs": 8, "mechanism": "banded", "bands": 4}` is a spec: a field belongs to the part
whose kinds have it, and a part whose fields are given has the one kind with these fields. `part.field` is exact, and
`part.kind` names the kind.
"""

import difflib
import math
import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple, get_args

from factorize.encoding import read_json
from factorize.errors import InvalidParameter, MalformedJson
from factorize.plain_data.fields import TAGS, PlainField, fields_of, kinds_in, literals_in, takes_list

Path = tuple[str, ...]
_NAME = re.compile(r"[A-Za-z_][\w-]*")
"""A pattern for the name of a kind, with hyphens in case it is misspelt."""


class Word(NamedTuple):
    """A name that a caller may give.

    Attributes:
        name: name of a field, or of a part of the document.
        path: path of the object that has the field; empty for the document itself.
        kinds: kinds of that object that have the field; empty where it has only one class.
        annotations: types of the value, one for each kind.
        parts: kinds of the value, if it is a part itself.
    """

    name: str
    path: Path
    kinds: tuple[str, ...]
    annotations: tuple[object, ...]
    parts: tuple[str, ...]

    @property
    def dotted(self) -> str:
        """The name with its path, which no other word has."""
        return ".".join((*self.path, self.name))


@cache
def words_of(of: type) -> dict[str, tuple[Word, ...]]:
    """Return the words for a class of plain data, by name; where several parts have a name, in their order."""
    words: dict[str, list[Word]] = {}
    for word in [*_parts(of), *_fields(of)]:
        if all(word.dotted != other.dotted for other in words.setdefault(word.name, [])):
            words[word.name].append(word)
    return {name: tuple(own) for name, own in words.items()}


def document_of_words(of: type, given: Mapping[str, object]) -> dict[str, object]:
    """Return the document that names and values stand for; its reader decides whether it is of the class.

    Args:
        of: the class, such as `Spec`.
        given: values by name, as plain data or as the text of it; `learning_rates` may be `0.1,0.2` or `[0.1, 0.2]`.

    Raises:
        InvalidParameter: a name that nothing has, or a field that several kinds have while no kind is named.
    """
    document: dict[str, object] = {}
    fields = []
    for name, value in given.items():
        word = _word(of, name, None)
        if word.parts:
            if isinstance(value, str):
                named = value in word.parts or _NAME.fullmatch(value)
                value = {"kind": value} if named else value_of(value, word.annotations)
            _put(document, word, _copied(value))
        else:
            fields.append((name, value))
    for name, value in fields:
        word = _word(of, name, document)
        _put(document, word, value_of(value, word.annotations) if isinstance(value, str) else value)
    _name_kinds(of, document)
    _share(of, document)
    return document


def value_of(text: str, annotations: tuple[object, ...]) -> object:
    """Return the value that a text stands for: an allowed word, JSON, or a list of entries separated by commas."""
    if any(text in literals_in(annotation) for annotation in annotations):
        return text
    listed = any(map(takes_list, annotations)) and not text.lstrip().startswith(("[", "{"))
    try:
        return read_json(f"[{text}]" if listed else text)
    except MalformedJson:
        if listed:
            return [value_of(entry, ()) for entry in text.split(",")]
    try:
        number = float(text)
    except ValueError:
        return text
    return number if math.isfinite(number) else text


def _parts(of: type, path: Path = ()) -> Iterator[Word]:
    """Yield the parts of a class that have kinds, and the parts of these."""
    for field in fields_of(of).values():
        kinds = kinds_in(field.annotation)
        if kinds:
            yield Word(field.name, path, (), (field.annotation,), tuple(kinds))
            for owner in kinds.values():
                yield from _parts(owner, (*path, field.name))


def _fields(of: type) -> Iterator[Word]:
    """Yield the fields of the class itself, then those of the kinds of its parts."""
    parts = dict.fromkeys((word.path + (word.name,), word.annotations[0]) for word in _parts(of))
    names = {path[-1] for path, _ in parts}
    for field in fields_of(of).values():
        if field.name not in names:
            yield Word(field.name, (), (), (field.annotation,), ())
    for path, annotation in parts:
        takers: dict[str, list[tuple[str, PlainField]]] = {}
        for kind, owner in kinds_in(annotation).items():
            for name, field in fields_of(owner).items():
                if name not in TAGS and (*path, name) not in {known for known, _ in parts}:
                    takers.setdefault(name, []).append((kind, field))
        for name, fields in takers.items():
            kinds, types = tuple(kind for kind, _ in fields), tuple(field.annotation for _, field in fields)
            yield Word(name, path, kinds, types, ())


def _word(of: type, name: str, found: Mapping[str, object] | None) -> Word:
    """Return the word of a name, preferably from the kinds of the parts that are named."""
    words = words_of(of)
    plain = name.removesuffix(".kind")
    *_, last = plain.split(".")
    fitting = [word for word in words.get(last, ()) if f".{word.dotted}".endswith(f".{plain}")]
    if not fitting:
        near = difflib.get_close_matches(last, words, n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        raise InvalidParameter(f"unknown field {name[:60]!r}{hint}; `factorize spec fields` lists them", field=name)
    if found is None:
        return fitting[0]
    named = (word for word in fitting if (_at(found, word.path) or {}).get("kind") in word.kinds)
    free = (word for word in fitting if not word.path or _at(found, word.path[:1]) is not None)
    return next(named, None) or next(free, None) or fitting[0]


def _at(found: Mapping[str, object], path: Path) -> dict[str, object] | None:
    """Return the object at a path, or None where there is none."""
    place: object = found
    for name in path:
        place = place.get(name) if isinstance(place, dict) else None
    return place if isinstance(place, dict) else None


def _put(found: dict[str, Any], word: Word, value: object) -> None:
    place = found
    for name in word.path:
        place = place.setdefault(name, {})
        if not isinstance(place, dict):
            raise InvalidParameter(
                f"{word.dotted} needs an object around it; its part is {place!r}",
                field=word.dotted,
            )
    before = place.get(word.name, value)
    both = isinstance(before, dict) and isinstance(value, dict)
    if (before | value != value | before) if both else before is not value and before != value:
        message = f"{word.dotted} is given twice, as {str(before)[:60]} and {str(value)[:60]}; keep one"
        raise InvalidParameter(message, field=word.dotted)
    place[word.name] = before | value if both else value


def _copied(value: object) -> object:
    """Return a copy of the caller's part, whose dictionaries can get more fields."""
    return {name: _copied(part) for name, part in value.items()} if isinstance(value, dict) else value


def _name_kinds(of: type, found: dict[str, object]) -> None:
    """Name the kind of each part that has only fields; raise InvalidParameter unless one kind has them."""
    for word in _parts(of):
        place = _at(found, (*word.path, word.name))
        if not place or "kind" in place:  # The reader refuses an empty part, in the words of JSON.
            continue
        kinds = kinds_in(word.annotations[0])
        if type(None) in get_args(word.annotations[0]):
            message = (
                f"{', '.join(place)} belongs to {word.dotted}, which is not set; set {word.dotted} to one of "
                f"{', '.join(kinds)}, or leave it out"
            )
            raise InvalidParameter(message, field=next(iter(place)))
        takers = [kind for kind, owner in kinds.items() if set(place) <= set(fields_of(owner))]
        names = ", ".join(place)
        if len(takers) != 1:
            who = f"several kinds of {word.dotted} have" if takers else f"no kind of {word.dotted} has"
            message = f"{who} {names}; set {word.dotted} to one of {', '.join(takers or kinds)}"
            raise InvalidParameter(message, field=word.dotted)
        place |= {"kind": takers[0]} | place


def _share(of: type, found: dict[str, object]) -> None:
    """Give a second part of the same kinds the number of steps of the first."""
    first: dict[Path, dict[str, object]] = {}
    for word in words_of(of).values():
        for part in (one for one in word if one.parts and not one.path):
            place = _at(found, (part.name,))
            before = first.setdefault(part.parts, place or {})
            owner = kinds_in(part.annotations[0]).get(str((place or {}).get("kind")))
            if place is not None and owner is not None and "n" in before and "n" in fields_of(owner):
                place.setdefault("n", before["n"])

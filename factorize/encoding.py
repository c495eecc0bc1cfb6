"""Canonical bytes: one strict JSON reader, one canonical writer, and digests over both.

Two parsers that disagree about one text can make two specs share a digest, so every JSON text that enters (HTTP body,
file, command line) goes through `read_json`, and every digest is taken over `canonical_json`.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from factorize.errors import InvalidParameter, MalformedJson

if TYPE_CHECKING:
    import numpy as np

JsonObject = dict[str, Any]
"""A JSON object after reading: `read_json` has checked its text, and the code that knows the fields checks them."""
MAX_JSON_BYTES = 1 << 20
"""The largest JSON text in bytes that is read, 1 MiB, unless a caller gives another limit."""
MAX_DEPTH = 16
"""The deepest nesting of brackets in a JSON text."""
MAX_INTEGER_DIGITS = 15
"""The most digits of an integer: every double holds all integers of this length exactly."""
MAX_STRING = 4096
"""The most characters of one string in a JSON text."""
DIGEST = "[0-9a-f]{64}"
"""A regular expression that matches a sha256 in text."""
_BOM = b"\xef\xbb\xbf"
# The pattern finds string literals, and brackets outside of them, which is all that a depth count needs.
_TOKENS = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{}]')


def read_json(text: bytes | str, *, limit: int = MAX_JSON_BYTES) -> Any:
    """Decode one JSON text strictly.

    Raises:
        MalformedJson: the text breaks a rule, which the message names: more than `limit` bytes, a byte-order mark, text
            that is not UTF-8, nesting deeper than 16, duplicate keys, NaN and infinity by any spelling (`1e400`
            included), integers of more than 15 digits, keys that are not ASCII, lone surrogates, strings longer than
            4096 characters.
    """
    decoded = _decode(text, limit)
    _check_depth(decoded)
    try:
        value = json.loads(
            decoded, object_pairs_hook=_unique_keys, parse_int=_integer, parse_float=_real, parse_constant=_no_constant
        )
    except json.JSONDecodeError as error:
        raise MalformedJson(f"not JSON: {error.msg} at line {error.lineno}, column {error.colno}") from None
    _check_strings(value)
    return value


def _decode(text: bytes | str, limit: int) -> str:
    try:
        raw = text.encode("utf-8") if isinstance(text, str) else bytes(text)
    except UnicodeEncodeError:
        raise MalformedJson("the text contains a lone surrogate, which UTF-8 cannot encode; remove it") from None
    if len(raw) > limit:
        raise MalformedJson(f"the text has {len(raw)} bytes, and the limit is {limit}; upload long lists as a matrix")
    if raw.startswith(_BOM):
        raise MalformedJson("the text starts with a byte-order mark; save it as plain UTF-8")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise MalformedJson(f"byte {error.start} is not UTF-8; save the text as UTF-8") from None


def _check_depth(text: str) -> None:
    depth = 0
    for token in _TOKENS.finditer(text):
        mark = token.group()
        if mark in "[{":
            depth += 1
            if depth > MAX_DEPTH:
                raise MalformedJson(f"nested deeper than {MAX_DEPTH} levels; a spec needs fewer than 8")
        elif mark in "]}":
            depth -= 1


def _unique_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    members: dict[str, object] = {}
    for key, value in pairs:
        if not key.isascii():
            raise MalformedJson("an object key is not ASCII; every field name of a spec is")
        if key in members:
            raise MalformedJson(f"the key {key[:64]!r} is given twice; keep one")
        _check_strings(value)
        members[key] = value
    return members


def _check_strings(value: object) -> None:
    if isinstance(value, list):
        for entry in value:
            _check_strings(entry)
    elif isinstance(value, str):
        if len(value) > MAX_STRING:
            raise MalformedJson(f"a string has {len(value)} characters, and the limit is {MAX_STRING}; shorten it")
        if not value.isascii() and any("\ud800" <= letter <= "\udfff" for letter in value):
            raise MalformedJson("a string contains a lone surrogate; remove it")


def _integer(digits: str) -> int:
    if len(digits.lstrip("-")) > MAX_INTEGER_DIGITS:
        raise MalformedJson(f"an integer has more than {MAX_INTEGER_DIGITS} digits; write it as a real (1e20)")
    return int(digits)


def _real(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise MalformedJson(f"the number {text[:32]} overflows a double; the largest is about 1.8e308")
    return value


def _no_constant(name: str) -> float:
    raise MalformedJson(f"{name} is not a JSON number; give a finite value")


def canonical_json(value: object) -> bytes:
    """Write plain data as its one canonical JSON text; raise ValueError for NaN and infinity.

    Keys are sorted, without white space and in ASCII only. A real is the shortest text that reads back as the same
    double (Python's `repr`), so `0.1` is `0.1` and the real one is `1.0`.
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=True).encode("ascii")


def sha256(data: bytes | memoryview) -> str:
    """Return the lower-case hex sha256 of some bytes."""
    return hashlib.sha256(data).hexdigest()


def json_digest(value: object) -> str:
    """Return the sha256 of the canonical JSON of plain data."""
    return sha256(canonical_json(value))


def raw_bytes(array: np.ndarray) -> memoryview:
    """Return the little-endian C-order bytes of an array, without a copy where it already is that."""
    import numpy as np

    little = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
    return little.ravel().view(np.uint8).data


def tensor_digest(tensors: Iterable[np.ndarray]) -> str:
    """Return the sha256 over the raw little-endian bytes of tensors, in the order given."""
    state = hashlib.sha256()
    for tensor in tensors:
        state.update(raw_bytes(tensor))
    return state.hexdigest()


def is_digest(value: object) -> bool:
    """Return whether a value is a sha256 in text: 64 lower-case hexadecimal digits."""
    return isinstance(value, str) and re.fullmatch(DIGEST, value) is not None


def check_digest(text: str, *, what: str = "digest") -> str:
    """Return `text` if it is a digest, else raise InvalidParameter."""
    if not is_digest(text):  # the text is not repeated in the message, which may go into a header or a log
        raise InvalidParameter(
            f"this {what} is not 64 lower-case hexadecimal digits; copy the whole {what}", field=what
        )
    return text


def in_one_line(text: str) -> str:
    """Return a text with escapes for characters that are not printable, so that it stays one line in any medium."""
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)

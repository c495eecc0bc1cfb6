"""One strict reader, one canonical writer."""

from __future__ import annotations

import json
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from factorize.encoding import canonical_json, check_digest, json_digest, raw_bytes, read_json, sha256, tensor_digest
from factorize.errors import InvalidParameter, MalformedJson


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ('{"n": NaN}', "finite"),
        ('{"n": Infinity}', "finite"),
        ('{"n": -Infinity}', "finite"),
        ('{"n": 1e400}', "overflows"),
        ('{"n": 4, "n": 5}', "twice"),
        ('{"a": {"n": 4, "n": 4}}', "twice"),
        ('{"n": 1234567890123456}', "15 digits"),
        ('{"\\ud800": 1}', "ASCII"),
        ('{"k": "\\ud800"}', "surrogate"),
        ('{"k": ["a", ["\\udfff"]]}', "surrogate"),
        ('["\\udfff"]', "surrogate"),
        ('["\u00e9 and \\ud800"]', "surrogate"),
        ('{"é": 1}', "ASCII"),
        ('{"k": "' + "x" * 4097 + '"}', "4096"),
        ("[" * 17 + "]" * 17, "16 levels"),
        ("[" * 17, "16 levels"),
        ('[[],{"k": ' + "[" * 15, "16 levels"),
        ("[" * 100_000 + "]" * 100_000, "16 levels"),
        ('{"k": 1', "line 1"),
        ("", "not JSON"),
        ("{'n': 1}", "not JSON"),
        ('{"n": 01}', "not JSON"),
    ],
)
def test_refuses(text: str, rule: str) -> None:
    with pytest.raises(MalformedJson, match=rule):
        read_json(text)


@pytest.mark.parametrize("raw", [b"\xef\xbb\xbf{}", b'{"k": "\xff"}', b"\xff\xfe{\x00}\x00"])
def test_refuses_other_encodings(raw: bytes) -> None:
    with pytest.raises(MalformedJson, match="UTF-8"):
        read_json(raw)


def test_refuses_a_text_that_is_too_long() -> None:
    with pytest.raises(MalformedJson, match="1048576"):
        read_json(b'{"k": ' + b" " * (1 << 20) + b"1}")
    assert read_json(b"[1]", limit=3) == [1]
    with pytest.raises(MalformedJson, match="has 3 bytes, and the limit is 2"):
        read_json(b"[1]", limit=2)


@pytest.mark.parametrize(
    "value",
    [
        json.loads("[" * 16 + "]" * 16),
        [[[]]] * 40,
        {"k": [{}] * 40},
        "x" * 4096,
        10**15 - 1,
        1 - 10**15,
        ["caf\u00e9", "\ud7ff\ue000"],
        "[" * 50 + '"[[[',
    ],
    ids=["depth", "lists", "objects", "string", "integer", "negative", "letters", "brackets in a string"],
)
def test_what_just_keeps_the_rules_is_read(value: object) -> None:
    assert read_json(json.dumps(value)) == value
    assert read_json(json.dumps(value, ensure_ascii=False)) == value


def test_a_lone_surrogate_in_a_python_string_is_refused() -> None:
    with pytest.raises(MalformedJson, match="surrogate"):
        read_json('{"k": "\ud800"}')


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_reals_read_back_as_the_same_double(value: float) -> None:
    assert struct.pack("<d", read_json(canonical_json(value))) == struct.pack("<d", value)


@given(st.dictionaries(st.text("abc", max_size=3), st.integers(-(10**15) + 1, 10**15 - 1)))
def test_key_order_does_not_matter(value: dict[str, int]) -> None:
    assert json_digest(value) == json_digest(dict(reversed(value.items())))
    assert canonical_json(value) == json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def test_canonical_json_refuses_infinity() -> None:
    with pytest.raises(ValueError, match="Out of range"):
        canonical_json(float("inf"))


def test_tensor_digest_is_over_little_endian_bytes_in_c_order() -> None:
    array = np.arange(6.0).reshape(2, 3)
    expected = sha256(struct.pack("<6d", *range(6)))
    assert tensor_digest([array]) == tensor_digest([array.astype(">f8")]) == expected
    assert tensor_digest([np.asfortranarray(array)]) == expected
    assert tensor_digest([array.ravel()[:2], array.ravel()[2:]]) == expected
    assert bytes(raw_bytes(np.array([1.0]))) == struct.pack("<d", 1.0)


@pytest.mark.parametrize("text", ["", "a" * 63, "A" * 64, "g" * 64, "a" * 64 + "\n", "../" + "a" * 61])
def test_check_digest_refuses_without_repeating_the_text(text: str) -> None:
    with pytest.raises(InvalidParameter) as caught:
        check_digest(text)
    assert not text or text not in str(caught.value)


def test_canonical_json_is_sorted_and_ascii_at_every_depth() -> None:
    assert canonical_json({"b": [{"d": "\u00e9\u2028", "c": None}], "a": True}) == (
        rb'{"a":true,"b":[{"c":null,"d":"\u00e9\u2028"}]}'
    )

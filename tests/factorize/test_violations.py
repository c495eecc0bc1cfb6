"""Violations: a mistyped field of any kind is told with the nearest name and with what the kind takes."""

from __future__ import annotations

from typing import Any

import pytest

from factorize.errors import InvalidSpec
from factorize.plain_data import read_union
from factorize.plain_data.fields import TAGS, fields_of, kinds_in, taken_by
from factorize.predict import AnyQuestion
from factorize.spec import Spec, parse_spec

PREFIX = {"kind": "prefix", "n": 8}
PARTS = ("workload", "participation", "objective", "mechanism")
KINDS = [(part, kind, owner) for part in PARTS for kind, owner in kinds_in(fields_of(Spec)[part].annotation).items()]


def refused(document: dict[str, Any]) -> dict[str, str]:
    """The messages of a bad spec, by pointer."""
    with pytest.raises(InvalidSpec) as caught:
        parse_spec(document)
    found = caught.value.violations
    assert len({violation.pointer for violation in found}) == len(found)
    return {violation.pointer: violation.message for violation in found}


@pytest.mark.parametrize(("part", "kind", "owner"), KINDS, ids=lambda value: value if isinstance(value, str) else "")
def test_a_mistyped_field_of_every_kind(part: str, kind: str, owner: type) -> None:
    fields = [name for name in fields_of(owner) if name not in TAGS]
    assert all(name in taken_by(owner) for name in fields)
    wrong = f"{max(fields, key=len, default='colour')}s"
    told = refused({"workload": PREFIX, part: {"kind": kind, wrong: 1}})[f"/{part}/{wrong}"]
    assert f"unknown field {wrong!r}" in told and f"{kind} takes" in told
    assert (f"did you mean {wrong[:-1]!r}" in told) == bool(fields)


@pytest.mark.parametrize(
    ("given", "pointer", "words"),
    [
        ({"workload": {"kind": "prefix", "n": "64"}}, "/workload/n", ["number or 'unbounded'", "64 without quotes"]),
        ({"workload": {"kind": "prefix", "n": "many"}}, "/workload/n", ["number or 'unbounded'; got 'many'"]),
        ({"workload": PREFIX, "participation": {"kind": "min_sep"}}, "/participation/min_sep", ["min_sep is required"]),
        (
            {"workload": PREFIX, "participation": {"kind": "fixed_epochs", "epochs": 2, "period": 4}},
            "/participation/period",
            ["unknown field 'period'; fixed_epochs takes epochs", "n = epochs x b"],
        ),
        ({"workload": {**PREFIX, "momentum": 0.9}}, "/workload/momentum", ["it is a field of momentum, srg"]),
        (
            {"workload": {"kind": "prefx", "n": 4}},
            "/workload",
            ["unknown kind 'prefx' (did you mean 'prefix'?)", "mu2"],
        ),
        (
            {"workload": {"kind": "adamw", "n": 4}},
            "/workload",
            ["did you mean 'adam'", "for an optimizer, use `recommend`"],
        ),
        ({"workload": {"n": 4}}, "/workload", ["the kind is missing", "prefix"]),
        ({"workload": PREFIX, "mecanism": {}}, "/mecanism", ["did you mean 'mechanism'", "a spec takes workload"]),
        ({"workload": PREFIX, "mechanism": "banded"}, "/mechanism", ['{"kind": "banded"}', "banded takes bands"]),
        ({"workload": PREFIX, "mechanism": "tree"}, "/mechanism", ['{"kind": "tree"}', "tree takes decoder (online, "]),
        (
            {"workload": {"kind": "momentum", "n": 4, "momentum": 0.9, "learning_rates": {"kind": "cosine", "end": 0}}},
            "/workload/learning_rates/end",
            ["cosine takes optionally final"],
        ),
        (
            {"workload": {"kind": "momentum", "n": 4, "momentum": 0.9, "learning_rates": "cosine"}},
            "/workload/learning_rates",
            ['{"kind": "cosine"}'],
        ),
        ({"workload": PREFIX, "mechanism": {"kind": "nu_toeplitz", "nu": "x"}}, "/mechanism/nu", ["number or 'tune'"]),
    ],
)
def test_what_is_wrong_is_said_once_and_at_its_field(given: dict[str, Any], pointer: str, words: list[str]) -> None:
    told = refused(given)
    assert set(told) == {pointer}
    assert all(word in told[pointer] for word in words), told


def test_many_unknown_fields_are_told_in_no_time() -> None:
    assert len(refused({"workload": PREFIX, **{f"k{i}": 1 for i in range(20_000)}})) == 20


@pytest.mark.parametrize(
    ("value", "kind"), [([], "an array"), ("{}", "a string"), (1.5, "a number"), (True, "a boolean"), (None, "null")]
)
@pytest.mark.parametrize("of", [Spec, AnyQuestion])
def test_what_is_no_object_is_refused(value: Any, kind: str, of: Any) -> None:
    with pytest.raises(InvalidSpec, match=f"a JSON object is expected; got {kind}"):
        read_union(value, of)


def test_questions_have_the_same_words() -> None:
    assert "quadratic" in kinds_in(AnyQuestion)
    with pytest.raises(
        InvalidSpec, match=r"unknown field 'eigenvalue' \(did you mean 'eigenvalues'\?\); quadratic takes"
    ):
        read_union({"kind": "quadratic", "eigenvalue": [1.0]}, AnyQuestion)
    with pytest.raises(InvalidSpec, match=r"unknown kind 'quadratick' \(did you mean 'quadratic'\?\)"):
        read_union({"kind": "quadratick"}, AnyQuestion)

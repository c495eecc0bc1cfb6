"""Words: flat names become the document that says the same, and a kind that is added is known by itself."""

from __future__ import annotations

import math
from typing import Any

import pytest

from factorize.errors import InvalidParameter, InvalidSpec
from factorize.plain_data.fields import fields_of, kinds_in
from factorize.plain_data.words import document_of_words, value_of, words_of
from factorize.spec import Spec, parse_spec

PREFIX = {"kind": "prefix", "n": 8}


@pytest.mark.parametrize(
    ("words", "document"),
    [
        (
            {"n": "8", "epochs": "2", "mechanism": "buffered_linear", "buffers": "2"},
            {
                "workload": PREFIX,
                "participation": {"kind": "fixed_epochs", "epochs": 2},
                "mechanism": {"kind": "buffered_linear", "buffers": 2},
            },
        ),
        (
            {"workload": "momentum", "n": "8", "momentum": ".9", "learning_rates": "cosine", "final": "0.1"},
            {
                "workload": {
                    "kind": "momentum",
                    "n": 8,
                    "momentum": 0.9,
                    "learning_rates": {"kind": "cosine", "final": 0.1},
                }
            },
        ),
        (
            {"workload.kind": "schedule", "n": "8", "learning_rates.kind": "cosine", "learning_rates.final": "0.1"},
            {"workload": {"kind": "schedule", "n": 8, "learning_rates": {"kind": "cosine", "final": 0.1}}},
        ),
        (
            {"workload": "momentum", "n": "2", "momentum": "0", "learning_rates": "1,0.5", "nesterov": "true"},
            {"workload": {"kind": "momentum", "n": 2, "momentum": 0, "learning_rates": [1, 0.5], "nesterov": True}},
        ),
        (
            {"n": "unbounded", "min_sep": "4", "max_participations": "2", "mechanism": "blt", "buffers": "3"},
            {
                "workload": {"kind": "prefix", "n": "unbounded"},
                "participation": {"kind": "min_sep", "min_sep": 4, "max_participations": 2},
                "mechanism": {"kind": "blt", "buffers": 3},
            },
        ),
        (
            {"n": "8", "optimize_for": "momentum", "optimize_for.momentum": "0.5", "tolerance": "1e-6"},
            {"workload": PREFIX, "optimize_for": {"kind": "momentum", "n": 8, "momentum": 0.5}, "tolerance": 1e-6},
        ),
        (
            {"n": "8", "epochs": "2", "sampling": "balls_in_bins", "epsilon": "2", "delta": "1e-5", "tau": "4"},
            {
                "workload": PREFIX,
                "participation": {"kind": "fixed_epochs", "epochs": 2},
                "sampling": {"kind": "balls_in_bins", "epsilon": 2, "delta": 1e-5},
                "objective": {"kind": "lambda_tau", "tau": 4},
            },
        ),
        (
            {"n": "8", "mechanism": '{"kind": "banded", "bands": 2}', "weights": "1,1,1,1,1,1,1,2"},
            {
                "workload": PREFIX,
                "mechanism": {"kind": "banded", "bands": 2},
                "objective": {"kind": "weighted", "weights": [1, 1, 1, 1, 1, 1, 1, 2]},
            },
        ),
    ],
)
def test_words_say_what_json_says(words: dict[str, str], document: dict[str, Any]) -> None:
    usual = {} if "workload.kind" in words else {"workload": "prefix"}
    found = document_of_words(Spec, {**usual, **words})
    assert found == document
    assert parse_spec(found) == parse_spec(document)


def test_values_may_be_plain_data() -> None:
    given = {"workload": PREFIX, "mechanism": {"kind": "banded", "bands": 2}, "epochs": 2}
    assert parse_spec(document_of_words(Spec, given)).participation.passes == 2


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ({"epocs": "2"}, r"unknown field 'epocs' \(did you mean 'epochs'\?\)"),
        ({"bands": "2"}, "several kinds of mechanism have bands; set mechanism to one of banded"),
        ({"epochs": "2", "min_sep": "4"}, "no kind of participation has epochs, min_sep"),
        ({"participation.bands": "2"}, "unknown field"),
    ],
)
def test_what_nobody_can_mean_is_refused(words: dict[str, str], told: str) -> None:
    with pytest.raises(InvalidParameter, match=told):
        document_of_words(Spec, {"workload": "prefix", "n": "8", **words})


def test_parts_of_the_caller_stay_as_they_are() -> None:
    easier = {"kind": "momentum", "momentum": 0.9, "learning_rates": {"kind": "cosine"}}
    for n in (8, 16):
        spec = Spec.of("prefix", n=n, optimize_for=easier, final=0.1)
        assert spec.optimize_for is not None and spec.optimize_for.n == n
    assert easier == {"kind": "momentum", "momentum": 0.9, "learning_rates": {"kind": "cosine"}}


def test_what_a_kind_does_not_take_is_left_to_its_reader() -> None:
    with pytest.raises(
        InvalidParameter, match=r"unknown field 'bands' \(did you mean 'bands'\?\)|dense takes no other field"
    ):
        parse_spec(document_of_words(Spec, {"workload": "prefix", "n": 8, "mechanism": "dense", "bands": 2}))
    with pytest.raises(InvalidParameter, match=r"unknown kind 'prefx' \(did you mean 'prefix'\?\)"):
        parse_spec(document_of_words(Spec, {"workload": "prefx", "n": 8}))


@pytest.mark.parametrize("part", ["optimize_for", "sampling", "participation", "objective", "mechanism"])
def test_an_empty_part_is_refused_in_the_words_of_json(part: str) -> None:
    given: dict[str, Any] = {"workload": PREFIX, part: {}}
    with pytest.raises(InvalidParameter) as as_json:
        parse_spec(given)
    with pytest.raises(InvalidParameter, match="kind") as as_words:
        parse_spec(document_of_words(Spec, given))
    assert str(as_words.value) == str(as_json.value)


@pytest.mark.parametrize(
    ("words", "twice"),
    [
        ({"epochs": "2", "participation.epochs": "4"}, "participation.epochs is given twice, as 2 and 4"),
        ({"mechanism": '{"kind": "banded", "bands": 2}', "bands": "3"}, "mechanism.bands is given twice"),
        ({"mechanism": "banded", "mechanism.kind": "dense"}, "mechanism is given twice"),
    ],
)
def test_a_field_in_two_spellings_has_one_value(words: dict[str, str], twice: str) -> None:
    with pytest.raises(InvalidParameter, match=twice):
        document_of_words(Spec, {"workload": "prefix", "n": "8", **words})
    same = document_of_words(Spec, {"workload": "prefix", "n": "8", "epochs": "2", "participation.epochs": "2"})
    assert same["participation"] == {"kind": "fixed_epochs", "epochs": 2}


def test_both_kinds_of_one_class_are_known() -> None:
    assert list(kinds_in(fields_of(Spec)["sampling"].annotation)) == ["balls_in_bins", "b_min_sep"]
    with pytest.raises(InvalidParameter, match="set sampling to one of balls_in_bins, b_min_sep"):
        document_of_words(Spec, {"workload": "prefix", "n": "8", "epsilon": "2"})


def test_every_field_of_every_kind_has_its_word() -> None:
    for part, field in fields_of(Spec).items():
        for kind, owner in kinds_in(field.annotation).items():
            for name in set(fields_of(owner)) - {"kind"}:
                assert any(
                    word.path == (part,) and (kind in word.kinds or word.parts) for word in words_of(Spec)[name]
                ), (part, kind, name)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *(("3", 3), ("0.5", 0.5), (".5", 0.5), ("1,2", "1,2"), ("true", True), ("a", "a")),
        *((text, text) for text in ("inf", "nan", "NaN", "-Infinity", "1e400", "[1e400]")),  # no JSON has them
    ],
)
def test_values_are_json_or_words(text: str, value: Any) -> None:
    assert value_of(text, (int,)) == value and type(value_of(text, (int,))) is type(value)


@pytest.mark.parametrize(
    ("text", "value"),
    [("2", [2]), ("1,0.5", [1, 0.5]), (".5,.25", [0.5, 0.25]), ("[1]", [1]), ("1,,x", [1, "", "x"]), ("", [])],
)
def test_a_list_may_have_one_entry_and_may_be_written_as_numbers_are(text: str, value: Any) -> None:
    assert value_of(text, (list[float] | None,)) == value


@pytest.mark.parametrize(
    ("word", "value", "pointer"),
    [
        *(("tolerance", value, "/tolerance") for value in ("nan", "inf", "NaN", "1e400", math.nan, math.inf)),
        *(("weights", value, "/objective/weights/0") for value in ("nan,1", "1e400,1", [math.inf, 1.0])),
        ("weights", "[NaN,1]", "/objective/weights"),
        ("learning_rates", "1,inf", "/workload/learning_rates/1"),
    ],
)
def test_what_is_no_finite_number_is_refused_at_its_field(word: str, value: object, pointer: str) -> None:
    workload = "schedule" if word == "learning_rates" else "prefix"
    with pytest.raises(InvalidSpec) as refused:
        parse_spec(document_of_words(Spec, {"workload": workload, "n": 2, word: value}))
    assert [violation.pointer for violation in refused.value.violations] == [pointer]

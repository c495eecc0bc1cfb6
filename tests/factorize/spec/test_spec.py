"""Equal meaning gives an equal digest, different meaning never; what breaks the contract is refused with a pointer."""

from __future__ import annotations

import copy
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from factorize.encoding import json_digest, tensor_digest
from factorize.errors import InvalidSpec, InvalidWorkload, UnsupportedProblem
from factorize.spec import Spec, parse_spec

PREFIX = {"kind": "prefix", "n": 8}
DENSE = {"kind": "dense"}


def digest(**parts: Any) -> str:
    return parse_spec({"workload": PREFIX, "mechanism": DENSE} | parts).digest


def test_defaults_are_the_ones_of_the_contract() -> None:
    assert parse_spec('{"workload": {"kind": "prefix", "n": 2048}}').document() == {
        "workload": {"kind": "prefix", "n": 2048},
        "participation": {"kind": "single"},
        "objective": {"kind": "mean"},
        "mechanism": {"kind": "auto"},
        "tolerance": 1e-9,
    }


def test_digest_is_the_sha256_of_the_canonical_document() -> None:
    spec = parse_spec({"workload": PREFIX, "mechanism": DENSE})
    assert spec.digest == json_digest(spec.document())
    text = (
        '{"mechanism":{"kind":"dense"},"objective":{"kind":"mean"},"participation":{"kind":"single"},'
        '"tolerance":1e-09,"workload":{"kind":"prefix","n":8}}'
    )
    assert json.dumps(spec.document(), sort_keys=True, separators=(",", ":")) == text


def test_a_copy_with_other_fields_has_a_digest_of_its_own() -> None:
    spec = parse_spec({"workload": PREFIX, "mechanism": DENSE})
    before = spec.digest
    other = spec.model_copy(update={"tolerance": 1e-3})
    assert other.digest == digest(tolerance=1e-3) != before


@pytest.mark.parametrize(
    "asked",
    [
        {"kind": "prefix", "n": 8},
        {"kind": "matrix", "rows": [[1.0, 0.0], [1.0, 1.0]]},
        {"kind": "schedule", "n": 2, "learning_rates": [1.0, 0.5]},
    ],
)
def test_specs_are_equal_by_their_fields_alone(asked: dict[str, Any]) -> None:
    specs = [Spec.of(asked, mechanism="dense") for _ in range(2)]
    for spec in specs:
        spec.workload.dense()  # which keeps arrays
        spec.workload.row_block(0, 1)
    assert specs[0] == specs[1] == copy.deepcopy(specs[0]) and len({*specs}) == 1
    assert specs[0] != Spec.of(asked, mechanism="identity") and specs[0] != specs[0].document()


SAME = [
    ({}, {"participation": {"kind": "single"}, "objective": {"kind": "mean"}, "tolerance": 1e-9}),
    ({"participation": {"kind": "fixed_epochs", "epochs": 1}}, {}),
    ({"participation": {"kind": "min_sep", "min_sep": 8}}, {}),
    ({"participation": {"kind": "min_sep", "min_sep": 2, "max_participations": 1}}, {}),
    (
        {"participation": {"kind": "min_sep", "min_sep": 3}},
        {"participation": {"kind": "min_sep", "min_sep": 3, "max_participations": 3}},
    ),
    (
        {"participation": {"kind": "min_sep", "min_sep": 3}},
        {"participation": {"kind": "min_sep", "min_sep": 3, "max_participations": 20}},
    ),
    ({"tolerance": 1e-9}, {"tolerance": 0.000000001}),
    (
        {"workload": {"kind": "momentum", "n": 8, "momentum": 0}},
        {"workload": {"momentum": -0.0, "nesterov": False, "kind": "momentum", "n": 8}},
    ),
    (
        {
            "workload": {
                "kind": "schedule",
                "n": 3,
                "learning_rates": {"kind": "linear_cooldown", "steps": 2, "final": 0},
            }
        },
        {"workload": {"kind": "schedule", "n": 3, "learning_rates": [1, 0.5, 0.0]}},
    ),
    (
        {"workload": {"kind": "matrix", "rows": [[1, 0], [1, 1.0]]}},
        {
            "workload": {
                "kind": "matrix",
                "shape": [2, 2],
                "sha256": "d8bd4eab9a59f75ac3b0df775019ad62d3f249ad2868e75a1c83af798ebc914a",
            }
        },
    ),
    ({"mechanism": {"kind": "square_root"}}, {"mechanism": {"kind": "square_root", "normalization": "none"}}),
]


@pytest.mark.parametrize(("one", "other"), SAME)
def test_equal_meaning_equal_digest(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert digest(**one) == digest(**other)


DIFFERENT = [
    {},
    {"workload": {"kind": "prefix", "n": 9}},
    {"workload": {"kind": "identity", "n": 8}},
    {"workload": {"kind": "schedule", "n": 8, "learning_rates": [1] * 8}},
    {"workload": {"kind": "momentum", "n": 8, "momentum": 0}},
    {"workload": {"kind": "momentum", "n": 8, "momentum": 0, "nesterov": True}},
    {"workload": {"kind": "decay", "n": 8, "rate": 1}},
    {"workload": {"kind": "window", "n": 8, "width": 8}},
    {"workload": {"kind": "mu2", "n": 8, "output": "q"}},
    {"participation": {"kind": "fixed_epochs", "epochs": 2}},
    {"participation": {"kind": "fixed_epochs", "epochs": 4}},
    {"participation": {"kind": "min_sep", "min_sep": 4}},
    {"participation": {"kind": "min_sep", "min_sep": 2, "max_participations": 2}},
    {"objective": {"kind": "lambda_tau", "tau": 2}},
    {"objective": {"kind": "lambda_tau", "tau": 4}},
    {"objective": {"kind": "max"}},
    {"objective": {"kind": "weighted", "weights": [1] * 8}},
    {"mechanism": {"kind": "identity"}},
    {"mechanism": {"kind": "nu_toeplitz", "nu": 0}},
    {"mechanism": {"kind": "nu_toeplitz", "nu": "tune"}},
    {"mechanism": {"kind": "square_root", "normalization": "auto"}},
    {"tolerance": 1e-8},
    {"optimize_for": {"kind": "prefix", "n": 8}},
]


def test_different_meaning_different_digest() -> None:
    digests = [digest(**parts) for parts in DIFFERENT]
    assert len(set(digests)) == len(DIFFERENT)


@given(st.floats(1e-12, 0.5), st.floats(1e-12, 0.5), st.floats(0, 0.99), st.floats(0, 0.99))
def test_digests_agree_exactly_when_the_numbers_do(t1: float, t2: float, m1: float, m2: float) -> None:
    one = digest(workload={"kind": "momentum", "n": 4, "momentum": m1}, tolerance=t1)
    other = digest(workload={"kind": "momentum", "n": 4, "momentum": m2}, tolerance=t2)
    assert (one == other) == ((t1, m1) == (t2, m2))


def test_the_canonical_form_is_a_fixed_point() -> None:
    for parts in DIFFERENT:
        spec = parse_spec({"workload": PREFIX, "mechanism": DENSE} | parts)
        assert parse_spec(json.dumps(spec.document())).document() == spec.document()


def test_auto_has_no_digest() -> None:
    with pytest.raises(UnsupportedProblem, match="name a mechanism"):
        _ = parse_spec({"workload": PREFIX}).digest


REFUSED = [
    ("[]", ""),
    ("3", ""),
    ("null", ""),
    ("{}", "/workload"),
    ('{"workload": {"kind": "prefix"}}', "/workload/n"),
    ('{"workload": {"kind": "prefix", "n": 4.0}}', "/workload/n"),
    ('{"workload": {"kind": "prefix", "n": "4"}}', "/workload/n"),
    ('{"workload": {"kind": "prefix", "n": true}}', "/workload/n"),
    ('{"workload": {"kind": "prefix", "n": 0}}', "/workload/n"),
    ('{"workload": {"kind": "prefix", "n": 100000001}}', "/workload/n"),
    ('{"workload": {"kind": "prefix", "n": 4, "rate": 1}}', "/workload/rate"),
    ('{"workload": {"kind": "nothing", "n": 4}}', "/workload"),
    ('{"workload": {"n": 4}}', "/workload"),
    ('{"workload": {"kind": "momentum", "n": 4, "momentum": 1}}', "/workload/momentum"),
    ('{"workload": {"kind": "momentum", "n": 4, "momentum": true}}', "/workload/momentum"),
    ('{"workload": {"kind": "momentum", "n": 4, "momentum": "0.9"}}', "/workload/momentum"),
    ('{"workload": {"kind": "decay", "n": 4, "rate": 0}}', "/workload/rate"),
    ('{"workload": {"kind": "window", "n": 4, "width": 5}}', "/workload"),
    ('{"workload": {"kind": "schedule", "n": 4, "learning_rates": [1, 1, 1]}}', "/workload"),
    ('{"workload": {"kind": "schedule", "n": 2, "learning_rates": [0, 0]}}', "/workload"),
    ('{"workload": {"kind": "schedule", "n": 2, "learning_rates": [1, -1]}}', "/workload/learning_rates/1"),
    ('{"workload": {"kind": "weight_decay", "n": 2, "rate": 1, "mode": "decoupled"}}', "/workload"),
    ('{"workload": {"kind": "mu2", "n": 2, "output": "z"}}', "/workload/output"),
    ('{"workload": {"kind": "matrix", "rows": [[1, 1], [0, 1]]}}', "/workload"),
    ('{"workload": {"kind": "matrix", "rows": [[1], [1, 1]]}}', "/workload"),
    ('{"workload": {"kind": "matrix", "rows": [[0, 0], [0, 0]]}}', "/workload"),
    ('{"workload": {"kind": "matrix", "sha256": "00", "shape": [1, 1]}}', "/workload/sha256"),
    ('{"workload": {"kind": "matrix"}}', "/workload"),
]
REFUSED += [
    (json.dumps({"workload": {"kind": "prefix", "n": 4}, part: given}), pointer)
    for part, given, pointer in (
        ("seed", 1, "/seed"),
        ("participation", {"kind": "fixed_epochs", "epochs": 3}, "/participation/epochs"),
        ("participation", {"kind": "min_sep", "min_sep": 0}, "/participation/min_sep"),
        ("participation", {"kind": "min_sep", "min_sep": 5}, "/participation/min_sep"),
        ("objective", {"kind": "lambda_tau", "tau": 0}, "/objective/tau"),
        ("objective", {"kind": "lambda_tau", "tau": 1.5}, "/objective/tau"),
        ("objective", {"kind": "weighted", "weights": [1]}, "/objective/weights"),
        ("mechanism", {"kind": "nu_toeplitz", "nu": 1}, "/mechanism/nu"),
        ("mechanism", {"kind": "nu_toeplitz"}, "/mechanism/nu"),
        ("tolerance", 0, "/tolerance"),
        ("tolerance", 1, "/tolerance"),
        ("optimize_for", {"kind": "prefix", "n": 5}, "/optimize_for"),
    )
]


@pytest.mark.parametrize(("text", "pointer"), REFUSED)
def test_refused_with_a_pointer(text: str, pointer: str) -> None:
    with pytest.raises(InvalidSpec) as caught:
        parse_spec(text)
    assert any(violation.pointer.startswith(pointer) for violation in caught.value.violations)
    assert all("[" not in violation.pointer for violation in caught.value.violations)


def test_every_problem_is_reported_at_once() -> None:
    with pytest.raises(InvalidSpec) as caught:
        parse_spec('{"workload": {"kind": "prefix", "n": 0}, "tolerance": 2, "extra": 1}')
    assert {v.pointer for v in caught.value.violations} == {"/workload/n", "/tolerance", "/extra"}


def test_a_spec_is_frozen() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        parse_spec({"workload": PREFIX}).tolerance = 0.5


def test_a_spec_is_bound_to_the_matrices_that_it_names_and_to_no_others() -> None:
    own, other = np.array([[1.0, 0.0], [2.0, 3.0]]), np.array([[4.0, 0.0], [5.0, 6.0]])
    digests = [tensor_digest([array]) for array in (own, other)]
    workload, optimize_for = ({"kind": "matrix", "sha256": digest, "shape": [2, 2]} for digest in digests)
    spec = parse_spec({"workload": workload, "optimize_for": optimize_for, "mechanism": DENSE})
    assert [part.bound for part in spec.user_matrices().values()] == [False, False]
    half = spec.bind({digests[1]: other, "0" * 64: own})
    assert {name: part.bound for name, part in half.user_matrices().items()} == {
        "workload": False,
        "optimize_for": True,
    }
    whole = half.bind({digests[0]: own})
    np.testing.assert_array_equal(whole.workload.dense(), own)
    assert whole.optimize_for is half.optimize_for and whole.digest == spec.digest
    with pytest.raises(InvalidWorkload, match="do not hash"):
        spec.bind({digests[0]: other})

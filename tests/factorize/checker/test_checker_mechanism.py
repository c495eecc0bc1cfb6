"""The mechanism that a file names: members pass, and a file that names another mechanism than its C is of does not."""

from __future__ import annotations

import copy
from typing import Any

import cases
import numpy as np
import pytest
from checker_files import parts, random_result, sealed
from specs import solved

from factorize.checker.check import check_factor_file, leave_undecided
from factorize.checker.mechanism import _RULES
from factorize.checker.report import CLASS_BOUND, MECHANISM
from factorize.encoding import tensor_digest
from factorize.errors import CorruptObject
from factorize.factors.factor_file import cast
from factorize.factors.factorization import Factorization

N = 12
MECHANISMS: dict[str, dict[str, Any]] = {
    name: fields
    for name, fields in cases.MECHANISMS.items()
    if name not in ("auto", "semidefinite", "spectral", "nu_toeplitz normalised")
} | {
    "fractional root tuned": {"kind": "banded_inverse_fractional_root", "bands": 3, "gamma": "tune"},
    "lambda_cgd tuned": {"kind": "lambda_cgd", "correlation": "tune"},
    "anti_pgd damped": {"kind": "anti_pgd", "damping": 0.5},
    "inverse root of 3 bands": {"kind": "banded_inverse_square_root", "bands": 3},
}
ANY = (
    "dense",
    "toeplitz",
    "nu_toeplitz tuned",
    "fractional root tuned",
    "lambda_cgd tuned",
)  # classes that hold the C of many others


@pytest.fixture(scope="module")
def answers() -> dict[str, Factorization]:
    return {name: solved(N, mechanism, tolerance=1e-3) for name, mechanism in MECHANISMS.items()}


def named(result: Factorization, mechanism: dict[str, Any]) -> Any:
    manifest, tensors = parts(result)
    manifest["spec"]["mechanism"] = mechanism
    manifest["certificate"]["converged"] = False
    return check_factor_file(sealed(manifest, tensors))


@pytest.mark.parametrize("name", MECHANISMS)
def test_every_answer_is_of_its_mechanism(answers: dict[str, Factorization], name: str) -> None:
    """In fewer bits too, with all that may be stored."""
    narrow = cast(answers[name], "float32")
    for result in (answers[name], narrow, narrow.with_matrices(["C", "B", "C_inv"])):
        report = check_factor_file(sealed(*parts(result)))
        assert report.supported and report.status(MECHANISM) == "proved", report.claims


@pytest.mark.parametrize("name", [name for name in MECHANISMS if name not in ANY])
def test_no_answer_passes_for_another_mechanisms(answers: dict[str, Factorization], name: str) -> None:
    """Each formula, and each class that is narrow, against the strategies of every second of the others."""
    mechanism = answers[name].spec.document()["mechanism"]
    for other, result in list(answers.items())[list(MECHANISMS).index(name) % 2 :: 2]:
        if other == name or (mechanism["kind"], other) in MEMBERS:
            continue
        report = named(result, mechanism)
        status = report.status(MECHANISM)
        assert status == "false" or (status == "not_looked_at" and name in INVERSE_ROOTS), (
            other,
            report,
        )
        assert status != "false" or any("is not of the mechanism" in text for text in report.failed)


INVERSE_ROOTS = ("banded_inverse_square_root", "inverse root of 3 bands", "banded_inverse_fractional_root")
MEMBERS = {  # by the bits, C is of both
    *((kind, other) for kind in ("banded", "banded_toeplitz") for other in ("identity", "banded_square_root")),
    ("banded", "banded_toeplitz"),
    *(("blt", other) for other in ("anti_pgd", "anti_pgd damped", "lambda_cgd", "lambda_cgd tuned")),
    ("banded_inverse_fractional_root", "inverse root of 3 bands"),
}


@pytest.mark.parametrize(
    ("name", "mechanism"),
    [
        ("banded", {"kind": "banded", "bands": 2}),
        ("banded_toeplitz", {"kind": "banded_toeplitz", "bands": 2, "normalization": "none"}),
        ("blt", {"kind": "blt", "buffers": 1, "normalization": "none"}),
        ("buffered_linear", {"kind": "buffered_linear", "buffers": 1}),
        ("nu_toeplitz", {"kind": "nu_toeplitz", "nu": 0.1 + 1e-8, "normalization": "none"}),
        ("anti_pgd damped", {"kind": "anti_pgd", "damping": 0.5 - 1e-8}),
        ("lambda_cgd", {"kind": "lambda_cgd", "correlation": 0.8 + 1e-8}),
        (
            "banded_inverse_fractional_root",
            {"kind": "banded_inverse_fractional_root", "bands": 3, "gamma": 0.7 + 1e-8, "normalization": "none"},
        ),
        (
            "banded_inverse_fractional_root",
            {"kind": "banded_inverse_fractional_root", "bands": 4, "gamma": 0.7, "normalization": "none"},
        ),
        ("square_root with unit columns", {"kind": "square_root", "normalization": "none"}),
        ("square_root", {"kind": "square_root", "normalization": "columns"}),
        ("tree with all nodes, restarted", {"kind": "tree", "decoder": "honaker_full", "restart_every": 6}),
        ("tree", {"kind": "tree", "decoder": "honaker_online"}),
        ("fft", {"kind": "fft", "decoder": "optimal"}),
    ],
)
def test_other_parameters_than_those_named(
    answers: dict[str, Factorization], name: str, mechanism: dict[str, Any]
) -> None:
    assert named(answers[name], mechanism).status(MECHANISM) == "false"


def test_a_mechanism_without_a_rule_is_not_looked_at(
    answers: dict[str, Factorization], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(_RULES, "dense")
    report = named(answers["dense"], {"kind": "dense"})
    assert report.supported and report.unseen == [MECHANISM]


def test_a_mechanism_that_is_none_in_canonical_form_is_refused(answers: dict[str, Factorization]) -> None:
    """Parameters that have no value are left out of it."""
    for mechanism, message in (
        ({"kind": "novel"}, "unknown kind 'novel'"),
        ({"kind": "buffered_linear", "buffers": 2, "redraws": None}, "not in its canonical form"),
    ):
        with pytest.raises(CorruptObject, match=message):
            named(answers["buffered_linear"], mechanism)


def test_the_frequency_domain_is_not_looked_at() -> None:
    mechanism = {"kind": "spectral", "learning_rate": 0.1, "eigenvalues": [1.0, 0.5]}
    report = check_factor_file(sealed(*parts(solved(N, mechanism, tolerance=1e-3))))
    assert report.supported and report.unseen == [MECHANISM]


def test_a_square_that_is_no_number_is_none_of_the_formula(answers: dict[str, Factorization]) -> None:
    """A file of finite coefficients whose square has sums of infinities of both signs."""
    manifest, tensors = parts(answers["banded_square_root"])
    manifest["spec"]["mechanism"]["bands"] = 5
    tensors["C.coefficients"] = np.array([1.0, 1e200, 1e200, -1e200, 0.0])
    assert check_factor_file(sealed(manifest, tensors)).status(MECHANISM) == "false"


def test_strategies_named_by_their_bytes() -> None:
    result = random_result(np.random.default_rng(1), "dense", {"kind": "single"}, 6)
    sha256 = result.manifest["matrices"]["C"]["sha256"]
    assert named(result, {"kind": "added", "sha256": sha256}).status(MECHANISM) == "proved"
    assert named(result, {"kind": "added", "sha256": "0" * 64}).status(MECHANISM) == "false"
    stored = random_result(np.random.default_rng(1), "banded", {"kind": "single"}, 6)
    assert named(stored, {"kind": "added", "sha256": sha256}).status(MECHANISM) == "not_looked_at"
    array = tensor_digest([stored.matrix.dense()])
    assert named(stored, {"kind": "added", "sha256": array}).status(MECHANISM) == "proved"


def test_strategies_without_end() -> None:
    prefix = {"kind": "prefix", "n": "unbounded"}
    for mechanism, wrong in (
        ({"kind": "nu_toeplitz", "nu": 0.1}, {"kind": "nu_toeplitz", "nu": 0.2}),
        ({"kind": "blt", "buffers": 2}, {"kind": "blt", "buffers": 1}),
        ({"kind": "blt", "buffers": 2}, {"kind": "nu_toeplitz", "nu": 0.1}),
    ):
        result = solved(prefix, mechanism)
        true = check_factor_file(sealed(*parts(result)))
        assert true.status(MECHANISM) == "proved"
        assert not true.unseen
        manifest, tensors = parts(result)
        manifest["spec"]["mechanism"] = wrong | {"normalization": "none"}
        assert check_factor_file(sealed(manifest, tensors)).status(MECHANISM) == "false"


@pytest.mark.parametrize("kind", ["dense", "blt", "square_root", "buffered_linear"])
def test_a_class_bound_is_proved_or_listed(answers: dict[str, Factorization], kind: str) -> None:
    """At most the bound over all matrices, it holds for each class; above, nobody here can tell for these classes."""
    manifest, tensors = parts(answers[kind])
    general, objective = (manifest["certificate"][key] for key in ("lower_bound", "loss"))
    for value, status in (
        (general["objective"], "proved"),
        ((general["objective"] + objective["objective"]) / 2, "not_looked_at"),
        (objective["objective"] * 1.01, "false"),
    ):
        claimed = copy.deepcopy(manifest)
        claimed["certificate"]["class_lower_bound"] = {"objective": value, "rule": "made up"}
        report = check_factor_file(sealed(claimed, tensors))
        assert report.status(CLASS_BOUND) == status
        assert (CLASS_BOUND in report.unseen) == (status == "not_looked_at")


def test_where_the_sensitivity_is_undecided_no_claim_is_looked_at(answers: dict[str, Factorization]) -> None:
    report = leave_undecided(sealed(*parts(answers["dense"])), "it is too large")
    assert report.supported and report.unseen == list(report.stated) and len(report.stated) > 5
    assert report.not_checked == ["the sensitivity: it is too large"]

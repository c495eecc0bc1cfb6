"""Claims by whole matrices: what is asked of each, and what is listed where a user's matrix is not known."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from factorize.exact.arithmetic.integers import Numbers
from factorize.exact.losses import check_whole, residual
from factorize.exact.report import ADDED_NOISE, CLASS_BOUND, DECODER, LOSS, LOWER_BOUND, Report
from factorize.exact.sensitivity import Bracket

BRACKET = Bracket(Fraction(1), Fraction(4), "mine", (0,), (1,))
WORKLOAD = Numbers(np.zeros((2, 3), dtype=object), 0)
FOUND = SimpleNamespace(rest="rest")
C: Any = SimpleNamespace(n=3)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What was asked of other rooms, without the report and the file."""
    seen: list[tuple[Any, ...]] = []

    def way(name: str, found: Any = None) -> Callable[..., Any]:
        def answer(*given: Any) -> Any:
            seen.append((name, *given[2 if isinstance(given[0], Report) else 0 :]))
            return found

        return answer

    for name, found in (
        ("check_added_noise", None),
        ("check_bound", None),
        ("check_class_bound", None),
        ("check_losses", None),
        ("check_noising", None),
        ("lower_bound", Fraction(7)),
        ("added_noise", 1.5),
        ("whole_noising", "noising"),
    ):
        monkeypatch.setattr(check_whole, name, way(name, found))
    monkeypatch.setattr(check_whole.residual, "losses", way("residual", FOUND))
    monkeypatch.setattr(check_whole.residual, "read_matrix", lambda *given: given)
    monkeypatch.setattr(check_whole, "allowed", lambda participation, n: SimpleNamespace(most=n + 2))
    return seen


def file(*names: str, **workload: Any) -> Any:
    entry = {"structure": "dense", "dtype": "float32"}
    spec = {"workload": {"kind": "prefix", "n": 3} | workload, "objective": "objective", "participation": {}}
    matrices = {name: entry for name in names}
    return SimpleNamespace(
        manifest={"spec": spec, "matrices": matrices}, matrices={name: f"tensors of {name}" for name in names}, dual={}
    )


def test_everything_is_looked_at(asked: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch) -> None:
    given = file("C_inv")
    monkeypatch.setattr(check_whole, "numbers_of", lambda *_: WORKLOAD)
    check_whole.check_whole(Report(), given, C, BRACKET, {})
    names = [name for name, *_ in asked]
    assert names == [
        *("residual", "check_added_noise", "check_losses", "whole_noising"),
        *("check_noising", "lower_bound", "check_bound", "check_class_bound"),
    ]
    assert asked[1:3] == [("check_added_noise", None), ("check_losses", FOUND, 2, False)]
    assert asked[0] == ("residual", C, WORKLOAD, "objective", None, residual.LIMITS["float64"])
    assert asked[3] == ("whole_noising", C, ("dense", "tensors of C_inv", (3, 3)), 4)
    assert asked[4] == ("check_noising", "noising")
    assert asked[5][1:] == (given.manifest["spec"], given.dual, WORKLOAD)
    assert asked[6:] == [("check_bound", 7), ("check_class_bound", C, WORKLOAD)]


def test_a_stored_b_is_read_and_certified(asked: list[tuple[Any, ...]]) -> None:
    check_whole.check_decoder(Report(), file("B"), C, BRACKET, WORKLOAD)
    stored = ("dense", "tensors of B", (2, 3))
    assert asked == [
        ("residual", C, WORKLOAD, "objective", stored, residual.LIMITS["float32"]),
        ("added_noise", stored, "rest", 5, 4),
        ("check_added_noise", 1.5),
        ("check_losses", FOUND, 2, True),
    ]


def test_losses_alone(asked: list[tuple[Any, ...]]) -> None:
    check_whole.check_losses_alone(Report(), file(), C, WORKLOAD)
    assert asked == [("residual", C, WORKLOAD, "objective", None), ("check_losses", FOUND, 2, False)]


def test_a_workload_that_is_not_known(asked: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch) -> None:
    """All that rests on its numbers is listed; a stored inverse does not."""
    monkeypatch.setattr(check_whole, "numbers_of", lambda *_: None)
    report = Report()
    check_whole.check_whole(report, file("C_inv"), C, BRACKET, {})
    assert [name for name, *_ in asked] == ["whole_noising", "check_noising"]
    assert set(report.findings) == {DECODER, ADDED_NOISE, LOSS, LOWER_BOUND, CLASS_BOUND}
    assert len(report.not_checked) == 1 and "numbers are not known here" in report.not_checked[0]
    asked.clear()
    check_whole.check_whole(Report(), file(), C, BRACKET, {})
    assert not asked


def test_which_numbers_are_a_workloads() -> None:
    """Those of the shape that the spec states, n by n where it states none."""
    wide = np.arange(6.0).reshape(2, 3)
    matrix = {"kind": "matrix", "sha256": "abc", "shape": [2, 3]}
    found = check_whole.numbers_of(file(**matrix), {"abc": wide})
    assert found is not None and (found.values.astype(float) * 2.0**found.exponent == wide).all()
    prefix = check_whole.numbers_of(file(), {})
    assert prefix is not None and prefix.values.shape == (3, 3)
    for user in ({}, {"other": wide}, {"abc": wide.T}, {"abc": np.eye(3)}):
        assert check_whole.numbers_of(file(**matrix), user) is None
        assert not check_whole.is_known(file(**matrix), user)
    assert check_whole.is_known(file(**matrix), {"abc": wide}) and check_whole.is_known(file(), {})

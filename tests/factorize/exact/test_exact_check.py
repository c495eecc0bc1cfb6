"""The check of a whole file, step by step: what it asks of which room, and what becomes of errors."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from factorize.errors import (
    CertificateError,
    CorruptObject,
    InvalidParameter,
    InvalidParticipation,
    InvalidStrategy,
    TooLarge,
)
from factorize.exact import check
from factorize.exact.arithmetic import machine
from factorize.exact.arithmetic.intervals import NotEnclosed
from factorize.exact.mechanism import Contradiction, Named
from factorize.exact.report import MECHANISM, SENSITIVITY, STRATEGY, Report
from factorize.exact.routes import Reach
from factorize.exact.sensitivity import NODES, TWO_STAGE, Bracket

BRACKET = Bracket(Fraction(4), Fraction(4), "mine", (0,), (1,))
STATED = {"value": 2.0, "hex": (2.0).hex(), "kind": "exact", "participation": {"kind": "single"}}
C = SimpleNamespace(n=3, reading=SimpleNamespace(by_nodes=False))


def file(n: Any = 3, shape: Any = None, **matrices: list[int]) -> Any:
    entries = {"C": [n, n], **matrices}
    spec = {
        "workload": {"kind": "prefix", "n": n} | ({"shape": shape} if shape else {}),
        "objective": {"kind": "mean"},
        "participation": {"kind": "single"},
        "mechanism": {"kind": "dense"},
    }
    return SimpleNamespace(
        manifest={
            "spec": spec,
            "certificate": {"sensitivity": dict(STATED)},
            "matrices": {
                name: {"structure": "dense", "shape": sides, "dtype": "float32"} for name, sides in entries.items()
            },
        },
        matrices={"C": "tensors"},
    )


class Rooms:
    """The rooms that a check asks, each of which writes down what it was asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[tuple[Any, ...]] = []
        for name, found in (
            ("check_known", None),
            ("check_known_objective", None),
            ("check_endless", None),
            ("check_convergence", None),
            ("check_long", None),
            ("check_whole", None),
            ("Strategy", C),
            ("belongs", "it is of the mechanism"),
            ("squared_sensitivity", BRACKET),
            ("Routes", SimpleNamespace(check=self.way("routes"))),
        ):
            monkeypatch.setattr(check, name, self.way(name, found))
        monkeypatch.setattr(check, "inverse_ahead", self.way("inverse_ahead", nullcontext("an inverse")))

    def way(self, name: str, found: Any = None) -> Callable[..., Any]:
        def asked(*given: Any) -> Any:
            self.asked.append((name, *given[1 if isinstance(given[0], Report) else 0 :]))
            return found

        return asked


@pytest.fixture
def rooms(monkeypatch: pytest.MonkeyPatch) -> Rooms:
    return Rooms(monkeypatch)


def checked(given: Any, *, integers: bool = False, reach: Reach = Reach(8, 3)) -> Report:  # noqa: B008
    report = Report()
    check._check(report, given, {}, reach, integers=integers)
    return report


@pytest.mark.parametrize(
    ("n", "integers", "last"), [(3, False, "Routes"), (4, False, "Routes"), (3, True, "whole"), (4, True, "long")]
)
def test_what_is_asked_in_which_order(n: int, integers: bool, last: str, rooms: Rooms) -> None:
    given = file(n)
    report, spec = checked(given, integers=integers), given.manifest["spec"]
    names = [name for name, *_ in rooms.asked]
    ways = {"Routes": ["Routes", "routes"], "whole": ["check_whole"], "long": ["check_long"]}[last]
    assert names == [
        *("check_known", "check_known_objective", "Strategy", "belongs", "inverse_ahead", "squared_sensitivity"),
        *(*ways, "check_convergence"),
    ]
    found = dict((name, tuple(more)) for name, *more in rooms.asked)
    assert found["check_known"] == (spec["workload"],) and found["check_known_objective"] == (spec["objective"],)
    assert found["Strategy"] == ("dense", "tensors", n)
    assert found["belongs"] == (Named(spec, C, "float32", "tensors"),)
    assert found["squared_sensitivity"] == (C, spec["participation"])
    assert found["check_convergence"] == (spec, given.manifest["certificate"])
    assert found["inverse_ahead"] == (C, 0 if integers else 8)
    rest = {"Routes": (BRACKET, {}, Reach(8, 3), "an inverse"), "whole": (BRACKET, {}), "long": (BRACKET, 3)}[last]
    assert found[ways[0]] == (given, C, *rest)
    assert set(report.findings) == {STRATEGY, MECHANISM, SENSITIVITY} and not report.failed
    assert any(text.startswith("publishing B (C G + Z)") for text in report.checked)
    assert any(text.startswith("who solved it") for text in report.not_checked)


def test_files_without_end_go_a_way_of_their_own(rooms: Rooms) -> None:
    given = file("unbounded")
    checked(given)
    entry = given.manifest["matrices"]["C"]
    assert rooms.asked[1:] == [("check_endless", entry, "tensors", given.manifest)] and len(rooms.asked) == 2


def test_shapes_that_are_not_those_of_the_spec(rooms: Rooms) -> None:
    """B has the rows of the workload, C and its inverse are square."""
    checked(file(3, shape=[2, 3], B=[2, 3], C_inv=[3, 3]))
    checked(file(3, B=[3, 3]))
    for shape, matrices in (
        ([2, 3], {"B": [3, 3]}),
        ([2, 3], {"C_inv": [2, 3]}),
        (None, {"B": [2, 3]}),
        (None, {"C": [3, 4]}),
    ):
        rooms.asked.clear()
        with pytest.raises(CertificateError, match="the spec asks for n=3"):
            checked(file(3, shape=shape, **matrices))
        assert [name for name, *_ in rooms.asked] == ["check_known"]


def test_a_mechanism_that_is_another_one_or_not_looked_at(rooms: Rooms, monkeypatch: pytest.MonkeyPatch) -> None:
    for error, status in ((Contradiction("it is not"), "false"), (NotEnclosed("too long"), "not_looked_at")):

        def raised(*_: Any, error: Exception = error) -> str:
            raise error

        monkeypatch.setattr(check, "belongs", raised)
        report = checked(file())
        assert report.status(MECHANISM) == status and set(report.findings) == {STRATEGY, MECHANISM, SENSITIVITY}
        ((_, text),) = report.findings[MECHANISM]
        assert str(error) in text and "mechanism dense" in text


@pytest.mark.parametrize(
    "change",
    [
        {"participation": {"kind": "min_sep", "min_sep": 2}},
        {"kind": "about"},
        {"value": 2.5},
        {"value": 1.5, "hex": (1.5).hex()},
    ],
    ids=str,
)
def test_sensitivities_that_are_stated_wrongly(change: dict[str, Any], rooms: Rooms) -> None:
    given = file()
    assert checked(given).status(SENSITIVITY) == "proved"
    given.manifest["certificate"]["sensitivity"].update(change)
    report = checked(given)
    assert report.status(SENSITIVITY) == "false" and len(report.failed) == 1


def test_trees_between_two_ends_are_not_called_false() -> None:
    """From the lower end on, below the upper one or far above what is attained, by the rules of selections alone."""

    def refused(value: float, *, rule: str = TWO_STAGE, by_nodes: bool = True, kind: str = "upper_bound") -> bool:
        strategy: Any = SimpleNamespace(n=4, reading=SimpleNamespace(by_nodes=by_nodes))
        try:
            check._refuse_undecided(strategy, Bracket(Fraction(25, 4), Fraction(9), rule, (), ()), value, kind)
        except TooLarge as error:
            assert f"{value!r} of this tree is between 2.5 and 3.0" in str(error)
            return True
        return False

    assert [refused(value) for value in (2.4, 2.5, 2.9, 3.0, 3.1)] == [False, True, True, False, False]
    assert not refused(2.9, rule="column norms") and not refused(2.9, by_nodes=False)
    assert refused(2.9, rule=NODES) and not refused(3.0, rule=NODES)
    assert [refused(value, kind="exact") for value in (2.4, 2.5, 3.0, math.inf)] == [False, True, True, False]
    narrow = Bracket(Fraction(25, 4), Fraction(25, 4), NODES, (), ())
    strategy: Any = SimpleNamespace(n=4, reading=SimpleNamespace(by_nodes=True))
    check._refuse_undecided(strategy, narrow, 2.5, "exact")
    with pytest.raises(TooLarge, match="select over its nodes takes too long here"):
        check._refuse_undecided(strategy, narrow, 2.6, "exact")


def test_undecided_trees_end_a_check(rooms: Rooms, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(check, "_refuse_undecided", lambda *given: asked.append(given))
    checked(file())
    assert asked == [(C, BRACKET, 2.0, "exact")]


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (CertificateError("no factor"), "failed"),
        (InvalidStrategy("no strategy"), "failed"),
        (InvalidParticipation("no participation"), "failed"),
        (TooLarge("too long"), TooLarge),
        (InvalidParameter("no spec"), InvalidParameter),
        (CorruptObject("no bytes"), CorruptObject),
        (KeyError("spec"), "corrupt"),
        (TypeError("none"), "corrupt"),
        (ZeroDivisionError("zero"), "corrupt"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_what_becomes_of_errors(error: Exception, outcome: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def raised(*_: Any, integers: bool) -> None:
        raise error

    monkeypatch.setattr(check, "_opened", lambda data: (Report(), "file"))
    monkeypatch.setattr(check, "_check", raised)
    if outcome == "failed":
        assert check.check_factor_file(b"").failed == [str(error)]
    else:
        expected = CorruptObject if outcome == "corrupt" else outcome
        with pytest.raises(expected) as caught:
            check.check_factor_file(b"")
        assert (caught.value is error) == (outcome != "corrupt")
        assert outcome != "corrupt" or f"the manifest is not one: {type(error).__name__}" in str(caught.value)


def test_how_far_whole_matrices_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """In integers never beyond their own limit; in integers alone where that is asked for."""
    seen: list[Any] = []

    def kept(report: Report, given: Any, user: Any, reach: Reach, *, integers: bool) -> None:
        seen.append((given, user, tuple(reach), integers, machine._INTEGERS_ONLY.get()))

    monkeypatch.setattr(check, "_opened", lambda data: (Report(), data))
    monkeypatch.setattr(check, "_check", kept)
    most, user = check.residual.LARGEST, {"abc": np.eye(2)}
    for given, reach in (
        ({}, (check.LARGEST, most)),
        ({"whole": 7}, (7, 7)),
        ({"whole": 10**6}, (10**6, most)),
        ({"integers_up_to": 5}, (check.LARGEST, 5)),
        ({"integers_up_to": 10**6}, (check.LARGEST, most)),
    ):
        for integers in (False, True):
            check.check_factor_file(b"file", user=user, integers=integers, **given)
            assert seen.pop() == (b"file", user, reach, integers, integers)
    check.check_factor_file(b"file")
    assert seen.pop()[1] == {}


def test_a_file_of_which_nothing_is_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "read_factor_file", lambda data: SimpleNamespace(manifest=data))
    monkeypatch.setattr(check, "stated_claims", lambda manifest: (SENSITIVITY, STRATEGY))
    report = check.undecided(b"", "it is a tree")
    assert report.not_checked == ["the sensitivity in exact arithmetic: it is a tree"]
    assert report.unseen == [SENSITIVITY, STRATEGY] and len(report.checked) == 1

    def missing(_: Any) -> None:
        raise KeyError("certificate")

    monkeypatch.setattr(check, "stated_claims", missing)
    with pytest.raises(CorruptObject, match="the manifest is not one: KeyError: 'certificate'"):
        check.undecided(b"", "it is a tree")


def test_a_strategy_is_square() -> None:
    for shape in ((2, 3), (3, 2)):
        with pytest.raises(InvalidStrategy, match="a strategy matrix is square"):
            check.check_strategy(np.ones(shape), {"kind": "single"})

"""Routes to a claim: which is tried after which, what is kept of those that prove nothing, and what each is asked."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from factorize.errors import CertificateError
from factorize.exact import routes
from factorize.exact.arithmetic.intervals import NotEnclosed
from factorize.exact.report import CLASS_BOUND, LOSS, LOWER_BOUND, Report
from factorize.exact.routes import Reach, Routes
from factorize.exact.sensitivity import Bracket

BRACKET = Bracket(Fraction(1), Fraction(4), "mine", (0,), (1,))
USER = {"abc": np.eye(2)}
N = 8
WITH_INTEGERS, ALONE = Reach(N, N), Reach(N, N - 1)


def file(
    *names: str, lower: float | None = 10.0, of_class: float | None = 20.0, kind: str = "banded"
) -> SimpleNamespace:
    bounds = [None if bound is None else {"objective": bound} for bound in (lower, of_class)]
    return SimpleNamespace(
        manifest={
            "spec": {"mechanism": {"kind": kind}},
            "certificate": {"lower_bound": bounds[0], "class_lower_bound": bounds[1]},
        },
        matrices=dict.fromkeys(names),
        dual={"weights": np.ones(2)},
    )


def made_ahead() -> np.ndarray:
    return np.eye(N)


def routes_of(given: Any = None, *, n: int = N, reach: Reach = WITH_INTEGERS, inverse: Any = None) -> Routes:
    strategy: Any = SimpleNamespace(n=n)
    return Routes(given or file(), strategy, BRACKET, USER, reach, inverse)


def proving(text: str) -> Callable[[Report], None]:
    return lambda report: report.prove(text, of=LOSS)


def refuting(text: str) -> Callable[[Report], None]:
    return lambda report: report.refute(text, of=LOSS)


def silent(reason: str) -> Callable[[Report], None]:
    def route(report: Report) -> None:
        report.prove("a word before it gave up")
        raise NotEnclosed(reason)

    return route


def broken(report: Report) -> None:
    raise CertificateError("it is no factor")


def never(report: Report) -> None:
    raise AssertionError("this route is not needed")


@pytest.mark.parametrize(
    ("quick", "integers", "reach", "checked", "failed", "left"),
    [
        ([proving("a"), never], never, WITH_INTEGERS, ["a"], [], []),
        ([silent("x"), proving("b")], never, WITH_INTEGERS, ["b"], [], []),
        ([refuting("no"), proving("b")], never, WITH_INTEGERS, ["b"], [], []),
        ([refuting("no"), silent("x")], refuting("no indeed"), WITH_INTEGERS, [], ["no indeed"], []),
        ([broken, silent("x")], proving("c"), WITH_INTEGERS, ["c"], [], []),
        ([refuting("no"), silent("x")], silent("y"), WITH_INTEGERS, [], ["no"], []),
        ([silent("x"), silent("y")], silent("z"), WITH_INTEGERS, [], [], [f"{LOSS}: x; y; z"]),
        ([silent("x"), silent("y")], never, ALONE, [], [], [f"{LOSS}: x; y"]),
        ([refuting("no")], never, ALONE, [], ["no"], []),
        ([], proving("c"), WITH_INTEGERS, ["c"], [], []),
    ],
)
def test_the_first_route_that_proves_is_filed(
    quick: Any, integers: Any, reach: Reach, checked: list[str], failed: list[str], left: list[str]
) -> None:
    """Else what integers say, or the last that said anything; a route that gives up leaves no word but its reason."""
    report = Report()
    report.prove("before")
    routes_of(reach=reach)._first(report, LOSS, quick, integers)
    assert (report.checked, report.failed, report.not_checked) == (["before", *checked], failed, left)
    if left:
        assert set(report.findings) == {LOSS}


def test_what_is_no_factor_is_said_by_the_last_word() -> None:
    for reach, quick, integers in (
        (ALONE, [broken], never),
        (WITH_INTEGERS, [], broken),
        (WITH_INTEGERS, [broken], broken),
    ):
        with pytest.raises(CertificateError, match="no factor"):
            routes_of(reach=reach)._first(Report(), LOSS, quick, integers)


def test_integers_reach_so_far() -> None:
    assert routes_of(n=4, reach=Reach(8, 4))._integers and not routes_of(n=5, reach=Reach(8, 4))._integers


@pytest.mark.parametrize(
    ("given", "n", "doubles", "both"),
    [
        (file(), 8, 8, True),
        (file(), 9, 8, False),
        (file(), 1024, 2048, True),
        (file(), 1025, 2048, False),
        (file(kind="dense"), 8, 8, False),
        (file(lower=None), 8, 8, False),
        (file(of_class=None), 8, 8, False),
        (file(lower=20.0), 8, 8, False),
        (file(lower=21.0), 8, 8, False),
    ],
)
def test_when_two_bounds_are_proved_beside_each_other(given: Any, n: int, doubles: int, both: bool) -> None:
    """Short bands, with a bound of their class above that over all matrices."""
    assert routes_of(given, n=n, reach=Reach(doubles, 0))._both_in_doubles is both


class Rooms:
    """The rooms that routes ask, each of which writes down what it was asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.known, self.recursion = True, Fraction(5)
        for name in ("check_added_noise", "check_bound", "check_class_bound", "check_dense_losses"):
            monkeypatch.setattr(routes, name, self.way(name))
        monkeypatch.setattr(routes, "lower_bound", self.way("lower_bound", Fraction(6)))
        for room, names in (
            (
                routes.check_long,
                ("check_losses_of_series", "check_losses_of_recursion", "check_stored_inverse", "check_decoder"),
            ),
            (routes.check_whole, ("check_losses_alone", "check_inverse", "check_decoder", "leave_unknown")),
        ):
            for name in names:
                monkeypatch.setattr(room, name, self.way(f"{room.__name__.split('.')[-1]}.{name}"))
        monkeypatch.setattr(routes.check_long, "bound_of_recursion", lambda given: self.recursion)
        monkeypatch.setattr(routes.check_whole, "is_known", lambda *given: self.known)
        monkeypatch.setattr(routes.check_whole, "numbers_of", lambda *given: ("numbers", *given))
        self.dense: Any = SimpleNamespace(
            rows=3,
            losses=self.way("losses", "ends"),
            lower_bound=self.way("dense.lower_bound", Fraction(10)),
            lower_bound_by_vectors=self.way("vectors", Fraction(10)),
            class_bound=self.way("class_bound", Fraction(20)),
        )
        monkeypatch.setattr(routes, "DenseProof", self.way("proof", self.dense))

    def way(self, name: str, found: Any = None) -> Callable[..., Any]:
        def asked(*given: Any) -> Any:
            self.asked.append((name, *given[2 if given and isinstance(given[0], Report) else 0 :]))
            return found

        return asked


@pytest.fixture
def rooms(monkeypatch: pytest.MonkeyPatch) -> Rooms:
    return Rooms(monkeypatch)


def test_what_each_route_is_asked(rooms: Rooms) -> None:
    given, report = file("B"), Report()
    found = routes_of(given, inverse="an inverse")
    strategy = found._strategy
    numbers = ("numbers", given, USER)
    for route, asked in (
        (found._bound_of_recursion, [("check_bound", 5)]),
        (
            found._bound_in_doubles,
            [
                ("proof", given.manifest["spec"], strategy, given.dual, USER, "an inverse"),
                ("dense.lower_bound", 10.0 * (1 - routes.TOLERANCE / 2)),
                ("check_bound", 10),
            ],
        ),
        (found._bound_by_vectors, [("vectors",), ("check_bound", 10)]),
        (
            found._bound_in_integers,
            [("lower_bound", given.manifest["spec"], given.dual, numbers), ("check_bound", 6)],
        ),
        (found._class_of_series, [("check_class_bound", strategy, None)]),
        (found._class_in_doubles, [("check_class_bound", strategy, None, found._class_of_band)]),
        (found._class_in_integers, [("check_class_bound", strategy, numbers)]),
        (found._losses_of_series, [("check_long.check_losses_of_series", strategy)]),
        (found._losses_of_recursion, [("check_long.check_losses_of_recursion", strategy)]),
        (found._losses_in_doubles, [("losses",), ("check_dense_losses", "ends", 3)]),
        (found._losses_in_integers, [("check_whole.check_losses_alone", strategy, numbers)]),
    ):
        rooms.asked.clear()
        route(report)
        assert rooms.asked == asked, route
    rooms.recursion = None  # type: ignore[assignment]
    with pytest.raises(NotEnclosed, match="no recursion of few states"):
        found._bound_of_recursion(report)


def test_whole_matrices_of_doubles_have_a_limit(rooms: Rooms) -> None:
    assert routes_of(n=8, reach=Reach(8, 8))._dense is rooms.dense
    with pytest.raises(NotEnclosed, match="up to n=8"):
        _ = routes_of(n=9, reach=Reach(8, 8))._dense


def test_a_bound_of_a_class_is_made_once(rooms: Rooms) -> None:
    """Ahead of time, or now; one that does not support the claim says nothing."""
    found = routes_of()
    assert found._class_of_band() == 20
    assert rooms.asked[-1] == ("class_bound", 20.0 * (1 - routes.TOLERANCE / 2))
    rooms.asked.clear()
    found._ahead = Future()
    found._ahead.set_result(Fraction(21))
    assert found._class_of_band() == 21 and not rooms.asked


def test_losses_are_made_beside_the_bounds_where_an_inverse_is_made_ahead(rooms: Rooms) -> None:
    """Once, and what they raise is a reason of their own route; a stored B has losses of its own."""
    for names, inverse, ahead in (((), made_ahead, True), ((), None, False), (("B",), made_ahead, False)):
        rooms.asked.clear()
        found = routes_of(file(*names), inverse=inverse)
        found.check(Report())
        assert (found._losses_ahead is not None) == ahead
        assert rooms.asked.count(("losses",)) == (not names)
        rooms.asked.clear()
        found._losses_in_doubles(Report())
        assert (("losses",) in rooms.asked) != ahead and rooms.asked[-1] == ("check_dense_losses", "ends", 3)

    def wide() -> None:
        raise NotEnclosed("too wide")

    rooms.dense.losses = wide
    found = routes_of(file(), inverse=made_ahead)
    found.check(Report())
    with pytest.raises(NotEnclosed, match="too wide"):
        found._losses_in_doubles(Report())


def test_a_bound_that_is_too_low_says_nothing() -> None:
    found = routes_of()
    least = Fraction(10) / Fraction(1 + routes.TOLERANCE)
    for value, enough in ((Fraction(11), True), (least, True), (least * (1 - Fraction(1, 10**14)), False)):
        if enough:
            assert found._enough("lower_bound", value) == value
        else:
            with pytest.raises(NotEnclosed, match="the polar factor that was guessed proves"):
                found._enough("lower_bound", value)


def test_bounds_by_their_routes(rooms: Rooms, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is asked of a bound that is not claimed, but that this is said."""
    tried: list[tuple[str, list[str], str]] = []

    def first(self: Routes, report: Report, claim: str, quick: Any, integers: Any) -> None:
        tried.append((claim, [route.__name__ for route in quick], integers.__name__))

    monkeypatch.setattr(Routes, "_first", first)
    lower = (LOWER_BOUND, ["_bound_of_recursion", "_bound_in_doubles", "_bound_by_vectors"], "_bound_in_integers")
    of_class = (CLASS_BOUND, ["_class_of_series", "_class_in_doubles"], "_class_in_integers")
    for given, wanted, asked in (
        (file(), [lower, of_class], []),
        (file(lower=None), [of_class], [("check_bound", None)]),
        (file(of_class=None), [lower], []),
    ):
        tried.clear(), rooms.asked.clear()
        routes_of(given)._check_bounds(Report())
        assert (tried, rooms.asked) == (wanted, asked)
    swapped = ["_bound_of_recursion", "_bound_by_vectors", "_bound_in_doubles"]
    for gap, order in ((None, lower[1]), (0.01, lower[1]), (0.0101, swapped)):  # of a C that suggests nothing
        tried.clear()
        far = file(of_class=None)
        far.manifest["certificate"]["relative_gap"] = gap
        routes_of(far)._check_bounds(Report())
        assert tried == [(LOWER_BOUND, order, "_bound_in_integers")]
    tried.clear()
    routes_of()._losses_otherwise(Report())
    assert tried == [(LOSS, ["_losses_in_doubles"], "_losses_in_integers")]


def test_what_is_looked_at_in_which_order(rooms: Rooms, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []
    monkeypatch.setattr(Routes, "_check_bounds", lambda self, report: tried.append(f"bounds {self._ahead is not None}"))
    monkeypatch.setattr(Routes, "_check_inverse", lambda self, report: tried.append("inverse"))
    monkeypatch.setattr(Routes, "_check_stored", lambda self, report: tried.append("stored"))
    monkeypatch.setattr(
        Routes, "_first", lambda self, report, claim, quick, integers: tried.append(f"{claim} {len(quick)}")
    )
    for given, wanted, asked in (
        (file("B"), ["bounds True", "inverse", "stored"], False),
        (file(), ["bounds True", "inverse", f"{LOSS} 3"], True),
        (file(kind="dense"), ["bounds False", "inverse", f"{LOSS} 3"], True),
    ):
        tried.clear(), rooms.asked.clear()
        routes_of(given).check(Report())
        assert tried == wanted
        assert (("check_added_noise", None) in rooms.asked) == asked
    rooms.known = False
    tried.clear(), rooms.asked.clear()
    routes_of(file("B")).check(Report())
    assert tried == ["inverse"] and rooms.asked == [("check_whole.leave_unknown",)]


@pytest.mark.parametrize(("n", "short"), [(8, True), (512, True), (513, False)])
def test_losses_of_whole_matrices_come_first_where_they_are_short(
    n: int, short: bool, rooms: Rooms, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After those of series, which are the quickest."""
    tried: list[str] = []

    def first(self: Routes, report: Report, claim: str, quick: Any, integers: Any) -> None:
        tried.extend(route.__name__ for route in quick if claim == LOSS)

    monkeypatch.setattr(Routes, "_first", first)
    routes_of(file(kind="dense"), n=n).check(Report())
    others = ["_losses_of_recursion", "_losses_in_doubles"]
    assert tried == ["_losses_of_series", *(others[::-1] if short else others)]


def test_stored_matrices_by_integers_or_beyond_them(rooms: Rooms) -> None:
    for given, reach, inverse in (
        (file("C_inv"), WITH_INTEGERS, ["check_whole.check_inverse"]),
        (file(), WITH_INTEGERS, ["check_whole.check_inverse"]),
        (file("C_inv"), ALONE, ["check_long.check_stored_inverse"]),
        (file(), ALONE, []),
    ):
        rooms.asked.clear()
        found = routes_of(given, reach=reach)
        found._check_inverse(Report())
        assert rooms.asked == [(name, found._strategy, BRACKET) for name in inverse]
        rooms.asked.clear()
        found._check_stored(Report())
        if reach is ALONE:
            beyond = ("check_long.check_decoder", found._strategy, BRACKET, N - 1, found._losses_otherwise)
            assert rooms.asked == [beyond]
        else:
            numbers = ("numbers", given, USER)
            assert rooms.asked == [("check_whole.check_decoder", found._strategy, BRACKET, numbers)]

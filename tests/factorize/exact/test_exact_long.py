"""Long files: which way each claim goes, and that no claim is left without a word, whatever a way does not reach."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from factorize.errors import CorruptObject
from factorize.exact.arithmetic.intervals import NotEnclosed
from factorize.exact.losses import check_long, residual
from factorize.exact.report import ADDED_NOISE, DECODER, LOSS, LOWER_BOUND, Report
from factorize.exact.sensitivity import Bracket

N = 3
BRACKET = Bracket(Fraction(1), Fraction(4), "mine", (0,), (1,))
ENDS = object()
TOEPLITZ = {"structure": "toeplitz", "dtype": "float32"}
DENSE = {"structure": "dense", "dtype": "float64"}
COLUMN, ARRAY = np.ones(N), np.tri(N)


class Ways:
    """The ways that there are, each of which writes down what it was asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.column: Any = None
        self.ends: Any = ENDS
        self.rows = True
        self.quick: Any = None
        self.bounds: dict[str, Any] = {"resolvents": None, "determinants": None}
        found = SimpleNamespace(rest="rest")
        patched: dict[str, Any] = {
            "check_bound": self.way("bound"),
            "check_class_bound": self.way("class"),
            "check_added_noise": self.way("added"),
            "check_losses": self.way("losses"),
            "check_dense_losses": self.way("dense losses"),
            "_series_in_doubles": lambda *given: self.asked.append(("doubles", *given)) or self.quick,
            "check_ends": self.way("ends"),
            "toeplitz_column": lambda workload: self.column,
            "series": SimpleNamespace(LARGEST=N, losses=self.way("series", found)),
            "variances": SimpleNamespace(losses=lambda *given: self.ends),
            "resolvents": SimpleNamespace(lower_bound=lambda *given: self.bounds["resolvents"]),
            "determinants": SimpleNamespace(lower_bound=lambda *given: self.bounds["determinants"]),
            "toeplitz_forms": SimpleNamespace(added_noise=self.way("encoder", 1.5)),
            "allowed": lambda participation, n: SimpleNamespace(most=2),
        }
        for name, value in patched.items():
            monkeypatch.setattr(check_long, name, value)
        monkeypatch.setattr(check_long.noising, "check_noising", self.way("inverse"))

    def way(self, name: str, found: Any = None) -> Callable[..., Any]:
        def asked(*given: Any) -> Any:
            self.asked.append((name, *given[2 if isinstance(given[0], Report) else 0 :]))
            return found

        return asked

    def names(self) -> list[str]:
        return [name for name, *_ in self.asked]


@pytest.fixture
def ways(monkeypatch: pytest.MonkeyPatch) -> Ways:
    return Ways(monkeypatch)


def file(**matrices: dict[str, str]) -> Any:
    spec = {"workload": {"kind": "prefix", "n": N}, "objective": {"kind": "mean"}, "participation": {}}
    tensors = {
        name: {"coefficients": COLUMN} if entry["structure"] == "toeplitz" else {"": ARRAY}
        for name, entry in matrices.items()
    }
    return SimpleNamespace(manifest={"spec": spec, "matrices": matrices}, matrices=tensors, dual={})


def strategy(*, toeplitz: bool = False, n: int = N, array: Any = None) -> Any:
    return SimpleNamespace(n=n, toeplitz="series" if toeplitz else None, array=array, scale=None)


def left(report: Report) -> set[str]:
    return set(report.findings)


def test_what_is_looked_at_without_whole_matrices(ways: Ways, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_long, "check_decoder", ways.way("decoder"))
    monkeypatch.setattr(check_long, "_noising", lambda *given: "noising")
    ways.bounds["determinants"] = Fraction(7)
    c, given = strategy(), file(B=DENSE, C_inv=DENSE)
    report = Report()
    check_long.check_long(report, given, c, BRACKET, 8)
    assert ways.asked == [("bound", 7), ("class", c, None), ("inverse", "noising"), ("decoder", c, BRACKET, 8)]
    ways.asked.clear()
    ways.bounds["resolvents"] = Fraction(5)
    check_long.check_long(report, file(), c, BRACKET, 8)
    assert ways.asked == [("bound", 5), ("class", c, None), ("added", None), ("decoder", c, BRACKET, 8)]
    assert not report.findings

    def refused(_: Any) -> None:
        raise NotEnclosed("too uneven")

    monkeypatch.setattr(check_long, "bound_of_recursion", refused)
    check_long.check_long(report, file(), c, BRACKET, 8)
    assert report.not_checked == ["the lower bound: too uneven"] and left(report) == {LOWER_BOUND}


def test_losses_that_are_not_enclosed_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any) -> None:
        raise NotEnclosed("it grows")

    monkeypatch.setattr(check_long, "_check_losses", refused)
    report = Report()
    check_long.check_decoder(report, file(), strategy(), BRACKET, 8)
    assert report.not_checked == ["residual and losses: it grows"]
    assert left(report) == {DECODER, ADDED_NOISE, LOSS}


def test_losses_where_no_b_is_stored(ways: Ways) -> None:
    """By series where C and A are Toeplitz and as short as these reach; by recursions, which say so."""
    report, toeplitz = Report(), strategy(toeplitz=True)
    ways.column = COLUMN
    check_long.check_losses_of_series(report, file(), toeplitz)
    assert ways.names() == ["doubles", "series", "losses"]
    assert ways.asked[0][1:3] == (toeplitz, COLUMN) and ways.asked[0][3].rows == N
    assert ways.asked[1][1:4] == ("series", COLUMN, {"kind": "mean"}) and ways.asked[1][4] is None
    assert ways.asked[2][2:] == (N, False) and not report.not_checked
    ways.asked.clear()
    ways.quick = "quick"
    check_long.check_losses_of_series(report, file(), toeplitz)
    assert ways.names() == ["doubles", "dense losses"]
    assert ways.asked[1][1:] == ("quick", N) and not report.not_checked
    for column, c in (
        (COLUMN, strategy()),
        (COLUMN, strategy(toeplitz=True, n=N + 1)),
        (None, strategy(toeplitz=True)),
        (None, strategy()),
    ):
        ways.asked.clear()
        ways.column, report = column, Report()
        with pytest.raises(NotEnclosed, match="not Toeplitz"):
            check_long.check_losses_of_series(report, file(), c)
        assert not ways.asked
        check_long.check_losses_of_recursion(report, file(), c)
        assert ways.asked == [("ends", ENDS, N)]
        assert len(report.not_checked) == 1 and report.not_checked[0].startswith("residual: no B is stored")
    ways.ends = None
    with pytest.raises(NotEnclosed, match="no recursion"):
        check_long.check_losses_of_recursion(report, file(), strategy())


@pytest.mark.parametrize("stored", [True, False])
def test_toeplitz_factors_go_by_series(stored: bool, ways: Ways) -> None:
    """With the limit of the type of a stored B, and what rests on B beside it."""
    ways.column, report = COLUMN, Report()
    given = file(B=TOEPLITZ) if stored else file()
    check_long._check_losses(report, given, strategy(toeplitz=True), BRACKET, 8, None)
    (_, *asked), (_, _, n, from_file), *rest = ways.asked
    assert asked[:3] == ["series", COLUMN, {"kind": "mean"}] and (n, from_file) == (N, stored)
    assert (asked[3] is COLUMN) == stored
    assert asked[4] == residual.LIMITS["float32" if stored else "float64"]
    assert rest == ([("encoder", COLUMN, "rest", 2, Fraction(4)), ("added", 1.5)] if stored else [])


@pytest.mark.parametrize("rows", [True, False])
@pytest.mark.parametrize("ends", [ENDS, None])
@pytest.mark.parametrize("otherwise", [True, False])
def test_no_claim_of_other_factors_is_left_without_a_word(
    rows: bool, ends: Any, otherwise: bool, ways: Ways, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stored B is looked at by rows or listed; losses are enclosed, or handed on, or listed."""
    ways.ends, ways.column = ends, COLUMN
    monkeypatch.setattr(check_long, "_check_rows", lambda *given: rows)
    cases = [(strategy(), file(B=DENSE)), (strategy(toeplitz=True), file(B=DENSE)), (strategy(), file(B=TOEPLITZ))]
    for c, given in cases:
        report = Report()
        ways.asked.clear()
        check_long._check_losses(report, given, c, BRACKET, 8, ways.way("otherwise") if otherwise else None)
        handed = ["otherwise"] if otherwise and ends is None else []
        assert ways.names() == (["ends"] if ends is not None else handed)
        missing = set() if rows else {DECODER, ADDED_NOISE}
        assert left(report) == missing | ({LOSS} if ends is None and not otherwise else set())
        assert len(report.not_checked) == (1 if left(report) else 0)
        if handed and not rows:
            assert report.not_checked[0].startswith("residual of the stored B: up to n=8")
        elif report.not_checked:
            words = check_long._unchecked_residual(losses=ends is not None, stored=True, rows=rows, whole=8)
            assert report.not_checked == [words]


def test_losses_of_other_factors_without_a_stored_b(ways: Ways, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_long, "_check_rows", None)  # whoever asks it fails
    report = Report()
    check_long._check_losses(report, file(), strategy(), BRACKET, 8, None)
    assert ways.asked == [("ends", ENDS, N)] and left(report) == {DECODER, ADDED_NOISE}
    assert report.not_checked[0].startswith("residual: no B is stored")


def test_a_b_that_is_not_followed_row_by_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is of another structure, or takes too long: nothing is said of it here."""
    monkeypatch.setattr(check_long.row_products, "residual", lambda *given: None)
    for entry in (DENSE, TOEPLITZ):
        report = Report()
        assert check_long._check_rows(report, file(B=entry), strategy(), 8) is False
        assert report == Report()
    monkeypatch.setattr(check_long.row_products, "residual", lambda *given: (0.0, 0.0, 1.0))
    assert check_long._check_rows(report, file(B=DENSE), strategy(), 8) is True
    assert left(report) == {DECODER, ADDED_NOISE}
    assert "is bounded up to n=8" in report.not_checked[0]


def test_matrices_that_are_stored_whole_or_by_a_column() -> None:
    given = file(B=DENSE, C_inv=TOEPLITZ)
    assert check_long._array(given, "B", N) is ARRAY and check_long._array(given, "C_inv", N) is None
    assert check_long._column(given, "C_inv", N) is COLUMN
    assert check_long._column(given, "B", N) is None and check_long._column(given, "C", N) is None
    for wrong in (np.ones((N, N - 1)), np.ones(N), np.full((N, N), np.nan)):
        given.matrices["B"] = {"": wrong}
        with pytest.raises(CorruptObject, match="B must be 3 x 3 finite numbers"):
            check_long._array(given, "B", N)
    for wrong in (np.ones(N - 1), np.array([1.0, np.inf, 0.0])):
        given.matrices["C_inv"] = {"coefficients": wrong}
        with pytest.raises(CorruptObject, match="first column of C_inv must be 3 finite"):
            check_long._column(given, "C_inv", N)


def test_which_way_a_stored_inverse_is_looked_at(ways: Ways, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("toeplitz", "in_doubles", "by_rows"):
        monkeypatch.setattr(check_long.noising, name, ways.way(name, name))
    monkeypatch.setattr(check_long.row_products, "residual", lambda *given: None)
    by_column, by_array = file(C_inv=TOEPLITZ), file(C_inv=DENSE)
    ask = check_long._noising
    assert ask(by_column, strategy(toeplitz=True), BRACKET) == "toeplitz"
    assert ways.asked[-1][1:] == ("series", COLUMN, 4)
    assert ask(by_array, strategy(toeplitz=True, array=ARRAY), BRACKET) == "in_doubles"
    assert ways.asked[-1][1:] == (ARRAY, None, ARRAY, 4)
    for given, c in (
        (by_column, strategy(array=ARRAY)),
        (by_column, strategy()),
        (by_array, strategy(toeplitz=True)),
    ):
        assert str(ask(given, c, BRACKET)).startswith("it is not evaluated at this size")
    longer = file(C_inv=TOEPLITZ)
    longer.matrices["C_inv"] = {"coefficients": np.ones(N + 1)}
    assert str(ask(longer, strategy(toeplitz=True, n=N + 1), BRACKET)).startswith("it is not evaluated at this size")


def test_an_encoder_that_is_not_enclosed_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any) -> None:
        raise NotEnclosed("its inverse grows")

    monkeypatch.setattr(check_long.toeplitz_forms, "added_noise", refused)
    found: Any = SimpleNamespace(rest="rest")
    assert check_long._encoder(COLUMN, found, 2, BRACKET) == "its inverse grows"

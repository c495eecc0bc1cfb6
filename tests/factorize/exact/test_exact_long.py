"""Long files: which way each claim goes, and that no claim is left without a word, whatever a way does not reach."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from factorize.exact.losses import check_long, residual
from factorize.exact.report import ADDED_NOISE, DECODER, LOSS, Report
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

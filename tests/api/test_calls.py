"""Python's calls: what people type, what they get, and what they are told."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from servers import LiveService
from specs import spec_of

import factorize
from factorize import Spec
from factorize.api.calls import compare, is_visible
from factorize.api.questions.comparison import comparison
from factorize.api.questions.documents import ComparisonTable
from factorize.api.terminal.progress import Bars, display
from factorize.client.cache import FactorCache
from factorize.errors import Cancelled, CorruptObject, InvalidParameter, InvalidSpec
from factorize.factors.solution import Progress
from factorize.numbers.gaussian import noise_multiplier_for_epsilon


def test_words_are_a_spec() -> None:
    asked = Spec.of("prefix", n=16, epochs=4, mechanism="buffered_linear", buffers=2, tolerance=1e-6)
    banded = spec_of(16, {"kind": "buffered_linear", "buffers": 2}, participation=4, tolerance=1e-6)
    assert asked == banded.canonical() and asked.digest == banded.digest
    rates = Spec.of("schedule", n=4, learning_rates=np.array([1.0, 0.5, 0.25, 0.125]), mechanism="identity")
    assert rates.workload.learning_rates == [1.0, 0.5, 0.25, 0.125]  # type: ignore[attr-defined]
    assert Spec.of("schedule", n=4, learning_rates=(1.0, 0.5, np.float64(0.25), 0.125), mechanism="identity") == rates
    plain: dict[str, Any] = {"kind": "prefix", "n": 16}
    assert Spec.of(plain, epochs=4) == Spec.of("prefix", n=16, epochs=4)
    assert factorize.certify(np.eye(16), plain, epochs=4).spec.workload.n == 16


def test_a_solve_in_one_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    steps: list[Progress] = []
    path = tmp_path / "x.safetensors"
    found = factorize.solve("prefix", n=6, mechanism="identity", to=path, progress=steps.append)
    # C = I: each running sum of i normals has variance i; the mean over 1..6 is 3.5.
    assert found.certificate.loss.objective == pytest.approx(3.5) and found.sensitivity.value == 1.0
    assert factorize.load(path).digest == found.digest and "certify" in {step.phase for step in steps}
    assert factorize.solve(found.spec).digest == found.digest == factorize.solve(found.spec.document()).digest
    assert capfd.readouterr() == ("", "")  # no bar where nobody looks


def test_a_name_in_the_cache_that_leads_to_another_spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FACTORIZE_CACHE", str(tmp_path))
    once = factorize.solve("prefix", n=4, mechanism="identity")
    asked = Spec.of("prefix", n=4, epochs=2, mechanism="identity")
    FactorCache().remember(asked.digest, once.digest)
    with pytest.raises(CorruptObject, match="a different spec: participation"):
        factorize.solve(asked)


def test_a_matrix_of_ones_own() -> None:
    found = factorize.solve(np.tril(np.ones((3, 3))), mechanism="identity")
    assert found.spec.workload.kind == "matrix" and found.certificate.loss.objective == pytest.approx(2.0)
    assert np.array_equal(found.B, np.tril(np.ones((3, 3))))


def test_a_store_keeps_what_was_solved(tmp_path: Path) -> None:
    asked: dict[str, Any] = {"n": 4, "mechanism": "identity", "store": tmp_path / "store"}
    first = factorize.solve("prefix", **asked)

    def never(_step: Progress) -> None:
        raise AssertionError("solved again")

    assert factorize.solve("prefix", **asked, progress=never).digest == first.digest


@pytest.mark.parametrize(
    ("arguments", "words", "told"),
    [
        (("prefix",), {"n": 8, "band": 3}, "'band'.*did you mean 'bands'"),
        (("prefx",), {"n": 8}, "unknown kind 'prefx'.*did you mean 'prefix'"),
        (("prefix",), {"n": 8, "to": "/nosuch/x"}, "there is no folder /nosuch"),
        (("prefix",), {"n": 8, "service": "http://127.0.0.1:9", "store": "x"}, "leave store= out"),
        (({"workload": {"kind": "prefix", "n": 8}},), {"epochs": 2}, "combined with epochs; put them into the spec"),
    ],
)
def test_mistakes_are_told_before_any_work(arguments: tuple[Any], words: dict[str, Any], told: str) -> None:
    def never(_step: Progress) -> None:
        raise AssertionError("began to solve")

    with pytest.raises((InvalidParameter, InvalidSpec), match=told):
        factorize.solve(*arguments, **words, progress=never)


def test_a_comparison_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("factorize.solvers.comparing.plan.mechanisms", lambda *_: [{"kind": "identity"}])
    monkeypatch.setattr("factorize.solvers.comparing.plan.optimised", lambda *_: [])
    monkeypatch.setattr("factorize.api.calls.comparison", asked := Mock(wraps=comparison))
    heard: list[Any] = []
    words: dict[str, Any] = {"epochs": 2, "epsilon": 2.0, "delta": 1e-5, "mechanism": "blt", "mechanism.buffers": 3}
    found = compare("prefix", n=8, buffers=np.int64(1), progress=lambda *step: heard.append(step), **words)
    assert (0, 1, "identity") in heard and found.document["budget"] == 1
    (spec,) = (call.args[0].spec for call in asked.call_args_list)
    assert spec.mechanism.buffers == 3 and spec.participation.passes == 2
    # Identity: two steps of one example, and i normals in each running sum; the mean over 1..8 is 4.5.
    (row,) = found
    expected = 2.0 * 4.5, (2 * 4.5) ** 0.5 * noise_multiplier_for_epsilon(2.0, 1e-5)
    assert (row["loss"]["objective"], row["rmse_at_privacy"]) == pytest.approx(expected, rel=1e-9)
    assert isinstance(found, ComparisonTable) and len(found) == 1 and found.recommended == row
    found.document["recommendations"][0]["reason"] = "because <of that>"
    assert "* because <of that>" in repr(found) and "because &lt;of that&gt;" in found._repr_html_()
    with pytest.raises(InvalidSpec, match="epsilon and delta come together"):
        compare("prefix", n=8, epsilon=2.0)
    sizes = {"dataset_size": 16, "batch_size": 4, "epsilon": 2.0, "delta": 1e-5}
    with pytest.raises(InvalidParameter, match="'bins' is not supported"):  # one name is a list of it
        compare("prefix", n=8, samplings="bins", **sizes)


def test_a_service_solves_and_compares_for_an_array(live_service: LiveService) -> None:
    own = np.array([[2.0, 0.0], [1.0, 3.0]])
    answer = factorize.solve(own, mechanism="identity", service=live_service.url)
    assert np.array_equal(answer.rows("B", 0, 2), own)
    assert "identity" in {row["mechanism"] for row in compare(2.0 * own, service=live_service.url)}


CLEARED = "\r\x1b[2K\x1b[?25h\r"
"""An empty line, and the cursor."""


class Terminal(io.StringIO):
    """A stderr that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_a_bar_and_keeps_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", shown := Terminal())
    monkeypatch.setenv("COLUMNS", "200")
    with display("prefix", visible=is_visible(None)) as bar:
        assert isinstance(bar, Bars)
        bar.report(Progress(3, 1e-4, None, 1.0, seconds_left=3.0))
        bar._bars.refresh()
    assert "prefix" in shown.getvalue() and "iteration 3, gap 1.00e-04, about 3 s left" in shown.getvalue()
    assert shown.getvalue().endswith(CLEARED)
    before = shown.getvalue()
    with display("prefix", visible=is_visible(False)) as bar:
        bar.count(1, 2, "dense")
    assert shown.getvalue() == before


def test_a_notebook_shows_an_element(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    notebook = ModuleType("IPython.display")
    notebook.HTML = str  # type: ignore[attr-defined]

    class Handle:
        update = staticmethod(shown.append)

    notebook.display = lambda _html, display_id: Handle()  # type: ignore[attr-defined]
    for name, module in (("ipykernel", notebook), ("IPython", notebook), ("IPython.display", notebook)):
        monkeypatch.setitem(sys.modules, name, module)
    with display("a < b", visible=is_visible(None)) as bar:
        bar.count(0, 4, "dense")
    assert shown == [
        '<progress max="1" value="0.000"></progress> <code>a &lt; b: 0 of 4, dense</code>',
        "",
    ]


def test_a_bar_is_cleared_when_a_solve_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", shown := Terminal())

    def end(*_step: Any) -> None:
        raise Cancelled("enough")

    monkeypatch.setattr(Bars, "report", end)
    with pytest.raises(Cancelled, match="enough"):
        factorize.solve("prefix", n=6, mechanism="identity")
    assert shown.getvalue().endswith(CLEARED)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"epochs": np.int64(0)}, "^/epochs: [^/]*$"),
        ({"workload": None}, "workload='adamw', or leave it out"),
        ({"optimizer": "adamw"}, "workload='adamw'"),
        ({"sampling": "fixed"}, "samplings="),
        ({"workload": "sgd", "momentum": {}}, "momentum"),
    ],
)
def test_a_recommendation_says_what_a_caller_may_have_meant(given: dict[str, Any], words: str) -> None:
    numbers: Any = {"examples": np.int64(6), "batch_size": np.int64(2), "memory": np.array([1, 2])}
    with pytest.raises(InvalidParameter, match=words):
        factorize.recommend(**numbers, epsilon=2.0, delta=1e-3, **given)

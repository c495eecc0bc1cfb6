"""Factors as arrays and as people see them, in memory, in a file and at the limits."""

from __future__ import annotations

from html.parser import HTMLParser

import numpy as np
import pytest
from specs import solved

import factorize
from factorize import factors as module
from factorize.api.terminal.output import describe_certificate
from factorize.client import Factors, load
from factorize.errors import InvalidParameter, TooLarge, UnsupportedProblem
from factorize.factors.factorization import Factorization
from factorize.format.manifest import Manifest
from factorize.format.portrait import line, sentences, svg, thinned
from factorize.format.quantities import at_most


@pytest.fixture(scope="module")
def whole() -> Factorization:
    return solved(6, "square_root", n=6)


@pytest.fixture(scope="module")
def light(whole: Factorization, tmp_path_factory: pytest.TempPathFactory) -> Factors:
    path = tmp_path_factory.mktemp("views") / "x.safetensors"
    whole.save(path)
    return load(path)


def test_matrices_are_arrays(whole: Factorization, light: Factors) -> None:
    # The square root of running sums: 1, 1/2, 3/8, 5/16, ...; its inverse: 1, -1/2, -1/8, -1/16, ...
    root = [1, 1 / 2, 3 / 8, 5 / 16, 35 / 128, 63 / 256]
    for factors in (whole, light):
        assert np.allclose(factors.C[:, 0], root, atol=1e-15)
        assert np.allclose(factors.C_inv[:4, 0], [1, -1 / 2, -1 / 8, -1 / 16], atol=1e-15)
        assert np.allclose(factors.B @ factors.C, np.tril(np.ones((6, 6))), atol=1e-14)
        assert factors.C is factors.C and not factors.C.flags.writeable
        assert np.array_equal(factors.rows("B", 2, 4), factors.B[2:4])


def test_factors_in_a_file_answer_as_those_in_memory(whole: Factorization, light: Factors) -> None:
    assert light.certificate == whole.certificate == light.verify()
    assert factorize.load is load
    scale = whole.calibrate(epsilon=2.0, delta=1e-6)
    assert scale.sigma_of_sums == light.calibrate(epsilon=2.0, delta=1e-6).sigma_of_sums
    for own in (whole, light):
        assert own.noise(scale, 3, seed=2**90 + 1).next().shape == (3,)
    other = solved(6, "identity", n=6)
    with pytest.raises(InvalidParameter, match="this factorization has 1.0"):
        other.noise(scale, 3, seed=2**90 + 1)


def test_bounds_in_words_are_rounded_outwards(whole: Factorization) -> None:
    certificate = whole.manifest.certificate
    bound = {"objective": 1.9999997, "rule": "by hand"}
    stated = {**certificate, "sensitivity": {**certificate["sensitivity"], "value": 1.0000004}, "lower_bound": bound}
    words = " ".join(sentences(Manifest({**whole.manifest, "certificate": {**stated, "relative_gap": 0.1}})))
    assert "by at most 1.00001 if" in words and "objective below 1.99999 (by hand)" in words


def test_some_rows_or_all_of_them(whole: Factorization, light: Factors) -> None:
    for factors in (whole, light):
        assert np.array_equal(np.stack(list(factors.rows("C"))), light.C)
        with pytest.raises(InvalidParameter, match="both start and stop, or neither"):
            factors.rows("C", 1)  # type: ignore[call-overload]
        with pytest.raises(InvalidParameter, match=r"rows 5:7 are outside C"):
            factors.rows("C", 5, 7)


def test_what_does_not_fit_says_the_way_out(whole: Factorization, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_BYTES", 8 * 6 * 6 - 1)
    fresh = Factorization(whole.spec, whole.strategy, whole.dual, whole.manifest)
    with pytest.raises(TooLarge, match=r"C_inv with n=6 takes .* GiB.*factors\.rows\('C_inv', 0, 100\)"):
        _ = fresh.C_inv
    endless = solved({"kind": "prefix", "n": "unbounded"}, {"kind": "nu_toeplitz", "nu": 0.5})
    with pytest.raises(UnsupportedProblem, match=r"no last row.*factors\.rows\('B', 0, 100\)"):
        _ = endless.B
    assert "no last row: no picture" in endless._repr_html_() and "rmse infinite" in repr(endless)


def test_a_line_states_kind_n_sensitivity_loss_and_gap(whole: Factorization, light: Factors) -> None:
    certificate = whole.certificate
    told = f"sensitivity {at_most(certificate.sensitivity.value)} (exact); rmse {certificate.loss.rmse:.6g}; gap "
    assert repr(whole).startswith("<Factors prefix(n=6), single, mean, square_root") and told in repr(whole)
    assert repr(light) == repr(whole) and whole.digest[:12] in repr(whole)


def test_a_sensitivity_in_fewer_digits_is_no_smaller(whole: Factorization) -> None:
    stated = dict(whole.manifest["certificate"])
    stated["sensitivity"] = {**stated["sensitivity"], "value": 2.00000100000001}
    assert "sensitivity 2.00001 (exact)" in line(Manifest(whole.manifest, certificate=stated))
    stated["lower_bound"] = {"objective": 1.999999999999999, "rule": "dual"}
    told = {words[:12].strip(): words[12:].split()[0] for words in describe_certificate(stated)}
    assert told["sensitivity"] == "2.00000100001" and told["lower bound"] == "1.99999999999"


class Tags(HTMLParser):
    """Reads which elements are opened and closed, and what they ask for from elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert not {"src", "href", "onload"} & {name for name, _ in attrs}
        self.open += [] if tag in ("br", "path") else [tag]

    def handle_endtag(self, tag: str) -> None:
        assert tag == "path" or self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_a_notebook_shows_the_certificate_in_words_and_a_picture(whole: Factorization) -> None:
    page = whole._repr_html_()
    tags = Tags()
    tags.feed(page)
    assert not tags.open and len(page) < 30_000
    assert all(sentence in tags.text for sentence in sentences(whole.manifest))
    assert "norm 1 or less: the exact maximum" in tags.text and page.count("<svg") == 3


def test_words_say_a_bound_a_stop_and_no_bound(whole: Factorization) -> None:
    stated = {**whole.manifest["certificate"], "lower_bound": None, "relative_gap": None, "converged": False}
    stated["sensitivity"] = {**stated["sensitivity"], "kind": "upper_bound"}
    told = " ".join(sentences(Manifest(whole.manifest, certificate=stated)))
    assert (
        "an upper bound (rule" in told
        and "No lower bound is known" in told
        and "before it reached the spec's tolerance" in told
    )


def test_a_picture_is_dark_where_entries_are_large() -> None:
    drawn = svg("X<Y", np.array([[1.0, 0.0], [1e-2, 1e-9]]))
    assert 'fill-opacity="1.0" d="M0 0h1v1h-1z"' in drawn and 'fill-opacity="0.5" d="M0 1h1v1h-1z"' in drawn
    assert drawn.count("M") == 2 and "|X&lt;Y|, largest shown 1<" in drawn  # of a thinned matrix others may be larger


class Diagonal:
    """A unit matrix of 600 steps."""

    manifest = Manifest(matrices={"C": {"shape": [600, 600]}}, spec={"workload": {"kind": "prefix", "n": 600}})

    def rows(self, matrix: str, start: int, stop: int) -> np.ndarray:
        assert stop == start + 1, "more than one row of a long matrix at a time"
        return np.eye(1, 600, start)


def test_long_matrices_are_thinned() -> None:
    assert np.array_equal(thinned(Diagonal(), "B"), np.eye(24))

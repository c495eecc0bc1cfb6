"""Specs that no solver answers: every door refuses them before it begins, in words that name the limit and a way out."""

from __future__ import annotations

from typing import Any

import pytest
from specs import spec_of

from factorize import solvers
from factorize.errors import TooLarge, UnsupportedProblem
from factorize.spec import Spec

MIN_SEP = {"kind": "min_sep", "min_sep": 4}
MAX = {"kind": "max"}
RATES = {"learning_rates": {"kind": "cosine_to_last"}}
COSINE: dict[str, Any] = {"kind": "schedule", "n": 8, **RATES}
MOMENTUM: dict[str, Any] = {"kind": "momentum", "n": 20_000, "momentum": 0.9}
BINS: dict[str, Any] = {"sampling": {"kind": "balls_in_bins", "epsilon": 4.0, "delta": 1e-4}}


def mechanism(kind: str, size: int | None = None, **more: Any) -> dict[str, Any]:
    """A mechanism with so many buffers or bands."""
    name = "buffers" if kind in ("blt", "buffered_linear") else "bands"
    return {"kind": kind, **({} if size is None else {name: size}), **more}


def streamed(n: int, epochs: int, buffers: int, objective: Any = None) -> Spec:
    return spec_of(n, mechanism("buffered_linear", buffers), epochs, objective)


def banded(n: int, bands: int, participation: Any = None, objective: Any = None) -> Spec:
    return spec_of(n, mechanism("banded", bands), participation, objective)


def spectral(rate: float, **curvature: Any) -> Spec:
    return spec_of(200, {"kind": "spectral", "learning_rate": rate, **curvature})


def sampled(kind: str, size: int | None = None, objective: Any = None, **more: Any) -> Spec:
    return spec_of(32, mechanism(kind, size, **more), 4, objective, **BINS)


ROOTS = ("banded_square_root", "banded_inverse_square_root")
LOWER = {"kind": "matrix", "rows": [[1.0, 0.0], [2.0, 1.0]]}
REFUSED: list[tuple[Spec, str]] = [
    (spec_of(16, {"kind": "added", "sha256": "0" * 64}), "'added' is a strategy of your own"),
    (spec_of(16, None, 2, MAX), "nu_toeplitz or square_root"),
    (spec_of(600, "dense", MIN_SEP), "use banded with bands=4"),
    (spec_of(1100, "dense", {"kind": "min_sep", "min_sep": 200}), "up to 1024 steps.*use banded with bands=200"),
    (spec_of(65, "semidefinite", tolerance=1e-6), "n <= 64, got n=65; use 'dense'"),
    *((spec_of(8, mechanism(root, 9)), "bands=9 exceeds n=8; use bands <= n") for root in ROOTS),
    *((spec_of(COSINE, mechanism(root, 2)), "schedule is none here; use optimize_for") for root in ROOTS),
    *((spec_of(LOWER, mechanism(root, 2)), "matrix is none here") for root in ROOTS),
    (spec_of(8, mechanism("banded_inverse_fractional_root", 9, gamma=0.5)), "bands=9 exceeds n=8"),
    (spec_of(COSINE, mechanism("banded_inverse_fractional_root", 2, gamma=0.5)), "a root with few diagonals"),
    (
        spec_of(MOMENTUM, mechanism("banded_inverse_fractional_root", 17_000, gamma=0.5)),
        "banded_inverse_square_root",
    ),
    (spec_of(16, {"kind": "anti_pgd", "damping": 1.5}), "damping=1.5 exceeds 1"),
    (spec_of(COSINE, "fft"), "use optimize_for with the prefix workload"),
    (spec_of(8, {"kind": "tree", "decoder": "online", "restart_every": 9}), "restart_every=9 exceeds n=8"),
    (banded(20, 9, {"kind": "min_sep", "min_sep": 8}), "bands=9 exceeds min_sep=8"),
    (banded(20, 6, 4), "bands=6 exceeds n / epochs=5"),
    (banded(5, 6), "bands=6 exceeds n=5"),
    (banded(5, 2, None, MAX), "max"),
    (banded(3, 2, None, {"kind": "weighted", "weights": [1, 0, 1]}), "weight of 0"),
    (spec_of(8, mechanism("banded_toeplitz", 9)), "bands=9 exceeds n=8"),
    (spec_of(COSINE, "toeplitz", None, MAX), "not Toeplitz"),
    (spec_of(COSINE, "toeplitz", n=5000), "n=5000 exceeds 4096"),
    (spectral(0.1), "either eigenvalues"),
    (spectral(0.1, strong_convexity=1.0), "either eigenvalues"),
    (spectral(0.1, eigenvalues=[1.0], smoothness=1.0), "either eigenvalues"),
    (spectral(2.5, eigenvalues=[1.0]), "not below 2"),
    (spectral(2.5, strong_convexity=0.1, smoothness=1.0), "no certificate"),
    (spectral(0.1, strong_convexity=2.0, smoothness=1.0), "below strong_convexity"),
    (streamed(192, 1, 25), "double precision"),
    (streamed(12, 1, 7), "largest rank"),
    (streamed(192, 1, 2, MAX), "objective 'max'"),
    (spec_of(192, mechanism("buffered_linear", 2), MIN_SEP), "single participation"),
    (streamed(128, 4, 2, MAX), "objective 'max'"),
    (streamed(12, 4, 2), "at least 4 steps"),
    (streamed(32, 4, 8), "must be below the 8 steps"),
    (streamed(20_000, 4, 8), "a certified sensitivity"),
    (spec_of(64, mechanism("buffered_linear", 2, redraws=4), 4), "redraws=4 is more than 4 epochs allow"),
    (spec_of(64, mechanism("buffered_linear", 2, redraws=1)), "redraws=1 needs fixed_epochs.*leave redraws out"),
    (spec_of(64, mechanism("blt", 16)), "buffers=16 exceeds 15"),
    (
        spec_of(2_000_000, mechanism("blt", 2), optimize_for={**MOMENTUM, "n": 2_000_000}),
        "use optimize_for with the prefix workload",
    ),
    (spec_of(8192, mechanism("blt", 2), optimize_for={**COSINE, "n": 8192}), "n=8192 exceeds 4096"),
    (spec_of(1_000_000, mechanism("blt", 8), 1_000_000), "pairs of buffers"),
    (spec_of(20_000, mechanism("blt", 2, normalization="columns"), 2), "use normalization"),
    (spec_of(32, mechanism("blt", 2, normalization="fitted")), "take 1 of 1; use"),
    (spec_of(32, mechanism("toeplitz", normalization="fitted"), MIN_SEP | {"max_participations": 3}), "3 of 8"),
    (spec_of(8192, mechanism("toeplitz", normalization="fitted"), 2), "n=8192 is above 4096"),
    (spec_of(32, mechanism("banded_toeplitz", 4, normalization="fitted"), 4, MAX), "objective 'max'"),
    (sampled("dense"), "cannot be optimised for sampling"),
    (sampled("auto"), "cannot be optimised for sampling"),
    (sampled("buffered_linear", 2), "use blt with normalization 'fitted'"),
    (sampled("blt", 2, normalization="columns"), "use 'fitted'"),
    (sampled("blt", 16), "exceeds 15"),
    (sampled("banded_inverse_toeplitz", 1), "must be from 2 to"),
    (sampled("toeplitz", None, MAX), "objective 'max'"),
    (spec_of(32, mechanism("banded_inverse_toeplitz", 4), 4), "needs a sampling"),
]


@pytest.mark.parametrize(("spec", "words"), REFUSED)
def test_what_no_solver_answers_is_refused_with_a_way_out(spec: Spec, words: str) -> None:
    for door in (solvers.choose, solvers.estimate, solvers.solve):
        with pytest.raises(UnsupportedProblem, match=words) as refusal:
            door(spec)
    assert "use " in str(refusal.value) or "; " in str(refusal.value)


TOO_LARGE: list[tuple[Spec, str]] = [
    *((spec_of(n, "dense"), "GiB") for n in (16_385, 10**8)),
    *((spec_of(n, {"kind": "square_root", "normalization": "columns"}), "GiB") for n in (16_385, 10**8)),
    (spec_of(100_000, "fft"), "GiB"),
    (spec_of(COSINE, "square_root", n=20_000), "GiB"),
    (banded(10**7, 100), "n x bands"),
]


@pytest.mark.parametrize(("spec", "words"), TOO_LARGE)
def test_what_is_too_large_is_refused_before_any_array_is_made(spec: Spec, words: str) -> None:
    for door in (solvers.estimate, solvers.solve):
        with pytest.raises(TooLarge, match=words):
            door(spec)

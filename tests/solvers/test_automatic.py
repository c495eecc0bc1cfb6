"""What `auto` names has a solver that accepts it, at every size, and refusals say what to ask for."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from specs import spec_of

from factorize.errors import UnsupportedProblem
from factorize.solvers import choose, estimate, problem
from factorize.spec import parse_spec

WORKLOADS: tuple[dict[str, Any], ...] = (
    {"kind": "prefix"},
    {"kind": "momentum", "momentum": 0.9},
    {"kind": "srg", "momentum": 0.9, "decay": 0.08},
    {"kind": "mu2", "output": "x"},
    {"kind": "window", "width": 3},
)
STEPS = (127, 16510, 59563)


@pytest.fixture(autouse=True)
def _a_machine_of_32_gib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(problem, "machine_memory", lambda: 2**35)


def auto(workload: dict[str, Any], n: int, participation: dict[str, Any], objective: str = "mean") -> dict[str, Any]:
    part = {"kind": objective} | ({"tau": 16} if objective == "lambda_tau" else {})
    return {"workload": {**workload, "n": n}, "participation": participation, "objective": part}


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda one: one["kind"])
@pytest.mark.parametrize("objective", ["mean", "lambda_tau"])
def test_what_auto_names_is_accepted(workload: dict[str, Any], objective: str) -> None:
    participations: tuple[dict[str, Any], ...] = (
        {"kind": "single"},
        {"kind": "fixed_epochs", "epochs": 127},
        {"kind": "min_sep", "min_sep": 64},
    )
    for n, participation in itertools.product(STEPS, participations):
        spec = parse_spec(auto(workload, n, participation, objective))
        assert estimate(choose(spec), evidence=False).bytes <= 2**35, (n, participation)


@pytest.mark.parametrize(
    ("n", "participation", "kind"),
    [
        (16, "single", "dense"),
        (8192, "single", "dense"),
        (8193, "single", "buffered_linear"),
        (60000, "single", "buffered_linear"),
        (16, 1, "dense"),
        (16, 4, "dense"),
        (16256, 127, "dense"),
        (59563, 127, "banded"),
        (60000, 2, "toeplitz"),
        (16, {"kind": "min_sep", "min_sep": 9, "max_participations": 1}, "dense"),
        (16, {"kind": "min_sep", "min_sep": 4}, "dense"),
        (128, {"kind": "min_sep", "min_sep": 16}, "dense"),
        (256, {"kind": "min_sep", "min_sep": 4}, "banded"),
        (2**20, {"kind": "min_sep", "min_sep": 128}, "toeplitz"),
    ],
)
def test_what_stands_for_auto(n: int, participation: Any, kind: str) -> None:
    """Above the sizes of `dense` the best that can be solved."""
    chosen = choose(spec_of(n, participation=participation))
    assert chosen.mechanism.kind == kind and choose(chosen) == chosen and len(chosen.digest) == 64
    assert kind != "banded" or n == 256 or chosen.mechanism.bands == 469  # the steps of an epoch


def test_where_nothing_is_left_the_refusal_names_what_can_be_asked_for() -> None:
    min_sep = {"kind": "min_sep", "min_sep": 64}
    with pytest.raises(UnsupportedProblem, match="ask by name for identity, or for nu_toeplitz"):
        choose(parse_spec(auto({"kind": "window", "width": 3}, 2**20, min_sep, "lambda_tau")))

"""Prices of specs are made before any array: eighty bytes of JSON must not cost gigabytes."""

from __future__ import annotations

import tracemalloc
from contextlib import suppress
from typing import Any

import pytest
from specs import spec_of

from factorize import solvers
from factorize.checker.bounds import determinants
from factorize.errors import TooLarge, UnsupportedProblem
from factorize.solvers.evidence_search import evidence, work
from factorize.solvers.problem import Reporter
from factorize.spec import parse_spec

LONGEST = 10**8
MOST_BYTES = 64 << 20  # of the 800 MB that a single array of so many steps takes
WORKLOADS: list[dict[str, Any]] = [
    {"kind": "prefix"},
    {"kind": "identity"},
    {"kind": "decay", "rate": 0.9},
    {"kind": "window", "width": 1},
    {"kind": "window", "width": 7},
    {"kind": "window", "width": None},
    {"kind": "srg", "momentum": 0.9, "decay": 0.1},
    {"kind": "srg", "momentum": 0.0, "decay": 0.1},
    {"kind": "mu2", "output": "q"},
    {"kind": "mu2", "output": "w"},
    {"kind": "mu2", "output": "x"},
    {"kind": "momentum", "momentum": 0.9},
    {"kind": "momentum", "momentum": 0.9, "nesterov": True},
    {"kind": "weight_decay", "rate": 0.1, "mode": "decoupled"},
    {"kind": "weight_decay", "rate": 0.1, "mode": "coupled", "momentum": 0.5},
]
MECHANISMS: list[dict[str, Any]] = [
    {"kind": "auto"},
    {"kind": "dense"},
    {"kind": "banded", "bands": 8},
    {"kind": "buffered_linear", "buffers": 4},
    {"kind": "toeplitz"},
    {"kind": "banded_toeplitz", "bands": 8},
    {"kind": "blt", "buffers": 4},
    {"kind": "tree", "decoder": "honaker_full"},
    {"kind": "nu_toeplitz", "nu": 0.1},
    {"kind": "anti_pgd"},
]
PARTICIPATIONS: list[dict[str, Any]] = [{"kind": "single"}, {"kind": "fixed_epochs", "epochs": 10}]
OBJECTIVES: list[dict[str, Any]] = [{"kind": "mean"}, {"kind": "lambda_tau", "tau": 10}, {"kind": "max"}]


def workload_of(given: dict[str, Any], n: int) -> dict[str, Any]:
    whole = {"width": n} if given.get("width", 1) is None else {}  # a window of all steps is the running sum
    return {**given, **whole, "n": n}


def priced(spec: dict[str, Any]) -> int:
    """The most memory that was held while a spec was named and priced, or refused."""
    tracemalloc.start()
    try:
        with suppress(TooLarge, UnsupportedProblem):
            solvers.estimate(solvers.choose(parse_spec(spec)))
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("given", WORKLOADS, ids=lambda given: "-".join(map(str, given.values())))
def test_the_longest_run_is_priced_without_an_array_of_its_length(given: dict[str, Any]) -> None:
    for mechanism in MECHANISMS:
        for participation in PARTICIPATIONS:
            for objective in OBJECTIVES if mechanism["kind"] in ("banded", "dense") else OBJECTIVES[:1]:
                spec = {
                    "workload": workload_of(given, LONGEST),
                    "mechanism": mechanism,
                    "participation": participation,
                    "objective": objective,
                }
                assert priced(spec) < MOST_BYTES, spec


def test_no_evidence_is_searched_that_proves_no_bound() -> None:
    """Neither in time nor in the price: at the limit there is a price, and one step beyond there is none."""
    momentum = {"kind": "momentum", "momentum": 0.9}
    long, longest = (spec_of(momentum, n=determinants.MAX_N_OF_STATES + more) for more in (1, 0))
    assert evidence(long, Reporter(lambda _step: None)) == {}
    assert work(long) == 0 < work(longest)


COSINE = {"learning_rates": {"kind": "cosine", "final": 0.0}}
SEVERAL = {"kind": "fixed_epochs", "epochs": 4}


def test_a_schedule_makes_no_search_free() -> None:
    """Measured: 0.3 to 1.4 s for 4 to 8 buffers and 128 to 1,000 steps, with a schedule and without."""
    for workload in ({"kind": "momentum", "momentum": 0.9}, {"kind": "prefix"}):
        scheduled = {**workload, "kind": "momentum" if "momentum" in workload else "schedule", **COSINE}
        for buffers in (1, 4, 8):
            mechanism = {"kind": "blt", "buffers": buffers}
            plain, rated = (
                solvers.estimate(spec_of(one, n=512, mechanism=mechanism)).seconds for one in (workload, scheduled)
            )
            assert plain / 3 < rated < 3 * plain


@pytest.mark.parametrize(
    ("workload", "measured"),
    [
        ({"kind": "momentum", "momentum": 0.9}, 0.14),
        ({"kind": "momentum", "momentum": 0.9, **COSINE}, 0.21),
        ({"kind": "window", "width": 7}, 0.59),
    ],
)
def test_evidence_over_epochs_is_priced_as_it_was_measured(workload: dict[str, Any], measured: float) -> None:
    """512 steps, in processor seconds; the mechanism that the evidence stands beside says nothing of it."""
    spec = spec_of(workload, n=512, participation=SEVERAL, mechanism={"kind": "identity"})
    with_it, without = (solvers.estimate(spec, evidence=evidence).seconds for evidence in (True, False))
    assert measured / 4 < with_it - without < 4 * measured


def test_few_steps_of_bands_cost_what_a_step_costs_at_least() -> None:
    """Measured: 0.56 s for 64 steps, since momentum over epochs takes the 2,000 iterations of the limit."""
    spec = spec_of(
        {"kind": "momentum", "momentum": 0.9}, n=64, participation=SEVERAL, mechanism={"kind": "banded", "bands": 4}
    )
    assert 0.2 < solvers.estimate(spec).seconds < 1.6


def test_evidence_of_one_participation_is_priced_by_its_recursion() -> None:
    """Momentum under lambda_tau has no structure of its own, but a ring of one epoch: O(n), and not O(n^3)."""
    momentum, objective = {"kind": "momentum", "momentum": 0.9}, {"kind": "lambda_tau", "tau": 9}
    prices = [work(spec_of(momentum, n=n, objective=objective)) for n in (500, 1000, 2000)]
    assert prices[0] > 0 and [price / prices[0] for price in prices] == pytest.approx([1, 2, 4])

"""Noise within a memory: what `auto` asks for, that it keeps no more, and who is warned of noise that takes all rows."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import pytest

import factorize
from factorize import spec as specs
from factorize.adapters.jobs import FactorSource
from factorize.errors import InvalidParameter
from factorize.noise.source import noise_source
from factorize.solvers import solve
from factorize.spec.mechanisms import DenseNoise
from factorize.training import noise_memory
from factorize.training.noise_memory import spec_within

TWO_EPOCHS = {"kind": "fixed_epochs", "epochs": 2}
SINGLE = {"kind": "single"}


def running_sums(steps: int) -> dict[str, Any]:
    return {"kind": "prefix", "n": steps}


def vectors(factors: Any) -> int:
    return noise_source(factors.structure, factors.strategy_tensors(), factors.steps, factors.digest).cost.vectors


@pytest.mark.parametrize(
    ("workload", "participation", "memory", "most"),
    [
        ({"kind": "prefix", "n": 16}, TWO_EPOCHS, 0, 0),
        ({"kind": "prefix", "n": 16}, TWO_EPOCHS, 1, 1),
        ({"kind": "prefix", "n": 16}, SINGLE, 2, 2),
        ({"kind": "momentum", "n": 12, "momentum": 0.9}, TWO_EPOCHS, 2, 2),
        ({"kind": "adam", "n": 12, "beta": 0.9, "output": "iterate"}, SINGLE, 1, 1),
        ({"kind": "prefix", "n": 8}, TWO_EPOCHS, 64, 8),
        ({"kind": "prefix", "n": 16}, {"kind": "fixed_epochs", "epochs": 4}, 4, 3),
        ({"kind": "prefix", "n": 12}, {"kind": "fixed_epochs", "epochs": 4}, 4, 4),
    ],
)
def test_no_more_is_kept_than_the_memory(workload: Any, participation: Any, memory: int, most: int) -> None:
    found = solve(factorize.parse_spec(spec_within(workload, participation, memory)))
    assert vectors(found) <= most
    best = factorize.solve({"workload": workload, "participation": participation}).certificate.loss.objective
    independent = factorize.solve(
        {"workload": workload, "participation": participation, "mechanism": {"kind": "identity"}}
    ).certificate.loss.objective
    assert best <= found.certificate.loss.objective * (1 + 1e-6) <= independent * (1 + 1e-5)
    if memory:  # what a few vectors give back of what correlation gains
        assert found.certificate.loss.objective < best + 0.5 * (independent - best)


def test_bins_have_what_is_optimised_for_them() -> None:
    amplified = {"kind": "balls_in_bins", "epsilon": 2.0, "delta": 1e-5}
    found = spec_within(running_sums(16), TWO_EPOCHS, 4, amplified)
    assert found["mechanism"] == {"kind": "blt", "buffers": 2} and found["sampling"]["epsilon"] == 2.0
    assert factorize.parse_spec(found).sampling is not None
    with pytest.raises(InvalidParameter, match="memory=-1 is not an integer >= 0"):
        spec_within(running_sums(16), TWO_EPOCHS, -1)


def test_auto_warns_of_noise_that_takes_all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noise_memory, "WARNED_STEPS", 8)
    auto = FactorSource("auto", running_sums, solve=solve)
    named = replace(auto, spec={"workload": running_sums(8)})
    with pytest.warns(
        DenseNoise, match="needs all earlier steps: .* 8 vectors of the model's size.*memory=4, say, finds"
    ):
        auto.find(8, TWO_EPOCHS)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        auto.find(6, TWO_EPOCHS)
        assert vectors(replace(auto, memory=1).find(8, TWO_EPOCHS)) == 1
        named.find(8, SINGLE)
    with pytest.raises(InvalidParameter, match="memory=2 is for 'auto'"):
        replace(named, memory=2).find(8, SINGLE)


def test_python_warns_where_auto_has_named_dense(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(specs, "WARNED_STEPS", 6)
    with pytest.warns(DenseNoise, match="6 vectors") as told:
        factorize.solve("prefix", n=6)
    assert [one.filename for one in told] == [__file__]
    factorize.solve("prefix", n=6, mechanism="dense")  # by name: a warning would be an error
    factorize.solve("prefix", n=5)

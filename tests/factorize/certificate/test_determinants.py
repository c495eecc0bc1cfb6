"""Bounds by log-determinants at the door: what is certified of long momentum, and what is not beyond the limit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from specs import spec_of

from factorize.checker.arithmetic.near import NotEnclosed
from factorize.checker.bounds.determinants import LARGEST
from factorize.checker.utility import lower_bound


@pytest.mark.parametrize("objective", [{"kind": "mean"}, {"kind": "max"}], ids=lambda objective: objective["kind"])
@pytest.mark.parametrize("workload", ["momentum", "prefix"])
def test_none_is_stated_beyond_what_the_checker_proves(workload: str, objective: dict[str, Any]) -> None:
    """Prefix sums, of one state, have theirs at any length."""
    n = LARGEST + 1
    fields = {"kind": workload} | ({"momentum": 0.9} if workload == "momentum" else {})
    spec = spec_of(fields, objective=objective, n=n).document()
    evidence = {"weights": np.ones(n), "row_weights": np.ones(n)}
    if workload == "momentum":
        with pytest.raises(NotEnclosed, match="16384"):
            lower_bound(spec, evidence, {})
    else:
        assert lower_bound(spec, evidence, {}).objective > 0


def test_no_evidence_is_searched_that_proves_no_bound() -> None:
    """Neither in time nor in the price: at the limit there is a price, and one step beyond there is none."""
    from factorize.solvers.evidence import evidence, work
    from factorize.solvers.problem import Reporter

    long, longest = (spec_of({"kind": "momentum", "momentum": 0.9}, n=LARGEST + more) for more in (1, 0))
    assert evidence(long, Reporter(lambda _step: None)) == {}
    assert work(long) == 0 < work(longest)

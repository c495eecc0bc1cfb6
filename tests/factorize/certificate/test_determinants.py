"""Bounds by log-determinants at the door: what is certified of long momentum, and what is not beyond the limit."""

from __future__ import annotations

from specs import spec_of

from factorize.checker.bounds.determinants import LARGEST


def test_no_evidence_is_searched_that_proves_no_bound() -> None:
    """Neither in time nor in the price: at the limit there is a price, and one step beyond there is none."""
    from factorize.solvers.evidence import evidence, work
    from factorize.solvers.problem import Reporter

    long, longest = (spec_of({"kind": "momentum", "momentum": 0.9}, n=LARGEST + more) for more in (1, 0))
    assert evidence(long, Reporter(lambda _step: None)) == {}
    assert work(long) == 0 < work(longest)

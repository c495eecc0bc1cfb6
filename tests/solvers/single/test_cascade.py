"""What is known of the structured optimum with three states (SRG); test_filtered.py has what it shares with others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from filter_cases import dense, optimum_of, srg

from factorize.solvers.single.cascade import Cascade
from factorize.solvers.single.momentum import MomentumFilters


@pytest.mark.parametrize("n", [4, 8])
def test_published_srg_optimum(n: int, vectors: dict[str, Any]) -> None:
    optimum = optimum_of(srg(n), 1e-11)
    reference = vectors[f"B.srg_true.opt.n{n}"]["opt_total"]
    assert optimum.lower_bound <= reference * (1 + 1e-13)
    assert reference * (1 - 1e-13) <= optimum.upper_bound
    assert optimum.relative_gap < 1e-11


def test_the_map_is_the_srg_workload(vectors: dict[str, Any]) -> None:
    assert np.allclose(dense(srg(6))[:, 0], vectors["B.srg_true.n6"]["toeplitz_coef"], rtol=1e-14)


def test_a_vanishing_decay_is_momentum() -> None:
    n = 80
    eta = np.exp(np.random.default_rng(0).normal(size=n))
    here = optimum_of(Cascade(np.full(n, 0.8), eta, np.ones(n), np.full(n, 1e-14)), 1e-10)
    there = optimum_of(MomentumFilters(np.full(n, 0.8), eta, np.ones(n)), 1e-10)
    assert here.lower_bound == pytest.approx(there.lower_bound, rel=1e-9)

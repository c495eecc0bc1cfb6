"""What is known of the structured optimum for momentum; test_filtered.py has what it shares with others."""

from __future__ import annotations

import numpy as np
import pytest
from filter_cases import momentum, optimum_of, schedule

from factorize.solvers.single.bidiagonal import Bidiagonal
from factorize.solvers.single.momentum import MomentumFilters
from factorize.solvers.single.newton import maximise


def test_a_known_optimum() -> None:
    """From a dense Newton method at beta 0.9, another program."""
    optimum = optimum_of(momentum(64, 0.9, "constant", 1.0), 1e-11)
    assert optimum.lower_bound == pytest.approx(8372.967919013, rel=2e-11)
    assert optimum.relative_gap < 1e-11


def test_strong_momentum_with_a_vanishing_schedule() -> None:
    """Where Newton's method without care for tiny weights diverges."""
    n = 512
    eta = 1e-12 + 0.5 * (1 + np.cos(np.pi * np.arange(n) / (n - 1)))
    assert optimum_of(MomentumFilters(np.full(n, 0.99), eta, np.ones(n))).relative_gap < 1e-9


def test_without_momentum_it_is_the_bidiagonal_workload() -> None:
    n = 100
    eta, lam = schedule("wild", n), np.linspace(0.9, 1.0, n)
    here = optimum_of(MomentumFilters(np.zeros(n), eta, lam), 1e-10)
    # x[i] = lam[i-1] x[i-1] + eta[i] g[i]: the same map
    there = maximise(Bidiagonal(1 / eta, np.concatenate([[0.0], lam[:-1] / eta[1:]])), tolerance=1e-10)
    assert here.lower_bound == pytest.approx(there.lower_bound, rel=1e-9)

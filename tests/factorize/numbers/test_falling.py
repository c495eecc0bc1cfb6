"""Roots of falling functions: of functions whose root is known, from brackets and from guesses."""

from __future__ import annotations

import math

import pytest

from factorize.numbers.falling import descend, descend_near


def log_tail(root: float):
    """Return log(delta(x) / delta(root)) of a tail e^(-x^2), in log x, and the list of points that it was asked at."""
    asked: list[float] = []

    def excess(x: float) -> float:
        asked.append(x)
        return math.exp(2 * math.log(root)) - math.exp(2 * x)

    return excess, asked


@pytest.mark.parametrize("tolerance", [1e-3, 1e-9])
def test_a_bracket_ends_on_the_side_where_nothing_is_positive(tolerance):
    excess, _ = log_tail(3.0)
    found = descend(excess, 0.0, 2.0, tolerance=tolerance)
    assert 0 <= found - math.log(3.0) <= tolerance and excess(found) <= 0


@pytest.mark.parametrize("off", [-0.08, -0.01, 0.0, 1e-5, 0.03, 0.09])
def test_a_good_guess_takes_few_looks(off):
    excess, asked = log_tail(3.0)
    found = descend_near(excess, math.log(3.0) + off, -18.0, tolerance=2e-4, reach=0.1)
    assert found == pytest.approx(math.log(3.0), abs=2e-5)
    assert len(asked) <= 4


def test_a_guess_that_leads_nowhere_gives_nothing():
    excess, asked = log_tail(3.0)
    assert descend_near(excess, math.log(3.0) - 0.3, -18.0, tolerance=2e-4, reach=0.1) is None
    assert len(asked) <= 3
    assert descend_near(lambda x: 1.0 + x, 0.0, -18.0, tolerance=2e-4, reach=0.1) is None  # it rises
    steps = iter(range(100))
    assert descend_near(lambda _: (-1) ** next(steps) * 0.5, 0.0, -18.0, tolerance=2e-4, reach=0.1) is None

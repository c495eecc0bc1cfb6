"""Closed forms of Gaussian pairs, each end of them from the ends of what they are of, in units so coarse that each shows."""

from __future__ import annotations

import math
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy.special import ndtr

from factorize.exact.arithmetic.enclosures import Enclosed
from factorize.exact.sampling import star

S = 1 / 700


@pytest.fixture(autouse=True)
def coarse(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(star, "SLACK", Decimal(S))


def ends(low: float, high: float) -> Enclosed:
    return Enclosed(Decimal(low), Decimal(high))


@pytest.mark.parametrize("epsilon", [0.2, 1.5])
@pytest.mark.parametrize(("diagonal", "whole"), [((1.0, 1.25), (0.5, 0.75)), ((4.0, 4.5), (3.0, 3.5))])
def test_the_closed_form(diagonal: tuple[float, float], whole: tuple[float, float], epsilon: float) -> None:
    """Phi(d) - e^{epsilon - a / 2 + v / 2} Phi(d - sqrt v), d = (a / 2 - epsilon) / sqrt v."""
    least, most = math.sqrt(whole[0]) * (1 - S), math.sqrt(whole[1]) * (1 + S)
    first, last = (a / 2 - epsilon for a in diagonal)
    low, high = min(first / least, first / most), max(last / least, last / most)
    low, high = low - S * (1 + abs(low)), high + S * (1 + abs(high))
    small = math.exp(epsilon - diagonal[1] / 2 + whole[0] / 2) * (1 - S)
    large = math.exp(epsilon - diagonal[0] / 2 + whole[1] / 2) * (1 + S)
    found = star.closed_form(ends(*diagonal), ends(*whole), Decimal(epsilon))
    below = max(float(ndtr(low)) - large * float(ndtr(high - least)) - S, 0)
    assert float(found.low) == pytest.approx(below, rel=1e-11)
    assert float(found.high) == pytest.approx(float(ndtr(high)) - small * float(ndtr(low - most)), rel=1e-11)


def gaussian(epsilon: tuple[float, float], norm: tuple[float, float]) -> tuple[float, float]:
    """Phi(norm / 2 - epsilon / norm) - e^epsilon Phi(-norm / 2 - epsilon / norm)."""
    near, far = epsilon[0] / norm[1], epsilon[1] / norm[0]
    first = float(ndtr(norm[0] / 2 - far - S)), float(ndtr(norm[1] / 2 - near + S))
    second = float(ndtr(-norm[1] / 2 - far - S)), float(ndtr(-norm[0] / 2 - near + S))
    low = first[0] - math.exp(epsilon[1]) * (1 + S) * second[1]
    return max(low, 0), first[1] - math.exp(epsilon[0]) * (1 - S) * second[0]


@pytest.mark.parametrize(("epsilon", "norm"), [((0.5, 0.55), (2.0, 2.1)), ((0.1, 0.2), (1.5, 1.75))])
def test_the_delta_of_a_gaussian_pair(epsilon: tuple[float, float], norm: tuple[float, float]) -> None:
    found = star.gaussian_delta(ends(*epsilon), ends(*norm))
    wanted = gaussian(epsilon, norm)
    assert wanted[0] > 0
    assert [float(end) for end in found] == pytest.approx(wanted, rel=1e-11)


def test_the_least_delta_of_bins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of bins by their least norm; those that are 0 leak nothing."""
    monkeypatch.setattr(star, "_BLOCKS", 3)
    least, sigma, epsilon = np.array([20.0, 0.0, 9.0, 30.0, 12.0, 0.0]), 1.25, 0.3
    far = (epsilon + math.log(6) - S, epsilon + math.log(6) + S)
    total = 0.0
    for square in (20.0, 9.0):
        norm = math.sqrt(square) / sigma
        total += 2 * gaussian(far, (norm * (1 - S), norm * (1 + S)))[0]
    gram: Any = SimpleNamespace(least=least)
    assert float(star.least_delta(gram, sigma, epsilon)) == pytest.approx(total / 6 * (1 - S), rel=1e-11)

"""The best of a random number of runs: against the law of the best of normal numbers, the paper and dp_accounting."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import pytest
from dp_accounting.dp_event import GaussianDpEvent, RepeatAndSelectDpEvent
from dp_accounting.rdp import RdpAccountant
from scipy.special import ndtr

from factorize.errors import InvalidParameter
from factorize.numbers.gaussian import compose_mu, gaussian_delta, gaussian_epsilon
from factorize.privacy.selection import BestOf

DELTA = 1e-6


def delta_of_the_best_normal(epsilon: float, mu: float, mean: float) -> float:
    """Delta of the best of normal numbers about 0 and mu, by integration, in the worse direction."""
    x = np.linspace(-12, 12 + mu, 200_001)

    def density(shift: float) -> np.ndarray:
        normal = np.exp(-((x - shift) ** 2) / 2) / math.sqrt(2 * math.pi)
        return normal / mean / (1 - (1 - 1 / mean) * ndtr(x - shift)) ** 2

    one, two = density(0.0), density(mu)
    assert np.trapezoid(one, x) == pytest.approx(1)
    return max(float(np.trapezoid(np.maximum(p - math.exp(epsilon) * q, 0), x)) for p, q in ((one, two), (two, one)))


@pytest.mark.parametrize(("mu", "mean"), [(0.3, 3.0), (1.0, 10.0), (2.0, 50.0)])
def test_epsilon_lies_between_the_best_of_normal_numbers_and_renyi(mu: float, mean: float) -> None:
    found = BestOf(mean).epsilon(DELTA, mu)
    assert delta_of_the_best_normal(found, mu, mean) <= DELTA
    accountant = RdpAccountant(np.exp(np.linspace(0.05, 6, 100)).tolist())
    accountant.compose(RepeatAndSelectDpEvent(GaussianDpEvent(1 / mu), mean, 1.0))
    assert gaussian_epsilon(DELTA, mu) < found < accountant.get_epsilon(DELTA)


def test_the_surplus_bounds_how_often_something_better_is_seen() -> None:
    """Every event of a Gaussian mechanism: T = Phi(Phi^-1(t) + mu), the quotient of the proof by its largest value."""
    mu, mean = 1.3, 8.0
    places = np.linspace(-9, 6, 30_001)
    quotient = (1 / mean + (1 - 1 / mean) * ndtr(places + mu)) / (1 / mean + (1 - 1 / mean) * ndtr(places))
    assert BestOf(mean).surplus(mu) == pytest.approx(math.log(quotient.max()), rel=1e-6)
    assert BestOf(mean).surplus(mu) >= math.log(quotient.max())


def test_other_releases_compose_with_one_run() -> None:
    search = BestOf(6.0)
    alone, more = search.epsilon(DELTA, 0.8), search.epsilon(DELTA, 0.8, compose_mu([0.8, 0.6]))
    assert alone < more < alone + gaussian_epsilon(DELTA, 0.6)
    expected = 2 * search.surplus(0.8) + gaussian_epsilon(DELTA / 6, 1.0)
    assert more == pytest.approx(expected) and 6 * gaussian_delta(more - 2 * search.surplus(0.8), 1.0) <= DELTA


def test_known_pairs_are_those_of_the_paper() -> None:
    """Liu and Talwar 2019: 3 epsilon. A coin that tells the truth with 3 to 1: each best of ten by hand."""
    assert BestOf(10.0).level(math.log(3), 1e-8) == pytest.approx((3 * math.log(3), 1e-7))
    # Heads is the better result: seen unless all of the runs are tails, whose chance is t / (10 - 9 t) for a tail's t.
    tails = [t / (10 - 9 * t) for t in (0.25, 0.75)]
    assert max(tails[1] / tails[0], (1 - tails[0]) / (1 - tails[1])) == pytest.approx(93 / 13) and 93 / 13 < 27
    with pytest.raises(InvalidParameter, match="the most at epsilon=0.1"):
        BestOf(1000.0).level(0.1, 1e-3)


@pytest.mark.parametrize("mu", [0.01, 1.0, 26.0, 1e4])
def test_no_run_is_better_than_the_best_by_more_than_the_mean(mu: float) -> None:
    search = BestOf(10.0)
    assert 0 < search.surplus(mu) <= math.log(10) * (1 + 1e-11)
    assert 9 * gaussian_delta(search.surplus(mu), mu) <= math.expm1(search.surplus(mu))
    assert search.epsilon(DELTA, mu) <= (gaussian_epsilon(DELTA / 10, mu) + 2 * math.log(10)) * (1 + 1e-11)


def test_a_known_pair_has_an_epsilon_above_0_and_a_delta_of_at_most_1() -> None:
    assert BestOf(10.0).level(800.0, 1e-6) == pytest.approx((2400.0, 1e-5))
    assert BestOf(10.0).level(3.0, 0.3)[1] == 1.0
    for epsilon in (math.nan, 0.0, -1.0, "1"):
        with pytest.raises(InvalidParameter, match="epsilon"):
            BestOf(10.0).level(epsilon, 1e-6)  # type: ignore[arg-type]


def test_numbers_of_runs_have_the_law() -> None:
    drawn = np.array([BestOf(4.0).draw() for _ in range(4000)])
    assert drawn.min() == 1 and abs(drawn.mean() - 4) < 6 * math.sqrt(12 / 4000)
    assert abs((drawn == 1).mean() - 0.25) < 6 * NormalDist(0, math.sqrt(0.25 * 0.75 / 4000)).stdev


@pytest.mark.parametrize("mean", [1, 0.5, math.nan, 1e7])
def test_what_is_no_mean_is_refused(mean: float) -> None:
    with pytest.raises(InvalidParameter, match="mean"):
        BestOf(mean)

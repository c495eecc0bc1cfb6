"""Power series in the exact checker against sums written out, and losses of Toeplitz matrices against numbers on paper."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from factorize.errors import CertificateError
from factorize.exact.arithmetic import series
from factorize.exact.arithmetic.integers import Numbers, integers
from factorize.exact.arithmetic.intervals import NotEnclosed
from factorize.exact.spec import weighing_of

SLACK = 2.0**-44
ONES = integers(np.ones(3))


def numbers(values: list[int], exponent: int = 0, radius: int = 0) -> Numbers:
    return Numbers(np.array(values, dtype=object), exponent, radius)


def test_products_and_what_they_are_off_by() -> None:
    """1 times 15, 2 times 6, and three times 1 times 2."""
    found = series.product(numbers([1, -2, 3], -1, 1), numbers([4, 5, -6], -2, 2))
    assert found.values.tolist() == [4, 5 - 8, -6 - 10 + 12]
    assert (found.exponent, found.radius) == (-3, 15 + 2 * 6 + 3 * 2)


@pytest.mark.parametrize("seed", range(6))
def test_products_are_sums_of_products(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 9))
    left, right = (rng.integers(-(10**k), 10**k, n).astype(object).tolist() for k in (1, 17))
    expected = [sum(left[i] * right[t - i] for i in range(t + 1)) for t in range(n)]
    assert series.product(numbers(left), numbers(right)).values.tolist() == expected
    assert series.product(numbers(right), numbers(left)).values.tolist() == expected


def test_products_that_fill_their_digits() -> None:
    """Below half of 100, and above 5,000, where ten thousand is not yet twice the largest sum."""
    for left, right in (([7], [7]), ([-7], [7]), ([9] * 60, [10] * 60), ([9] * 60, [-10] * 60)):
        expected = [left[0] * right[0] * (t + 1) for t in range(len(left))]
        assert series.product(numbers(left), numbers(right)).values.tolist() == expected


@pytest.mark.parametrize("n", [1, 2, 3, 7, 16])
def test_a_guess_of_an_inverse_is_near_it(n: int) -> None:
    """1 / (2 + x) has the coefficients 1/2, -1/4, 1/8, ..."""
    found = series.approximate_inverse(np.array([2.0, 1.0, *[0.0] * 14])[:n])
    assert np.allclose(found, -((-0.5) ** np.arange(1, n + 1)), rtol=0, atol=1e-13)


def test_places_beyond_the_hundredth_are_cut() -> None:
    """Three places: 17 is 2 and a rest, and what was within 9 is within 2, and one more."""
    found = series._cut(numbers([17, -17], -103, 9))
    assert (found.values.tolist(), found.exponent, found.radius) == ([2, -3], -100, 3)
    assert series._cut(numbers([17], -100, 9)) == numbers([17], -100, 9)


@pytest.mark.parametrize(
    ("column", "radius", "guess", "expected"),
    [
        ([1024, -512, 0, 0], 0, [1.0, 0.5, 0.25, 0.125], 15 / 8),
        ([1024, -256, 0, 0], 0, [1.0, 0.0, 0.0, 0.0], 1 / (1 - 1 / 4)),
        ([1024, -256, 0, 0], 32, [1.0, 0.0, 0.0, 0.0], 1 / (1 - 1 / 4 - 4 / 32)),
    ],
)
def test_the_sum_of_an_inverse(column: list[int], radius: int, guess: list[float], expected: float) -> None:
    """The guess's own sum over 1 less the sum of the defect, which is 1 / 4 where one coefficient is left out."""
    found = series.sum_of_inverse(np.array(guess), numbers(column, -10, radius))
    assert expected * (1 + 0.9 * SLACK) <= found <= expected * (1 + 3 * SLACK)


def test_a_defect_of_one_half_bounds_no_inverse() -> None:
    with pytest.raises(NotEnclosed, match="cannot be bounded"):
        series.sum_of_inverse(np.array([1.0, 0.0]), numbers([2, -1], -1))


@pytest.mark.parametrize(
    ("objective", "expected"),
    [
        ({"kind": "mean"}, 2),
        ({"kind": "max"}, 3),
        ({"kind": "weighted", "weights": [1.0, 2.0, 4.0]}, 1 + 2 * 2 + 4 * 3),
        ({"kind": "lambda_tau", "tau": 2}, 1 / 2 + 2 + 1 / 2),
    ],
    ids=lambda value: value["kind"] if isinstance(value, dict) else "",
)
def test_losses_of_prefix_sums_with_independent_noise(objective: dict[str, Any], expected: float) -> None:
    """B = A: rows of one, two and three ones."""
    found = series.losses(integers(np.array([1.0, 0.0, 0.0])), ONES, objective, np.ones(3))
    assert found.residual == 0
    ends = (found.total, 6), (found.largest, 3), (found.last, 3), (found.objective, expected)
    for (low, high), true in ends:
        least = 2.0**-49 if true == 17 else 0.9 * SLACK  # what is weighed is moved by the length of its sums alone
        assert true * (1 - 4 * SLACK) <= low <= true * (1 - least)
        assert true * (1 + least) <= high <= true * (1 + 4 * SLACK)


def test_the_mean_is_moved_outwards_once_more_and_sums_by_their_length() -> None:
    rows, ends = [np.array([1.0, 2.0]), np.array([2.0, 4.0])], (4.0, 8.0)
    assert series._objective(weighing_of({"kind": "mean"}, 2), rows, ends, ends) == (2 * (1 - SLACK), 4 * (1 + SLACK))
    weighted = {"kind": "weighted", "weights": [1.0, 3.0]}  # 4 times the first coefficient, 3 times the second
    assert series._objective(weighing_of(weighted, 2), rows, ends, ends) == (10 * (1 - 2.0**-49), 20 * (1 + 2.0**-49))


def test_coefficients_that_are_off() -> None:
    guess = np.array([3.0, -1.0, 0.25])
    assert series._ends(guess, 0.5, -1).tolist() == [2.5**2, 0.5**2, 0.0]
    assert series._ends(guess, 0.5, 1).tolist() == [3.5**2, 1.5**2, 0.75**2]


@pytest.mark.parametrize("tau", [1, 2, 3, 7, 9])
def test_restarts_are_differences_of_rows(tau: int) -> None:
    """Row by row: what is new is within the error, and what is taken from the reference within twice that."""
    guess, error = np.array([1.0, -0.5, 0.75, 0.25, 0.0, 0.5, -0.25]), 0.0625
    ends = [0.0, 0.0]
    for t in range(1, 8):
        reference = (t - 1) // tau * tau
        d = t - reference
        entries = [(abs(b), error) for b in guess[:d]]
        entries += [(abs(guess[k + d] - guess[k]), 2 * error) for k in range(reference)]
        for place, side in enumerate((-1, 1)):
            ends[place] += sum(max(b + side * e, 0.0) ** 2 for b, e in entries) / (1 if t % tau == 0 else tau)
    low, high = series._restarted(guess, error, tau)
    relative = 7 * 2.0**-50 + SLACK
    assert low == pytest.approx(ends[0] * (1 - relative), rel=2.0**-49, abs=0)
    assert high == pytest.approx(ends[1] * (1 + relative), rel=2.0**-49, abs=0)


def test_restarts_that_would_take_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(series, "LARGEST_RESTARTS", 12)
    assert series._restarted(np.ones(4), 0.0, 3)
    with pytest.raises(NotEnclosed, match="n tau = 12"):
        series._restarted(np.ones(5), 0.0, 3)


def test_losses_of_a_decoder_that_is_off() -> None:
    """The last coefficient is off by 3 / 16, so each may be: C is the identity, whose inverse has the sum 1."""
    off = np.array([1.0, 1.0, 1.0 + 3 / 16])
    found = series.losses(integers(np.array([1.0, 0.0, 0.0])), ONES, {"kind": "max"}, off, Fraction(1, 16))
    ends = 2 * (13 / 16) ** 2 + 1, 2 * (19 / 16) ** 2 + (22 / 16) ** 2
    assert found.last == pytest.approx(ends, rel=1e-12) and found.last == found.objective


def test_small_workloads_have_the_limit_of_one() -> None:
    identity, quarter = integers(np.array([1.0, 0.0])), integers(np.array([0.25, 0.0]))
    for stored, allowed in ((0.25 + 1 / 16, True), (0.25 + 1 / 8, False)):
        asked = identity, quarter, {"kind": "max"}, np.array([stored, 0.0]), Fraction(1, 16)
        if allowed:
            assert series.losses(*asked).residual == 1 / 16
        else:
            with pytest.raises(CertificateError, match="above the limit"):
                series.losses(*asked)


def test_a_residual_at_the_limit_and_above() -> None:
    """The limit times the sum of A's column, with what that is off by; the residual with it too."""
    identity, mean = integers(np.array([1.0, 0.0, 0.0])), {"kind": "mean"}
    off = np.array([1.0, 1.0, 1.0 + 3 / 16])
    assert series.losses(identity, ONES, mean, off, Fraction(1, 16)).residual == 3 / 16
    rounded = numbers([16, 16, 16], -4, 1)
    assert series.losses(identity, rounded, mean, np.ones(3), Fraction(1, 51)).residual == 1 / 16
    for workload, stored, limit in ((ONES, off, Fraction(1, 17)), (rounded, np.ones(3), Fraction(1, 52))):
        with pytest.raises(CertificateError, match="above the limit"):
            series.losses(identity, workload, mean, stored, limit)


def test_products_of_doubles_do_not_wrap_around() -> None:
    for n in (1, 2, 3, 5, 8):
        assert np.allclose(
            series.approximate_product(np.ones(n), np.arange(1.0, n + 1)), np.cumsum(np.arange(1, n + 1))
        )


def test_what_a_residual_moves_is_raised_by_the_slack(monkeypatch: pytest.MonkeyPatch) -> None:
    """The residual 1/16 times the sum 1 of the inverse of C = 1, each raised by a slack of 1 / 100."""
    slack = 1 / 100
    monkeypatch.setattr(series, "_SLACK", slack)
    monkeypatch.setattr(series, "sum_of_inverse", lambda guess, given: 1.5)
    off = np.array([1.0, 1.0, 1.0 + 1 / 16])
    found = series.losses(integers(np.array([1.0, 0.0, 0.0])), ONES, {"kind": "mean"}, off, Fraction(1, 8))
    error = 1.5 / 16 * (1 + slack)
    low, high = (np.array([1.0, 1.0, 17 / 16]) - error) ** 2, (np.array([1.0, 1.0, 17 / 16]) + error) ** 2
    assert found.last == found.largest == pytest.approx((low.sum() * (1 - slack), high.sum() * (1 + slack)), rel=1e-12)
    total = np.array([3, 2, 1]) @ low * (1 - slack), np.array([3, 2, 1]) @ high * (1 + slack)
    assert found.total == pytest.approx(total, rel=1e-12)
    mean = total[0] / 3 * (1 - slack), total[1] / 3 * (1 + slack)
    assert found.objective == pytest.approx(mean, rel=1e-12)
    monkeypatch.undo()
    monkeypatch.setattr(series, "_SLACK", slack)
    exact = series.sum_of_inverse(np.array([1.0, 0.25]), numbers([4, -1], -2))
    assert exact == pytest.approx(1.25 * (1 + slack), rel=1e-12)
    near = series.sum_of_inverse(np.array([1.0, 0.0]), numbers([16, -2], -4, 1))
    assert near == pytest.approx(1 / (1 - (1 / 8 + 2 / 16) * (1 + slack)) * (1 + slack), rel=1e-12)

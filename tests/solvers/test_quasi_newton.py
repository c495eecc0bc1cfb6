"""The quasi-Newton descent: minima known by hand, of curvatures far apart, beside the edge of a domain."""

from __future__ import annotations

import math

import numpy as np
import pytest

from factorize.factors.solution import Outcome
from factorize.solvers.methods.quasi_newton import descend, differences
from factorize.solvers.methods.search import End, Iterate

CURVATURES = np.logspace(0, 5, 6)
MINIMUM = np.array([1.0, -1.0, 2.0, 0.5, -0.25, 1.5])


def valley(z: np.ndarray) -> tuple[float, np.ndarray]:
    """Return a value that is 1 at `MINIMUM` and more elsewhere, infinite where the entries sum to more than 4."""
    if z.sum() > 4.0:
        return math.inf, np.zeros(z.size)
    apart = z - MINIMUM
    return 1.0 + float(CURVATURES @ (apart**2 + apart**4)), CURVATURES * (2 * apart + 4 * apart**3)


def descent(hessian: np.ndarray | None, start: np.ndarray) -> End[Iterate]:
    first = Iterate(start, *valley(start))
    return descend(
        valley, first, tolerance=1e-10, enough=0.0, window=5, most=400, report=lambda *_: None, hessian=hessian
    )


@pytest.mark.parametrize("turned", [1.0, -1.0])
def test_descent_from_a_hessian_of_either_sign_ends_at_the_minimum(turned: float) -> None:
    start = np.zeros(6)
    hessian = differences(valley, Iterate(start, *valley(start)), lambda: None)
    np.testing.assert_allclose(np.diag(hessian), CURVATURES * (2 + 12 * MINIMUM**2), rtol=1e-3)
    end = descent(turned * hessian, start)
    assert end.outcome is Outcome.ROUNDING_LIMIT and end.steps < 60
    np.testing.assert_allclose(end.best.z, MINIMUM, atol=1e-4)


def test_descent_without_a_hessian_ends_at_the_same_minimum() -> None:
    np.testing.assert_allclose(descent(None, np.zeros(6)).best.z, MINIMUM, atol=1e-3)


def test_descent_from_a_value_that_is_small_enough_takes_no_step() -> None:
    first = Iterate(MINIMUM, *valley(MINIMUM))
    end = descend(valley, first, tolerance=1.0, enough=0.0, window=5, most=400, report=lambda *_: None)
    assert end.outcome is Outcome.CONVERGED and end.best is first and end.steps == 1


def test_descent_stays_within_the_domain() -> None:
    edge = MINIMUM + 0.04  # sums to 3.99
    assert math.isinf(valley(edge + 0.01)[0])
    end = descent(None, edge)
    assert end.best.z.sum() <= 4.0 and end.best.value < 1.0 + 1e-6

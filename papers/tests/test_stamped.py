"""Stamped noise: copies on the diagonal, their sensitivity, orders they are for, and the cool-down of rates."""

from __future__ import annotations

import numpy as np
import pytest

from factorize.errors import InvalidParameter, InvalidParticipation
from factorize.factors.factorization import Factorization
from factorize.privacy import PrivacyTarget, calibrate
from factorize.solvers import solve
from factorize.spec import parse_spec
from factorize.training import fixed_order
from papers.algorithms import Quadratic, StampedNoise
from papers.algorithms.stamped import stamped_sensitivity
from papers.training import PrivateSums, Sgd, cool_down_rates, dp_ftrl, method_spec, ones

TARGET = PrivacyTarget(epsilon=2.0, delta=1e-5)


def factors(n: int = 4, epochs: int = 1) -> Factorization:
    return solve(parse_spec(method_spec("nu_dp_ftrl", ones(n), epochs=epochs, nu=0.1)), evidence=False)


def test_the_sensitivity_is_that_of_the_whole_matrix() -> None:
    own = factors(4, epochs=2)
    one = own.rows("C", 0, 4)
    whole = np.kron(np.eye(3), one)
    patterns = [whole[:, first::2].sum(axis=1) for first in (0, 1)]
    found = stamped_sensitivity(own.certificate.sensitivity, 3)
    assert found.value == pytest.approx(max(np.linalg.norm(column) for column in patterns), rel=1e-9)
    assert found.participation == {"kind": "fixed_epochs", "epochs": 6}
    single = factors().certificate.sensitivity
    assert stamped_sensitivity(single, 3, once=True).value == single.value
    assert stamped_sensitivity(single, 4).value == pytest.approx(2 * single.value)
    for wrong in ({"stamps": 0}, {"stamps": 2, "once": True}):
        with pytest.raises(InvalidParameter, match="at least one stamp"):
            stamped_sensitivity(own.certificate.sensitivity, **wrong)


def test_every_copy_has_fresh_noise_of_the_run_s_scale() -> None:
    own = factors()
    noise = StampedNoise(own, TARGET, 30_000, stamps=2, seed=7 << 64)
    assert noise.calibration.sigma_of_sums == pytest.approx(
        np.sqrt(2) * calibrate(own.certificate.sensitivity, TARGET).sigma_of_sums, rel=1e-9
    )
    rows = np.array([noise.next() for _ in range(8)]) / noise.calibration.sigma_of_sums
    inverse = own.rows("C_inv", 0, 4)
    np.testing.assert_allclose(rows @ rows.T / 30_000, np.kron(np.eye(2), inverse @ inverse.T), atol=0.06)
    with pytest.raises(InvalidParameter, match="past n=8"):
        noise.next()


def test_a_run_is_longer_than_its_factors_and_its_order_is_checked() -> None:
    own, model = factors(), Quadratic(np.ones(2), np.ones(2))
    noise = StampedNoise(own, TARGET, 2, stamps=3, divisor=10, seed=8 << 64)
    run = dp_ftrl(
        model, np.zeros(2), fixed_order(40, 10, epochs=3), PrivateSums(noise), optimizer=Sgd(learning_rate=0.1)
    )
    assert run.steps == 12 and run.calibration is noise.calibration
    other = PrivateSums(StampedNoise(own, TARGET, 2, stamps=3, once=True, divisor=10, seed=9 << 64))
    with pytest.raises(InvalidParticipation):
        dp_ftrl(model, np.zeros(2), fixed_order(40, 10, epochs=3), other, optimizer=Sgd(learning_rate=0.1))


def test_rates_cool_down_over_the_last_steps() -> None:
    assert cool_down_rates(6, last=4, final=0.2) == pytest.approx([1, 1, 0.8, 0.6, 0.4, 0.2])
    assert cool_down_rates(2, last=0) == [1.0, 1.0]
    with pytest.raises(InvalidParameter, match="0 to n steps"):
        cool_down_rates(3, last=4)

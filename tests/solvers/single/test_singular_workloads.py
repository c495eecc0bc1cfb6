"""The optimum by decompositions, where the workload is singular: steps with a learning rate of zero, with momentum."""

import pytest
from specs import solved, spec_of

RATES = [0.51, 0.0, 0.0, 0.0, 0.0, 0.0, 0.69, 0.62, 0.0, 0.5, 0.0, 0.0, 0.44, 0.37, 0.95, 0.4, 0.33, 0.0]


@pytest.mark.parametrize("momentum", [0.01, 0.07, 0.28, 0.9])
@pytest.mark.parametrize("objective", [{"kind": "mean"}, {"kind": "lambda_tau", "tau": 5}])
def test_rates_of_zero_anywhere_leave_an_optimum_within_the_tolerance(momentum, objective):
    """X is singular there, and rounding must not put into C what its Gram matrix does not have."""
    workload = {"kind": "momentum", "n": len(RATES), "momentum": momentum, "learning_rates": RATES}
    found = solved(spec_of(workload, {"kind": "dense"}, {"kind": "single"}, objective, tolerance=1e-8))
    assert found.certificate.converged
    assert found.certificate.relative_gap <= 1e-8

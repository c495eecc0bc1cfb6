"""What only Nesterov's workload has: couplings that subtract. test_filtered.py has what it shares with others."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from factorize.solvers.single.nesterov import couplings


def test_the_coupling_keeps_its_digits() -> None:
    eta = np.array([0.1, 0.211111111111111])
    exact = Fraction(0.1) + Fraction(0.9) * (Fraction(0.1) - Fraction(float(eta[1])))
    assert abs(Fraction(float(couplings(0.9, eta, np.ones(2))[0])) - exact) <= exact * Fraction(1, 2**53)

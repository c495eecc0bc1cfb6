"""The certified optimum of prefix sums beside constants that are published of it."""

from __future__ import annotations

import math

import pytest

import factorize

ABOVE = {"max": 0.846, "mean": 0.748}
"""Of the normalised square root, less log(n) / pi, for long n (Henzinger, Kalinin, Upadhyay, arXiv 2509.14334)."""
BELOW = 0.701
"""Of every factorization, both norms, for long n (the same)."""


@pytest.mark.parametrize("objective", ["max", "mean"])
def test_the_optimum_lies_between_published_constants(objective: str) -> None:
    """The optimum and the normalised square root come down to the constants as n grows, and stay in that order."""
    excess = {}
    for n in (32, 128):
        for mechanism in ("dense", {"kind": "square_root", "normalization": "columns"}):
            found = factorize.solve("prefix", n=n, objective=objective, mechanism=mechanism).certificate
            kind = mechanism if isinstance(mechanism, str) else "root"
            excess[kind, n] = math.sqrt(found.loss.objective) - math.log(n) / math.pi
    for kind, limit in (("dense", BELOW), ("root", ABOVE[objective])):
        assert limit < excess[kind, 128] < excess[kind, 32]
    assert excess["dense", 128] < excess["root", 128]

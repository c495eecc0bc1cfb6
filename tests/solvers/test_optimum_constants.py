"""The certified optimum of prefix sums beside constants and a bound on memory that are published."""

from __future__ import annotations

import math

import numpy as np
import pytest

import factorize
from factorize.noise.source import Streamable, noise_source

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


@pytest.mark.parametrize(
    ("mechanism", "kept"),
    [
        ({"kind": "blt", "buffers": 2}, 2),
        ({"kind": "buffered_linear", "buffers": 2}, 2),
        ({"kind": "square_root"}, None),
    ],
    ids=["rational", "time-varying", "irrational"],
)
def test_noise_keeps_what_the_ranks_of_its_inverse_ask_for(mechanism: dict[str, object], kept: int | None) -> None:
    """Andersson and Yehudayoff, arXiv 2505.00181: degree d takes d numbers, and 1 / sqrt(1 - x) one for each step."""
    found = factorize.solve("prefix", n=16, mechanism=mechanism)
    inverse = np.linalg.inv(found.strategy.dense())
    ranks = [np.linalg.matrix_rank(inverse[t:, :t], tol=1e-13) for t in range(1, 16)]
    source = noise_source(found.strategy.structure, found.strategy.tensors(), 16, found.digest)
    assert isinstance(source, Streamable) == (kept is not None)
    if kept is None:
        assert ranks == [min(t, 16 - t) for t in range(1, 16)]
    else:
        assert max(ranks) == kept == source.cost.vectors

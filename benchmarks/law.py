"""The law of the noise for longer than tests can: n = 4096 for every structure, 10^6 steps of endless strategies.

    python -m benchmarks.soak law --minutes 60

See tests/support/client_law.py: what a generator makes of unit vectors is inverted, and the sensitivity of that is
bounded; of an endless strategy the normals are found that make the noise 1 at some steps and 0 at all others.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from importlib import import_module
from itertools import product
from typing import Any

import numpy as np

from factorize.client import NoiseGenerator
from factorize.errors import InvalidParameter
from factorize.factors.sensitivity import sensitivity_of
from factorize.format.manifest import ENDLESS_STEPS
from factorize.noise.source import noise_source
from factorize.privacy import Calibration, PrivacyTarget, calibrate
from factorize.spec import parse_spec
from factorize.structures.base import Matrix
from factorize.structures.dense import DenseMatrix
from factorize.structures.scaled import ColumnScaled
from factorize.structures.toeplitz import BltMatrix, ToeplitzMatrix

SIZES = (64, 512, 4096)
REPEATED_ROWS = 64  # this many rows of each size are made once more in float32
STEPS = 10**6
PARTICIPATIONS = 8
PRECISIONS = ("float32", "float64")
ENDLESS_STRATEGIES = {
    "quick": ((0.9, 0.3), (0.3, 0.2)),
    "slow": ((1 - 1e-4, 0.95, 0.5), (2e-3, 0.05, 0.2)),
    "slower": ((1 - 1e-6, 1 - 1e-3, 0.9), (1e-5, 5e-3, 0.1)),
}
"""Decays and scales of blt, with memories of 10, 10^4 and 10^6 steps."""


def strategies(n: int) -> dict[str, Matrix]:
    """Return a strategy of every structure, whose inverses do not grow with n."""
    made: dict[str, Matrix] = import_module("structure_cases").strategies(n)
    root = ToeplitzMatrix(np.cumprod(np.r_[1.0, 1 - 0.5 / np.arange(1, n)]), n)
    scale = 1 + np.random.default_rng(6).random(n)
    dense = DenseMatrix(root.dense() * scale[:, None])
    return made | {
        "toeplitz": root,
        "dense": dense,
        "scaled": ColumnScaled(root, scale),
        "scaled and dense": ColumnScaled(dense, scale),
    }


def calibrated(strategy: Matrix, participation: dict[str, Any]) -> Calibration:
    """Return the noise for mu = 1."""
    spec = parse_spec({"workload": {"kind": "prefix", "n": strategy.n}, "participation": participation})
    return calibrate(sensitivity_of(strategy, spec.participation), PrivacyTarget(mu=1.0))


def whole(n: int, end: float) -> Iterator[tuple[str, str, float]]:
    """Yield each structure, the precision of its state and the mu that its noise really has, while there is time.

    A float32 state whose roundings cannot be bounded is refused by the generator, and left out here.
    """
    law = import_module("client_law")
    participation = {"kind": "min_sep", "min_sep": n // 4, "max_participations": 3}
    for name, strategy in strategies(n).items():
        scale = calibrated(strategy, participation)
        source = noise_source(strategy.structure, strategy.tensors(), n, "")
        for precision in PRECISIONS:
            if time.monotonic() > end:
                return
            try:
                made = NoiseGenerator(source, scale, n, seed=1 << 64, precision=precision)
            except InvalidParameter as refused:
                if precision == "float64" or refused.field != "precision":
                    raise
                continue
            mu = law.real_mu(law.impulse_rows(made, n, REPEATED_ROWS), strategy, scale, made.sigma)
            made.close()
            yield name, precision, mu


def endless(end: float) -> Iterator[tuple[str, str, float, int]]:
    """Yield endless strategies, the precision, how far a user of 8 participations moves Z, and the steps seen."""
    law = import_module("client_law")
    gap = STEPS // PARTICIPATIONS
    most = {"kind": "min_sep", "min_sep": gap, "max_participations": PARTICIPATIONS}
    users = (({"kind": "single"}, [0]), (most, range(0, STEPS, gap)))
    cases = list(product(ENDLESS_STRATEGIES.items(), users))
    for left, ((name, (theta, omega)), (participation, steps)) in zip(range(len(cases), 0, -1), cases, strict=True):
        strategy = BltMatrix(np.array(theta), np.array(omega), STEPS)
        source = noise_source(strategy.structure, strategy.tensors(), ENDLESS_STEPS, "")
        made = NoiseGenerator(source, calibrated(strategy, participation), 1, seed=1 << 64)
        share = (end - time.monotonic()) / left
        mu, seen = law.demanded_mu(made, steps, STEPS, time.monotonic() + share)
        made.close()
        yield f"{name}, {participation['kind']}", made.precision, mu, seen


def soak(end: float, demand: Callable[[bool, str], None]) -> str:
    """Go through all of them, half of the time for endless strategies.

    Args:
        end: as `time.monotonic` gives it.
        demand: ends the run where what it is given does not hold.
    """
    steps, found, now = [], [], time.monotonic()
    for name, precision, mu, seen in endless(now + (end - now) / 2):
        demand(mu <= 1 and (mu > 0.9 or seen < STEPS), f"endless {name}, {precision}: mu is {mu!r}")
        steps.append(seen)
    for n in SIZES:
        found.append(0)
        for name, precision, mu in whole(n, end):
            demand(0.9 < mu <= 1, f"{name}, n={n}, {precision}: mu is {mu!r}")
            found[-1] += 1
    sizes = ", ".join(f"{count} at n={n}" for n, count in zip(SIZES, found, strict=True))
    return f"generators: {sizes}; {len(steps)} endless, {min(steps)} to {max(steps)} steps; none above mu = 1"

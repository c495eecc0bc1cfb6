"""Systems of the leaderboard: who makes the noise, how batches are drawn, and by which accountant sigma is found."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from factorize.accounting.claim_search import ClaimSearch
from factorize.errors import ConditionNotMet, FactorizeError
from factorize.factors.factor_file import load
from factorize.factors.factorization import Factorization
from factorize.noise.normals import MIN_SEED
from factorize.privacy import Calibration, PrivacyTarget
from factorize.privacy.question import SamplingOptions
from factorize.samplings import SAMPLINGS
from factorize.samplings.base import Sampling
from factorize.solvers.solving import solve
from factorize.spec import parse_spec
from factorize.training.orders import Order, balls_in_bins, fixed_order, full_batch, random_allocation
from factorize.training.sampling import BMinSep, CyclicPoisson

SAMPLERS = {"balls_in_bins": balls_in_bins, "random_allocation": random_allocation}
TOLERANCE = 1e-3
NO_PRIVACY = "without privacy"
"""The name of training without privacy, which all systems are held against."""


@dataclass(frozen=True)
class Setting:
    """The setting that all systems have in common at one point of the grid.

    Attributes:
        examples: N.
        batch: examples per step, expected where batches are random; divisor of the means.
        epochs: passes over the data.
        target: epsilon and delta.
        clip_norm: bound on an example's gradient.
    """

    examples: int
    batch: int
    epochs: int
    target: PrivacyTarget
    clip_norm: float = 1.0


@dataclass(frozen=True)
class System:
    """A way to train privately.

    Attributes:
        name: name in the table.
        sampling: scheme of `factorize.samplings`.
        mechanisms: mechanisms of which the one with the smallest predicted error is taken, without a look at the data.
        whole: whether every step takes all examples; an epoch is one step then.
        momentum: momentum of the optimizer, and of the workload that C is best for.
        restarted: whether the objective is lambda_tau with tau = T.
    """

    name: str
    sampling: str
    mechanisms: tuple[dict[str, Any], ...]
    whole: bool = False
    momentum: float = 0.0
    restarted: bool = False

    def batch(self, setting: Setting) -> int:
        """Return the examples of a step."""
        return setting.examples if self.whole else setting.batch

    def spec(self, setting: Setting, mechanism: dict[str, Any]) -> dict[str, Any]:
        """Return the spec of one mechanism."""
        n = setting.epochs * (setting.examples // self.batch(setting))
        apart = {"kind": "fixed_epochs", "epochs": setting.epochs} if setting.epochs > 1 else {"kind": "single"}
        if self.sampling == "cyclic_poisson":  # its law counts the largest column for all: columns of one norm
            apart = {"kind": "single"}
        spec: dict[str, Any] = {"workload": {"kind": "prefix", "n": n}, "participation": apart, "mechanism": mechanism}
        if self.momentum:
            spec["workload"] = {"kind": "momentum", "n": n, "momentum": self.momentum}
        if self.restarted:
            spec["objective"] = {"kind": "lambda_tau", "tau": n}
        if SAMPLINGS[self.sampling].claimed:
            level = {"epsilon": setting.target.epsilon, "delta": setting.target.delta}
            spec["sampling"] = {"kind": self.sampling, **level}
        return {**spec, "tolerance": TOLERANCE}


@dataclass(frozen=True)
class Prepared:
    """A system at one point of the grid, ready to train.

    Attributes:
        system: the system that was prepared.
        setting: the point.
        factors: factors of the mechanism that was taken.
        calibration: its noise.
        predicted: root of the objective at this noise.
    """

    system: System
    setting: Setting
    factors: Factorization
    calibration: Calibration
    predicted: float

    def batches(self, seed: int) -> Iterable[np.ndarray]:
        """Return the batches of a run, after a check that they are those which the noise is for."""
        setting, n, sampling = self.setting, self.factors.strategy.n, self.system.sampling
        if sampling in SAMPLERS:
            key = hashlib.sha256(f"leaderboard {seed}".encode()).digest()
            drawn = SAMPLERS[sampling](setting.examples, n // setting.epochs, setting.epochs, key, overflow="unlimited")
            drawn.check_calibration(self.calibration, n)
            return drawn
        order: Order | CyclicPoisson
        if self.system.whole:
            order = full_batch(setting.examples, n)
        elif sampling == "fixed":
            order = fixed_order(setting.examples, setting.batch, epochs=setting.epochs, seed=seed)
        else:
            law = BMinSep if sampling == "b_min_sep" else CyclicPoisson
            order = law(setting.examples, self.calibration, steps=n, seed=MIN_SEED + seed)
        order.check(self.calibration.sensitivity.participation, n)
        return order


class Preparation:
    """Solves and calibrates; factors are kept, since most are best at every epsilon.

    Args:
        folder: folder for the files of factors, which later runs read.
    """

    def __init__(self, folder: Path) -> None:
        """Begin with what the folder has."""
        self._folder = folder
        self._solved: dict[str, Factorization | None] = {}

    def prepared(self, system: System, setting: Setting) -> Prepared | None:
        """Return the system with the mechanism of the smallest predicted error; None where the sampling fits none."""
        scheme, batch = SAMPLINGS[system.sampling], system.batch(setting)
        sized = {"dataset_size": setting.examples, "batch_size": batch} if "dataset_size" in scheme.takes else {}
        asked = SamplingOptions(clip_norm=setting.clip_norm, divisor=batch, **sized)
        found = list(self._candidates(system, setting, scheme, asked))
        if not found:
            return None
        predicted, factors = min(found, key=lambda one: one[0])
        return Prepared(system, setting, factors, scheme.calibrate(factors, setting.target, asked), predicted)

    def _candidates(
        self, system: System, setting: Setting, scheme: Sampling, asked: SamplingOptions
    ) -> Iterator[tuple[float, Factorization]]:
        """Yield predicted errors and factors; noise that takes a claim is only estimated."""
        for mechanism in system.mechanisms:
            factors = self._factors(system.spec(setting, mechanism))
            if factors is None or scheme.misfit(factors.spec.participation, factors.matrix, asked) is not None:
                continue
            try:
                if scheme.claimed:
                    sigma = setting.clip_norm * ClaimSearch(scheme.law(factors, asked), setting.target).point
                else:
                    sigma = scheme.calibrate(factors, setting.target, asked).sigma_of_sums
            except ConditionNotMet:  # more groups than full batches
                continue
            relative = sigma / system.batch(setting) / factors.certificate.sensitivity.value
            yield relative * math.sqrt(factors.certificate.loss.objective), factors

    def _factors(self, document: dict[str, Any]) -> Factorization | None:
        """Return the factors of a spec; None where the mechanism is not for it, with too many bands for a short run."""
        name = repr(document)
        if name not in self._solved:
            try:
                spec = parse_spec(document)
                path = self._folder / f"{spec.digest}.safetensors"
                if not path.exists():
                    solve(spec, evidence=False).save(path)
                self._solved[name] = load(path)
            except FactorizeError:
                self._solved[name] = None
        return self._solved[name]


IDENTITY: tuple[dict[str, Any], ...] = ({"kind": "identity"},)
BANDS = (2, 4, 8, 16, 32)
BANDED_MECHANISMS: tuple[dict[str, Any], ...] = tuple({"kind": "banded", "bands": bands} for bands in BANDS)

SYSTEMS = (
    System("DP-SGD, fixed order", "fixed", IDENTITY),
    System("DP-SGD, Poisson batches", "poisson", IDENTITY),
    System("DP-SGD, random allocation", "random_allocation", IDENTITY),
    System("DP-GD, full batch", "fixed", IDENTITY, whole=True),
    System("tree, full Honaker", "fixed", ({"kind": "tree", "decoder": "honaker_full"},)),
    System(
        "banded inverse square root",
        "fixed",
        tuple({"kind": "banded_inverse_square_root", "bands": bands} for bands in BANDS),
    ),
    System("BLT, 4 buffers", "fixed", ({"kind": "blt", "buffers": 4},)),
    System("buffered, 4 vectors", "fixed", ({"kind": "buffered_linear", "buffers": 4},)),
    System("optimum", "fixed", ({"kind": "dense"},)),
    System("optimum, momentum, lambda_T", "fixed", ({"kind": "dense"},), momentum=0.9, restarted=True),
    System("banded, cyclic Poisson", "cyclic_poisson", BANDED_MECHANISMS),
    System("banded, b-min-sep", "b_min_sep", BANDED_MECHANISMS[:-1]),
    System("banded, lambda_T, cyclic Poisson", "cyclic_poisson", BANDED_MECHANISMS, restarted=True),
    System("banded, lambda_T, b-min-sep", "b_min_sep", BANDED_MECHANISMS[2:4], restarted=True),
    System(
        "BLT, 2 buffers, balls in bins",
        "balls_in_bins",
        ({"kind": "blt", "buffers": 2, "normalization": "fitted"},),
    ),
)
"""The one list of systems."""

"""Cyclic Poisson sampling: the order whose randomness `factorize.accounting.amplification` counts on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from factorize.accounting.amplification import AmplifiedCalibration
from factorize.client.normals import secret_seed
from factorize.client.single_use import Secret
from factorize.errors import InvalidParameter
from factorize.training.batches import Batches


class CyclicPoisson(Batches, Secret):
    """Batches sampled anew in every step: each example of group t mod groups, independently, with one probability.

    Batches have random sizes, some may be empty; means are taken with the calibration's fixed divisor. Which examples a
    batch has must stay secret: the guarantee counts on it.

    Args:
        examples: N, at least the `dataset_size` that the calibration was made for.
        calibration: from `factorize.accounting.amplification.calibrate_amplified`.
        steps: n of the factorization.
        seed: a secret integer, `secrets.randbits(128)`, drawn for this run alone and apart from the noise's.

    Attributes:
        groups: number of groups, the bands of C.
        probability: that a step samples an example of its group.

    Raises:
        InvalidParameter: the calibration is not one of sampling, sizes are out of range, or the seed cannot be secret.

    Reference:
        Choquette-Choo et al. 2023 ((Amplified) banded matrix factorization), algorithm 2.
    """

    sampling: ClassVar[str] = "cyclic_poisson"

    def __init__(self, examples: int, calibration: AmplifiedCalibration, *, steps: int, seed: int) -> None:
        if not isinstance(calibration, AmplifiedCalibration):
            raise InvalidParameter(
                f"a {type(calibration).__name__} does not count on sampling; use calibrate_amplified, or a fixed order",
                field="calibration",
            )
        if examples < calibration.groups or steps < 1:
            message = f"examples={examples}, steps={steps}: need {calibration.groups} examples and a step"
            raise InvalidParameter(message, field="examples")
        self.groups, self.probability = calibration.groups, calibration.sampling_probability
        self._participation = dict(calibration.sensitivity.participation)
        self._examples, self._steps, self._seed = examples, steps, secret_seed(seed)

    def __len__(self) -> int:
        """Return the number of steps, n."""
        return self._steps

    @property
    def participation(self) -> dict[str, Any]:
        """That of the calibration's sensitivity."""
        return dict(self._participation)

    def batch(self, step: int) -> np.ndarray:
        """Return the indices of the examples sampled in one step, a function of seed and step."""
        group = np.arange(step % self.groups, self._examples, self.groups)
        rng = np.random.default_rng(np.random.SeedSequence(self._seed, spawn_key=(step,)))
        return group[rng.random(len(group)) < self.probability]

    def breach(self, participation: Mapping[str, Any], n: int) -> str | None:
        """Return why, unless it is min-separation by at most the number of groups."""
        apart = participation.get("min_sep") if participation.get("kind") == "min_sep" else None
        most = participation.get("max_participations")
        if apart is None or apart > self.groups or (most is not None and most < -(-self._steps // self.groups)):
            return f"sampling is cyclic, from {self.groups} groups; use the calibration of calibrate_amplified"
        return None

"""Cyclic Poisson and b-min-sep sampling: the orders whose randomness their calibrations rely on."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from factorize.accounting.amplification import AmplifiedCalibration
from factorize.errors import InvalidParameter
from factorize.noise.normals import secret_seed
from factorize.noise.single_use import Secret
from factorize.numbers.scalars import whole_number
from factorize.training.batches import Batches


class CyclicPoisson(Batches, Secret):
    """Batches sampled anew in every step: each example of group t mod groups, independently, with one probability.

    Batches have random sizes, some may be empty; means are taken with the calibration's fixed divisor. The examples of
    a batch must stay secret, since the guarantee relies on it.

    Args:
        examples: N, at least the `dataset_size` that the calibration was made for.
        calibration: a calibration for this sampling.
        steps: n of the factorization.
        seed: a secret integer, `secrets.randbits(128)`, drawn only for this run and not the seed of the noise.

    Attributes:
        groups: number of groups, which is the number of bands of C.
        probability: probability that a step samples an example of its group.

    Raises:
        InvalidParameter: the calibration is not one of sampling, sizes are out of range, or the seed cannot be secret.

    Reference:
        Choquette-Choo et al. 2023 ((Amplified) banded matrix factorization), algorithm 2.
    """

    sampling = "cyclic_poisson"

    def __init__(self, examples: int, calibration: Any, *, steps: int, seed: int) -> None:
        if not self._fits(calibration):
            raise InvalidParameter(
                f"this {type(calibration).__name__} is not for sampling={self.sampling!r}; calibrate for it, or use a "
                "fixed order",
                field="calibration",
            )
        self.groups, self.probability = calibration.groups, calibration.sampling_probability
        self.period = self.groups
        self._participation = dict(calibration.sensitivity.participation)
        self._examples = whole_number("examples", examples, low=self.groups, remedy="give one of each group or more")
        self._steps, self._seed = whole_number("steps", steps), secret_seed(seed)

    def _fits(self, calibration: object) -> bool:
        """Return whether a calibration relies on these draws."""
        return isinstance(calibration, AmplifiedCalibration)

    def __len__(self) -> int:
        """Return the number of steps, n."""
        return self._steps

    @property
    def participation(self) -> dict[str, Any]:
        """The participation of the calibration's sensitivity."""
        return dict(self._participation)

    def batch(self, step: int) -> np.ndarray:
        """Return the indices of the examples sampled in one step, a function of seed and step."""
        group = np.arange(step % self.groups, self._examples, self.groups)
        return group[self._uniform(step, len(group)) < self.probability]

    def _uniform(self, step: int, count: int) -> np.ndarray:
        """Return numbers of [0, 1) from the stream of a step."""
        return np.random.default_rng(np.random.SeedSequence(self._seed, spawn_key=(step,))).random(count)

    def breach(self, participation: Mapping[str, object], n: int) -> str | None:
        """Return the reason for a breach, unless it is min-separation by at most the number of groups."""
        apart = participation.get("min_sep") if participation.get("kind") == "min_sep" else None
        most = participation.get("max_participations")
        if apart is None or apart > self.groups or (most is not None and most < -(-self._steps // self.groups)):
            return f"{self.sampling} over {self.groups} groups breaks it; calibrate with sampling={self.sampling!r}"
        return None


class BMinSep(CyclicPoisson):
    """Batches of examples that rest for b - 1 steps after each of their steps, and else come with one probability.

    The run begins as if it had gone on before: an example is free at first with probability 1 / (1 + (b - 1) p), so
    that all batches have one expected size. A step follows from those before it; steps in order take N numbers each.

    Attributes:
        groups: b, the number of bands of C.
        probability: probability p of a step for an example that does not rest.

    Reference:
        Dong and Ganesh 2026 (arXiv 2602.09338), with a warm start.
    """

    sampling = "b_min_sep"

    def __init__(self, examples: int, calibration: object, *, steps: int, seed: int) -> None:
        super().__init__(examples, calibration, steps=steps, seed=seed)
        self._begin()

    def _fits(self, calibration: Any) -> bool:
        """Return whether a calibration relies on these draws."""
        return bool(calibration.sampling == self.sampling)

    def _begin(self) -> None:
        """Draw how long each example rests at first, from a stream that no step draws from."""
        u = self._uniform(self._steps, self._examples) * (1 + (self.groups - 1) * self.probability)
        resting = 1 + ((u - 1) / self.probability).astype(np.int64)
        self._rest = np.where(u < 1, 0, np.minimum(resting, self.groups - 1))
        self._next, self._drawn = 0, np.empty(0, dtype=np.intp)

    def batch(self, step: int) -> np.ndarray:
        """Return the indices of the examples sampled in one step, a function of seed and step."""
        if step < self._next - 1:
            self._begin()
        while self._next <= step:
            taken = (self._rest == 0) & (self._uniform(self._next, self._examples) < self.probability)
            self._rest = np.where(taken, self.groups - 1, np.maximum(self._rest - 1, 0))
            self._next, self._drawn = self._next + 1, np.flatnonzero(taken)
        return self._drawn

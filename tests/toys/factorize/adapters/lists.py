"""A toy adapter: the noise of a model whose parameters are one list of numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from factorize.adapters.jobs import Planned, plan, samplings_of
from factorize.noise.generator import NoiseGenerator
from factorize.training.job import TrainingJob


class ListNoise(NamedTuple):
    """A job made private: its plan has the order, the auditor and the statement."""

    planned: Planned
    noise: NoiseGenerator

    def release(self, sums: Sequence[float]) -> list[float]:
        """Return sums of clipped gradients with the noise of a step, over the divisor, and go on to the next."""
        divisor = self.planned.calibration.divisor or 1
        return [float(value) / divisor for value in np.asarray(sums) + self.noise.next()]


def make_private(job: TrainingJob, parameters: int) -> ListNoise:
    """Plan a job, and make its noise; every release asks the auditor."""
    planned = plan(job, samplings_of(padded=False))
    made = planned.factors.noise(planned.calibration, parameters, seed=job.noise.secret, auditor=planned.auditor)
    return ListNoise(planned, made)

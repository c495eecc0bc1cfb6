"""A training job on secret bins as docs/training.md has it: loaded, calibrated, trained, stopped and resumed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from factorize.client import load
from factorize.training.audited import AuditedBatches
from factorize.training.bins_audit import BinsAuditor

POINTS = np.random.default_rng(0).normal(size=(40, 6)).astype(np.float32) / 10
STEPS = 12


class Job:
    """Descent on the sums of 40 points in 12 steps, at means of 10."""

    def __init__(self, path: Path, order: Any, sampling: str) -> None:
        factors = load(path)
        delta = 1e-5 - order.extra_delta(4.0)
        scale = factors.calibrate(epsilon=4.0, delta=delta, divisor=10, sampling=sampling)
        order.check_calibration(scale, factors.steps)
        self.noise = factors.noise(scale, 6, seed=1 << 100)
        self.batches = AuditedBatches(order, BinsAuditor.of(order, divisor=10))
        self.weights = np.zeros(6, dtype=np.float32)

    def run(self, until: int) -> Job:
        for indices, mask in self.batches:
            total = (POINTS[indices] * mask[..., None]).sum(axis=(0, 1))
            self.weights -= total / 10 + self.noise.next()
            if self.batches.step == until:
                break
        return self


def stopped_and_resumed(make: Callable[[], Job], at: int) -> Job:
    """Return a whole run, after checking that one that stops and goes on has the same bits."""
    whole, part, resumed = make().run(STEPS), make().run(at), make()
    resumed.noise.load_state_dict(part.noise.state_dict())
    resumed.batches.load_state_dict(part.batches.state_dict())
    resumed.weights = part.weights
    assert np.array_equal(resumed.run(STEPS).weights, whole.weights) and whole.noise.step == STEPS
    return whole

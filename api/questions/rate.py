"""The learning rate that a recommendation states, for the optimizer of a line of code and the noise of its row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from factorize.api.questions.training_job import Job, RecommendRequest
from factorize.training.learning_rate import SPREAD, STUDIED, best_rate

_SUMMED = ("prefix", "schedule", "momentum")
"""Workloads that stand for an optimizer."""
_TRAINED = {"steps": (320, 2000), "parameters": (385, 4978), "epsilon": (1.0, 10.0)}
"""What the jobs of the study had, least and most."""


@dataclass(frozen=True)
class Rates:
    """Learning rates for a job with the noise of a row.

    Attributes:
        job: the training job.
        row: of the comparison's table, as plain data.
    """

    job: Job
    row: Mapping[str, Any]

    def of(self, optimizer: str) -> float | None:
        """Return the largest rate of the job's schedule for an optimizer; None where nothing is known of it."""
        job, sums = self.job, self.job.sums
        if optimizer not in STUDIED or self._unknown is not None:
            return None
        momentum, rates = sums.get("momentum", 0.0), sums.get("learning_rates")
        largest = max(rates) if isinstance(rates, list) else 1.0
        error = self.row["rmse_at_privacy"] * (1 - momentum) / largest
        sizes = (error, self.row["sigma_of_sums"] * self.row["noise_of_steps"])
        found = best_rate(optimizer, momentum, job.parameters or 1, *(size / job.run.divisor for size in sizes))
        return float(f"{found / largest:.2g}")

    @property
    def _unknown(self) -> str | None:
        if not isinstance(self.job, RecommendRequest):
            return "the study trained no federated job"
        if self.job.sums["kind"] not in _SUMMED:
            return f"the study trained nothing that sums as {self.job.sums['kind']} does"
        return "it follows from the number of parameters; give --parameters" if self.job.parameters is None else None

    def document(self) -> dict[str, Any]:
        """Return the job's own rate and what it rests on, as plain data."""
        job = self.job
        name = job.optimizer.kind if job.optimizer is not None else "sgd"
        value, unknown = self.of(name), self._unknown
        numbers = {"steps": job.run.steps, "parameters": job.parameters or 0, "epsilon": job.epsilon}
        far = [f"{key} {numbers[key]:g}" for key, (low, high) in _TRAINED.items() if not low <= numbers[key] <= high]
        basis = (
            "largest of the schedule at clip norm 1, from the noise of this row by our study (docs/choose.md); two "
            f"thirds of the best rates of new jobs were within a factor of {SPREAD:g}, and the rate without privacy "
            f"told next to nothing of them{'; no job of the study had ' + ' or '.join(far) if far else ''}"
        )
        if value is None:
            basis = "unknown: " + (unknown or f"the study trained with {', '.join(STUDIED)} alone, not with {name}")
        return {"optimizer": name, "value": value, "spread": SPREAD, "basis": basis}

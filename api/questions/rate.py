"""The learning rate that a recommendation states, for the optimizer of a line of code and the noise of its row."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from factorize.api.questions.training_job import Job, RecommendRequest
from factorize.training.learning_rate import SPREAD, STUDIED_OPTIMIZERS, STUDY, best_rate, note_on_decay
from factorize.training.learning_schedules import schedule_rates

_SUM_WORKLOADS = ("prefix", "schedule", "momentum")
"""The workloads that stand for an optimizer."""


@dataclass(frozen=True)
class Rates:
    """Learning rates for a job with the noise of a row.

    Attributes:
        job: the training job.
        row: a row of the comparison's table, as plain data.
    """

    job: Job
    row: Mapping[str, Any]

    def of(self, optimizer: str) -> float | None:
        """Return the largest rate of the job's schedule for an optimizer; None where nothing is known of it."""
        job, sums = self.job, self.job.sums
        if optimizer not in STUDIED_OPTIMIZERS or self._unknown is not None:
            return None
        momentum, rates = sums.get("momentum", 0.0), sums.get("learning_rates")
        largest = max(rates) if isinstance(rates, list) else 1.0
        final = self.row["loss"]["last_iterate"] / self.row["loss"]["rmse"] * self.row["rmse_at_privacy"]
        sizes = (final * (1 - momentum) / largest, self.row["sigma_of_sums"] * self.row["noise_of_steps"])
        last, step = (size / job.run.divisor for size in sizes)
        found = best_rate(
            optimizer, momentum, job.parameters or 1, last, step, steps=job.run.steps, average=self._average
        )
        return float(f"{found / largest:.2g}")

    @cached_property
    def _average(self) -> float:
        """Mean of the learning rates of all steps, over the largest."""
        schedule, steps = self.job.sums.get("learning_rates"), self.job.run.steps
        rates = schedule_rates(schedule, steps) if schedule else [1.0]
        return sum(rates) / len(rates) / max(rates)

    @property
    def _unknown(self) -> str | None:
        if not isinstance(self.job, RecommendRequest):
            return "our study trained no federated job"
        if self.job.sums["kind"] not in _SUM_WORKLOADS:
            return f"our study trained nothing that sums as {self.job.sums['kind']} does"
        return "it depends on the number of parameters; give --parameters" if self.job.parameters is None else None

    def document(self) -> dict[str, Any]:
        """Return the job's own rate and what it rests on, as plain data."""
        name, value, unknown = self._optimizer, self.of(self._optimizer), self._unknown
        if value is None:
            trained = ", ".join(STUDIED_OPTIMIZERS)
            basis = "unknown: " + (unknown or f"our study trained only with {trained}, not with {name}")
            return {"optimizer": name, "value": None, "spread": SPREAD, "basis": basis}
        job = self.job
        numbers = {"steps": job.run.steps, "parameters": job.parameters or 0, "epsilon": job.epsilon}
        ranges = STUDY["trained"]
        far = [f"{key} {numbers[key]:g}" for key, (low, high) in ranges.items() if not low <= numbers[key] <= high]
        basis = (
            "peak of the schedule at clip norm 1, computed from this row's noise by the rule of our study "
            f"(docs/choose.md); for two thirds of new jobs the best rate was within a factor of {SPREAD:g}. Try "
            f"{value / 2:.2g} and {value * 2:.2g} too on public data, or count the privacy cost of choosing by "
            "private runs (docs/privacy.md). The best rate without privacy was up to 256 times too "
            f"large{'; no job of the study had ' + ' or '.join(far) if far else ''}"
        )
        return {"optimizer": name, "value": value, "spread": SPREAD, "basis": basis}

    def notes(self) -> list[str]:
        """Return notes on the optimizer's other numbers at this rate."""
        job, rate = self.job, self.of(self._optimizer)
        if self._optimizer != "adamw" or job.optimizer is None or rate is None:
            return []
        return note_on_decay(rate, job.optimizer.weight_decay, self._average * job.run.steps)

    @property
    def _optimizer(self) -> str:
        return self.job.optimizer.kind if self.job.optimizer is not None else "sgd"

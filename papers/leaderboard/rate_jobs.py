"""Jobs of the study of learning rates: those that its constants were fitted on, and those that judge them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from factorize.training import schedule_rates


@dataclass(frozen=True)
class RateJob:
    """A training job.

    Attributes:
        optimizer: `sgd`, `momentum`, `adam` or `adamw`.
        schedule: `constant`, `cosine` or `warmup_cosine`.
        model: name of one of MODELS.
        data: name of one of DATA.
        batch: examples of a step.
        bins: batches of an epoch.
        epochs: passes over the data.
        epsilon: epsilon, with DELTA.
        weight_decay: weight decay of AdamW; `recommend` writes 0 into its code, where nobody names one.
    """

    optimizer: str
    schedule: str
    model: str
    data: str
    batch: int
    bins: int
    epochs: int
    epsilon: float
    weight_decay: float = 0.01

    @property
    def steps(self) -> int:
        """Return the steps of the whole run."""
        return self.bins * self.epochs

    @property
    def momentum(self) -> float:
        """Return the momentum by which gradients are averaged."""
        return 0.0 if self.optimizer == "sgd" else 0.9

    @property
    def rates(self) -> dict[str, Any] | None:
        """The schedule as specs have it."""
        if self.schedule == "constant":
            return None
        warmup = {"warmup": max(1, self.steps // 10)} if self.schedule == "warmup_cosine" else {}
        return {"kind": self.schedule, **warmup}

    @property
    def relative_rates(self) -> np.ndarray:
        """The learning rate of each step over the largest."""
        return np.ones(self.steps) if self.rates is None else np.array(schedule_rates(self.rates, self.steps))

    @property
    def workload(self) -> dict[str, Any]:
        """Return what the optimizer sums, as a recommendation has it."""
        kind: dict[str, Any] = {"kind": "schedule" if self.rates else "prefix"}
        if self.momentum:
            kind = {"kind": "momentum", "momentum": self.momentum}
        return {**kind, "n": self.steps, **({"learning_rates": self.rates} if self.rates else {})}


SMALL, MIDDLE, LONG, LONGEST = (200, 40, 8), (200, 100, 5), (50, 500, 4), (25, 1000, 4)
"""Batch, batches of an epoch, epochs: 320, 500, 2000 and 4000 steps."""
SEEN_JOBS = [
    RateJob("adamw", "warmup_cosine", "convolution", "sequences", *MIDDLE, 3.0),
    RateJob("momentum", "cosine", "logistic", "mnist", *MIDDLE, 3.0),
    RateJob("adam", "constant", "logistic", "mnist", *SMALL, 2.0),
    RateJob("sgd", "constant", "logistic", "mnist", *SMALL, 3.0),
    RateJob("adamw", "cosine", "perceptron", "mnist", *MIDDLE, 8.0),
    RateJob("momentum", "warmup_cosine", "perceptron", "mnist", *MIDDLE, 2.0),
    RateJob("sgd", "cosine", "perceptron", "mnist", 300, 60, 10, 4.0),
    RateJob("adam", "cosine", "logistic", "table", *SMALL, 1.0),
    RateJob("momentum", "constant", "logistic", "table", *SMALL, 10.0),
    RateJob("adam", "cosine", "logistic", "mnist", *LONG, 4.0),
    RateJob("momentum", "cosine", "perceptron", "table", *SMALL, 4.0),
    RateJob("adam", "constant", "perceptron", "mnist", *SMALL, 8.0),
    RateJob("sgd", "cosine", "logistic", "mnist", *LONG, 2.0),
    RateJob("adamw", "cosine", "perceptron", "mnist", *LONG, 2.0),
    RateJob("sgd", "constant", "perceptron", "mnist", *MIDDLE, 10.0),
    RateJob("adamw", "warmup_cosine", "perceptron", "mnist", 500, 100, 10, 3.0),
    RateJob("sgd", "warmup_cosine", "convolution", "sequences", *SMALL, 8.0),
    RateJob("adamw", "cosine", "convolution", "sequences", *SMALL, 1.0),
    RateJob("momentum", "constant", "convolution", "sequences", *SMALL, 3.0),
    RateJob("adamw", "warmup_cosine", "wide perceptron", "mnist", 250, 80, 6, 2.5),
    RateJob("sgd", "cosine", "logistic", "whole mnist", 200, 50, 6, 5.0),
    RateJob("adam", "cosine", "wide perceptron", "table", 150, 100, 6, 6.0),
    RateJob("sgd", "warmup_cosine", "wide perceptron", "table", 100, 150, 4, 2.5),
    RateJob("momentum", "cosine", "wide perceptron", "table", 60, 300, 3, 6.0),
    RateJob("adamw", "constant", "logistic", "table", 40, 250, 6, 5.0),
    RateJob("adamw", "warmup_cosine", "logistic", "digits", 36, 40, 10, 5.0),
    RateJob("adamw", "warmup_cosine", "transformer", "short sequences", 100, 40, 8, 8.0),
    RateJob("momentum", "warmup_cosine", "wide perceptron", "mnist", 400, 60, 8, 1.5),
    RateJob("adamw", "cosine", "logistic", "long sequences", 150, 100, 4, 5.0),
    RateJob("momentum", "cosine", "wide convolution", "long sequences", 100, 90, 4, 6.0),
    RateJob("adam", "constant", "logistic", "whole mnist", 250, 40, 8, 1.5),
    RateJob("adamw", "warmup_cosine", "wide convolution", "long sequences", 100, 90, 4, 2.5),
    RateJob("momentum", "constant", "logistic", "whole mnist", 150, 80, 5, 2.5),
    RateJob("adam", "warmup_cosine", "logistic", "mnist", 60, 300, 5, 1.5),
    RateJob("sgd", "constant", "logistic", "long sequences", 100, 100, 5, 5.0),
    RateJob("adamw", "cosine", "wide perceptron", "mnist", 150, 120, 10, 5.0),
    RateJob("adam", "constant", "wide perceptron", "table", 200, 80, 4, 2.5),
    RateJob("sgd", "cosine", "wide perceptron", "mnist", 100, 200, 4, 1.5),
    RateJob("momentum", "warmup_cosine", "logistic", "mnist", 300, 64, 12, 6.0),
]
"""The jobs that predictors and their constants were fitted on, in the order in which they are trained."""
HELD_OUT_JOBS = [
    RateJob("adamw", "warmup_cosine", "logistic", "mnist", *LONGEST, 8.0),
    RateJob("sgd", "cosine", "logistic", "digits", 30, 48, 6, 3.0),
    RateJob("adam", "cosine", "perceptron", "digits", 48, 30, 12, 8.0),
    RateJob("momentum", "constant", "perceptron", "digits", 24, 60, 6, 6.0),
    RateJob("adamw", "constant", "perceptron", "table", 150, 60, 6, 3.0, 0.0),
    RateJob("sgd", "constant", "logistic", "plain sequences", 120, 60, 5, 1.0),
    RateJob("momentum", "warmup_cosine", "convolution", "plain sequences", 120, 60, 6, 2.0),
    RateJob("adam", "warmup_cosine", "narrow perceptron", "mnist", 120, 80, 5, 2.0),
    RateJob("adamw", "cosine", "narrow perceptron", "whole mnist", 120, 60, 6, 6.0, 0.0),
    RateJob("sgd", "warmup_cosine", "narrow perceptron", "mnist", 100, 100, 4, 4.0),
    RateJob("adam", "constant", "logistic", "plain sequences", 100, 60, 6, 4.0),
    RateJob("momentum", "constant", "wide perceptron", "mnist", 200, 50, 6, 1.0),
    RateJob("adamw", "warmup_cosine", "logistic", "table", 80, 120, 4, 2.0, 0.0),
    RateJob("sgd", "constant", "wide perceptron", "table", 120, 100, 4, 6.0),
    RateJob("adam", "cosine", "convolution", "plain sequences", 100, 60, 5, 0.5),
    RateJob("adamw", "cosine", "logistic", "whole mnist", 200, 50, 8, 10.0, 0.0),
    RateJob("momentum", "cosine", "logistic", "plain sequences", 100, 70, 5, 0.5),
    RateJob("adamw", "constant", "convolution", "sequences", 150, 50, 6, 5.0, 0.0),
    RateJob("adam", "cosine", "transformer", "short sequences", 100, 40, 8, 2.0),
    RateJob("momentum", "cosine", "logistic", "mnist", *LONGEST, 4.0),
]
"""Jobs that no constant was fitted on, and by which no form was chosen, in the order in which they are trained."""
NEWEST_JOBS = [
    RateJob("sgd", "constant", "logistic", "text", 150, 80, 4, 2.0, 0.0),
    RateJob("adam", "cosine", "logistic", "mixture", 120, 60, 6, 0.7, 0.0),
    RateJob("momentum", "constant", "convolution", "few symbols", 150, 60, 5, 2.5, 0.0),
    RateJob("adamw", "warmup_cosine", "perceptron", "noisy mnist", 150, 60, 6, 2.2, 0.0),
    RateJob("sgd", "cosine", "perceptron", "mixture", 100, 100, 4, 3.5, 0.0),
    RateJob("adam", "constant", "perceptron", "text", 100, 80, 4, 3.0, 0.0),
    RateJob("momentum", "warmup_cosine", "logistic", "text", 60, 200, 3, 1.5, 0.0),
    RateJob("adamw", "constant", "narrow perceptron", "mixture", 100, 70, 5, 6.0, 0.0),
    RateJob("sgd", "warmup_cosine", "convolution", "few symbols", 120, 70, 5, 7.0, 0.0),
    RateJob("adam", "constant", "logistic", "noisy mnist", 150, 60, 6, 7.0, 0.0),
    RateJob("momentum", "constant", "logistic", "mixture", 100, 80, 4, 4.0, 0.0),
    RateJob("adamw", "cosine", "logistic", "text", 80, 120, 4, 1.0, 0.0),
    RateJob("sgd", "cosine", "logistic", "noisy mnist", 100, 90, 4, 0.8, 0.0),
    RateJob("adam", "warmup_cosine", "convolution", "few symbols", 100, 80, 4, 4.0, 0.0),
    RateJob("momentum", "cosine", "perceptron", "text", 120, 100, 4, 6.0, 0.0),
    RateJob("adamw", "cosine", "convolution", "few symbols", 120, 60, 5, 9.0, 0.0),
    RateJob("sgd", "constant", "broad perceptron", "mnist", 160, 60, 6, 1.2, 0.0),
    RateJob("momentum", "cosine", "narrow perceptron", "noisy mnist", 80, 150, 4, 5.0, 0.0),
    RateJob("adamw", "warmup_cosine", "wide perceptron", "mixture", 60, 250, 4, 4.5, 0.0),
    RateJob("adam", "cosine", "broad perceptron", "mnist", 150, 80, 5, 1.8, 0.0),
    RateJob("sgd", "cosine", "convolution", "three symbols", 120, 70, 5, 3.0, 0.0),
    RateJob("adam", "constant", "convolution", "three symbols", 100, 80, 4, 5.0, 0.0),
    RateJob("adamw", "warmup_cosine", "logistic", "broad mixture", 100, 60, 6, 1.5, 0.0),
    RateJob("momentum", "constant", "perceptron", "broad mixture", 120, 80, 4, 5.0, 0.0),
]
"""Jobs on other data, listed before any was trained: those that the rule before this one was judged by."""
FRESH_JOBS = [
    RateJob("adam", "cosine", "wide perceptron", "long text", 120, 90, 4, 4.0, 0.0),
    RateJob("sgd", "warmup_cosine", "logistic", "long text", 100, 80, 5, 2.5, 0.0),
    RateJob("momentum", "cosine", "convolution", "three symbols", 80, 120, 4, 8.0, 0.0),
    RateJob("adamw", "constant", "narrow perceptron", "digits", 30, 48, 8, 6.0, 0.0),
    RateJob("sgd", "constant", "perceptron", "noisy mnist", 150, 70, 5, 2.0, 0.0),
    RateJob("adam", "warmup_cosine", "broad perceptron", "broad mixture", 100, 120, 4, 3.0, 0.0),
    RateJob("momentum", "warmup_cosine", "narrow perceptron", "long text", 80, 130, 4, 4.5, 0.0),
    RateJob("adamw", "cosine", "logistic", "three symbols", 100, 90, 4, 1.2, 0.0),
]
"""Jobs that were listed before any was trained, and trained after the present rule was chosen."""
LISTED_JOBS = [
    RateJob("adam", "cosine", "perceptron", "teacher", 120, 60, 5, 3.0, 0.0),
    RateJob("sgd", "cosine", "logistic", "word counts", 100, 80, 5, 1.5, 0.0),
    RateJob("momentum", "constant", "perceptron", "waveforms", 60, 100, 4, 5.0, 0.0),
    RateJob("adamw", "warmup_cosine", "broad perceptron", "odd mnist", 150, 90, 4, 2.5, 0.0),
    RateJob("sgd", "constant", "wide perceptron", "teacher", 100, 150, 4, 7.0, 0.0),
    RateJob("adam", "constant", "logistic", "word counts", 100, 70, 5, 0.8, 0.0),
    RateJob("momentum", "warmup_cosine", "convolution", "many symbols", 120, 75, 4, 4.0, 0.0),
    RateJob("adamw", "cosine", "wide perceptron", "shells", 80, 100, 5, 6.0, 0.0),
    RateJob("sgd", "warmup_cosine", "perceptron", "waveforms", 60, 60, 4, 2.0, 0.0),
    RateJob("adam", "warmup_cosine", "perceptron", "word counts", 80, 250, 4, 5.0, 0.0),
    RateJob("momentum", "cosine", "logistic", "odd mnist", 200, 50, 4, 1.0, 0.0),
    RateJob("adamw", "constant", "wide convolution", "many symbols", 100, 80, 4, 8.0, 0.0),
    RateJob("sgd", "cosine", "convolution", "many symbols", 150, 60, 5, 4.5, 0.0),
    RateJob("adam", "cosine", "transformer", "brief sequences", 100, 50, 5, 6.0, 0.0),
    RateJob("momentum", "constant", "narrow perceptron", "short text", 100, 120, 3, 3.0, 0.0),
    RateJob("adamw", "cosine", "narrow perceptron", "waveforms", 50, 100, 5, 1.2, 0.0),
    RateJob("sgd", "constant", "broad perceptron", "short text", 120, 100, 4, 9.0, 0.0),
    RateJob("adam", "constant", "broad perceptron", "shells", 100, 100, 4, 3.5, 0.0),
    RateJob("momentum", "cosine", "wide perceptron", "teacher", 50, 500, 3, 4.0, 0.0),
    RateJob("adamw", "warmup_cosine", "perceptron", "narrow mixture", 80, 80, 6, 10.0, 0.0),
    RateJob("sgd", "cosine", "perceptron", "narrow mixture", 80, 80, 5, 2.0, 0.0),
    RateJob("momentum", "warmup_cosine", "wide perceptron", "shells", 100, 120, 4, 8.0, 0.0),
    RateJob("sgd", "constant", "narrow perceptron", "waveforms", 100, 60, 5, 1.0, 0.0),
    RateJob("momentum", "constant", "logistic", "word counts", 120, 60, 6, 2.5, 0.0),
    RateJob("sgd", "warmup_cosine", "wide perceptron", "odd mnist", 150, 80, 4, 6.0, 0.0),
    RateJob("momentum", "cosine", "transformer", "brief sequences", 100, 60, 5, 3.0, 0.0),
]
"""Jobs on other data again, listed before any was trained, by which the rule with a caller's own rate is judged.

The last six have no Adam, whose rate that rule leaves as it is.
"""
DRAWN_JOBS = [
    RateJob("sgd", "cosine", "logistic", "whole mnist", 200, 200, 5, 2.0, 0.0),
    RateJob("momentum", "cosine", "narrow perceptron", "word counts", 150, 120, 6, 3.0, 0.0),
    RateJob("adam", "warmup_cosine", "narrow perceptron", "table", 80, 100, 3, 1.5, 0.0),
    RateJob("sgd", "cosine", "logistic", "noisy mnist", 80, 100, 3, 6.0, 0.0),
    RateJob("momentum", "constant", "perceptron", "waveforms", 60, 160, 4, 2.0, 0.0),
    RateJob("adamw", "constant", "logistic", "odd mnist", 40, 160, 5, 0.7, 0.0),
    RateJob("sgd", "cosine", "broad perceptron", "narrow mixture", 150, 40, 8, 5.0, 0.0),
    RateJob("momentum", "cosine", "broad perceptron", "short text", 120, 160, 3, 1.0, 0.0),
    RateJob("adam", "warmup_cosine", "transformer", "brief sequences", 100, 40, 8, 1.5, 0.0),
    RateJob("sgd", "constant", "perceptron", "shells", 60, 60, 4, 8.0, 0.0),
    RateJob("momentum", "constant", "perceptron", "teacher", 120, 120, 3, 0.7, 0.0),
    RateJob("adamw", "constant", "convolution", "many symbols", 200, 200, 3, 8.0, 0.0),
    RateJob("sgd", "cosine", "logistic", "whole mnist", 40, 80, 8, 0.7, 0.0),
    RateJob("momentum", "cosine", "broad perceptron", "noisy mnist", 100, 100, 8, 6.0, 0.0),
    RateJob("adam", "constant", "narrow perceptron", "shells", 60, 50, 6, 10.0, 0.0),
    RateJob("sgd", "warmup_cosine", "narrow perceptron", "table", 100, 60, 6, 8.0, 0.0),
    RateJob("momentum", "warmup_cosine", "narrow perceptron", "narrow mixture", 150, 60, 4, 3.0, 0.0),
    RateJob("adamw", "warmup_cosine", "wide perceptron", "word counts", 80, 120, 4, 3.0, 0.0),
    RateJob("sgd", "cosine", "wide perceptron", "short text", 80, 160, 4, 1.5, 0.0),
    RateJob("momentum", "constant", "logistic", "odd mnist", 100, 160, 6, 4.0, 0.0),
]
"""Further jobs of this kind, whose data, models, sizes, epsilons and schedules were drawn with a generator of seed 65.

They were listed when four of LISTED_JOBS were trained and the rule was fixed.
"""
JUDGING_JOBS = [
    RateJob("sgd", "constant", "logistic", "waveforms", 100, 80, 5, 10.0, 0.0),
    RateJob("momentum", "cosine", "wide perceptron", "mixture", 60, 120, 3, 1.5, 0.0),
    RateJob("adam", "cosine", "logistic", "odd mnist", 100, 50, 3, 1.0, 0.0),
    RateJob("adamw", "cosine", "perceptron", "table", 100, 120, 8, 0.7, 0.0),
    RateJob("sgd", "cosine", "convolution", "few symbols", 80, 100, 3, 6.0, 0.0),
    RateJob("momentum", "warmup_cosine", "narrow perceptron", "word counts", 200, 40, 5, 1.5, 0.0),
    RateJob("adam", "cosine", "broad perceptron", "hinges", 120, 160, 6, 4.0, 0.0),
    RateJob("adamw", "constant", "logistic", "noisy mnist", 120, 40, 4, 10.0, 0.0),
    RateJob("sgd", "constant", "wide perceptron", "hinges", 100, 40, 5, 10.0, 0.0),
    RateJob("momentum", "cosine", "convolution", "long sequences", 60, 100, 8, 0.7, 0.0),
    RateJob("adam", "warmup_cosine", "wide perceptron", "broad mixture", 120, 40, 6, 1.0, 0.0),
    RateJob("adamw", "cosine", "wide perceptron", "word counts", 200, 50, 3, 1.5, 0.0),
    RateJob("sgd", "warmup_cosine", "wide perceptron", "text", 60, 60, 3, 6.0, 0.0),
    RateJob("momentum", "cosine", "perceptron", "short text", 150, 80, 8, 4.0, 0.0),
    RateJob("adam", "constant", "convolution", "three symbols", 40, 100, 4, 6.0, 0.0),
    RateJob("adamw", "constant", "narrow perceptron", "broad mixture", 200, 60, 4, 8.0, 0.0),
    RateJob("sgd", "constant", "wide perceptron", "long text", 40, 120, 5, 8.0, 0.0),
    RateJob("momentum", "warmup_cosine", "perceptron", "hinges", 150, 50, 4, 1.5, 0.0),
    RateJob("adam", "cosine", "logistic", "shells", 120, 60, 4, 1.0, 0.0),
    RateJob("adamw", "warmup_cosine", "wide convolution", "long sequences", 120, 160, 3, 10.0, 0.0),
]
"""Twenty more, drawn with a generator of seed 67 and listed before any was trained, which judge the present rule."""
JUDGED_LISTS = (FRESH_JOBS, LISTED_JOBS, DRAWN_JOBS, JUDGING_JOBS)
"""The jobs that were listed before any of them was trained, in the order of the lists."""
QUICK_JOBS = [RateJob("adamw", "cosine", "perceptron", "digits", 24, 10, 3, 8.0)]
"""The job of the quick form."""

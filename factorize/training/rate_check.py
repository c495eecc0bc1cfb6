"""A look at the learning rate of a run from its weights alone, which costs no privacy."""

import math
from collections.abc import Sequence
from typing import Any

from factorize.format.manifest import CertifiedFactors
from factorize.structures.layouts import build_matrix
from factorize.training.learning_rate import (
    CHECK_SHARE,
    MIN_SHARE,
    RAISE_SHARES,
    averaged_steps,
    noise_moved,
    share_of_data,
)


class ArrayRateCheck:
    """Makes up for a learning rate that does not suit the noise, in place of the tuning that would cost privacy.

    After a fifth of the run it compares how far the data have moved the weights with how far noise has, and if that is
    further, rate and movement are multiplied by the ratio of the two, at least by a quarter. A first step of Adam moves
    every weight by the whole rate: where no warm-up makes that small, Adam begins at a quarter of the rate, and goes up
    to this share of it after a twentieth and a tenth of the steps, if they are 20 or more. Where the rate is constant,
    the last step leaves the mean of the weights of the last quarter (the suffix average of Rakhlin, Shamir and
    Sridharan, ICML 2012), from which most of the noise of the last steps is gone. Weights are made of released
    gradients, so this is post-processing (docs/choose.md). A copy of the weights is kept until the last look, and one
    in the last quarter.

    Attributes:
        factor: of the rate of the next step.
    """

    def __init__(
        self,
        factors: CertifiedFactors,
        sigma: float,
        weights: Sequence[Any],
        momentum: float = 0.0,
        second: float | None = None,
        decay: float = 0.0,
        *,
        warmed: bool = False,
    ) -> None:
        """Begin before the first step.

        Args:
            factors: of the noise.
            sigma: standard deviation of an entry of Z, for means; of Adam, over the clip norm.
            weights: all that is trained: arrays of numpy, JAX or torch.
            momentum: by which SGD adds up gradients, or Adam's beta_1.
            second: Adam's beta_2; None of SGD.
            decay: of the weights, which a step multiplies by its rate.
            warmed: whether the rate begins low, which a spec with learning rates says itself.
        """
        self._strategy = build_matrix(factors.structure, factors.strategy_tensors(), factors.steps)
        steps, rates = self._strategy.n, factors.manifest.spec["workload"].get("learning_rates", [1.0])
        ramp = second is not None and not warmed and rates[0] >= max(rates) and RAISE_SHARES[0] * steps >= 1
        self._raised = [int(share * steps) for share in RAISE_SHARES] if ramp else []
        self.factor = MIN_SHARE if ramp else 1.0
        self._sigma, self._optimizer = sigma, (momentum, second, decay)
        self._rates: list[float] = []
        self._whole, self._constant = math.nan, True
        self._kept = [1 * one for one in weights]

    def step(self, weights: Sequence[Any], rate: float) -> list[Any]:
        """Return the weights to go on with, after every step.

        Args:
            weights: after the step.
            rate: that it had.
        """
        self._rates.append(rate)
        whole = rate / self.factor
        self._whole = whole if len(self._rates) == 1 else self._whole
        self._constant &= math.isclose(whole, self._whole)
        taken, steps = len(self._rates), self._strategy.n
        at, before = max(1, int(CHECK_SHARE * steps)), steps - averaged_steps(steps)
        if taken in (*self._raised, at):
            pairs = list(zip(weights, self._kept, strict=True))
            moved = math.fsum(float(((one - start) ** 2).sum()) for one, start in pairs) ** 0.5
            size = sum(math.prod(one.shape) for one in weights)
            share = share_of_data(moved, noise_moved(self._strategy, self._sigma, size, self._rates, *self._optimizer))
            if taken < at:
                self.factor = max(self.factor, share)
            else:
                self.factor *= share
                weights = [start + share * (one - start) if share < 1 else one for one, start in pairs]
                self._kept = []
        if taken > before and self._constant:
            count = taken - before
            old = self._kept if count > 1 else weights
            self._kept = [mean + (one - mean) / count for one, mean in zip(weights, old, strict=True)]
            if taken == steps:
                return self._kept
        return list(weights)

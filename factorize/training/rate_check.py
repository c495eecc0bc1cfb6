"""A look at the learning rate of a run from its weights alone, which costs no privacy."""

import math
from collections.abc import Sequence
from typing import Any

from factorize.format.certified import CertifiedFactors
from factorize.structures.layouts import build_matrix
from factorize.training.learning_rate import CHECKED, averaged_steps, noise_moved, share_of_data


class ArrayRateCheck:
    """Makes up for a learning rate that does not suit the noise, in place of the tuning that would cost privacy.

    After a fifth of the run it compares how far the weights are from their start with how far noise alone moves them.
    If that is further than the data did, rate and movement are multiplied by the ratio of the two. Where the rate is
    constant, the last step leaves the mean of the weights of the last quarter (the suffix average of Rakhlin, Shamir
    and Sridharan, ICML 2012), from which most of the noise of the last steps is gone. Weights are made of released
    gradients, so this is post-processing (docs/choose.md). A copy of the weights is kept until the look, and one in
    the last quarter.

    Attributes:
        factor: of the rate: 1 until the look.
    """

    def __init__(
        self,
        factors: CertifiedFactors,
        sigma: float,
        weights: Sequence[Any],
        momentum: float = 0.0,
        second: float | None = None,
        decay: float = 0.0,
    ) -> None:
        """Begin before the first step.

        Args:
            factors: of the noise.
            sigma: standard deviation of an entry of Z, for means; of Adam, over the clip norm.
            weights: all that is trained: arrays of numpy, JAX or torch.
            momentum: by which SGD adds up gradients, or Adam's beta_1.
            second: Adam's beta_2; None of SGD.
            decay: of the weights, which a step multiplies by its rate.
        """
        self.factor = 1.0
        self._strategy = build_matrix(factors.structure, factors.strategy_tensors(), factors.steps)
        self._sigma, self._optimizer = sigma, (momentum, second, decay)
        self._rates: list[float] = []
        self._constant = True
        self._kept = [1 * one for one in weights]

    def step(self, weights: Sequence[Any], rate: float) -> list[Any]:
        """Return the weights to go on with, after every step.

        Args:
            weights: after the step.
            rate: that it had.
        """
        self._rates.append(rate)
        taken, steps = len(self._rates), self._strategy.n
        at, before = max(1, int(CHECKED * steps)), steps - averaged_steps(steps)
        self._constant &= rate == self._rates[0] * self.factor
        if taken == at:
            pairs = list(zip(weights, self._kept, strict=True))
            moved = math.fsum(float(((one - start) ** 2).sum()) for one, start in pairs) ** 0.5
            size = sum(math.prod(one.shape) for one in weights)
            noise = noise_moved(self._strategy, self._sigma, size, self._rates, *self._optimizer)
            self.factor = share_of_data(moved, noise)
            weights = [start + self.factor * (one - start) if self.factor < 1 else one for one, start in pairs]
            self._kept = []
        if taken > before and self._constant:
            count = taken - before
            old = self._kept if count > 1 else weights
            self._kept = [mean + (one - mean) / count for one, mean in zip(weights, old, strict=True)]
            if taken == steps:
                return self._kept
        return list(weights)

"""Adam's bias-corrected moving averages, and the iterate that they move."""

from typing import ClassVar, Literal

import numpy as np

from factorize.plain_data import Fraction
from factorize.workloads.base import StepWorkload
from factorize.workloads.operators import Accumulate, Decay, Operator, Scale


class Adam(StepWorkload):
    """Bias-corrected averages: A[i, j] = w_i beta^(i-j), w_i = (1 - beta) / (1 - beta^(i+1)), for output `moment`.

    With beta = beta1 row i is the first moment of step i (of gradients), with beta2 the second (of their squares). For
    output `iterate` it is summed: S diag(w) M, M[i, j] = beta^(i-j), what the first moments move where the second ones
    stay the same. w_i is the double 1 / d_i, of the doubles d_0 = 1 and d_i = 1 + beta d_{i-1}. Source: Kingma, Ba,
    Adam (2015), algorithm 1.
    """

    time_invariant: ClassVar[bool] = False  # early averages are over fewer gradients

    kind: Literal["adam"]
    beta: Fraction
    output: Literal["moment", "iterate"] = "moment"

    def sums(self) -> np.ndarray:
        """Return d_i, the sum of 1, beta, ..., beta^i in doubles, shape (n,)."""
        sums = np.empty(self.n)
        last = 0.0
        for i in range(self.n):
            this = 1.0 + self.beta * last
            if this == last:  # later sums stay the same
                sums[i:] = this
                break
            sums[i] = last = this
        return sums

    def operators(self) -> tuple[Operator, ...]:
        """Return decaying sums, the weights, and for the iterate the sum."""
        average = (Decay(np.full(self.n, self.beta)), Scale(1.0 / self.sums()))
        return (*average, Accumulate()) if self.output == "iterate" else average

"""The machines of a federated run."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np

from factorize.errors import InvalidParameter
from factorize.noise.normals import secret_seed
from factorize.training.orders import Order
from papers.algorithms.differences import combined
from papers.training.clip import GradientFunction, clipped_sum, contributions_at
from papers.training.private_sums import Sums


@dataclass(frozen=True)
class Machine:
    """One machine: its data behind a gradient function, and its own noise where the server is not trusted.

    Args:
        gradient: a function of (weights, indices of this machine's examples) to one gradient per example.
        order: this machine's samples, round by round; R24 takes one per round and never again.
        sums: clipping and noise of its messages; None where the server adds the noise.
        clip: what is clipped to where `sums` is None.
    """

    gradient: GradientFunction
    order: Order
    sums: Sums | None = None
    clip: float = np.inf

    def clipping(self, clip_norm: float) -> Machine:
        """Return the same machine with a clip norm, for a trusted server."""
        return replace(self, clip=clip_norm)

    def increment(self, t: int, x: np.ndarray, previous: np.ndarray) -> np.ndarray:
        """Return this round's message: s_t, summed over the batch and clipped, or its mean with noise.

        Args:
            t: round, from 1.
            x: x_t.
            previous: x_{t-1}; not used in round 1.
        """
        batch = self.order[t - 1]
        change = contributions_at(self.gradient, x, batch)
        if t > 1:  # both gradients at the same samples: R24, algorithm 1, not the printed algorithm 2
            before = contributions_at(self.gradient, previous, batch)
            change = combined(change, float(t), before, t - 1.0)
        return clipped_sum(change, self.clip) if self.sums is None else self.sums.release(change)


def machine_seeds(seed: int, machines: int) -> list[int]:
    """Return a secret seed for each machine, all made of one: machines that share their noise are not private."""
    secret = secret_seed(seed)
    return [
        int.from_bytes(hashlib.sha256(f"machine {i} of seed {secret}".encode()).digest()[:16]) for i in range(machines)
    ]


def summed_increments(machines: Sequence[Machine], t: int, x: np.ndarray, previous: np.ndarray) -> np.ndarray:
    """Return the sum of the machines' messages of round t; see `Machine.increment`."""
    return reduce(np.add, (machine.increment(t, x, previous) for machine in machines))


def mean_divisor(sums: Sums, algorithm: str) -> int:
    """Return the divisor of algorithms that are stated for means.

    Raises:
        InvalidParameter: the calibration is for sums.
    """
    if sums.divisor is None:
        raise InvalidParameter(
            f"{algorithm} is stated for means over a batch and this calibration is for sums; calibrate with "
            "divisor=, the fixed public divisor",
            field="divisor",
        )
    return sums.divisor

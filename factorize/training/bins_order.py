"""Balls in bins: each example draws its steps once, from a secret key, and keeps them in every epoch.

Epsilon relies on nobody knowing which bin an example has, so the key, the batches and the sizes of the batches are
secret (docs/training.md). The number of examples and bins, the divisor of the means and the capacity are public.
"""

import hashlib
import secrets
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from factorize.errors import InvalidParameter, InvalidParticipation
from factorize.noise.checkpoints import check_stated
from factorize.noise.single_use import Secret
from factorize.numbers.scalars import check_choice, whole_number
from factorize.privacy import Calibration, check_kind
from factorize.privacy.adjacency import check_zero_out
from factorize.training.batches import Batches, MicroBatches, epochs_of
from factorize.training.bin_draws import (
    KEY_BYTES,
    capacity_for,
    checked_key,
    commitment,
    draw_bins,
    overflow_probability,
)

_ALLOCATION = b"factorize random allocation 1\0"
TAU = 2.0**-50
"""The probability of an overflow for which a capacity is chosen, if none is given."""


class BallsInBins(Batches, Secret):
    """The secret order in which each example draws its bin j once and takes part in steps j, j + b, j + 2b, ...

    Bins are uniform and independent, so batches have random sizes. These are secret, as the bins are: take means with a
    fixed public divisor, never with the size of a batch. n = bins x epochs. The bin of example i is a function of (key,
    bins, i) alone: SHAKE-128 keyed with the key, 64 bits for each example, made exactly uniform by rejection. So every
    step can be asked for at any time, and a restart needs the key alone.

    Args:
        examples: N.
        bins: b, the steps of one epoch.
        epochs: number of passes, in all of which an example has the same bin.
        secret_key: random bytes, at least 16, of this run alone; a restart needs them. None draws 32.
        public_seed: public seed of the run, if it has one; a key that is this number is refused.
        physical_batch: examples per part, where batches are taken in equal padded parts (`micro_batches`).
        capacity: number of examples that the parts of a step have room for, a multiple of `physical_batch`; by default
            a bin holds more in some epoch with probability below 2^-50.
        overflow: treatment of a bin above the capacity. `abort`: a key whose bins do not fit is refused here, before
            any step, and the order's `tau` bounds the probability, to be charged: delta + (1 + e^epsilon) tau.
            `unlimited`: as many parts as a batch needs, so that the time of a step shows the size of its batch.

    Attributes:
        physical_batch: examples per part of a batch, None for whole batches.
        capacity: number of examples that the parts of one step have room for, None without limit.
        tau: probability, rounded up, that a key is refused since a bin overflows; charge `extra_delta(epsilon)`.

    Raises:
        InvalidParameter: sizes below 1, or a key that cannot be secret.
        InvalidParticipation: a bin holds more than the capacity.

    Reference:
        Chua et al. 2024 (Balls-and-bins sampling for DP-SGD); Choquette-Choo et al. 2024 (Near exact privacy
        amplification for matrix mechanisms).
    """

    sampling = "balls_in_bins"

    __slots__ = (
        *("_drawn", "_key", "_members", "_starts"),
        *("bins", "capacity", "epochs", "examples", "period", "physical_batch", "tau"),
    )

    def __init__(
        self,
        examples: int,
        bins: int,
        epochs: int,
        secret_key: bytes | None = None,
        *,
        public_seed: int | None = None,
        physical_batch: int | None = None,
        capacity: int | None = None,
        overflow: Literal["abort", "unlimited"] = "abort",
    ) -> None:
        self.examples = examples = whole_number("examples", examples)
        self.bins, self.epochs = bins, epochs = whole_number("bins", bins), whole_number("epochs", epochs)
        self.period = self.bins
        self._key = secrets.token_bytes(KEY_BYTES) if secret_key is None else checked_key(secret_key, public_seed)
        room = _checked_room(examples, bins, physical_batch, capacity, overflow, self.draws(epochs))
        self.physical_batch, self.capacity = room
        self._drawn = -1
        self.tau = 0.0
        if self.capacity is not None:
            self.tau = min(1.0, self.draws(epochs) * overflow_probability(examples, bins, self.capacity))
            for turn in range(self.draws(epochs)):
                self._draw(turn)
                if int(np.diff(self._starts).max()) > self.capacity:
                    raise InvalidParticipation(
                        f"a bin has more than capacity={self.capacity} examples, which happens with at most "
                        f"probability tau={self.tau:.3g}; use a larger capacity, or another key and add "
                        "extra_delta(epsilon) to delta",
                        field="capacity",
                    )
        self._draw(0)

    @property
    def covered(self) -> tuple[str, ...]:
        """The samplings whose calibrations hold for these draws."""
        return covered_by(self.sampling, self.epochs)

    @classmethod
    def draws(cls, epochs: int) -> int:
        """Return how often an example draws in this number of epochs."""
        return 1

    def _key_of(self, epoch: int) -> bytes:
        """Return the key of an epoch's draws, which is the same for all epochs."""
        return self._key

    def _draw(self, epoch: int) -> None:
        """Draw the bins of an epoch and keep them."""
        turn = epoch % self.draws(self.epochs)
        if turn != self._drawn:
            drawn = draw_bins(self._key_of(turn), self.examples, self.bins)
            self._members = np.argsort(drawn, kind="stable")
            self._starts = np.concatenate([[0], np.cumsum(np.bincount(drawn, minlength=self.bins))])
            self._drawn = turn

    def __len__(self) -> int:
        """Return the number of steps, n."""
        return self.bins * self.epochs

    def batch(self, step: int) -> np.ndarray:
        """Return the indices of the examples of one step, ascending."""
        self._draw(step // self.bins)
        start, stop = self._starts[step % self.bins : step % self.bins + 2]
        return self._members[start:stop]

    def __repr__(self) -> str:
        """Return the public fields."""
        sizes = f"examples={self.examples}, bins={self.bins}, epochs={self.epochs}"
        room = f"physical_batch={self.physical_batch}, capacity={self.capacity}"
        return f"{type(self).__name__}({sizes}, {room}, key is secret)"

    @property
    def participation(self) -> dict[str, Any]:
        """The spec's participation for this order, whose sensitivity holds even if the key becomes known."""
        return epochs_of(self.epochs)

    @property
    def commitment(self) -> str:
        """A hash that names the key without revealing it: 64 hexadecimal digits."""
        return commitment(self._key)

    def extra_delta(self, epsilon: float) -> float:
        """Return (1 + e^epsilon) tau, the addition to the calibrated delta that pays for the refusal of a key."""
        charged = float(np.nextafter((1 + np.exp(min(epsilon, 700.0))) * self.tau, np.inf))
        return min(1.0, charged) if self.tau else 0.0

    def micro_batches(self, step: int) -> MicroBatches:
        """Return one step's batch in parts of `physical_batch`, the last ones padded.

        With a capacity every step has equally many parts, so that neither shapes nor time show a size.

        Raises:
            InvalidParameter: there is no physical batch size.
        """
        if self.physical_batch is None:
            return super().micro_batches(step)
        batch, size = self[step], self.physical_batch
        parts = max(1, -(-len(batch) // size)) if self.capacity is None else self.capacity // size
        return MicroBatches.of(batch, parts, size)

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint: public numbers, and the hash that a restart's key must have."""
        sizes = {"examples": self.examples, "bins": self.bins, "epochs": self.epochs}
        return {"sampling": self.sampling, **sizes, "commitment": self.commitment}

    def check_state(self, state: Mapping[str, object]) -> None:
        """Refuse a checkpoint of another order.

        Raises:
            InvalidParameter: it is a checkpoint of other sizes, or of another key.
        """
        mine = self.state_dict()
        own = mine.pop("commitment")
        check_stated(state, mine)
        if state.get("commitment") != own:
            raise InvalidParameter(
                "the checkpoint was made with another secret key, but epsilon assumes one key for the whole run; "
                "restart with that secret_key (of a private job: with its seed, factors and release of factorize)",
                field="secret_key",
            )

    def breach(self, participation: Mapping[str, object], n: int) -> str | None:
        """Return the reason for a breach, unless the epochs have as many steps as there are bins."""
        if self._fits(participation, n):
            return None
        return (
            f"the order has {self.bins} bins and {self.epochs} epochs, the factorization n={n}; solve for "
            f"n={len(self)} and {self.participation}"
        )

    def _fits(self, participation: Mapping[str, Any], n: int) -> bool:
        kind, epochs = participation.get("kind"), participation.get("epochs")
        if kind in self.covered:  # balls_in_bins if n is no multiple of b, and the last epoch is shorter
            return participation.get("bins") == self.bins
        return (kind == "single" or kind == "fixed_epochs") and n == self.bins * int(epochs or 1)

    def check_calibration(self, calibration: Calibration, steps: int) -> None:
        """Refuse a calibration whose epsilon does not rely on exactly these bins.

        Args:
            calibration: calibration of the noise.
            steps: n of the factorization.

        Raises:
            InvalidParameter: the calibration is for a fixed order, another sampling or another number of bins.
            UnsupportedAdjacency: the calibration is not for zero-out.
            InvalidParticipation: the calibration is for other epochs.
        """
        check_kind(calibration)
        drawn = calibration.presence if calibration.sampling in self.covered else None
        if drawn is None or drawn.period != self.bins:
            what = f"the sampling {calibration.sampling!r}" if drawn is None else f"{drawn.period} bins"
            raise InvalidParameter(
                f"the calibration is for {what}, but the order draws {self.sampling} with {self.bins} bins; calibrate "
                f"with sampling={self.sampling!r}, bins={self.bins}",
                field="calibration",
            )
        check_zero_out(calibration.adjacency)
        self.check(calibration.sensitivity.participation, steps)


class RandomAllocation(BallsInBins):
    """The secret order in which each example draws one step of every epoch anew, uniformly, for C = I.

    It is only for calibrations with `sampling="random_allocation"`: those for balls in bins rely on one bin for the
    whole run. The step of example i in epoch e is a function of (key, e, bins, i) alone; one epoch's steps are held at
    a time. The arguments and the rest are those of `BallsInBins`; `tau` is that of all epochs together.

    Reference:
        Feldman, Shenfeld 2025 (Privacy amplification by random allocation).
    """

    sampling = "random_allocation"

    __slots__ = ()

    @classmethod
    def draws(cls, epochs: int) -> int:
        """Return the number of epochs, since an example draws in each."""
        return epochs

    def _key_of(self, epoch: int) -> bytes:
        """Return a key for this epoch alone: SHA-256 of the run's key and the epoch's number."""
        framed = len(self._key).to_bytes(8, "little") + self._key
        return hashlib.sha256(_ALLOCATION + framed + epoch.to_bytes(8, "little")).digest()

    @property
    def participation(self) -> dict[str, Any]:
        """The participation that allows every draw: any steps, one for each epoch."""
        if self.epochs == 1:
            return {"kind": "single"}
        return {"kind": "min_sep", "min_sep": 1, "max_participations": self.epochs}

    def _fits(self, participation: Mapping[str, Any], n: int) -> bool:
        """Return whether a sensitivity covers the draws; fixed epochs do not, since an example's steps move."""
        kind, most = participation.get("kind"), participation.get("max_participations")
        if kind in self.covered:
            return participation.get("bins") == self.bins
        if kind == "min_sep":
            return participation.get("min_sep") == 1 and (most is None or int(most) >= self.epochs)
        return kind == "single" and self.epochs == 1


def covered_by(sampling: str, epochs: int) -> tuple[str, ...]:
    """Return the samplings whose calibrations hold for draws of one; in a single epoch both laws are the same."""
    return ("balls_in_bins", "random_allocation") if epochs == 1 else (sampling,)


def _checked_room(
    examples: int, bins: int, physical: int | None, capacity: int | None, overflow: str, draws: int
) -> tuple[int | None, int | None]:
    """Return physical batch size and capacity: the given one, or the smallest that overflows with probability `TAU`."""
    overflow = check_choice("overflow", overflow, ("abort", "unlimited"))
    if physical is None or overflow == "unlimited":
        if capacity is not None:
            message = f"capacity={capacity} needs physical_batch= and overflow='abort'; give both, or no capacity"
            raise InvalidParameter(message, field="capacity")
        return (None if physical is None else whole_number("physical_batch", physical)), None
    physical = whole_number("physical_batch", physical)
    if capacity is None:
        return physical, capacity_for(examples, bins, physical_batch=physical, tau=TAU / draws)
    if whole_number("capacity", capacity) % physical:
        message = f"capacity={capacity} is not a multiple of physical_batch={physical}; give one that is"
        raise InvalidParameter(message, field="capacity")
    return physical, capacity

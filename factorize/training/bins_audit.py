"""The auditor of balls in bins: every example in exactly one bin, the same in every epoch, and none left out.

It keeps everybody's bin, which is secret: its checkpoints show no bin, and its messages name no example and no size.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from factorize.errors import InvalidParameter, InvalidParticipation
from factorize.noise.checkpoints import check_stated, refuse_other_types, step_of
from factorize.noise.single_use import Secret
from factorize.numbers.scalars import check_choice, whole_number
from factorize.participation import example_indices
from factorize.privacy import Calibration
from factorize.training.auditor import Auditor, numbered_users, users_of
from factorize.training.bin_draws import checked_key, equal_sizes_probability, regularity
from factorize.training.bins_order import BallsInBins, covered_by

_VERSION = 1
"""The version of the state in a checkpoint."""
MAX_REFUSED_CHANCE = 2.0**-64
"""Equal sizes are refused if honest bins have them with a smaller probability than this."""
MIN_REGULARITY = 1e-6
"""The smallest probability of sizes as equal as these, for honest bins, without a warning."""

_MOVED_EXAMPLES = (
    "some examples are not in the step of their bin. Epsilon assumes that an example keeps its bin for the whole run; "
    "a loader with shuffle=True, or new bins in each epoch, breaks that"
)
_OTHER_STEPS = "some examples are in other steps than the order's key draws, and epsilon assumes those"
_KEPT_BINS = (
    "every example is in the same bin as in the epoch before, as under balls in bins or one shuffle for the whole run. "
    "Epsilon assumes that each epoch draws new steps"
)
_MISSING_EXAMPLES = (
    "some examples of the bin are missing, as when a batch is truncated. Whoever knows the other bins could then tell "
    "which bin an example is in; give every batch room for all of its examples (capacity)"
)
_SECOND_STEP = (
    "an example takes part twice in one epoch, as under Poisson sampling or sampling with replacement. Each example "
    "must have exactly one step in an epoch"
)
_ABSENT_EXAMPLES = (
    "the epoch ends and some examples had no step, as with drop_last=True. Each example must have one bin, or whoever "
    "knows the other bins can tell which bin it is in"
)
_EQUAL_SIZES = (
    "all batches have equal sizes, as when a permutation is cut into batches. Whoever knows the others' bins then "
    "knows the last example's (two bins, C = I, sigma 0.6: delta(2) is at least 0.201, not 0.119); draw each example's "
    "bin independently"
)


class RegularBins(UserWarning):
    """A warning that the sizes of the bins are more equal than independent bins make them in a million runs but one."""


class BinsAuditor(Auditor, Secret):
    """An auditor of balls in bins: call `record` with the examples of each step before its gradient is released.

    With the order it compares the examples with the order's own bins. Without it the first epoch shows who is in which
    bin; if `tau` is not zero, bins of equal sizes are refused then, too.

    Args:
        examples: N.
        bins: b.
        epochs: n / b.
        order: the order that the job uses.
        key: secret key for checkpoints of an auditor without an order, in which everybody's bin is kept encrypted.
        divisor: divisor of the means, the calibration's `divisor`; None takes the first that is recorded.
        sampling: `balls_in_bins`, or `random_allocation`, where every epoch has bins of its own; with an order its own.
        users: user of each example, if the order, `examples` and bins are those of users who take turns.

    Attributes:
        covered: samplings whose calibrations hold for batches that pass.
        unit: the unit that was counted: `example` or `user`.
        tau: probability that independent bins are refused since they happen to be equal; add (1 + e^epsilon) tau to
            delta. 0 with an order, and where equal sizes are too likely to be refused.

    Raises:
        InvalidParameter: sizes below 1, an order of other sizes, or a key that cannot be secret.
    """

    def __init__(
        self,
        examples: int,
        bins: int,
        epochs: int,
        *,
        order: BallsInBins | None = None,
        key: bytes | None = None,
        divisor: int | None = None,
        sampling: str = "balls_in_bins",
        users: Sequence[object] | np.ndarray | None = None,
    ) -> None:
        check_choice("sampling", sampling, ("balls_in_bins", "random_allocation"))
        examples, bins = whole_number("examples", examples), whole_number("bins", bins)
        epochs = whole_number("epochs", epochs)
        if order is not None and (order.examples, order.bins, order.epochs) != (examples, bins, epochs):
            raise InvalidParameter(
                f"the order has {order.examples} examples, {order.bins} bins and {order.epochs} epochs, but the "
                f"auditor was given {examples}, {bins} and {epochs}; use BinsAuditor.of(order)",
                field="order",
            )
        super().__init__(bins * epochs, "example" if users is None else "user", divisor)
        self._users = None if users is None else numbered_users(users)
        self.examples, self.bins, self.epochs = examples, bins, epochs
        self._order, self._key = order, None if key is None else checked_key(key, None)
        self.sampling = sampling if order is None else order.sampling
        self._anew = self.sampling == "random_allocation"
        self.covered = covered_by(self.sampling, epochs)
        self._before: np.ndarray | None = None  # bins of the last epoch, if each epoch has its own
        self._begin(0)
        likely = equal_sizes_probability(examples, bins)
        self._refuses_equal = order is None and likely < MAX_REFUSED_CHANCE
        self.tau = min(1.0, likely * (epochs if self._anew else 1)) if self._refuses_equal else 0.0

    @classmethod
    def of(
        cls, order: BallsInBins, *, divisor: int | None = None, users: Sequence[object] | np.ndarray | None = None
    ) -> BinsAuditor:
        """Return the auditor for an order."""
        return cls(order.examples, order.bins, order.epochs, order=order, divisor=divisor, users=users)

    def __repr__(self) -> str:
        """Return the public fields."""
        shown = f"examples={self.examples}, bins={self.bins}, epochs={self.epochs}, step={self.step}"
        return f"BinsAuditor({shown})"

    def covers(self, calibration: Calibration, steps: int) -> bool:
        """Return whether the calibration relies on these draws, and on as many bins."""
        drawn = calibration.presence if calibration.sampling in self.covered else None
        return drawn is not None and drawn.period == self.bins

    def record(self, indices: Sequence[int] | np.ndarray, *, divisor: int | None = None) -> None:
        """Check the examples of the next step, and go on to it; see `Auditor.record`. The first divisor is kept."""
        super().record(indices, divisor=divisor)
        self.divisor = self.divisor if divisor is None else divisor

    def _take(self, who: np.ndarray) -> None:
        """Refuse examples that are not those of one bin."""
        if self._anew and self.step and self.step % self.bins == 0:
            self._begin(self.step // self.bins)
        learning = self._order is None and (self._anew or self.step < self.bins)
        reason = self._reason_to_learn(who) if learning else self._reason(who)
        if reason:
            raise InvalidParticipation(
                f"step {self.step} is not {self.sampling.replace('_', ' ')}: {reason}. Do not release this step; take "
                f"batches from orders.{self.sampling}",
                field="order",
            )
        if learning:
            own = self.step % self.bins
            self._bin[who], self._sizes[own] = own, len(who)

    def counts(self) -> dict[str, int | None]:
        """Return nothing, since all of it was drawn in secret."""
        return dict.fromkeys(("number", "contributions", "participations", "separation", "period"))

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint, with no bin in clear and without the key.

        Raises:
            InvalidParameter: there is neither an order nor a key to encrypt the bins with.
        """
        state = {"version": _VERSION, "step": self.step, "divisor": self.divisor, **self._promise()}
        if self._order is not None:
            return state
        nonce = secrets.token_bytes(16)
        hidden = self._masked(nonce, self._bin.astype("<i8").tobytes())
        tag = self._tag(state, nonce, hidden)
        return {**state, "nonce": nonce.hex(), "hidden": np.frombuffer(hidden, dtype=np.uint8).copy(), "tag": tag}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to the position of a checkpoint.

        Raises:
            InvalidParameter: the state belongs to other sizes or another key, or is damaged.
        """
        refuse_other_types(state)
        if state.get("version") != _VERSION:
            raise InvalidParameter("the checkpoint has no auditor of bins; restore this one's own", field="version")
        if self._order is not None:
            self._order.check_state(state)
        known = {} if None in (self.divisor, state.get("divisor")) else {"divisor": self.divisor}
        check_stated(state, self._promise() | known)
        step = step_of(state, self.steps)
        if self._order is None:
            self._bin, self._before, self._epoch = self._shown(state, step), None, max(step - 1, 0) // self.bins
            self._count_sizes()
        self.step, self.divisor = step, self.divisor if state.get("divisor") is None else state["divisor"]

    def _begin(self, epoch: int) -> None:
        """Start an epoch, of which nothing is known yet; an order knows its own bins."""
        if self._order is not None:
            return
        if epoch != getattr(self, "_epoch", None):
            self._before = self._bin if epoch else None
            self._bin = np.full(self.examples, -1, dtype=np.int64)
        self._epoch = epoch
        self._count_sizes()

    def _count_sizes(self) -> None:
        self._sizes = np.bincount(self._bin + 1, minlength=self.bins + 1)[1:]

    def _reason(self, who: np.ndarray) -> str | None:
        if self._order is not None:
            expected = self._order[self.step]
            if not np.isin(who, expected).all():
                return _MOVED_EXAMPLES if self.sampling == "balls_in_bins" else _OTHER_STEPS
            return _MISSING_EXAMPLES if len(who) < len(expected) else None
        own = self.step % self.bins
        if (self._bin[who] != own).any():
            return _OTHER_STEPS if self._anew else _MOVED_EXAMPLES
        return _MISSING_EXAMPLES if len(who) < self._sizes[own] else None

    def _reason_to_learn(self, who: np.ndarray) -> str | None:
        if (self._bin[who] >= 0).any():
            return _SECOND_STEP
        if (self.step + 1) % self.bins:
            return None
        sizes = self._sizes.copy()
        sizes[-1] = len(who)
        if sizes.sum() < self.examples:
            return _ABSENT_EXAMPLES
        if self._before is not None and self.bins > 1 and self._same(who):
            return _KEPT_BINS
        if self._refuses_equal and np.ptp(sizes) <= 1:
            return _EQUAL_SIZES
        if regularity(sizes) < MIN_REGULARITY:
            warnings.warn(
                "the bins are more equal in size than chance makes them in all but one of a million runs; batches cut "
                "from a permutation are not balls in bins, so draw each example's bin independently",
                RegularBins,
                stacklevel=3,
            )
        return None

    def _same(self, who: np.ndarray) -> bool:
        """Return whether all bins are those of the epoch before; for honest draws with probability bins^-examples."""
        bins = self._bin.copy()
        bins[who] = self.bins - 1
        return bool((bins == self._before).all())

    def _identify(self, indices: Sequence[int] | np.ndarray) -> np.ndarray:
        flat = users_of(example_indices(indices, field="indices"), self._users)
        if flat.max(initial=0) >= self.examples:
            message = f"an index of an example is outside 0..{self.examples - 1}; pass positions in the data"
            raise InvalidParameter(message, field="indices")
        if len(np.unique(flat)) < len(flat):
            raise InvalidParticipation(
                f"step {self.step} has an example twice, but the sensitivity allows it one contribution of the clip "
                "norm; clip per example, and record each example once",
                field="order",
            )
        return flat

    def _promise(self) -> dict[str, object]:
        sizes = {"sampling": self.sampling, "examples": self.examples, "bins": self.bins, "epochs": self.epochs}
        return sizes if self._order is None else self._order.state_dict()

    def _derived(self, purpose: bytes) -> bytes:
        if self._key is None:
            raise InvalidParameter(
                "the auditor's state contains every example's bin, which a checkpoint must not reveal; give the "
                "auditor the order, or a secret key= to encrypt the bins",
                field="key",
            )
        return hashlib.sha256(b"factorize bins audit 1\0" + purpose + b"\0" + self._key).digest()

    def _masked(self, nonce: bytes, plain: bytes) -> bytes:
        """Return plain + key stream, modulo 2, for a nonce that is used once."""
        stream = hashlib.shake_128(self._derived(b"mask") + nonce).digest(len(plain))
        return (np.frombuffer(plain, np.uint8) ^ np.frombuffer(stream, np.uint8)).tobytes()

    def _tag(self, state: Mapping[str, object], nonce: bytes, hidden: bytes) -> str:
        stated = repr([state[key] for key in ("version", "step", "divisor", *self._promise())]).encode()
        return hmac.new(self._derived(b"tag"), nonce + hidden + stated, "sha256").hexdigest()

    def _shown(self, state: Mapping[str, object], step: int) -> np.ndarray:
        """Return everybody's bin from a checkpoint, if this key hid it."""
        hidden = np.asarray(state.get("hidden", []), dtype=np.uint8).tobytes()
        kept = str(state.get("nonce"))
        nonce = bytes.fromhex(kept) if re.fullmatch("[0-9a-f]{32}", kept) else b""
        whole = {"divisor": None, **state, "step": step}
        if not hmac.compare_digest(self._tag(whole, nonce, hidden), str(state.get("tag"))):
            raise InvalidParameter(
                "the checkpoint's bins are damaged or encrypted with another key; restore an undamaged checkpoint, "
                "with this run's key",
                field="key",
            )
        return np.frombuffer(self._masked(nonce, hidden), dtype="<i8").astype(np.int64)

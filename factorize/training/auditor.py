"""An auditor of the order that a training job really uses; it refuses to go on when the sensitivity does not cover it.

A sensitivity holds for one participation (docs/spec.md). A shuffled epoch, a batch used twice or a resumed data loader
that starts again breaks it without any other sign, and the noise is then too small.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from factorize.encoding import JsonObject
from factorize.errors import InvalidParameter, InvalidParticipation
from factorize.noise.checkpoints import check_stated, refuse_other_types, step_of
from factorize.numbers.scalars import whole_number
from factorize.participation import example_indices, read_participation
from factorize.privacy import Calibration, check_kind

_VERSION = 2
"""The version of the state in a checkpoint."""
_NORM_FACTOR = 1.01
"""Factor on the norm of a sum, which allows for what a job loses by clipping and adding up in float32."""
_NOT_COUNTED = -1
"""The number of examples of a step while, or after, `on_step` could not count it."""


class Auditor(ABC):
    """An object that is told of each step's examples before their gradient is released, and refuses wrong batches.

    A step that it refuses has not been recorded, and must not be released.

    Args:
        steps: n of the factorization.
        unit: the unit of privacy that one index names: `example`, or `user`.
        divisor: divisor of the means, the calibration's `divisor`; None where there is none.

    Attributes:
        step: the step that `record` expects next, from 0.
        on_step: called with each step that was recorded, before it is released.
    """

    def __init__(self, steps: int, unit: str, divisor: int | None) -> None:
        self.step, self.steps, self.unit, self.divisor = 0, whole_number("steps", steps), unit, divisor
        self.on_step: Callable[[int], None] | None = None
        self._present: int | None = None  # number of examples in the step recorded last; a checkpoint does not keep it
        self._released: tuple[int, str | None] = -1, None  # the step released last, and the noise that it has

    def record(self, indices: Sequence[int] | np.ndarray, *, divisor: int | None = None) -> None:
        """Check the examples of the next step, and go on to it.

        Args:
            indices: indices of the examples, without those that pad, over all parts where one step's gradient is
                accumulated over several. No indices are fine where the order allows an empty step.
            divisor: the divisor by which the job takes the mean, None where it takes sums.

        Raises:
            InvalidParticipation: more steps than n, somebody twice in this step, a step that the order does not have,
                or another divisor than the calibration's. Nothing is recorded then.
            InvalidParameter: an index that names no example.
        """
        who = self._identify(indices)
        if self.step >= self.steps:
            raise InvalidParticipation(
                f"step {self.step + 1} is past n={self.steps}, the last step that the calibration covers; stop here, "
                "or solve a spec with a larger n"
            )
        if divisor is not None and self.divisor not in (None, divisor):
            raise InvalidParticipation(
                f"the sum of step {self.step} was not divided by {self.divisor}, for which the noise is calibrated; "
                f"divide by {self.divisor} in every step (another divisor leaves too little noise or reveals the size "
                "of a secret batch)",
                field="divisor",
            )
        self._take(who)
        self.step, self._present = self.step + 1, _NOT_COUNTED
        if self.on_step is not None:
            self.on_step(self.step - 1)
        self._present = len(who)

    def check_release(
        self, step: int, norm: float = 0.0, clip_norm: float = 0.0, *, lags: bool = False, noise: str | None = None
    ) -> None:
        """Refuse noise for other examples than those that were recorded last, or for a sum that these cannot have.

        Args:
            step: the step whose noise is to be handed out.
            norm: norm of the sum, or of a part of it.
            clip_norm: bound on the norm of one contribution.
            lags: whether a device makes the noise, behind a loop that may have recorded later steps.
            noise: commitment of the noise, None where nobody knows it.

        Raises:
            InvalidParticipation: the step is another one, the norm is larger than its contributions together allow, or
                the step was released with another noise.
        """
        if self.step != step + 1 and not (lags and self.step > step):
            raise InvalidParticipation(
                f"the noise is at step {step}, but the auditor has recorded {self.step} steps, so a batch was "
                "recorded twice or left out; record each step's examples once, before its noise, and restore both "
                "from the same checkpoint"
            )
        if self._present == _NOT_COUNTED and self.step == step + 1:
            raise InvalidParticipation(
                f"step {step} was not written into the receipt, so release nothing of it; mend the error that "
                "record() raised, and start the job again from its newest checkpoint"
            )
        present, latest = self._present, self.step == step + 1  # a loop ahead of its device may record in between
        if latest and present is not None and not norm <= _NORM_FACTOR * clip_norm * present:
            raise InvalidParticipation(
                f"the sum of step {step} has a larger norm than its examples can reach with clip_norm={clip_norm:g}; "
                "clip each example's gradient before adding it, and start each step's sum at 0"
            )
        if self._released[0] == step and self._released[1] not in (None, noise):
            raise InvalidParticipation(
                f"step {step} was released with another noise, and two releases of one batch, as of two parts of the "
                "parameters, have no epsilon here; clip all parameters together and give them one noise, or give each "
                "noise an auditor of its own and state both (others= of the statement)"
            )
        self._released = step, noise

    def check_calibration(self, calibration: Calibration, steps: int) -> None:
        """Refuse a calibration that relies on other batches than those that this auditor lets pass.

        Args:
            calibration: the calibration.
            steps: n of its factorization.

        Raises:
            InvalidParameter: the calibration does.
        """
        if not self.covers(calibration, steps):
            raise InvalidParameter(
                f"this auditor, of {self.steps} steps, allows batches that the calibration does not cover; use "
                f"ParticipationAuditor.of(calibration, n) with n={steps}, or BinsAuditor.of(order)",
                field="auditor",
            )

    @abstractmethod
    def covers(self, calibration: Calibration, steps: int) -> bool:
        """Return whether the batches that pass are those that a calibration of so many steps relies on."""

    @abstractmethod
    def counts(self) -> dict[str, int | None]:
        """Return the numbers of a receipt for the order so far; all are None where batches are drawn in secret.

        Returns:
            number: how many took part; contributions: of all of them together; participations: the most of any one of
                them; separation: the smallest distance of two steps of one; period: the common divisor of all these
                distances.
        """

    @abstractmethod
    def state_dict(self) -> JsonObject:
        """Return the state for a checkpoint; restore it together with the noise."""

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Go to the position of a checkpoint; raise InvalidParameter if it is from another run, or damaged."""

    @abstractmethod
    def _identify(self, indices: Sequence[int] | np.ndarray) -> np.ndarray:
        """Return the examples or users that take part."""

    @abstractmethod
    def _take(self, who: np.ndarray) -> None:
        """Check the examples or users of the next step, and count them."""


class ParticipationAuditor(Auditor):
    """An auditor that counts participations and separations per example, or per user, step by step.

    Call `record` with the indices of each step before the step's gradient is released.

    Args:
        participation: participation of the sensitivity in use, in the contract's JSON form.
        steps: n of the factorization.
        users: user of each example: texts, numbers, or any keys of a dict, such as tuples; None counts examples.
        groups: number of groups of cyclic sampling: an example's steps must all be the same modulo this number.
        unit: the unit of privacy that one index names: `example`, or `user`. With `users` it is a user that is counted.
        draws_users: whether a secret order is one of users, who take turns through their examples (`take_turns`).
        divisor: divisor of the means; None where there is none, or where `record` is not told.

    Attributes:
        most: the most participations of one example so far.
        closest: smallest distance of two steps of one example so far, None while nobody took part twice.
        period: greatest common divisor of all these distances, None while nobody took part twice. The smallest distance
            alone does not show that an order is that of fixed epochs.
        unit: the unit that was counted: `example` or `user`.

    Raises:
        InvalidParameter: a participation of an unknown kind, no steps, users that cannot be told apart, or users with
            several examples while epsilon relies on sampling.
    """

    def __init__(
        self,
        participation: Mapping[str, object],
        steps: int,
        *,
        users: Sequence[object] | np.ndarray | None = None,
        groups: int | None = None,
        unit: str = "example",
        draws_users: bool = False,
        divisor: int | None = None,
    ) -> None:
        try:
            self._allowed = read_participation(participation)
        except InvalidParticipation as reason:
            raise InvalidParameter(f"{reason}; docs/spec.md describes each kind", field="participation") from None
        super().__init__(steps, unit if users is None else "user", divisor)
        self.participation, self.groups, self.most = dict(participation), groups, 0
        self.closest: int | None = None
        self.period: int | None = None
        self._users = None if users is None else numbered_users(users)
        several = self._users is not None and len(np.unique(self._users)) < len(self._users)
        if groups is not None and several and not draws_users:
            raise InvalidParameter(
                "a user has several examples, and each is sampled on its own, so the user takes part more often than "
                "the amplified epsilon allows; draw whole users (take_turns, and draws_users=True here), leave out "
                "users= (epsilon is then per example), or use a fixed order",
                field="users",
            )
        self._last = np.empty(0, dtype=np.int64)  # step of the latest participation, -1 for none
        self._count = np.empty(0, dtype=np.int64)

    @classmethod
    def of(
        cls,
        calibration: Calibration,
        steps: int,
        *,
        users: Sequence[object] | np.ndarray | None = None,
        unit: str = "example",
        draws_users: bool = False,
    ) -> ParticipationAuditor:
        """Return the auditor for the sensitivity of a calibration, and for its sampling if it relies on one.

        Raises:
            InvalidParameter: the calibration relies on balls in bins, for which there is `BinsAuditor.of(order)`.
        """
        drawn = check_kind(calibration).presence
        if drawn is not None and not drawn.independent:  # each example draws one of its steps
            raise InvalidParameter(
                "the calibration is for balls in bins, which this auditor cannot check; use BinsAuditor.of(order) "
                "from factorize.training.bins_audit",
                field="calibration",
            )
        groups = None if drawn is None else drawn.period
        participation = calibration.sensitivity.participation
        return cls(
            participation,
            steps,
            users=users,
            groups=groups,
            unit=unit,
            draws_users=draws_users,
            divisor=calibration.divisor,
        )

    def covers(self, calibration: Calibration, steps: int) -> bool:
        """Return whether it has this participation, and the groups of a sampling that draws each step independently.

        Of fixed epochs, n decides how many steps are between two of one example.
        """
        counted, drawn = read_participation(calibration.sensitivity.participation), calibration.presence
        apart = not counted.periodic or counted.epoch(self.steps) == counted.epoch(steps)
        same = counted == self._allowed and apart
        return same and (drawn is None or (drawn.independent and drawn.period == self.groups))

    def counts(self) -> dict[str, int | None]:
        """Return `most`, `closest`, `period` and how many took part how often."""
        number, contributions = int((self._count > 0).sum()), int(self._count.sum())
        counted = {"number": number, "contributions": contributions, "participations": self.most}
        found: dict[str, int | None] = {**counted, "separation": self.closest, "period": self.period}
        return found if self.groups is None else dict.fromkeys(found)

    def _take(self, who: np.ndarray) -> None:
        distinct, times = np.unique(who, return_counts=True)
        if len(distinct) < len(who):
            raise InvalidParticipation(
                f"step {self.step} contains {self._name(int(distinct[times.argmax()]))} {times.max()} times, but the "
                "sensitivity allows one contribution per step; sum and clip per user, and record each user once",
                field="order",
            )
        missing = int(who.max(initial=-1)) + 1 - len(self._last)
        if missing > 0:
            room = max(missing, len(self._last))  # doubles the arrays, so that growing them costs little altogether
            self._last = np.concatenate([self._last, np.full(room, -1)])
            self._count = np.concatenate([self._count, np.zeros(room, dtype=np.int64)])
        seen = self._last[who] >= 0
        gaps, counts = self.step - self._last[who[seen]], self._count[who] + 1
        reason = self._reason(gaps, int(counts.max(initial=0)))
        if reason:
            guilty = next(w for w in who if self._reason_of(int(w)))
            raise InvalidParticipation(
                f"step {self.step} breaks the participation {self.participation} that the sensitivity is for: "
                f"{reason} ({self._name(int(guilty))}); do not release this step, and return to an order that the "
                "participation allows",
                field="order",
            )
        self._last[who], self._count[who] = self.step, counts
        self.most = max(self.most, int(counts.max(initial=0)))
        if len(gaps):
            self.closest = int(min(gaps.min(), self.closest or gaps.min()))
            self.period = math.gcd(self.period or 0, int(np.gcd.reduce(gaps)))

    def refusal(self, index: int) -> str | None:
        """Return why an example may not take part in the step that comes next; None if it may."""
        who = int(self._identify([index])[0])
        return self._reason_of(who) if who < len(self._last) else None

    def state_dict(self) -> JsonObject:
        """Return the state for a checkpoint; restore it together with the noise."""
        plain = {"version": _VERSION, "step": self.step, "unit": self.unit, "most": self.most}
        plain |= {"closest": self.closest, "period": self.period}
        return {**plain, **self._promise(), "last": self._last.copy(), "count": self._count.copy()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to the position of a checkpoint.

        Raises:
            InvalidParameter: the checkpoint belongs to another participation, unit, n or groups, or is damaged.
        """
        refuse_other_types(state)
        # Checkpoints of earlier releases do not state the unit.
        check_stated({"unit": self.unit, **state}, {"version": _VERSION, "unit": self.unit, **self._promise()})
        step, last, count = step_of(state, self.steps), np.array(state.get("last")), np.array(state.get("count"))
        most, closest, period = (state.get(name) for name in ("most", "closest", "period"))
        whole = (
            last.ndim == 1
            and last.shape == count.shape
            and (not last.size or last.dtype.kind == count.dtype.kind == "i")
        )
        if not (
            whole
            and last.max(initial=-1) < step
            and np.array_equal(last >= 0, count > 0)
            and most == count.max(initial=0)
            and (closest is period is None if most < 2 else _are_distances(closest, period, step))
        ):
            raise InvalidParameter("the checkpoint's counts are damaged; restore an undamaged checkpoint", field="last")
        self.step, self.most, self.closest, self.period = step, int(most), closest, period
        self._last, self._count = last.astype(np.int64), count.astype(np.int64)

    def _promise(self) -> dict[str, object]:
        return {"participation": self.participation, "steps": self.steps, "groups": self.groups}

    def _identify(self, indices: Sequence[int] | np.ndarray) -> np.ndarray:
        return users_of(example_indices(indices, field="indices"), self._users)

    def _reason(self, gaps: np.ndarray, most: int) -> str | None:
        if self.groups and (gaps % self.groups).any():
            return f"one example was sampled in two groups, which are the steps modulo {self.groups}"
        return self._allowed.violation(self.steps, gaps, most)

    def _reason_of(self, who: int) -> str | None:
        gaps = np.array([self.step - self._last[who]] if self._last[who] >= 0 else [], dtype=np.int64)
        return self._reason(gaps, int(self._count[who]) + 1)

    def _name(self, who: int) -> str:
        if self.groups is not None:  # the sample is secret, and logs show messages
            return "an example" if self._users is None else "a user"
        if self._users is None:
            return f"example {who}"
        return f"the user of example {int(np.flatnonzero(self._users == who)[0])}"


def _are_distances(closest: object, period: object, step: int) -> bool:
    """Return whether two numbers can be the smallest distance within some steps, and the divisor of all distances."""
    return type(closest) is type(period) is int and 0 < period <= closest < step and closest % period == 0


def users_of(indices: np.ndarray, users: np.ndarray | None) -> np.ndarray:
    """Return who takes part: the users of examples, or the examples where there are no users."""
    if users is None:
        return indices
    if indices.max(initial=-1) >= len(users):
        message = f"example {indices.max()} has no user: `users` has {len(users)} entries; give one for each example"
        raise InvalidParameter(message, field="users")
    return users[indices]


def numbered_users(users: Sequence[object] | np.ndarray) -> np.ndarray:
    """Return the number of each example's user, shape (examples,); users that are equal in Python have one number."""
    numbers: dict[object, int] = {}
    try:
        listed = users.tolist() if hasattr(users, "tolist") else users
        if isinstance(listed, str | bytes):
            raise TypeError("one text is no list")
        numbered = [numbers.setdefault(user, len(numbers)) for user in listed]
    except TypeError:
        message = "`users` must be a list with one string, number or tuple for each example"
        raise InvalidParameter(message, field="users") from None
    if any(user != user for user in numbers):
        raise InvalidParameter("a user in `users` is NaN; name the user of every example", field="users")
    return np.array(numbered, dtype=np.int64)

"""Checkpoints of noise: the next step, and vectors that were checked to be its state."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping

import numpy as np

from factorize.encoding import JsonObject, canonical_json
from factorize.errors import InvalidParameter
from factorize.noise.single_use import NoiseUse, Secret
from factorize.numbers.scalars import whole_number


class Checkpointed(Secret, ABC):
    """Noise that has a position, and can go on from a checkpoint of it.

    Attributes:
        step: the step whose noise comes next, from 0.
        steps: n, the steps after which it refuses.
    """

    step: int = 0
    steps: int
    _half: bool = False
    """Whether a step was begun and is not finished."""
    _stated: JsonObject
    """The fields about this noise in each of its checkpoints."""
    _use: NoiseUse

    def skip(self, steps: int = 1) -> None:
        """Go on without the noise of the next `steps` steps, which then must not be released.

        Rows of C^-1 are skipped at no cost; a recurrence still draws every row.

        Raises:
            InvalidParameter: `steps` is negative, or leads beyond n.
        """
        steps = whole_number("steps", steps, low=0, remedy="a step back would repeat noise")
        self.refuse_half()
        self._refuse_past(self.step + steps)
        self._half = True
        self._advance_to(self.step + steps)
        self._half = False

    def state_dict(self, *, arrays: bool = True) -> JsonObject:
        """Return a checkpoint, which together with the seed restores this noise.

        Args:
            arrays: whether to include the state's vectors, so that restarting costs nothing. These are sums of the
                noise, and as secret as the seed. Without them the checkpoint is plain data that reveals nothing about
                the noise, and restarting draws the rows of all earlier steps again, with the same bits.

        Raises:
            InvalidParameter: a step was begun and not finished, and `arrays` is true.
        """
        state, vectors = self.header(self.step), self.read_vectors() if arrays else None
        if vectors is not None:
            state["state"] = vectors.copy()
            state["state_sha256"] = _state_digest(state)
        return state

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Go to the position of a checkpoint, whose model must be restored with it.

        Raises:
            InvalidParameter: the state is damaged, or of another seed, factorization, scale, shape, shard, precision or
                generator of random numbers.
        """
        step = self.check_step(state)
        stored, own = state.get("state"), self.vectors
        if stored is None or own is None:
            self.restore(step, None)
            return
        array = np.asarray(stored)
        same = array.shape == own.shape and array.dtype == own.dtype
        if not same or state.get("state_sha256") != _state_digest({**state, "state": array}):
            refuse_vectors(step)
        self.restore(step, array)

    def check_step(self, state: Mapping[str, object], **own: object) -> int:
        """Return the step of a checkpoint of this noise.

        Args:
            state: the checkpoint.
            **own: fields that replace those of this noise's header.

        Raises:
            InvalidParameter: it belongs to another noise, or to a release that makes other bits from the same seed.
        """
        step = step_of(state, self.steps)
        remedy = (
            "the noise would not continue where it stopped: restore seed, factorization, parameters, kind of device "
            "and library versions"
        )
        stated = self.header(step) | own
        if state.get("state") is None:  # Without vectors, any part of the noise can be made again.
            del stated["shard"]
        check_stated(state, stated, remedy)
        return step

    @property
    def commitment(self) -> str:
        """A text in hex that tells this noise from that of another seed, and reveals nothing about either."""
        return str(self._stated["commitment"])

    def header(self, step: int) -> dict[str, object]:
        """Return the fields about the noise in a checkpoint of a step, as plain data."""
        return {**self._stated, "step": step}

    def restore(self, step: int, vectors: np.ndarray | None) -> None:
        """Go to a step with vectors that were checked to be its state; None makes them again."""
        self._use.refuse_back(step + self._half)
        self._half = True
        self._begin(vectors)
        self.step = 0 if vectors is None else step
        self._advance_to(step)
        self._use.restore(step)
        self._half = False

    def read_vectors(self) -> np.ndarray | None:
        """Return the state's own memory, which a checkpoint of this step keeps.

        Raises:
            InvalidParameter: see `refuse_half`.
        """
        self.refuse_half()
        return self.vectors

    def refuse_half(self) -> None:
        """Refuse to go on, or to keep vectors, where Ctrl-C or an error has ended a step on the way.

        Raises:
            InvalidParameter: a step was begun and not finished.
        """
        if self._half:
            raise InvalidParameter(
                f"step {self.step} of the noise was begun and not finished, so some of its vectors belong to the step "
                "after it; call load_state_dict with the last checkpoint, or with state_dict(arrays=False) of this "
                "noise if nobody has seen what the step released",
                field="step",
            )

    @property
    @abstractmethod
    def vectors(self) -> np.ndarray | None:
        """The memory of the state, shape (vectors, entries), as secret as the seed; None where all is drawn again."""

    @abstractmethod
    def _begin(self, vectors: np.ndarray | None) -> None:
        """Put vectors into the state; zeros, as before step 0, for None."""

    @abstractmethod
    def _move(self, step: int) -> None:
        """Bring the state from a step to the one after it."""

    def _advance_to(self, step: int) -> None:
        while self.step < step:
            self._move(self.step)
            self.step += 1

    def close(self, kept: int = 0) -> None:
        """End threads, and let another generator of this process make the same noise, which nobody may have seen.

        If none does, the next step takes up the use of this noise again.

        Args:
            kept: number of rows that were released, and stay used.
        """
        self._use.close(kept)

    def _refuse_past(self, step: int) -> None:
        if step > self.steps:
            raise InvalidParameter(
                f"step {step} is past n={self.steps}, the last step that the sensitivity covers; stop here, or solve "
                "a spec with a larger n",
                field="step",
            )


def refuse_other_types(state: object) -> None:
    """Refuse what is no dictionary; raise InvalidParameter for it."""
    if not isinstance(state, Mapping):
        message = f"this {type(state).__name__} is no checkpoint; give what state_dict() returned"
        raise InvalidParameter(message, field="state")


def step_of(state: Mapping[str, object], steps: int) -> int:
    """Return the step of a checkpoint of a run of `steps` steps.

    Raises:
        InvalidParameter: the checkpoint has no such step.
    """
    refuse_other_types(state)
    step = state.get("step")
    if isinstance(step, bool) or not isinstance(step, int) or not 0 <= step <= steps:
        raise InvalidParameter(f"the checkpoint's step {str(step)[:20]} is outside 0..{steps}", field="step")
    return step


def check_stated(
    state: Mapping[str, object], own: Mapping[str, object], remedy: str = "restore a checkpoint of this run"
) -> None:
    """Refuse a checkpoint whose fields differ from those of this run.

    Raises:
        InvalidParameter: a field differs.
    """
    for key, ours in own.items():
        theirs = state.get(key)
        if isinstance(theirs, np.ndarray) or theirs != ours:
            raise InvalidParameter(
                f"the checkpoint's {key} is {str(theirs)[:80]}, but here it is {str(ours)[:80]}; {remedy}", field=key
            )


def refuse_vectors(step: int) -> None:
    """Refuse a checkpoint whose vectors are not its state.

    Raises:
        InvalidParameter: every call raises it.
    """
    raise InvalidParameter(
        f"the checkpoint's vectors are not those of step {step}: it is damaged, or of another step; leave out `state` "
        "to compute them again",
        field="state",
    )


def _state_digest(state: Mapping[str, object]) -> str:
    """Return the sha256 of a checkpoint's position and vectors together, so that they cannot be exchanged singly."""
    plain = {key: value for key, value in state.items() if key not in ("state", "state_sha256")}
    digest = hashlib.sha256(canonical_json(plain))
    digest.update(np.ascontiguousarray(state["state"]).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()

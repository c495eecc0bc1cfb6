"""Single use of noise: objects with its key cannot be copied, and no two generators of a process make the same rows.

Two releases with the same row of noise reveal their difference without any noise.
"""

from __future__ import annotations

import gc
import os
import threading
import weakref
from typing import ClassVar, NoReturn

from factorize.errors import InvalidParameter
from factorize.noise.regions import Region


class Secret:
    """An object with a key, which refuses to be pickled or copied, and so to be saved by `torch.save` or sent away."""

    __slots__ = ()
    instead: ClassVar[str] = "save state_dict() in checkpoints, and keep the seed where your secrets are"
    """The remedy that a refused copy suggests."""

    def __reduce__(self) -> NoReturn:
        """Refuse a copy.

        Raises:
            InvalidParameter: every call raises it.
        """
        raise InvalidParameter(
            f"a {type(self).__name__} cannot be copied, since the copy would show its key; {self.instead}"
        )


class _Rows:
    """The rows of a noise that were handed out, which outlive the generator that made them.

    Attributes:
        region: the entries, None for all.
        stop: the first step of which no row was handed out.
    """

    __slots__ = ("_use", "region", "stop")

    def __init__(self, region: Region | None, use: NoiseUse | None, stop: int = 0) -> None:
        self.region, self.stop, self._use = region, stop, None if use is None else weakref.ref(use)

    @property
    def in_use(self) -> bool:
        """Whether the generator that makes these rows is alive."""
        return self._use is not None and self._use() is not None

    def meets(self, other: _Rows) -> bool:
        """Return whether an entry of one noise is in both."""
        return self.region is None or other.region is None or self.region.meets(other.region)


class NoiseUse:
    """The use of some entries of one noise, exclusive in this process until it is closed or gone.

    Rows stay used when it is gone: a function that trains, and is called again with one seed, would else release the
    same noise with other gradients.

    Args:
        commitment: commitment of seed and factorization, which names the noise.
        region: the entries, None for all. Parts that do not overlap are used side by side.

    Raises:
        InvalidParameter: another generator in this process makes some of these entries.
    """

    def __init__(self, commitment: str, region: Region | None = None) -> None:
        self._commitment, self._rows, self._process = commitment, _Rows(region, self), os.getpid()
        self._next: dict[int, int] = {}  # the first step whose row was not taken, by place
        self._begin()

    def take(self, step: int, place: int = 0) -> None:
        """Note that the row of a step is handed out.

        Args:
            step: the step.
            place: number of the device, where several devices each take their part of every row.

        Raises:
            InvalidParameter: the row was handed out before, this process is a fork of the one that made the generator,
                or the use was closed and another one has begun.
        """
        if os.getpid() != self._process:
            raise InvalidParameter(
                f"this generator was made in process {self._process}, and process {os.getpid()} is a fork of it, so "
                "both would release the same noise; make the generator after the fork, in the one process that trains",
                field="process",
            )
        with _LOCK:  # Of two threads that ask for one step, the second is refused.
            if self._rows not in self._all():
                self._begin()
            first = self._next.get(place, self._begun)
            if step >= first:
                self._next[place] = step + 1
                self._rows.stop = max(self._rows.stop, step + 1)
                return
        raise InvalidParameter(
            f"the noise of steps up to {first - 1} was used before, so using that of step {step} again reveals "
            "the difference between two releases; continue from the newest state, or give another run its own "
            "seed, secrets.randbits(128). If nobody has seen what was released since, call close() and repeat the "
            "steps, or continue in a new process",
            field="step",
        )

    def refuse_back(self, step: int) -> None:
        """Refuse to go back before steps whose rows were handed out here.

        Raises:
            InvalidParameter: `step` is before the last of them.
        """
        taken = max(self._next.values(), default=self._begun)
        if step < taken:
            raise InvalidParameter(
                f"steps {step} to {taken - 1} have used their noise, and repeating them (with another learning rate, "
                "say) would reveal the difference of their gradients; continue from the newest state, or give another "
                "run its own seed, secrets.randbits(128). If nobody has seen the weights of these steps, call close() "
                "first, or continue in a new process",
                field="step",
            )

    def restore(self, step: int) -> None:
        """Go to the position of a checkpoint, after which rows may be made again."""
        self._next, self._rows.stop = {0: step}, step

    def close(self, kept: int = 0) -> None:
        """Let another generator make these entries, because it continues this one, or this one's were not released.

        Args:
            kept: number of rows that were released, and stay used.
        """
        if self._rows in self._all():
            ended = {self._rows, *self._others()}
            stay = [_Rows(self._rows.region, None, kept)] if kept else []
            _ROWS[self._commitment] = [*(each for each in self._all() if each not in ended), *stay]
        self._next, self._begun, self._rows.stop = {}, 0, 0

    def _begin(self) -> None:
        for _ in range(2):  # The first collection ends suspended loaders, the second frees what they held.
            if any(each.in_use for each in self._others()):
                gc.collect()  # Unreachable optimizers and frames are in reference cycles.
        with _LOCK:
            others = self._others()
            for each in others:
                if each.in_use:
                    raise InvalidParameter(
                        f"another generator of this noise is open in this process, at step {each.stop}, and both would "
                        "release the same noise; call close() on it first, or draw another seed, "
                        "secrets.randbits(128). One generator makes the noise of all parameters",
                        field="seed",
                    )
            self._begun = max((each.stop for each in others), default=0)  # by generators that are gone
            kept = [each for each in self._all() if each is not self._rows and (each.in_use or each.stop)]
            _ROWS[self._commitment] = [*kept, self._rows]

    def _all(self) -> list[_Rows]:
        return _ROWS.get(self._commitment, [])

    def _others(self) -> list[_Rows]:
        return [each for each in self._all() if each is not self._rows and each.meets(self._rows)]


_ROWS: dict[str, list[_Rows]] = {}
"""The rows that generators of this process have handed out or may hand out, by commitment of seed and factorization."""
_LOCK = threading.RLock()

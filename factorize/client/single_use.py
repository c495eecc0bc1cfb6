"""Single use of noise: objects with its key cannot be copied, and no two generators of a process make the same rows.

Two releases with the same row of noise reveal their difference without any noise.
"""

from __future__ import annotations

import gc
import os
import threading
import weakref
from typing import ClassVar, NoReturn

from factorize.client.regions import Region
from factorize.errors import InvalidParameter


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


class NoiseUse:
    """The use of some entries of one noise, exclusive in this process until it is closed or gone.

    Args:
        commitment: commitment of seed and factorization, which names the noise.
        region: the entries, None for all. Parts that do not overlap are used side by side.

    Raises:
        InvalidParameter: another generator in this process makes some of these entries.
    """

    def __init__(self, commitment: str, region: Region | None = None) -> None:
        self._commitment, self._region, self._process = commitment, region, os.getpid()
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
        if self not in _USES:
            self._begin()
        if step < self._next.get(place, 0):
            raise InvalidParameter(
                f"the noise of steps up to {self._next[place] - 1} was used before, so using that of step {step} "
                "again reveals the difference between two releases; continue from the newest state. If nobody has "
                "seen what was released since, call close() and repeat the steps",
                field="step",
            )
        self._next[place] = step + 1

    def refuse_back(self, step: int) -> None:
        """Refuse to go back before steps whose rows were handed out here.

        Raises:
            InvalidParameter: `step` is before the last of them.
        """
        taken = max(self._next.values(), default=0)
        if step < taken:
            raise InvalidParameter(
                f"steps {step} to {taken - 1} have used their noise, and repeating them (with another learning rate, "
                "say) would reveal the difference of their gradients; continue from the newest state. If nobody has "
                "seen the weights of these steps, call close() first",
                field="step",
            )

    def restore(self, step: int) -> None:
        """Go to the position of a checkpoint, after which rows may be made again."""
        self._next = {0: step}

    def close(self) -> None:
        """Let another generator make these entries, because it continues this one, or this one's were not released."""
        _USES.discard(self)
        self._next = {}

    def _begin(self) -> None:
        for _ in range(2):  # The first collection ends suspended loaders, the second frees what they held.
            if self._others():
                gc.collect()  # Unreachable optimizers and frames are in reference cycles.
        with _LOCK:
            for other in self._others():
                taken = max(other._next.values(), default=0)
                raise InvalidParameter(
                    f"another generator of this noise is open in this process, at step {taken}, and both would "
                    "release the same noise; call close() on it first, or draw another seed, secrets.randbits(128). "
                    "One generator makes the noise of all parameters",
                    field="seed",
                )
            _USES.add(self)

    def _others(self) -> list[NoiseUse]:
        return [
            each for each in _USES if each is not self and each._commitment == self._commitment and each._meets(self)
        ]

    def _meets(self, other: NoiseUse) -> bool:
        return self._region is None or other._region is None or self._region.meets(other._region)


_USES: weakref.WeakSet[NoiseUse] = weakref.WeakSet()
_LOCK = threading.Lock()

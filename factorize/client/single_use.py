"""Single use of noise: what holds its key is not copied, and no two generators of a process make the same rows.

Two releases with one row of noise give away their difference without any.
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
    """What holds a key: it refuses to be pickled or copied, and so to be saved by `torch.save` or sent to a worker."""

    __slots__ = ()
    instead: ClassVar[str] = "keep state_dict() in checkpoints, and the seed where secrets are kept"
    """What to do in place of a copy."""

    def __reduce__(self) -> NoReturn:
        """Refuse a copy.

        Raises:
            InvalidParameter: always.
        """
        raise InvalidParameter(f"a copy of this {type(self).__name__} would show its key; {self.instead}")


class NoiseUse:
    """The use of some entries of one noise, which no other in this process has until this one is closed or gone.

    Args:
        commitment: of seed and factorization; it names the noise.
        region: the entries, None for all. Parts that do not overlap are used side by side.

    Raises:
        InvalidParameter: another generator in this process makes some of these entries.
    """

    def __init__(self, commitment: str, region: Region | None = None) -> None:
        self._commitment, self._region, self._process = commitment, region, os.getpid()
        self._next: dict[int, int] = {}  # by place: the first step whose row was not taken
        self._begin()

    def take(self, step: int, place: int = 0) -> None:
        """Note that the row of a step is handed out.

        Args:
            step: whose.
            place: of several devices that each take their part of every row.

        Raises:
            InvalidParameter: it was handed out before, this process is a fork of the one that made the generator, or
                the use was closed and another one has begun.
        """
        if os.getpid() != self._process:
            raise InvalidParameter(
                f"this generator was made in process {self._process}, and process {os.getpid()} is a fork of it: both "
                "would release the same noise; make the generator after the fork, in the one process that trains",
                field="process",
            )
        if self not in _OPEN:
            self._begin()
        if step < self._next.get(place, 0):
            raise InvalidParameter(
                f"the noise of step {step} was handed out before, up to step {self._next[place] - 1}, and a second "
                "release with it gives away the difference of both; go on from the newest state. Where nobody has seen "
                "what was released since, call close() and take the steps again",
                field="step",
            )
        self._next[place] = step + 1

    def refuse_back(self, step: int) -> None:
        """Refuse to go back before steps whose rows were handed out here.

        Raises:
            InvalidParameter: step is before the last of them.
        """
        taken = max(self._next.values(), default=0)
        if step < taken:
            raise InvalidParameter(
                f"steps {step} to {taken - 1} have had their noise here, and taken again, with another learning rate "
                "say, they have the same noise on other gradients, whose difference shows the data; go on from the "
                "newest state. Where nobody has seen the weights of these steps, call close() first",
                field="step",
            )

    def restore(self, step: int) -> None:
        """Go to the position of a checkpoint: what was made after it is made again."""
        self._next = {0: step}

    def close(self) -> None:
        """Let another generator make these entries: what this one made has not been released, or goes on there."""
        _OPEN.discard(self)
        self._next = {}

    def _begin(self) -> None:
        for _ in range(2):  # the first collection ends suspended loaders, and the second one frees what they held
            if self._others():
                gc.collect()  # optimizers and frames that nobody can reach are in circles of references
        with _LOCK:
            for other in self._others():
                taken = max(other._next.values(), default=0)
                raise InvalidParameter(
                    f"another generator of this noise is alive in this process, with {taken} steps taken, and both "
                    "would release the same rows: call close() on it first, or draw another seed, "
                    "secrets.randbits(128); one generator makes the noise of all parameters",
                    field="seed",
                )
            _OPEN.add(self)

    def _others(self) -> list[NoiseUse]:
        return [
            each for each in _OPEN if each is not self and each._commitment == self._commitment and each._meets(self)
        ]

    def _meets(self, other: NoiseUse) -> bool:
        return self._region is None or other._region is None or self._region.meets(other._region)


_OPEN: weakref.WeakSet[NoiseUse] = weakref.WeakSet()
_LOCK = threading.Lock()

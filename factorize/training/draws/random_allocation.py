"""Random allocation: each example draws one step of every epoch anew, from one secret key."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, ClassVar

from factorize.training.bins import BallsInBins

_DOMAIN = b"factorize random allocation 1\0"


class RandomAllocation(BallsInBins):
    """The secret order in which each example draws one step of every epoch anew, uniformly, for C = I.

    It is for calibrations with `sampling="random_allocation"` alone: those for balls in bins count on one bin for the
    whole run. The step of example i in epoch e is a function of (key, e, bins, i) alone; one epoch's steps are held at
    a time. Arguments and the rest are those of `BallsInBins`; `tau` is that of all epochs together.

    Reference:
        Feldman, Shenfeld 2025 (Privacy amplification by random allocation).
    """

    sampling: ClassVar[str] = "random_allocation"

    __slots__ = ()

    @property
    def _draws(self) -> int:
        return self.epochs

    def _key_of(self, epoch: int) -> bytes:
        """Return a key of this epoch's own: SHA-256 of the run's and the epoch's number."""
        framed = len(self._key).to_bytes(8, "little") + self._key
        return hashlib.sha256(_DOMAIN + framed + epoch.to_bytes(8, "little")).digest()

    @property
    def participation(self) -> dict[str, Any]:
        """A participation of specs that allows every draw: any steps, one for each epoch."""
        if self.epochs == 1:
            return {"kind": "single"}
        return {"kind": "min_sep", "min_sep": 1, "max_participations": self.epochs}

    def _fits(self, participation: Mapping[str, Any], n: int) -> bool:
        """Whether a sensitivity covers the draws; that of fixed epochs does not, for steps of an example move."""
        kind, most = participation.get("kind"), participation.get("max_participations")
        if kind in self.covered:
            return participation.get("bins") == self.bins
        if kind == "min_sep":
            return participation.get("min_sep") == 1 and (most is None or int(most) >= self.epochs)
        return kind == "single" and self.epochs == 1

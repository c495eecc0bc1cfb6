"""Adjacency: which pairs of data sets a guarantee makes indistinguishable."""

from __future__ import annotations

from enum import StrEnum

from factorize.errors import UnsupportedAdjacency


class Adjacency(StrEnum):
    """A relation of neighbours: the pairs of data sets that must be indistinguishable."""

    ZERO_OUT = "zero_out"
    """One user's contributions become zero vectors; batches and divisors stay. The difference is at most clip_norm."""

    REPLACE_ONE = "replace_one"
    """One user's contributions are replaced by another user's. The difference is at most 2 clip_norm."""

    @property
    def factor(self) -> int:
        """The largest change of one step's contribution, in units of clip_norm."""
        return 2 if self is Adjacency.REPLACE_ONE else 1

    @classmethod
    def parse(cls, name: object) -> Adjacency:
        """Read an adjacency from its name, or from dp_accounting's `REPLACE_SPECIAL` and `REPLACE_ONE`.

        Raises:
            UnsupportedAdjacency: the name is another one; add/remove is explained.
        """
        word = str(getattr(name, "name", name)).lower()
        if word == "replace_special":
            return cls.ZERO_OUT
        if word in set(cls):
            return cls(word)
        reason = "is not known"
        if "add" in word or "remove" in word:
            reason = (
                "is not supported: removing a record from a fixed order moves later ones to other steps, which no "
                "sensitivity here bounds. If a null record keeps the slot and the divisor is a fixed public number, "
                "your relation is zero_out"
            )
        raise UnsupportedAdjacency(
            f"adjacency={word!r} {reason}; use zero_out (REPLACE_SPECIAL), or without sampling replace_one "
            "(REPLACE_ONE)",
            field="adjacency",
        )


def check_zero_out(adjacency: Adjacency | str) -> None:
    """Raise UnsupportedAdjacency for replace_one and add/remove, which the proofs of sampling do not cover."""
    if Adjacency.parse(adjacency) is not Adjacency.ZERO_OUT:
        raise UnsupportedAdjacency(
            "adjacency='replace_one' is not supported with sampling: there is no proof that twice the sigma suffices; "
            "use zero_out, or calibrate without sampling",
            field="adjacency",
        )

"""The ending of a solve as plain data, written by whoever ran it and read by a service."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeGuard

from factorize.api.workers.ending import Ending
from factorize.encoding import is_digest
from factorize.solution import PHASES

_MESSAGE_LIMIT = 2000
_MOST_STAGES = 10
_LATEST = 1e11  # seconds since 1970


@dataclass(frozen=True, slots=True)
class SolveEnding:
    """How one solve ended.

    Args:
        ending: the kind of end.
        digest: what was stored (a claim until the store confirms it); None unless done.
        error: ``{"type", "message"}``; None when done.
        seconds: wall time.
        timings: when each of its stages began and ended, in seconds since 1970.
        progress: how far it last said it was; None unless done.
    """

    ending: Ending
    digest: str | None
    error: dict[str, str] | None
    seconds: float
    timings: dict[str, tuple[float, float]] = field(default_factory=dict)
    progress: dict[str, Any] | None = None

    def document(self) -> dict[str, Any]:
        """Return it as plain JSON data; see `read`."""
        return {**{name: getattr(self, name) for name in self.__slots__}, "ending": self.ending.name}

    @classmethod
    def read(cls, said: object) -> SolveEnding | None:
        """Return the end that a document tells, or None: on a network a stranger may have written it."""
        if not isinstance(said, dict):
            return None
        digest, error, seconds = said.get("digest"), _read_error(said.get("error")), said.get("seconds")
        try:
            ending = Ending[str(said.get("ending"))]
        except KeyError:
            return None
        done = ending is Ending.DONE
        if done != is_digest(digest) or done != (error is None) or not (_is_finite(seconds) and 0 <= seconds < _LATEST):
            return None
        return cls(
            ending, digest if done else None, error, seconds, _timings(said), read_progress(said.get("progress"))
        )


def _read_error(said: object) -> dict[str, str] | None:
    match said:
        case {"type": str() as kind, "message": str() as message}:
            return {"type": kind[:100], "message": message[:_MESSAGE_LIMIT]}
    return None


def read_progress(said: object) -> dict[str, Any] | None:
    """Return the fields of a progress event; None of what is no event: one without a count of steps and seconds.

    The other fields are a finite number, a known word or None each. A comparison also says of how many mechanisms, and
    which one runs.
    """
    if not isinstance(said, dict):
        return None
    iteration, seconds, phase, total = (said.get(name) for name in ("iteration", "seconds", "phase", "total"))
    if type(iteration) is not int or iteration < 0 or not _is_finite(seconds):
        return None
    comparison = {"total": total, "mechanism": str(said.get("mechanism"))[:100]} if type(total) is int else {}
    numbers = {name: said.get(name) for name in ("relative_gap", "class_gap", "seconds_left")}
    return {
        "iteration": iteration,
        "seconds": seconds,
        "phase": phase if phase in PHASES else None,
        **{name: value if _is_finite(value) else None for name, value in numbers.items()},
        **comparison,
    }


def _is_finite(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < float("inf")


def _timings(document: dict[str, Any]) -> dict[str, tuple[float, float]]:
    """Return when each stage began and ended, where that can be."""
    said = document.get("timings")
    found: dict[str, tuple[float, float]] = {}
    for name, times in list(said.items())[:_MOST_STAGES] if isinstance(said, dict) else ():
        match times:
            case [int() | float() as begun, int() | float() as ended] if 0 <= begun <= ended < _LATEST:
                found[str(name)[:20]] = (float(begun), float(ended))
    return found

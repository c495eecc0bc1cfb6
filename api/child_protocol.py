"""The child protocol: what a process of its own is asked, says on the way, and ends with.

A child reads one JSON object on one line from stdin, and writes JSON lines to stdout:

* ``{"event": "progress", ...}``, as often as it likes;
* at the end ``{"event": "done", ...}`` and exit status 0, or
* ``{"event": "failed", "error": {"type": "...", "message": "..."}}`` and exit status 1.

Here is the child's side; `child_command` (isolated.py) starts it, and the supervisor (jobs/supervisor.py) bounds it.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from factorize.encoding import canonical_json, sha256
from factorize.errors import FactorizeError

Document = dict[str, Any]


class Tell(Protocol):
    """Says how far a child is."""

    def __call__(self, **progress: Any) -> None:
        """Say it, as the fields of a progress event."""


def serve(answer: Callable[[Document, Tell], Document]) -> int:
    """Answer what stdin asks for and say on stdout how it ended.

    Args:
        answer: from the request to the fields of the last event; what it raises of `FactorizeError` and `MemoryError`
            is said, anything else ends the process without a word, which whoever asked takes for a crash.

    Returns:
        The exit status.
    """
    asked = json.loads(sys.stdin.readline())
    with os.fdopen(os.dup(1), "w", encoding="ascii") as out:
        os.dup2(2, 1)  # whatever a library prints is no line of the protocol

        def say(event: str, **more: Any) -> None:
            out.write(json.dumps({"event": event, **more}) + "\n")
            out.flush()

        def tell(**progress: Any) -> None:
            say("progress", **progress)

        try:
            found = answer(asked, tell)
        except (FactorizeError, MemoryError) as error:
            kind = error.slug if isinstance(error, FactorizeError) else MemoryError.__name__
            say("failed", error={"type": kind, "message": str(error)})
            return 1
        say("done", **found)
    return 0


def last_word(output: str) -> Document | None:
    """Return the event by which a child has ended, from all that it wrote to stdout; None where it has not said one."""
    try:
        event: Document = json.loads(output.splitlines()[-1])
    except (IndexError, ValueError):  # it was killed, perhaps within a line
        return None
    return event if event.get("event") in ("done", "failed") else None


def written(path: str, document: Document) -> Document:
    """Write an answer that is too long for a line, and return the fields that name it: the digest of its bytes."""
    data = canonical_json(document)
    Path(path).write_bytes(data)
    return {"digest": sha256(data)}

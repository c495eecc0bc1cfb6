"""The child protocol: what a process of its own is asked, says on the way, and ends with.

A child reads one JSON object on one line from stdin, and writes JSON lines to stdout:

* ``{"event": "progress", ...}``, as often as it likes;
* ``{"event": "log", ...}``, lines of its log, where the request says ``"log": true``;
* at the end ``{"event": "done", ...}`` and exit status 0, or
* ``{"event": "failed", "error": {"type": "...", "message": "..."}}`` and exit status 1.

A worker that stays (`serve_each`) reads one object per line, ends each answer with one of these two events, and ends
with its stdin, at once, whatever it does.

Here is the child's side; `child_command` (isolated.py) starts it, and the supervisor (jobs/supervisor.py) bounds it.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NoReturn, Protocol

from factorize.api.telemetry.log_lines import tell_lines
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
    with _protocol() as say:
        if asked.pop("log", False):
            tell_lines(say)
        return 0 if _answered(asked, answer, say) else 1


def serve_each(answer: Callable[[Document, Tell], Document]) -> NoReturn:
    """Answer one request after the other, until stdin ends, which also ends an answer that is being made.

    Args:
        answer: as in `serve`.
    """
    requests: SimpleQueue[str] = SimpleQueue()

    def read() -> None:
        for line in sys.stdin:
            requests.put(line)
        os._exit(0)  # whoever asked has gone, perhaps by kill -9

    threading.Thread(target=read, daemon=True).start()
    with _protocol() as say:
        while True:
            _answered(json.loads(requests.get()), answer, say)


@contextmanager
def _protocol() -> Iterator[Callable[..., None]]:
    """Give what says an event on stdout."""
    with os.fdopen(os.dup(1), "w", encoding="ascii") as out:
        os.dup2(2, 1)  # whatever a library prints is no line of the protocol

        def say(event: str, **more: Any) -> None:
            out.write(json.dumps({"event": event, **more}) + "\n")
            out.flush()

        yield say


def _answered(asked: Document, answer: Callable[[Document, Tell], Document], say: Callable[..., None]) -> bool:
    """Answer one request; whether it was answered with `done`."""

    def tell(**progress: Any) -> None:
        say("progress", **progress)

    try:
        found = answer(asked, tell)
    except (FactorizeError, MemoryError) as error:
        kind = error.slug if isinstance(error, FactorizeError) else MemoryError.__name__
        say("failed", error={"type": kind, "message": str(error)})
        return False
    say("done", **found)
    return True


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

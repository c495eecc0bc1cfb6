"""Events: what is told of a solve, a comparison or a download while it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from factorize.client.connection import Reply
from factorize.encoding import read_json
from factorize.errors import MalformedJson, ServiceError

_LINE_BYTES = 1 << 28


@dataclass(frozen=True)
class Event:
    """One event.

    Attributes:
        kind: `progress` of a solve, `download` while `fetch` transfers a file; of a comparison also `done`, `failed`.
        data: its JSON object: iteration, relative_gap, seconds of a solve; bytes, total of a download.
    """

    kind: str
    data: dict[str, Any] = field(default_factory=dict)


ProgressCallback = Callable[[Event], None]


def ignore(event: Event) -> None:
    """A progress callback for those who do not ask."""


def read_events(reply: Reply) -> Iterator[Event]:
    """Yield the events of one stream of server-sent events until it ends; the service writes data in one line.

    Raises:
        ServiceUnreachable: the connection stalled or was cut inside a chunk.
        ServiceError: an event's data is no JSON object.
    """
    kind = "message"
    while (line := reply.line(_LINE_BYTES)).endswith(b"\n"):
        name, _, value = line.decode("utf-8", "replace").rstrip("\r\n").partition(": ")
        if name == "event":
            kind = value
        elif name == "data":
            yield Event(kind, _object(value))


def _object(text: str) -> dict[str, Any]:
    try:
        data = read_json(text)
    except MalformedJson as error:
        raise ServiceError(f"an event of the service is no JSON: {error}") from None
    if not isinstance(data, dict):
        raise ServiceError("an event of the service is JSON that is no object")
    return data

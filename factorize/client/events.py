"""Server-sent events: what a running job tells, read line by line.

Reference: WHATWG HTML, section 9.2 (server-sent events).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from factorize.client.connection import Reply
from factorize.encoding import read_json
from factorize.errors import MalformedJson, ServiceError

FINAL = ("done", "failed", "cancelled")
_LINE_BYTES = 1 << 20


@dataclass(frozen=True)
class Event:
    """One event.

    Attributes:
        kind: `progress`, `done`, `failed`, `cancelled`; `download` while `fetch` transfers a file.
        data: its JSON object: iteration, relative_gap, seconds of a solve; bytes, total of a download.
        id: what a later connection resumes after, or None.
    """

    kind: str
    data: dict[str, Any] = field(default_factory=dict)
    id: str | None = None

    @property
    def final(self) -> bool:
        """Whether it is the last event of its job."""
        return self.kind in FINAL


ProgressCallback = Callable[[Event], None]


def ignore(event: Event) -> None:
    """A progress callback for those who do not ask."""


def read_events(reply: Reply) -> Iterator[Event]:
    """Yield the events of one stream until it ends.

    Raises:
        ServiceUnreachable: the connection stalled or was cut inside a chunk.
        ServiceError: an event's data is no JSON object.
    """
    fields: dict[str, str] = {}
    while line := reply.line(_LINE_BYTES):
        text = line.decode("utf-8", "replace").rstrip("\r\n")
        if text:
            name, _, value = text.partition(":")
            _collect(fields, name, value.removeprefix(" "))
        elif fields:
            yield _event(fields)
            fields = {}


def _collect(fields: dict[str, str], name: str, value: str) -> None:
    if name == "data" and "data" in fields:
        fields["data"] += f"\n{value}"
    elif name in ("data", "event", "id"):
        fields[name] = value


def _event(fields: dict[str, str]) -> Event:
    try:
        data = read_json(fields.get("data", "{}"))
    except MalformedJson as error:
        raise ServiceError(f"an event of the service is no JSON: {error}") from None
    if not isinstance(data, dict):
        raise ServiceError("an event of the service is JSON that is no object")
    return Event(fields.get("event", "message"), data, fields.get("id"))

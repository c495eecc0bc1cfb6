"""Requests that come again byte for byte, and are answered with the same stored result.

Many training jobs post one spec. Its answer depends on the bytes of the request and on the store alone, so a connection
that receives exactly a request that was answered before writes the same answer again, without parsing it: a new
`X-Request-Id` and `Date`, and all else as it was. Before each answer three things are looked at anew: that the
result's file is the one that it was, that it was not found damaged, and that no revocation stands. What fails is
forgotten, and the request takes the usual way. Only a POST that named no wait and no form, and was answered by a
stored result at once, is remembered.

The bytes of a request include its key. Where the key was last looked up more than half a second ago, the request takes
the usual way too, which looks it up; requests of callers with quotas are counted there, and so are not remembered.

Whoever makes an answer depend on more than the request and the store must not call `note`.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass

from factorize.api.results import Result
from factorize.api.service import SolverService
from factorize.storage.blobs import Cache

LARGEST_REQUEST = 16 << 10
MEMORY_BYTES = 32 << 20
_METHOD = b"POST /v1/factorizations HTTP/1.1\r\n"
_CHANGING = re.compile(rb"\r\n(?:(date): ([^\r]*)|(x-request-id): ([0-9a-f]{16}))(?=\r\n)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Repeat:
    """An answer in the pieces that stay the same.

    Attributes:
        parts: bytes before, between and after the date and the request's id.
        standing: whether the result still is what it was.
        admitted: whether the caller would be let in again, without a look into the ledger.
    """

    parts: tuple[bytes, bytes, bytes]
    standing: Callable[[], bool]
    admitted: Callable[[], bool]

    def answer(self, date: bytes) -> bytes:
        """Return all bytes of the answer, with an id of its own."""
        first, second, third = self.parts
        return b"".join((first, date, second, secrets.token_hex(8).encode("ascii"), third))


class Repeats:
    """What is remembered, at most 32 MiB; for one event loop.

    Args:
        service: whose results they are.
    """

    def __init__(self, service: SolverService) -> None:
        self._service = service
        self._known: Cache[Repeat] = Cache(MEMORY_BYTES, lambda repeat: sum(map(len, repeat.parts)) + LARGEST_REQUEST)

    def answer(self, request: bytes, date: bytes) -> bytes | None:
        """Return the answer to a request that is known and whose result stands, else None.

        Args:
            request: all bytes that have come.
            date: value of the Date field.
        """
        known = self._known.get(request)
        if known is None or not known.admitted():
            return None
        if not known.standing():
            self._known.drop(request)
            return None
        self._service.known_total += 1
        return known.answer(date)

    def note(self, request: bytes, head: bytes, result: Result, admitted: Callable[[], bool]) -> None:
        """Remember a request and its answer.

        Args:
            request: all bytes of it.
            head: all bytes of the answer before its body, which is the result's text.
            result: what it was answered with.
            admitted: whether its caller would be let in again.
        """
        if not may_repeat(request):
            return
        standing = self._service.results.watch(result)
        found = list(_CHANGING.finditer(head))
        if standing is None or [match[1] is not None for match in found] != [True, False]:
            return
        date, name = found
        parts = head[: date.start(2)], head[date.end(2) : name.start(4)], head[name.end(4) :] + result.text
        self._known.put(request, Repeat(parts, standing, admitted))


def may_repeat(request: bytes) -> bool:
    """Whether a request is of the kind that is remembered."""
    return len(request) <= LARGEST_REQUEST and request.startswith(_METHOD)

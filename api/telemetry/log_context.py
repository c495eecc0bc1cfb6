"""The log context: which request, job and spec the work of this thread or task is about."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

NAMES = ("request_id", "client_request_id", "traceparent", "caller", "job", "spec_digest")
"""What a line of the log may be about; each is a string of at most 128 characters."""
_REQUEST_ID = re.compile(r"[0-9A-Za-z._-]{8,64}")
_TRACEPARENT = re.compile(r"00-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
_about: ContextVar[Mapping[str, str]] = ContextVar("factorize_log_context")


def about() -> Mapping[str, str]:
    """Return what the present work is about."""
    return _about.get({})


@contextmanager
def bound(**fields: str) -> Iterator[None]:
    """Let all that happens within be about these, too; empty ones are left out."""
    token = _about.set({**about(), **{name: value for name, value in fields.items() if value}})
    try:
        yield
    finally:
        _about.reset(token)


def read_client_id(given: str | None, traceparent: str | None) -> str:
    """Return the id that a client gives to a request, or nothing. It names lines of the log beside the id of our own.

    Args:
        given: the header `X-Request-Id`: 8 to 64 letters, digits, dots, dashes and underscores.
        traceparent: the header of that name (W3C Trace Context, version 00); its trace id is the next best.
    """
    if given is not None and _REQUEST_ID.fullmatch(given):
        return given
    found = _TRACEPARENT.fullmatch(traceparent or "")
    return "" if found is None else found[1]


def read_traceparent(header: str | None) -> str:
    """Return a `traceparent` that is one, else nothing."""
    return header if header is not None and _TRACEPARENT.fullmatch(header) else ""

"""The audit trail of requests: what each has changed, and which were refused."""

from __future__ import annotations

import logging
import time
from functools import partial
from typing import Any

from anyio.to_thread import run_sync
from fastapi import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from factorize.api.access.access_key import AccessKey
from factorize.api.access.key_register import Note
from factorize.api.auditing.audit_log import AuditLog
from factorize.api.http.problems import request_id
from factorize.errors import StoreUnavailable

REFUSALS = {401: "not known", 403: "not allowed", 429: "too much"}
"""Statuses that are refusals of a caller, and not answers about what was asked."""
_log = logging.getLogger(__name__)


class AuditTrail:
    """ASGI middleware: writes down who was refused. Stands before all others, so that it sees their refusals.

    Args:
        app: the application behind it.
        log: the audit log.
    """

    def __init__(self, app: ASGIApp, log: AuditLog) -> None:
        self.app = app
        self.log = log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def noted(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] in REFUSALS:
                await self._refused(scope, message["status"])
            await send(message)

        await self.app(scope, receive, noted)

    async def _refused(self, scope: Scope, status: int) -> None:
        kind = f"{status} {REFUSALS[status]}"
        about = scope.get("state", {}).get("request_id")
        try:
            await run_sync(partial(self.log.refuse, _actor(scope), kind, request_id=about))
        except StoreUnavailable as error:
            _log.error("a refusal is not in the audit log: %s", error)


async def record(request: Request, event: str, subject: str, **detail: Any) -> None:
    """Write down what a request has changed, before it is answered.

    Args:
        request: the request.
        event: `submission`, `cancellation` or `upload`.
        subject: spec digest, or sha256 of a matrix.
        detail: numbers and names of our own.

    Raises:
        StoreUnavailable: the line cannot be written.
    """
    log: AuditLog = request.app.state.service.audit
    about = request_id(request) or None
    await run_sync(
        partial(log.add, event, actor=_actor(request.scope), subject=subject, request_id=about, detail=detail)
    )


def key_note(request: Request) -> Note:
    """Return what writes down which caller has changed a key, while it is being changed.

    Raises:
        StoreUnavailable: the line cannot be written; the key is as it was then.
    """
    log: AuditLog = request.app.state.service.audit
    actor, about = _actor(request.scope), request_id(request) or None

    def note(event: str, key: AccessKey) -> None:
        log.add(event, actor=actor, subject=key.id, request_id=about, detail=key.in_short(time.time()))

    return note


def _actor(scope: Scope) -> str:
    """Return the owner of the key, or the address where no key was given."""
    owner = getattr(scope.get("state", {}).get("caller"), "owner", "")
    client = scope.get("client") or ("unknown",)
    return owner or f"address:{client[0]}"

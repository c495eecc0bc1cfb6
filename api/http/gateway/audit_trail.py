"""The audit trail of requests: which were refused, and where the settings ask for it, every one that was answered."""

from __future__ import annotations

import logging
from functools import partial

from anyio.to_thread import run_sync
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from factorize.api.access.caller import Caller
from factorize.api.auditing.audit_log import AuditLog
from factorize.api.http.problems import ProblemAnswer, problem_of
from factorize.api.http.request_guard import SECURITY_HEADERS
from factorize.api.telemetry.log_context import bound
from factorize.errors import StoreUnavailable

REFUSALS = {401: "not known", 403: "not allowed", 429: "too much"}
"""Statuses that are refusals of a caller, and not answers about what was asked."""
_log = logging.getLogger(__name__)


class AuditTrail:
    """ASGI middleware: writes down who was refused. Stands before all others, so that it sees their refusals.

    Args:
        app: the application behind it.
        log: the audit log.
        all_requests: whether answers below `/v1/` that are no refusals are written down too.
    """

    def __init__(self, app: ASGIApp, log: AuditLog, all_requests: bool) -> None:
        self.app = app
        self.log = log
        self.all_requests = all_requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        lost: list[ProblemAnswer] = []

        async def noted(message: Message) -> None:
            if message["type"] == "http.response.start":
                try:
                    await self._note(scope, message["status"])
                except StoreUnavailable as error:
                    _log.error("a request is not in the audit log, and not answered: %s", error)
                    lost.append(problem_of(error))
            if not lost:
                await send(message)

        await self.app(scope, receive, noted)
        if lost:
            request_id = scope["state"].get("request_id", "")
            lost[0].headers |= {**SECURITY_HEADERS, "X-Request-Id": request_id}
            await lost[0].response(request_id)(scope, receive, send)

    async def _note(self, scope: Scope, status: int) -> None:
        state = scope.get("state", {})
        address = (scope.get("client") or ("unknown",))[0]
        actor = state.get("caller", Caller("", "", frozenset(), address=address)).actor
        with bound(request_id=state.get("request_id", "")):
            if status in REFUSALS:
                try:
                    await run_sync(self.log.refuse, actor, f"{status} {REFUSALS[status]}")
                except StoreUnavailable as error:
                    _log.error("a refusal is not in the audit log: %s", error)
            elif self.all_requests and scope["path"].startswith("/v1/"):
                detail = {"method": scope["method"], "path": scope["path"][:1000], "status": status}
                await run_sync(partial(self.log.add, "request", actor=actor, detail=detail))

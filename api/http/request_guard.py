"""Bounds on every request, checked before anything else looks at it; the headers of every answer; the audit trail."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

from anyio.to_thread import run_sync
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from factorize.api.access.caller import Caller
from factorize.api.http.access import trusts
from factorize.api.http.problems import KINDS, ProblemAnswer, problem_of
from factorize.api.jobs.audit_log import AuditLog
from factorize.api.monitoring import HttpCounts
from factorize.api.settings import Settings, is_loopback
from factorize.api.telemetry import bound, read_client_id, read_traceparent
from factorize.errors import StoreUnavailable

MAX_HEADER_BYTES = 16 << 10
MAX_HEADERS = 64
MAX_JSON_BYTES = 1 << 20
SECURITY_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_log = logging.getLogger(__name__)
REFUSALS = {401: "not known", 403: "not allowed", 429: "too much"}
"""Statuses that are refusals of a caller, and not answers about what was asked."""


class RequestGuard:
    """ASGI middleware: refuses what breaks a limit, completes the headers of every answer, and keeps the audit trail.

    It gives each request an id (`X-Request-Id`, and `request_id` in problem documents) of its own making: nothing
    that a client sends is repeated in a header. What a client calls its request stands in the log beside it.

    Args:
        app: the application behind it.
        settings: the limits, and whether all requests are audited.
        counts: of requests.
        audit: the audit log.
    """

    def __init__(self, app: ASGIApp, settings: Settings, counts: HttpCounts, audit: AuditLog) -> None:
        self.app, self.settings = app, settings
        self._counts, self._audit = counts, audit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        given, trace = headers.get("x-request-id"), headers.get("traceparent")
        request_id, known_as = secrets.token_hex(8), read_client_id(given, trace)
        scope.setdefault("state", {})["request_id"] = request_id
        with bound(request_id=request_id, client_request_id=known_as, traceparent=read_traceparent(trace)):
            with self._counts.open.track_inprogress():
                await self._serve(scope, receive, send, request_id)

    async def _serve(self, scope: Scope, receive: Receive, send: Send, request_id: str) -> None:
        begun = time.monotonic()
        lost: list[ProblemAnswer] = []

        async def headed(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers["X-Request-Id"] = request_id
                for name, value in SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        async def completed(message: Message) -> None:
            if message["type"] == "http.response.start":
                status, seconds = message["status"], time.monotonic() - begun
                route = getattr(scope.get("route"), "path", "none") if "caller" in scope["state"] else "none"
                self._counts.answered(scope["method"], route, status, seconds)
                _log.info("a request is answered", extra={"about": _line(scope, status, seconds)})
                try:
                    await self._note(scope, status)
                except StoreUnavailable as error:
                    _log.error("a request is not in the audit log, and not answered: %s", error)
                    lost.append(problem_of(error))
            if not lost:
                await headed(message)

        refusal = self._refusal(scope)
        await (self.app if refusal is None else refusal.response(request_id))(scope, receive, completed)
        for problem in lost:
            await problem.response(request_id)(scope, receive, headed)

    async def _note(self, scope: Scope, status: int) -> None:
        """Write down who was refused and, if the settings say so, each answer below `/v1/`."""
        address = (scope.get("client") or ("unknown",))[0]
        actor = scope["state"].get("caller", Caller("", "", frozenset(), address=address)).actor
        if status in REFUSALS:
            try:
                await run_sync(self._audit.refuse, actor, f"{status} {REFUSALS[status]}")
            except StoreUnavailable as error:
                _log.error("a refusal is not in the audit log: %s", error)
        elif self.settings.audit_requests and scope["path"].startswith("/v1/"):
            detail = {"method": scope["method"], "path": scope["path"][:1000], "status": status}
            await run_sync(partial(self._audit.add, "request", actor=actor, detail=detail))

    def _refusal(self, scope: Scope) -> ProblemAnswer | None:
        headers = Headers(scope=scope)
        return (
            self._refuse_peer(scope)
            or self._refuse_headers(scope, headers)
            or self._refuse_framing(scope, headers)
            or self._refuse_condition(scope, headers)
            or self._refuse_host(headers)
            or self._refuse_origin(headers)
        )

    def _refuse_peer(self, scope: Scope) -> ProblemAnswer | None:
        if trusts(self.settings, (scope.get("client") or ("",))[0]):
            return None
        return ProblemAnswer("untrusted-peer", KINDS["untrusted-peer"].meaning)

    def _refuse_headers(self, scope: Scope, headers: Headers) -> ProblemAnswer | None:
        raw = headers.raw
        target = len(scope.get("raw_path") or b"") + len(scope["query_string"])
        size = target + sum(len(name) + len(value) + 4 for name, value in raw)
        if size <= MAX_HEADER_BYTES and len(raw) <= MAX_HEADERS:
            return None
        limits = f"the limits are {MAX_HEADER_BYTES} and {MAX_HEADERS}"
        detail = f"the header block has {size} bytes in {len(raw)} fields; {limits}"
        return ProblemAnswer("too-many-headers", detail, headers={"Connection": "close"})

    def _refuse_framing(self, scope: Scope, headers: Headers) -> ProblemAnswer | None:
        if scope["http_version"] not in ("1.0", "1.1"):
            detail = "the request names a version of HTTP that is not spoken here; use HTTP/1.1"
            return ProblemAnswer("bad-request", detail, headers={"Connection": "close"})
        length = headers.get("content-length")
        if "transfer-encoding" in headers and length is not None:
            # Two lengths for one body are how requests are smuggled past a proxy.
            detail = "the request has both Content-Length and Transfer-Encoding; send one of them"
            return ProblemAnswer("bad-request", detail, headers={"Connection": "close"})
        if headers.get("content-encoding", "identity").lower() != "identity":
            return ProblemAnswer("compressed-body", "the body has a Content-Encoding; send it as it is")
        limit = self.settings.max_upload_bytes
        return too_much_data(limit) if length is not None and int(length) > limit else None

    def _refuse_condition(self, scope: Scope, headers: Headers) -> ProblemAnswer | None:
        if scope["method"] in ("GET", "HEAD") or not ("if-match" in headers or "if-unmodified-since" in headers):
            return None
        # To go on as if nothing had been asked would change what the client wants to be left alone.
        detail = "what this route changes has no versions: leave If-Match and If-Unmodified-Since out"
        return ProblemAnswer("precondition-failed", detail)

    def _refuse_host(self, headers: Headers) -> ProblemAnswer | None:
        values = headers.getlist("host")
        if len(values) == 1 and self._knows(values[0]):
            return None
        # A page of another site can point its own name at 127.0.0.1 (DNS rebinding); its Host gives it away.
        return ProblemAnswer(
            "unknown-host", "the Host header must be localhost, 127.0.0.1, [::1] or a name in allowed_hosts"
        )

    def _refuse_origin(self, headers: Headers) -> ProblemAnswer | None:
        origin = headers.get("origin")
        if origin is None or self._knows(origin.partition("://")[2]):
            return None
        return ProblemAnswer(
            "foreign-origin", "the Origin header names another site; use the service from its own pages"
        )

    def _knows(self, authority: str) -> bool:
        name = _host_name(authority)
        return name is not None and (is_loopback(name) or name.lower() in self.settings.allowed_hosts)


def _line(scope: Scope, status: int, seconds: float) -> dict[str, Any]:
    """Return what a line of the log says of an answer; queries are left out, since they may be long or private."""
    caller = scope["state"].get("caller")
    whose = {"key": caller.key, "owner": caller.owner} if caller is not None and caller.owner else {}
    asked = {"method": scope["method"], "path": scope["path"][:200]}
    return {**asked, "status": status, "milliseconds": round(1000 * seconds, 1), **whose}


def _host_name(authority: str) -> str | None:
    """Return the host of `host[:port]` or `[v6][:port]`, or None where it is neither."""
    if authority.startswith("["):
        name, bracket, port = authority[1:].partition("]")
        if not bracket or (port and not port.startswith(":")):
            return None
        port = port[1:]
    else:
        name, _, port = authority.partition(":")
    return name if name and (not port or (port.isascii() and port.isdigit())) else None


def too_much_data(limit: int) -> ProblemAnswer:
    """Return the answer to a body above a limit."""
    return ProblemAnswer("too-much-data", f"the body is larger than {limit} bytes, the limit")


async def read_body(request: Request, *, limit: int = MAX_JSON_BYTES) -> bytes:
    """Return a request's body.

    Raises:
        ProblemAnswer: it is, or says that it is, larger than `limit` bytes.
    """
    declared = request.headers.get("content-length")
    if declared is not None and int(declared) > limit:
        raise too_much_data(limit)
    return b"".join([piece async for piece in _limited(request, limit)])


async def _limited(request: Request, limit: int) -> AsyncIterator[bytes]:
    received = 0
    async for piece in request.stream():
        received += len(piece)
        if received > limit:
            raise too_much_data(limit)
        yield piece

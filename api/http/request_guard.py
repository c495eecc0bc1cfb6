"""Bounds on every request, checked before anything else looks at it; the headers of every answer; the audit trail."""

import logging
import re
import secrets
import time
from functools import partial
from typing import Any
from urllib.parse import unquote

from anyio.to_thread import run_sync
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from factorize.api.access.caller import Caller
from factorize.api.http.access import is_proxy, trusts
from factorize.api.http.problems import METHODS, ProblemAnswer, below, prefix, problem_of
from factorize.api.jobs.audit_log import AuditLog
from factorize.api.settings import PATH_PREFIX, Settings
from factorize.api.telemetry import log_about, read_client_id, read_traceparent
from factorize.client.connection import is_loopback
from factorize.errors import StoreUnavailable

MAX_HEADER_BYTES = 16 << 10
MAX_HEADERS = 64
MAX_JSON_BYTES = 1 << 20
JSON = "application/json"
HSTS_SECONDS = 31_536_000
SECURITY_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
MAX_PREFIX_LENGTH = 200
_PREFIX = re.compile(PATH_PREFIX, re.ASCII)
_ABSOLUTE_TARGET = re.compile(rb"https?://([^/?#]+)(/.*)?", re.IGNORECASE)
_AUTHORITY = re.compile(r"(?:\[([^\]]+)\]|([^:\[][^:]*))(?::[0-9]*)?")
_log = logging.getLogger(__name__)
REFUSALS = {401: "not known", 403: "not allowed", 429: "too much"}
"""Statuses that are refusals of a caller, and not answers about what was asked."""


_REQUEST_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_COUNTED_METHODS = ("GET", "HEAD", "POST", "DELETE")


class HttpCounts:
    """Counters of one service's requests.

    Args:
        registry: holds them, for the route of metrics.

    Attributes:
        open: requests whose answers have not ended, streams among them.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self.open = Gauge("factorize_http_open", "Requests whose answers have not ended.", registry=registry)
        meaning = "Requests by route and status; what no route has is `none`."
        self._requests = Counter("factorize_http_requests", meaning, ["method", "route", "status"], registry=registry)
        meaning, name = "From a request to the head of its answer.", "factorize_http_seconds"
        self._seconds = Histogram(name, meaning, ["method", "route"], buckets=_REQUEST_SECONDS, registry=registry)

    def count_answer(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a request whose answer begins.

        Args:
            method: method of the request.
            route: route that has the request; `none` where none has it.
            status: status of the answer.
            seconds: since the request began.
        """
        known = method if method in _COUNTED_METHODS else "other"
        self._requests.labels(known, route, str(status)).inc()
        self._seconds.labels(known, route).observe(seconds)


class RequestGuard:
    """ASGI middleware: refuses what breaks a limit, completes the headers of every answer, and keeps the audit trail.

    It gives each request an id (`X-Request-Id`, and `request_id` in problem documents) of its own making: nothing
    that a client sends is repeated in a header. What a client calls its request stands in the log beside it.

    Args:
        app: the application behind it.
        settings: the limits, and whether all requests are audited.
        counts: counters of requests.
        audit: the audit log.
    """

    def __init__(self, app: ASGIApp, settings: Settings, counts: HttpCounts, audit: AuditLog) -> None:
        self.app, self.settings = app, settings
        self._counts, self._audit = counts, audit
        secure = {"Strict-Transport-Security": f"max-age={HSTS_SECONDS}"} if settings.https_certificate else {}
        self._headers = SECURITY_HEADERS | secure

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        _read_target(scope)
        headers = Headers(scope=scope)
        path = _proxied_below(scope, headers, self.settings)
        for name in ("path", "raw_path"):
            start: Any = path if name == "path" else path.encode("ascii")
            rest = (scope.get(name) or start[:0]).removeprefix(start)
            if path and rest.startswith(start[:1]):  # the proxy has passed it on
                scope[name] = rest
        trace = headers.get("traceparent")
        request_id, known_as = secrets.token_hex(8), read_client_id(headers.get("x-request-id"), trace)
        scope.setdefault("state", {})["request_id"] = request_id
        with log_about(request_id=request_id, client_request_id=known_as, traceparent=read_traceparent(trace)):
            with self._counts.open.track_inprogress(), below(path):
                await self._serve(scope, receive, send, request_id)

    async def _serve(self, scope: Scope, receive: Receive, send: Send, request_id: str) -> None:
        begun = time.monotonic()
        lost: list[ProblemAnswer] = []
        answered = False

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers["X-Request-Id"] = request_id
                if headers.get("location", "").startswith("/"):
                    headers["location"] = prefix() + headers["location"]
                for name, value in self._headers.items():
                    headers.setdefault(name, value)
            await send(message)

        async def send_and_count(message: Message) -> None:
            nonlocal answered
            answered = True
            if message["type"] == "http.response.start":
                status, seconds = message["status"], time.monotonic() - begun
                route = getattr(scope.get("route"), "path", "none") if "caller" in scope["state"] else "none"
                self._counts.count_answer(scope["method"], route, status, seconds)
                _log.info("a request is answered", extra={"about": _line(scope, status, seconds)})
                try:
                    await self._note(scope, status)
                except StoreUnavailable as error:
                    _log.error("a request could not be written to the audit log, so it was refused: %s", error)
                    lost.append(problem_of(error))
            if not lost:
                await send_with_headers(message)

        refusal = _refusal(scope, self.settings)
        answering: ASGIApp = self.app if refusal is None else refusal.response(request_id)
        if refusal is None and scope["method"] == "OPTIONS" and scope["path"] == "*":
            answering = Response(status_code=204, headers={"Allow": ", ".join(METHODS)})
        try:
            await answering(scope, receive, send_and_count)
        except Exception:
            if not answered:  # Starlette's own answer would not be counted, and would not have these headers
                await ProblemAnswer("internal").response(request_id)(scope, receive, send_and_count)
            raise
        for problem in lost:
            await problem.response(request_id)(scope, receive, send_with_headers)

    async def _note(self, scope: Scope, status: int) -> None:
        """Write down who was refused and, if the settings say so, each answer below `/v1/`."""
        address = (scope.get("client") or ("unknown",))[0]
        actor = scope["state"].get("caller", Caller("", "", frozenset(), address=address)).actor
        if status in REFUSALS:
            try:
                await run_sync(self._audit.refuse, actor, f"{status} {REFUSALS[status]}")
            except StoreUnavailable as error:
                _log.error("a refusal could not be written to the audit log: %s", error)
        elif self.settings.audit_requests and scope["path"].startswith("/v1/"):
            detail = {"method": scope["method"], "path": scope["path"][:1000], "status": status}
            await run_sync(partial(self._audit.add, "request", actor=actor, detail=detail))


def _read_target(scope: Scope) -> None:
    """Bring a request whose target is a whole address into the usual form; its Host is then the address's."""
    whole = _ABSOLUTE_TARGET.fullmatch(scope.get("raw_path") or b"")
    if whole is not None:
        path = whole[2] or b"/"
        scope["raw_path"], scope["path"] = path, unquote(path.decode("ascii"))
        others = [pair for pair in scope["headers"] if pair[0] != b"host"]
        scope["headers"] = [*others, (b"host", whole[1])]


def _proxied_below(scope: Scope, headers: Headers, settings: Settings) -> str:
    """Return the path below which the client sees the service, by a trusted proxy or by the settings."""
    said = headers.get("x-forwarded-prefix", "").rstrip("/")
    trusted = said and is_proxy(settings, (scope.get("client") or ("",))[0])
    return said if trusted and len(said) <= MAX_PREFIX_LENGTH and _PREFIX.fullmatch(said) else settings.root_path


def _refusal(scope: Scope, settings: Settings) -> ProblemAnswer | None:
    """Return the problem of a request that breaks a bound, or None."""
    headers, close = Headers(scope=scope), {"Connection": "close"}
    if not trusts(settings, (scope.get("client") or ("",))[0]):
        return ProblemAnswer("untrusted-peer")
    size = len(scope.get("raw_path") or b"") + len(scope["query_string"])
    size += sum(len(name) + len(value) + 4 for name, value in headers.raw)
    if size > MAX_HEADER_BYTES or len(headers.raw) > MAX_HEADERS:
        limits = f"the limits are {MAX_HEADER_BYTES} and {MAX_HEADERS}"
        detail = f"the header block has {size} bytes in {len(headers.raw)} fields; {limits}"
        return ProblemAnswer("too-many-headers", detail, headers=close)
    if scope["http_version"] not in ("1.0", "1.1"):
        detail = "this service does not support the request's version of HTTP; use HTTP/1.1"
        return ProblemAnswer("bad-request", detail, headers=close)
    length = headers.get("content-length")
    if "transfer-encoding" in headers and length is not None:
        # Two lengths for one body are how requests are smuggled past a proxy.
        detail = "the request has both Content-Length and Transfer-Encoding; send only one of them"
        return ProblemAnswer("bad-request", detail, headers=close)
    if b"%2f" in (scope.get("raw_path") or b"").lower():
        # A rule of a proxy that looks at the address as it was sent would not see the route that this would reach.
        return ProblemAnswer("not-found", "addresses here do not contain an encoded slash (%2F)")
    if headers.get("content-encoding", "identity").lower() != "identity":
        return ProblemAnswer("compressed-body", "the body has a Content-Encoding; send it without one")
    if length is not None and int(length) > settings.max_upload_bytes:
        return too_much_data(settings.max_upload_bytes)
    if scope["method"] not in ("GET", "HEAD") and ("if-match" in headers or "if-unmodified-since" in headers):
        # Going on as if nothing had been asked would change what the client wants to be left alone.
        detail = "this route has no versions to compare; leave out If-Match and If-Unmodified-Since"
        return ProblemAnswer("precondition-failed", detail)
    hosts, origin = headers.getlist("host"), headers.get("origin")
    if len(hosts) != 1 or not _is_ours(hosts[0], settings):
        # A page of another site can point its own name at 127.0.0.1 (DNS rebinding); its Host gives it away.
        detail = "the Host header must be localhost, 127.0.0.1, [::1] or a name in allowed_hosts"
        return ProblemAnswer("unknown-host", detail)
    if origin is not None and not _is_ours(origin.partition("://")[2], settings):
        detail = "the Origin header names another site; use the service from its own pages"
        return ProblemAnswer("foreign-origin", detail)
    return None


def _is_ours(authority: str, settings: Settings) -> bool:
    """Say whether `host[:port]` or `[v6][:port]` is this machine, or a name of the service."""
    host = _AUTHORITY.fullmatch(authority)
    if host is None:
        return False
    name = host[1] or host[2]
    return is_loopback(name) or name.lower() in settings.allowed_hosts


def _line(scope: Scope, status: int, seconds: float) -> dict[str, object]:
    """Return what a line of the log says of an answer; queries are left out, since they may be long or private."""
    caller = scope["state"].get("caller")
    whose = {"key": caller.key, "owner": caller.owner} if caller is not None and caller.owner else {}
    request = {"method": scope["method"], "path": scope["path"][:200]}
    return {**request, "status": status, "milliseconds": round(1000 * seconds, 1), **whose}


def too_much_data(limit: int) -> ProblemAnswer:
    """Return the answer to a body above a limit."""
    return ProblemAnswer("too-much-data", f"the body is larger than {limit} bytes, the limit")


async def read_body(request: Request, *, limit: int = MAX_JSON_BYTES, json: bool = True) -> bytes:
    """Return a request's body.

    Args:
        request: the request.
        limit: bytes.
        json: whether it has to be JSON, where it says what it is.

    Raises:
        ProblemAnswer: it is, or says that it is, larger than `limit` bytes; or it says that it is no JSON.
    """
    kind = request.headers.get("content-type", JSON).partition(";")[0].strip().lower()
    if json and kind != JSON and not kind.endswith("+json"):
        raise ProblemAnswer("unsupported-media-type")
    declared = request.headers.get("content-length")
    if declared is not None and int(declared) > limit:
        raise too_much_data(limit)
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > limit:
            raise too_much_data(limit)
    return bytes(body)

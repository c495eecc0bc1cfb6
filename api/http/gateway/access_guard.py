"""The check of every request against the table of routes: from the proxy, with a key, of the scope."""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from factorize.api.access.caller import ANYONE, STRANGER, Caller
from factorize.api.access.gate import Gate, credential_in
from factorize.api.access.refusals import AccessRefused
from factorize.api.http.gateway.route_table import ROUTES, RouteRow, row_of
from factorize.api.http.problems import KINDS, ProblemAnswer, problem_of
from factorize.api.settings import Settings, is_loopback
from factorize.errors import FactorizeError

_log = logging.getLogger(__name__)


class AccessGuard:
    """ASGI middleware: lets callers in by the table of routes.

    It leaves the caller in `scope["state"]["caller"]`, and in `admitted` what looks whether the caller would be let in
    again, or None where no key was needed.

    Args:
        app: the application behind it.
        settings: whether keys are asked for, and which proxies are trusted.
        gate: knows callers.
    """

    def __init__(self, app: ASGIApp, settings: Settings, gate: Gate) -> None:
        self.app = app
        self.settings = settings
        self._gate = gate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        state = scope.setdefault("state", {})
        try:
            if not trusts(self.settings, (scope.get("client") or ("",))[0]):
                raise ProblemAnswer("untrusted-peer", KINDS["untrusted-peer"].meaning)
            row = row_of(scope["method"], scope["path"])
            caller, credential = await self._let_in(scope, row)
        except (ProblemAnswer, FactorizeError) as error:
            problem = error if isinstance(error, ProblemAnswer) else problem_of(error)
            if problem.kind.status >= 500:
                _log.error("request %s: %s: %s", state.get("request_id", ""), type(error).__name__, error)
            await problem.response(state.get("request_id", ""))(scope, receive, send)
            return
        state["caller"] = caller
        state["admitted"] = partial(self._would_let_in, credential, caller) if credential else None
        await self.app(scope, receive, send)

    async def _let_in(self, scope: Scope, row: RouteRow | None) -> tuple[Caller, bytes]:
        """Return who asks, and by which credential; empty where none is needed."""
        address = (scope.get("client") or ("unknown",))[0]
        if not self.settings.asks_for_keys:
            return replace(ANYONE, address=address), b""
        values = [value for name, value in scope["headers"] if name == b"authorization"]
        if row is not None and row.scope is None and not (row.details and values):
            return replace(STRANGER if row.details else ANYONE, address=address), b""
        credential = credential_in(values)
        caller = await self._gate.admit(credential)
        if row is None:
            raise _no_route(scope["path"])
        if not caller.may(row.scope):
            raise AccessRefused(f"the key does not have the scope {row.scope}; ask the operator for one", "forbidden")
        return caller, credential

    async def _would_let_in(self, credential: bytes, caller: Caller) -> bool:
        try:
            return await self._gate.admit(credential) == caller
        except FactorizeError:  # refused, or the ledger does not answer: nobody is let in then
            return False


def trusts(settings: Settings, peer: str) -> bool:
    """Say whether requests from an address are answered: all with HTTPS or on loopback, else those of the proxies."""
    if not settings.trusted_proxies or settings.https_certificate is not None or is_loopback(peer):
        return True
    return is_proxy(settings, peer)


def is_proxy(settings: Settings, peer: str) -> bool:
    """Say whether an address is that of a proxy, which stands for many clients."""
    try:
        address = ipaddress.ip_address(peer)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None) or address
    return any(mapped in network for network in settings.trusted_proxies)


async def caller_of(request: Request) -> Caller:
    """Return who asks; the guard has let them in."""
    caller: Caller = request.scope["state"]["caller"]
    return caller


def admission_of(request: Request) -> Callable[[], Awaitable[bool]] | None:
    """Return what looks whether the caller of a request would be let in again; None where no key was needed."""
    found: Callable[[], Awaitable[bool]] | None = request.scope["state"]["admitted"]
    return found


def _no_route(path: str) -> ProblemAnswer:
    """Return the answer for what no row has; the framework is not asked, which may read a path otherwise."""
    allowed = [row.method for row in ROUTES if row.pattern.fullmatch(path)]
    if not allowed:
        return ProblemAnswer("not-found", KINDS["not-found"].meaning)
    return ProblemAnswer(
        "method-not-allowed", KINDS["method-not-allowed"].meaning, headers={"Allow": ", ".join(allowed)}
    )

"""Access to routes: the key that a route asks of its callers, and the call that it gets of one."""

import asyncio
import ipaddress
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, replace
from typing import Annotated

from fastapi import APIRouter, Depends, HTTPException, Request
from fastapi.routing import APIRoute

from factorize.api.access.caller import ANYONE, STRANGER, AccessRefused, Caller, Scope
from factorize.api.access.gate import Gate, credential_in
from factorize.api.service import SolverService
from factorize.api.settings import Settings
from factorize.client.connection import is_loopback
from factorize.errors import FactorizeError, InvalidParameter


@dataclass(frozen=True, slots=True)
class Call:
    """A request whose caller was let in, as a route sees it.

    Attributes:
        request: the request.
        caller: the one who asks.
        admitted: looks whether the caller would be let in again; None where no key was needed.
    """

    request: Request
    caller: Caller
    admitted: Callable[[], Awaitable[bool]] | None = None

    @property
    def service(self) -> SolverService:
        """The running service."""
        return self.request.app.state.service


@dataclass(frozen=True)
class Access:
    """The access to one route. It leaves the caller in `scope["state"]["caller"]`, too.

    Args:
        scope: what a caller needs; None is open to everyone.
        details: the scope with which a route that is open to everyone says more; None where nobody is told more.
        known: whether there is such a route; else any key is told that there is none.
    """

    scope: Scope | None
    details: Scope | None = None
    known: bool = True

    async def __call__(self, request: Request) -> Call:
        """Let a caller in.

        Raises:
            AccessRefused: no key, none of this service, or one without the scope.
            StoreUnavailable: the ledger does not answer.
            InvalidParameter: the address has a query value that its route does not take, or one twice.
        """
        if self.known and request.scope["path"].endswith("\n"):  # the `$` of a route's pattern takes it
            raise HTTPException(404)
        call = await self._let_in(request)
        request.scope["state"]["caller"] = call.caller
        if self.known and request.scope["path"].startswith("/v1/"):
            kinds = {one.alias: one.field_info.annotation for one in request.scope["route"].dependant.query_params}
            taken = [name for alias, kind in kinds.items() for name in getattr(kind, "model_fields", [alias])]
            names = [name for name, _ in request.query_params.multi_items()]
            for name in set(names) - set(taken):
                known = f"takes {', '.join(taken)}" if taken else "takes no query"
                raise InvalidParameter(f"unknown query value {name[:40]!a}; this address {known}", field=name[:40])
            if repeated := [name for name in taken if names.count(name) > 1]:
                raise InvalidParameter(f"query value {repeated[0]} is given twice; keep one", field=repeated[0])
        return call

    async def _let_in(self, request: Request) -> Call:
        values = request.headers.getlist("authorization")
        address = request.client.host if request.client else "unknown"
        if not request.app.state.service.settings.asks_for_keys:
            return Call(request, replace(ANYONE, address=address))
        if self.known and self.scope is None and not (self.details and values):
            return Call(request, replace(STRANGER if self.details else ANYONE, address=address))
        gate: Gate = request.app.state.gate
        try:
            credential = credential_in([value.encode("latin-1") for value in values])
            caller = await gate.admit(credential)
        except AccessRefused as refused:
            if self.known and self.scope is None and refused.problem == "unauthorized":  # as if no key were shown
                return Call(request, replace(STRANGER, address=address))
            raise
        if not caller.may(self.scope):
            message = f"the key does not have the scope {self.scope}; ask the operator for a key that has it"
            raise AccessRefused(message, "forbidden")

        async def admit_again() -> bool:
            looks: dict[bytes, asyncio.Future[Caller]] = request.app.state.admissions
            if credential not in looks:  # thousands of streams look at one beat, and those of a key share a look
                looks[credential] = asyncio.ensure_future(gate.admit(credential))
                looks[credential].add_done_callback(lambda _: looks.pop(credential))
            try:
                return await asyncio.shield(looks[credential]) == caller
            except FactorizeError:  # refused, or the ledger does not answer: nobody is let in then
                return False

        return Call(request, caller, admit_again)


OpenCall = Annotated[Call, Depends(Access(None))]
DetailsCall = Annotated[Call, Depends(Access(None, Scope.MONITOR))]
ReadCall = Annotated[Call, Depends(Access(Scope.READ))]
SubmitCall = Annotated[Call, Depends(Access(Scope.SUBMIT))]
UploadCall = Annotated[Call, Depends(Access(Scope.UPLOAD))]
MonitorCall = Annotated[Call, Depends(Access(Scope.MONITOR))]
AdminCall = Annotated[Call, Depends(Access(Scope.ADMIN))]
NO_ROUTE = Access(None, known=False)


@dataclass(frozen=True)
class RouteRow:
    """A route and what it asks; GET stands for HEAD too, where the route has it."""

    method: str
    path: str
    access: Access


def rows_of(routers: Iterable[APIRouter]) -> tuple[RouteRow, ...]:
    """Return the routes of some routers; one that asks nothing of its callers is a mistake, and raises IndexError."""
    rows = []
    for route in (route for router in routers for route in router.routes if isinstance(route, APIRoute)):
        access = [one.call for one in route.dependant.dependencies if isinstance(one.call, Access)][0]
        rows += [RouteRow(method, route.path, access) for method in sorted(route.methods or ()) if method != "HEAD"]
    return tuple(rows)


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

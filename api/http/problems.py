"""Problem documents, for what went wrong over HTTP (RFC 9457): an error's own slug, or that of its class's parent.

`type` is `/problems/<slug>`, below the proxy's path where there is one. A slug never changes its meaning, and
`GET /problems/<slug>` says it in a sentence.
Problem documents are ASCII JSON made of our own words: input is quoted in short, escaped pieces or not at all.
"""

import json
import logging
import math
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from sqlalchemy.exc import DBAPIError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.routing import Match

from factorize import errors as tree
from factorize.api.access.caller import AboveCapacity, AccessRefused, QuotaExhausted
from factorize.api.http.access import NO_ROUTE
from factorize.api.service import StoreReadOnly
from factorize.api.workers.worker import without_places
from factorize.encoding import canonical_json
from factorize.plain_data import describe_violation

MEDIA_TYPE = "application/problem+json"
RETRY_SECONDS = 5
_FAULT = "the service cannot use its store, its job database or its issuer now; try again. Its log and /readyz say more"
CHALLENGE = 'Bearer realm="factorize"'
_prefix: ContextVar[str] = ContextVar("factorize_path_prefix", default="")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of problem.

    Args:
        status: HTTP status.
        title: the same few words each time.
        meaning: what it means and what to do.
    """

    status: int
    title: str
    meaning: str


KINDS: dict[str, Kind] = {
    slug: Kind(**stated)
    for slug, stated in tomllib.loads((files(__package__) / "problems.toml").read_text(encoding="utf-8")).items()
}

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")
_STATUS_SLUGS = {404: "not-found", 413: "too-much-data"}


class ProblemAnswer(Exception):
    """An answer that is a problem document.

    Args:
        slug: its kind, a key of `KINDS`.
        detail: what happened this time: value, limit, way out; by default what its kind means.
        headers: further response headers.
        extra: further members of the document.
    """

    def __init__(
        self,
        slug: str,
        detail: str = "",
        *,
        headers: Mapping[str, str] | None = None,
        extra: Mapping[str, object] | None = None,
    ) -> None:
        self.slug, self.kind = slug, KINDS[slug]
        self.detail = detail or self.kind.meaning
        self.headers, self.extra = dict(headers or {}), dict(extra or {})
        super().__init__(self.detail)

    def body(self, request_id: str) -> bytes:
        """Return the document's bytes."""
        document = {"type": f"{prefix()}/problems/{self.slug}", "title": self.kind.title, "status": self.kind.status}
        return canonical_json({**self.extra, **document, "detail": self.detail, "request_id": request_id})

    def response(self, request_id: str) -> Response:
        """Return the answer."""
        headers = dict(self.headers)
        if self.kind.status == 503:
            headers.setdefault("Retry-After", str(RETRY_SECONDS))
        return Response(self.body(request_id), self.kind.status, headers, MEDIA_TYPE)


def prefix() -> str:
    """Return the path below which the client of the present request sees the service, empty without a proxy's."""
    return _prefix.get()


@contextmanager
def below(path: str) -> Iterator[None]:
    """Answer what happens within for clients that see the service below a path."""
    token = _prefix.set(path)
    try:
        yield
    finally:
        _prefix.reset(token)


def problem_of(error: tree.FactorizeError, *, body: bytes | None = None, part: str = "") -> ProblemAnswer:
    """Return the problem that an expected error is.

    Args:
        error: the error.
        body: the request's body, where the error is about it.
        part: pointer of the part of the body that pointers of the error begin from; names are of the whole body.
    """
    away = "unavailable" if isinstance(error, tree.StoreError | tree.ServiceError) else "internal"
    slug = next((slug for kind in type(error).__mro__ if (slug := getattr(kind, "slug", "")) in KINDS), away)
    if isinstance(error, tree.MalformedJson) and body is not None and _is_json(body):
        return ProblemAnswer("invalid-spec", str(error), extra={"errors": [{"pointer": "", "detail": str(error)}]})
    if isinstance(error, AccessRefused):
        challenge = {"WWW-Authenticate": CHALLENGE} if error.problem == "unauthorized" else {}
        return ProblemAnswer(error.problem, str(error), headers=challenge)
    if isinstance(error, QuotaExhausted):
        return ProblemAnswer(slug, str(error), headers={"Retry-After": str(math.ceil(error.seconds))})
    if slug == "unavailable" and not isinstance(
        error, StoreReadOnly
    ):  # its words name hosts, users and folders, which are the operator's
        return ProblemAnswer(slug, _FAULT)
    extra: dict[str, object] = {}
    if isinstance(error, AboveCapacity):
        extra["estimate"] = dict(error.estimate)
    elif isinstance(error, tree.Revoked):
        extra |= {"digest": error.digest, "reason": error.reason}
    elif isinstance(error, tree.InvalidSpec):
        extra["errors"] = [{"pointer": v.pointer, "detail": v.message} for v in error.violations]
    elif isinstance(error, tree.InvalidParameter) and error.field:
        extra["errors"] = [{"pointer": _pointer(error.field, part), "detail": str(error)}]
    return ProblemAnswer(slug, str(error) if KINDS[slug].status < 500 else without_places(str(error)), extra=extra)


def _pointer(field: str, part: str = "") -> str:
    return part + field if field.startswith("/") else f"/{field}"


def _is_json(body: bytes) -> bool:
    """Say whether a text that the strict reader refuses is JSON by the standard's grammar (RFC 8259)."""
    try:
        json.loads(body.decode("utf-8"), parse_int=len, parse_float=len, parse_constant=int)  # no int is called NaN
    except RecursionError:
        return True
    except ValueError:
        return False
    return True


def request_id(request: Request) -> str:
    """Return the id that the answer to this request carries."""
    return str(request.scope.get("state", {}).get("request_id", ""))


async def _on_error(request: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException) and "caller" not in request.scope["state"]:
        try:
            await NO_ROUTE(request)  # no route has it, which strangers are not told
        except tree.FactorizeError as refusal:
            error = refusal
    problem = next(make for kind, make in _PROBLEMS.items() if isinstance(error, kind))(request, error)
    told = error.__cause__ if isinstance(error, ProblemAnswer) else error
    if problem.kind.status >= 500 and isinstance(told, _LOGGED_ERRORS):
        _log.error("request %s: %s: %s", request_id(request), type(told).__name__, told)
    return problem.response(request_id(request))


def _of_status(request: Request, error: HTTPException) -> ProblemAnswer:
    """Return the problem of a status; of 405 with every method that some route has for this path."""
    if error.status_code != 405:
        return ProblemAnswer(_STATUS_SLUGS.get(error.status_code, "bad-request"))
    scopes = ({**request.scope, "method": method} for method in METHODS)
    fits = [one for one in scopes if any(route.matches(one)[0] is Match.FULL for route in request.app.routes)]
    return ProblemAnswer("method-not-allowed", headers={"Allow": ", ".join(one["method"] for one in fits)})


def _of_validation(_request: Request, error: RequestValidationError) -> ProblemAnswer:
    places = [{"pointer": _pointer(str(e["loc"][-1])), "detail": describe_violation(e)} for e in error.errors()]
    detail = "; ".join(f"{place['pointer'][1:]}: {place['detail']}" for place in places)
    return ProblemAnswer("invalid-parameter", detail, extra={"errors": places})


_SHORTAGE = "the service cannot use {} now; try again"
_PROBLEMS: dict[type[Exception], Callable[[Request, Any], ProblemAnswer]] = {
    ProblemAnswer: lambda _request, error: error,
    tree.FactorizeError: lambda _request, error: problem_of(error),
    HTTPException: _of_status,
    RequestValidationError: _of_validation,
    # Nobody reads this answer: the client has gone before its body was complete.
    ClientDisconnect: lambda *_: ProblemAnswer("request-timeout"),
    DBAPIError: lambda *_: ProblemAnswer("unavailable", _SHORTAGE.format("its job database")),  # locked, full or gone
    MemoryError: lambda *_: ProblemAnswer("unavailable", _SHORTAGE.format("as much memory as this answer takes")),
    Exception: lambda *_: ProblemAnswer("internal"),  # Starlette logs the traceback
}
"""The problems that errors become, by the first class that fits."""
HANDLERS: dict[Any, Any] = dict.fromkeys(_PROBLEMS, _on_error)
"""What an application is given, so that each of its errors is a problem document."""
_LOGGED_ERRORS = (tree.FactorizeError, DBAPIError, MemoryError)

"""The table of routes: for each, the scope that a caller needs, and what of the caller's own is seen or changed by it.

Every route of the application has one row here, and every row a route; a test compares them. What has no row is refused
to everyone. docs/security.md shows the table.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

from factorize.api.access.caller import Scope


@dataclass(frozen=True)
class RouteRow:
    """What one route asks.

    Args:
        method: GET stands for HEAD too, where the route has it.
        path: as the application spells it.
        scope: what a caller needs; None is open to everyone.
        sees: whose things it shows or changes, for the docs.
        details: the scope with which a route that is open to everyone says more; None where nobody is told more.
    """

    method: str
    path: str
    scope: Scope | None
    sees: str
    details: Scope | None = None

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """Matches paths of this route."""
        return re.compile(re.sub(r"\\{\w+\\}", r"[^/\n]+", re.escape(self.path)))


_NAMED = "/v1/factorizations/{name}"
_KEYS = "/v1/keys"
_KEY = f"{_KEYS}/{{key_id}}"
_SHARED = "results, whoever had them solved"
_BOTH = "results, whoever had them solved; the caller's own jobs"
_OWN = "the caller's own jobs"
_NOTHING = "nothing that is stored"

ROUTES = (
    RouteRow("GET", "/healthz", None, "whether the process answers"),
    RouteRow("GET", "/problems/{slug}", None, "the meaning of a problem type"),
    RouteRow("GET", "/readyz", None, "whether database, store and engine answer", details=Scope.MONITOR),
    RouteRow("GET", "/metrics", Scope.MONITOR, "counts over all callers"),
    RouteRow("GET", "/openapi.json", Scope.READ, _NOTHING),
    RouteRow("GET", "/", None, "the page, which holds no data"),
    RouteRow("GET", "/page/{name}", None, "the page's scripts and style"),
    RouteRow("GET", "/v1/caller", Scope.READ, "who the caller is"),
    RouteRow("GET", _KEYS, Scope.ADMIN, "keys of all callers, without secrets"),
    RouteRow("POST", _KEYS, Scope.ADMIN, "a new key, with its token"),
    RouteRow("GET", _KEY, Scope.ADMIN, "a key of any caller, without its secret"),
    RouteRow("POST", f"{_KEY}/revoke", Scope.ADMIN, "a key of any caller"),
    RouteRow("GET", "/v1/factorizations", Scope.READ, "the caller's own jobs; results that no job has made"),
    RouteRow("POST", "/v1/factorizations", Scope.SUBMIT, _BOTH),
    RouteRow("GET", _NAMED, Scope.READ, _BOTH),
    RouteRow("DELETE", _NAMED, Scope.SUBMIT, _OWN),
    RouteRow("POST", f"{_NAMED}/retry", Scope.SUBMIT, _OWN),
    RouteRow("GET", f"{_NAMED}/events", Scope.READ, _BOTH),
    RouteRow("GET", f"{_NAMED}/matrices/{{matrix}}", Scope.READ, _SHARED),
    RouteRow("GET", f"{_NAMED}/matrices/{{matrix}}/cells", Scope.READ, _SHARED),
    RouteRow("GET", f"{_NAMED}/errors", Scope.READ, _SHARED),
    RouteRow("GET", "/v1/blobs/{sha256}", Scope.READ, "files of results; the caller's own uploads"),
    RouteRow("POST", "/v1/matrices", Scope.UPLOAD, "the caller's own uploads"),
    RouteRow("POST", "/v1/canonicalize", Scope.READ, "whether a result is stored"),
    RouteRow("POST", "/v1/compare", Scope.SUBMIT, "the caller's own uploads"),
    RouteRow("POST", "/v1/recommend", Scope.SUBMIT, _NOTHING),
    RouteRow("POST", "/v1/predict", Scope.READ, _SHARED),
    RouteRow("POST", f"{_NAMED}/calibrations", Scope.SUBMIT, _SHARED),
    RouteRow("GET", f"{_NAMED}/calibrations", Scope.SUBMIT, _SHARED),
    RouteRow("DELETE", f"{_NAMED}/calibrations", Scope.SUBMIT, "the calibrations that the caller has asked for"),
)

_BY_SHAPE: dict[tuple[str, int], list[RouteRow]] = {}
"""By method and number of slashes, since a name in a path has none: every request is looked up."""
for _row in ROUTES:
    _BY_SHAPE.setdefault((_row.method, _row.path.count("/")), []).append(_row)


def row_of(method: str, path: str) -> RouteRow | None:
    """Return the row of a request, or None where no route has it.

    Args:
        method: of the request; HEAD counts as GET.
        path: of the request, decoded.
    """
    shape = "GET" if method == "HEAD" else method, path.count("/")
    return next((row for row in _BY_SHAPE.get(shape, ()) if row.pattern.fullmatch(path)), None)


def table_of_routes() -> str:
    """Return the table as docs/security.md has it, in Markdown."""
    lines = ["| route | scope | whose things it shows or changes |", "| --- | --- | --- |"]
    return "\n".join(lines + [f"| `{row.method} {row.path}` | {_scope_of(row)} | {row.sees} |" for row in ROUTES])


def _scope_of(row: RouteRow) -> str:
    return row.scope or "open to everyone" + (f"; details with {row.details}" if row.details else "")

"""The routes of the service with what each asks of its callers, and the one that a request is for."""

from __future__ import annotations

import re

from factorize.api.http.access import RouteRow
from factorize.api.http.app import ROUTES

_PATTERNS = [(row, re.compile(re.sub(r"\\{\w+\\}", r"[^/\n]+", re.escape(row.path)))) for row in ROUTES]


def row_of(method: str, path: str) -> RouteRow | None:
    """The route of a request; HEAD counts as GET."""
    known = "GET" if method == "HEAD" else method
    return next((row for row, pattern in _PATTERNS if row.method == known and pattern.fullmatch(path)), None)

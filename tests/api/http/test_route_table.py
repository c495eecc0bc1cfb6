"""What the routes ask of their callers: every route asks something, and the docs say what."""

from __future__ import annotations

import re
from pathlib import Path

from fastapi.routing import iter_route_contexts

from factorize.api.http.access import RouteRow
from factorize.api.http.app import ROUTES, create_app
from factorize.api.settings import Settings

PAGE = (Path(__file__).parents[3] / "docs" / "security.md").read_text()
SHOWN = re.compile(r"^\| `([A-Z]+) (/\S*)` \| (open to everyone(?:; details with \w+)?|[a-z]+) \| [^|]+ \|$", re.M)


def test_every_route_of_the_application_asks_something_of_its_callers(tmp_path: Path) -> None:
    app = create_app(Settings(store=str(tmp_path)))
    app.state.service.ledger.close()
    rows = [(row.method, row.path) for row in ROUTES]
    routes = {
        (method, str(route.path)) for route in iter_route_contexts(app.routes) for method in route.methods or ("?",)
    }
    assert len(set(rows)) == len(rows)
    assert {route for route in routes if route[0] != "HEAD"} == set(rows)
    assert {path for method, path in routes if method == "HEAD"} <= {path for method, path in rows if method == "GET"}


def test_only_liveness_explanations_and_an_empty_page_are_open_to_everyone() -> None:
    assert {row.path for row in ROUTES if row.access.scope is None} == {
        "/healthz", "/readyz", "/problems/{slug}", "/", "/page/{name}"
    }  # fmt: skip


def scope_in_words(row: RouteRow) -> str:
    details = f"; details with {row.access.details}" if row.access.details else ""
    return row.access.scope or f"open to everyone{details}"


def test_the_docs_show_what_each_route_asks() -> None:
    shown = SHOWN.findall(PAGE)
    assert set(shown) == {(row.method, row.path, scope_in_words(row)) for row in ROUTES}
    assert len(shown) == len(ROUTES)

"""The table of routes against the application: every route has a row, every row a route."""

from __future__ import annotations

from pathlib import Path

import pytest
from fastapi.routing import iter_route_contexts

from factorize.api.http.app import create_app
from factorize.api.http.gateway.route_table import ROUTES, row_of, table_of_routes
from factorize.api.settings import Settings


def routes_of_the_application(store: Path) -> set[tuple[str, str]]:
    app = create_app(Settings(store=str(store)))
    app.state.service.ledger.close()
    return {
        (method, str(route.path)) for route in iter_route_contexts(app.routes) for method in route.methods or ("?",)
    }


def test_every_route_has_one_row_and_every_row_a_route(tmp_path: Path) -> None:
    rows = [(row.method, row.path) for row in ROUTES]
    found = routes_of_the_application(tmp_path)
    assert len(set(rows)) == len(rows)
    assert {route for route in found if route[0] != "HEAD"} == set(rows)
    assert {path for method, path in found if method == "HEAD"} <= {path for method, path in rows if method == "GET"}


@pytest.mark.parametrize("row", ROUTES, ids=lambda row: f"{row.method} {row.path}")
def test_a_row_is_found_by_its_own_requests_alone(row) -> None:
    path = (
        row.path.replace("{name}", "a" * 64)
        .replace("{matrix}", "C")
        .replace("{slug}", "s")
        .replace("{sha256}", "b")
        .replace("{key_id}", "c")
    )
    assert row_of(row.method, path) is row
    assert row_of("HEAD", path) is (row if row.method == "GET" else row_of("GET", path))
    assert row_of("PATCH", path) is None
    assert row_of(row.method, f"{path}/x/y/z") is None
    assert row_of(row.method, f"{path}\n") is None


def test_only_liveness_explanations_and_an_empty_page_are_open_to_everyone() -> None:
    assert {row.path for row in ROUTES if row.scope is None} == {
        "/healthz", "/readyz", "/problems/{slug}", "/", "/page/{name}"
    }  # fmt: skip


def test_the_docs_show_the_table() -> None:
    page = (Path(__file__).parents[3] / "docs" / "security.md").read_text()
    assert f"\n\n{table_of_routes()}\n\n" in page, f"docs/security.md does not hold\n{table_of_routes()}"

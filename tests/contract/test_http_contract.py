"""The HTTP contract as a whole: routes, OpenAPI document, headers of every answer, and the page that describes them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from servers import LiveService

from factorize import errors
from factorize.api.http.app import ROUTES
from factorize.api.http.problems import KINDS, problem_of
from factorize.api.settings import Settings

PAGE = Path(__file__).parents[2] / "docs/http.md"
SPEC = {"workload": {"kind": "prefix", "n": 5}, "mechanism": {"kind": "identity"}}


def test_every_answer_has_the_protecting_headers(live_service: LiveService) -> None:
    name = live_service.solve(SPEC)["digest"]
    paths = [
        "/",
        "/healthz",
        "/metrics",
        "/openapi.json",
        "/nothing",
        f"/v1/factorizations/{name}",
        "/v1/factorizations",
    ]
    seen = set()
    for path in paths:
        answer = live_service.get(path)
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert answer.headers["server"] == "factorize"
        assert re.fullmatch("[0-9a-f]{16}", answer.headers["x-request-id"])
        assert "access-control-allow-origin" not in answer.headers
        assert "cache-control" in answer.headers
        seen.add(answer.headers["x-request-id"])
    assert len(seen) == len(paths)


def test_a_request_id_is_ours_and_not_the_clients(live_service: LiveService) -> None:
    answer = live_service.get("/healthz", {"X-Request-Id": "0123456789abcdef"})
    assert answer.headers["x-request-id"] != "0123456789abcdef"


def test_every_problem_has_a_page_of_its_own(live_service: LiveService) -> None:
    for slug, kind in KINDS.items():
        answer = live_service.get(f"/problems/{slug}")
        assert (answer.status, answer.headers["content-type"]) == (200, "text/plain; charset=utf-8")
        assert kind.meaning in answer.body.decode()
    live_service.get("/problems/nothing").problem(404, "not-found")


def test_the_page_describes_every_route_and_problem() -> None:
    text = PAGE.read_text()
    for row in (row for row in ROUTES if row.path != "/" and not row.path.startswith(("/static", "/page"))):
        assert re.search(rf"`{row.method} {re.escape(row.path)}[`?]", text), row
    for slug, kind in KINDS.items():
        assert f"| {kind.status} | `{slug}` |" in text, slug


def test_the_page_describes_every_setting() -> None:
    text = PAGE.read_text()
    for name in Settings.model_fields:
        assert f"| `{name}` |" in text, name


@pytest.mark.parametrize("kind", [errors.StoreUnavailable, errors.ServiceUnreachable])
def test_what_is_away_is_said_without_its_address(kind):
    words = 'connection to server at "10.0.0.6", port 5432 failed: user "factorize", /srv/store'
    answer = problem_of(kind(words))
    assert answer.kind.status == 503
    body = bytes(answer.response("id").body).decode()
    assert not any(word in body for word in ("10.0.0.6", "port 5432", '"factorize', "/srv")) and "/readyz" in body

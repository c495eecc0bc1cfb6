"""Every route with what it answers and what it refuses, at a service that asks for no key.

Statuses by scope, and refusals of foreign, ended and missing keys, are in tests/api/http/test_access.py and test_tenancy.py;
bodies that are no JSON or no spec at all in test_hostile_requests.py; ranges of files in test_downloads.py.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
from servers import LiveService

SPEC = {"workload": {"kind": "prefix", "n": 5}, "mechanism": {"kind": "identity"}}
BAD = {"workload": {"kind": "prefix", "n": 0}}
UNSUPPORTED = {
    "workload": {"kind": "prefix", "n": 8},
    "mechanism": {"kind": "semidefinite"},
    "participation": {"kind": "min_sep", "min_sep": 3},
}
LARGE = {"workload": {"kind": "prefix", "n": 100_000}, "mechanism": {"kind": "dense"}}
TARGET = {"epsilon": 2.0, "delta": 1e-5}
KNOWN, UNKNOWN = "/v1/factorizations/{known}", f"/v1/factorizations/{'a' * 64}"

# method, path, body, status, last part of the problem's type
CASES: list[tuple[str, str, Any, int, str | None]] = [
    ("GET", "/healthz", None, 200, None),
    ("GET", "/readyz", None, 200, None),
    ("GET", "/metrics", None, 200, None),
    ("GET", "/problems/too-large", None, 200, None),
    ("GET", "/problems/none", None, 404, "not-found"),
    ("GET", "/", None, 200, None),
    ("GET", "/page/none", None, 404, "not-found"),
    ("GET", "/openapi.json", None, 200, None),
    ("GET", "/nothing", None, 404, "not-found"),
    ("PUT", "/v1/factorizations", None, 405, "method-not-allowed"),
    ("GET", "/v1/caller", None, 200, None),
    ("GET", "/v1/keys", None, 403, "keys-closed"),
    ("POST", "/v1/keys", {"name": "x"}, 403, "keys-closed"),
    ("GET", "/v1/keys/x", None, 422, "invalid-parameter"),
    ("POST", "/v1/keys/x/revoke", None, 422, "invalid-parameter"),
    ("GET", "/v1/factorizations", None, 200, None),
    ("GET", "/v1/factorizations?limit=0", None, 422, "invalid-parameter"),
    ("POST", "/v1/factorizations", SPEC, 200, None),
    ("POST", "/v1/factorizations", "{", 400, "malformed-json"),
    ("POST", "/v1/factorizations", BAD, 422, "invalid-spec"),
    ("POST", "/v1/factorizations", UNSUPPORTED, 422, "unsupported-problem"),
    ("POST", "/v1/factorizations", LARGE, 422, "too-large"),
    ("GET", KNOWN, None, 200, None),
    ("GET", UNKNOWN, None, 404, "not-found"),
    ("GET", "/v1/factorizations/x", None, 404, "not-found"),
    ("DELETE", KNOWN, None, 409, "finished"),
    ("DELETE", UNKNOWN, None, 404, "not-found"),
    ("POST", f"{UNKNOWN}/retry", None, 404, "not-found"),
    ("GET", f"{KNOWN}/events", None, 200, None),
    ("GET", f"{UNKNOWN}/events", None, 404, "not-found"),
    ("GET", f"{KNOWN}/errors", None, 200, None),
    ("GET", f"{UNKNOWN}/errors", None, 404, "not-found"),
    ("GET", f"{KNOWN}/matrices/C", None, 200, None),
    ("GET", f"{KNOWN}/matrices/C?rows=3:99", None, 422, "invalid-parameter"),
    ("GET", f"{KNOWN}/matrices/D", None, 404, "not-found"),
    ("GET", f"{UNKNOWN}/matrices/C", None, 404, "not-found"),
    ("GET", f"{KNOWN}/matrices/C/cells", None, 200, None),
    ("GET", f"{KNOWN}/matrices/D/cells", None, 404, "not-found"),
    ("GET", f"{UNKNOWN}/matrices/C/cells", None, 404, "not-found"),
    ("POST", "/v1/canonicalize", SPEC, 200, None),
    ("POST", "/v1/canonicalize", BAD, 422, "invalid-spec"),
    ("POST", "/v1/compare", {}, 422, "invalid-spec"),
    ("POST", "/v1/recommend", {}, 422, "invalid-spec"),
    ("POST", "/v1/recommend/fleet", {}, 422, "invalid-spec"),
    ("POST", "/v1/predict", {}, 422, "invalid-spec"),
    ("POST", f"{KNOWN}/calibrations", {**TARGET, "epsilon": -1}, 422, "invalid-spec"),
    ("POST", f"{UNKNOWN}/calibrations", TARGET, 404, "not-found"),
    ("POST", "/v1/matrices", "x", 422, "invalid-parameter"),
    ("GET", f"/v1/blobs/{'a' * 64}", None, 404, "not-found"),
    ("GET", "/v1/blobs/x", None, 404, "not-found"),
]


@pytest.fixture(scope="module")
def known(live_service: LiveService) -> str:
    return str(live_service.solve(SPEC)["digest"])


@pytest.mark.parametrize(("method", "path", "body", "status", "slug"), CASES)
def test_a_route_answers_or_refuses_by_its_row(
    live_service: LiveService, known: str, method: str, path: str, body: Any, status: int, slug: str | None
) -> None:
    answer = live_service.send(method, path.replace("{known}", known), body)
    assert answer.status == status, answer
    if slug is not None:
        assert answer.headers["content-type"] == "application/problem+json"
        problem = answer.json()
        assert problem["type"].removesuffix(slug).endswith("/") and problem["status"] == status and problem["detail"]


def test_every_route_of_the_document_has_a_row(live_service: LiveService) -> None:
    for path, methods in live_service.get("/openapi.json").json()["paths"].items():
        pattern = re.compile(re.sub(r"\\{\w+\\}", "[^/]+", re.escape(path)) + r"(\?.*)?")
        for method in methods:
            assert any(row[0] == method.upper() and pattern.fullmatch(row[1]) for row in CASES), (method, path)

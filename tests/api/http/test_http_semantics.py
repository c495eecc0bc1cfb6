"""HTTP as RFC 9110 and 9112 have it: HEAD, conditions, ranges, targets, types of bodies, compressed answers."""

from __future__ import annotations

import gzip
from typing import Any

import pytest
from servers import LiveService

from factorize.api.http.app import ROUTES

SPEC: dict[str, Any] = {"workload": {"kind": "prefix", "n": 7}, "mechanism": {"kind": "square_root"}}


@pytest.fixture(scope="module")
def manifest(live_service: LiveService) -> dict[str, Any]:
    return live_service.solve(SPEC)


def test_head_is_answered_wherever_get_is(live_service: LiveService, manifest: dict[str, Any]) -> None:
    names = {"name": manifest["digest"], "matrix": "C", "sha256": manifest["files"][0]["sha256"], "slug": "busy"}
    names |= {"digest": "0" * 64, "key_id": "0" * 12}
    for row in ROUTES:
        if row.method == "GET":
            path = row.path.format(**names) if row.path != "/page/{name}" else "/page/main.js"
            got, head = live_service.get(path), live_service.send("HEAD", path)
            assert (head.status, head.body) == (got.status, b""), path
            assert head.headers["content-type"] == got.headers["content-type"], path
            assert ("content-length" in head.headers) is ("content-length" in got.headers), path


@pytest.mark.parametrize(
    ("wanted", "status", "span"),
    [
        ("bytes=0-99999999999999999999999", 206, (0, None)),
        ("bytes=5-", 206, (5, None)),
        ("bytes=-99999999999999999999999", 206, (0, None)),
        ("bytes=-3", 206, (-3, None)),
        ("bytes= , 2-,", 206, (2, None)),  # empty elements of a list are none
        ("bytes=0-1,3-4", 416, None),
        ("bytes=9999999999-", 416, None),
        ("bytes=-0", 416, None),
    ],
)
def test_ranges_are_clamped_to_the_file(
    live_service: LiveService, manifest: dict[str, Any], wanted: str, status: int, span: tuple[int, int | None] | None
) -> None:
    path = f"/v1/blobs/{manifest['files'][0]['sha256']}"
    answer = live_service.get(path, {"Range": wanted})
    assert answer.status == status
    if span is not None:
        assert answer.body == live_service.get(path).body[slice(*span)]


def test_if_match_names_the_bytes(live_service: LiveService, manifest: dict[str, Any]) -> None:
    for path in (f"/v1/factorizations/{manifest['spec_digest']}", f"/v1/blobs/{manifest['files'][0]['sha256']}"):
        tag = live_service.get(path).headers["etag"]
        for wanted in (tag, f'"other", {tag}', "*"):
            assert live_service.get(path, {"If-Match": wanted}).status == 200
        for wanted in ('"other"', f"W/{tag}", ""):
            live_service.get(path, {"If-Match": wanted}).problem(412, "precondition-failed")
    for rest in ("matrices/C", "matrices/B/cells", "errors"):  # numbers of the bytes that the tag names
        path = f"/v1/factorizations/{manifest['spec_digest']}/{rest}"
        assert live_service.get(path, {"If-Match": f'"{manifest["digest"]}"'}).status == 200
        live_service.get(path, {"If-Match": '"other"'}).problem(412, "precondition-failed")


@pytest.mark.parametrize(
    ("target", "host", "status"),
    [
        (b"http://localhost/healthz", b"localhost", 200),
        (b"HTTP://127.0.0.1:9/healthz", b"evil.example", 200),  # the address counts, and not the field
        (b"http://evil.example/healthz", b"localhost", 400),
        (b"http://localhost", b"localhost", 200),
    ],
)
def test_a_target_may_be_a_whole_address(live_service: LiveService, target: bytes, host: bytes, status: int) -> None:
    answer = live_service.raw(b"GET %b HTTP/1.1\r\nHost: %b\r\nConnection: close\r\n\r\n" % (target, host))
    assert answer.startswith(b"HTTP/1.1 %d " % status), answer


def test_options_of_the_whole_service(live_service: LiveService) -> None:
    answer = live_service.raw(b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 204 ") and b"\r\nallow: GET, HEAD, POST" in answer


def test_an_encoded_slash_reaches_no_route(live_service: LiveService, manifest: dict[str, Any]) -> None:
    for path in ("/v1%2Ffactorizations", f"/v1/factorizations%2f{manifest['digest']}"):
        live_service.get(path).problem(404, "not-found")


@pytest.mark.parametrize(("kind", "taken"), [
    ("application/json", True), ("application/json; charset=utf-8", True), ("application/spec+json", True),
    ("application/x-www-form-urlencoded", False), ("text/plain", False), ("multipart/form-data; boundary=x", False),
])  # fmt: skip
def test_bodies_are_json(live_service: LiveService, kind: str, taken: bool) -> None:
    for path, body in (("/v1/canonicalize", SPEC), ("/v1/factorizations", SPEC), ("/v1/compare", {"spec": 1})):
        answer = live_service.send("POST", path, body, {"Content-Type": kind})
        assert (answer.status == 415) is not taken
        if not taken:
            assert "curl --json" in answer.problem(415, "unsupported-media-type")["detail"]


def test_the_page_and_the_document_come_compressed_and_are_kept(live_service: LiveService) -> None:
    for path in ("/", "/page/main.js", "/openapi.json"):
        plain, packed = live_service.get(path), live_service.get(path, {"Accept-Encoding": "br, gzip"})
        assert packed.headers["content-encoding"] == "gzip" and gzip.decompress(packed.body) == plain.body
        assert "content-encoding" not in live_service.get(path, {"Accept-Encoding": "gzip;q=0"}).headers
        tag = packed.headers["etag"]
        assert plain.headers["etag"] != tag
        kept = live_service.get(path, {"Accept-Encoding": "gzip", "If-None-Match": tag})
        assert (kept.status, kept.body) == (304, b"")

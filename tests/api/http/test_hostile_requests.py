"""Requests that mean harm or are broken: each gets its documented problem, and the service stays as it was.

The first tables are what a FastAPI service answers as shipped, and must not here (500s, dropped connections, silent
coercion). tests/factorize/test_encoding.py and tests/factorize/spec/test_spec.py have more texts that are no JSON or no spec.
"""

from __future__ import annotations

import json
import logging
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from hostile_server import make
from patience import wait_for
from servers import LiveService, serving

from factorize.api.http import server

GOOD = '{"workload":{"kind":"prefix","n":4},"mechanism":{"kind":"identity"}}'


def with_tolerance(text: str) -> str:
    return GOOD.replace('"workload"', f'"tolerance":{text},"workload"')


@pytest.fixture(autouse=True)
def unharmed(live_service: LiveService) -> Iterator[None]:
    """Whatever a test has sent, the next honest request is answered."""
    yield
    assert live_service.get("/healthz").status == 200


@pytest.mark.parametrize("offer", ["websocket", "h2c"])
def test_an_offer_to_upgrade_is_passed_over_in_silence(
    live_service: LiveService, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, offer: str
) -> None:
    monkeypatch.setattr(logging.getLogger("uvicorn.error"), "handlers", [caplog.handler])
    assert live_service.get("/healthz", {"Connection": "Upgrade", "Upgrade": offer}).status == 200
    assert not caplog.records


NOT_JSON = {
    "nothing": b"",
    "unfinished": b'{"workload":',
    "nan": with_tolerance("NaN").encode(),
    "byte-order mark": b"\xef\xbb\xbf" + GOOD.encode(),
    "utf-16": GOOD.encode("utf-16"),
    "latin-1": GOOD.replace("prefix", "pr\xe9fix").encode("latin-1"),
    "raw surrogate": b'{"\xed\xa0\x80": 1}',
    "two texts": GOOD.encode() * 2,
}
NOT_A_SPEC = {
    "1e400": with_tolerance("1e400").encode(),
    "digits that overflow": with_tolerance("1" + "0" * 400 + ".0").encode(),
    "5000 digits": GOOD.replace(":4", ":" + "9" * 5000).encode(),
    "lone surrogate key": rb'{"\ud800": 1}',
    "duplicate keys": b'{"workload":{"kind":"prefix","n":4,"n":5}}',
    "nested 100000 arrays": b"[" * 100_000 + b"]" * 100_000,
    "open brackets, too deep to say more": b"[" * 100_000,
    "markup": b'{"workload":{"kind":"<script>alert(1)</script>","n":4}}',
    "uploads elsewhere": b'{"workload":{"kind":"matrix","sha256":"../../etc/passwd","shape":[2,2]}}',
    "many wrong numbers": b'{"workload":{"kind":"matrix","rows":[[' + b",".join([b'"x"'] * 250_000) + b"]]}}",
    "many wrong rows": b'{"workload":{"kind":"matrix","rows":[' + b",".join([b"0"] * 500_000) + b"]}}",
    "many unknown fields": b"{" + b",".join(b'"k%d":1' % i for i in range(80_000)) + b"}",
    "long schedule": b'{"workload":{"kind":"schedule","n":100000000,"learning_rates":{"kind":"cosine"}}}',
}


@pytest.mark.parametrize("path", ["/v1/factorizations", "/v1/canonicalize"])
@pytest.mark.parametrize("body", NOT_JSON.values(), ids=NOT_JSON)
def test_what_is_not_json(live_service: LiveService, path: str, body: bytes) -> None:
    live_service.send("POST", path, body).problem(400, "malformed-json")


@pytest.mark.parametrize("path", ["/v1/factorizations", "/v1/canonicalize"])
@pytest.mark.parametrize("body", NOT_A_SPEC.values(), ids=NOT_A_SPEC)
def test_what_is_json_and_no_spec(live_service: LiveService, path: str, body: bytes) -> None:
    document = live_service.send("POST", path, body).problem(422, "invalid-spec")
    assert 1 <= len(document["errors"]) <= 20
    for entry in document["errors"]:
        assert entry["pointer"] == "" or entry["pointer"].startswith("/")
        assert entry["detail"]
    assert len(document["detail"]) < 2000


IDS = {
    "short": "abc",
    "upper case": "A" * 64,
    "65 digits": "0" * 65,
    "not hexadecimal": "g" * 64,
    "line end": "0" * 63 + "%0d%0aX-Evil:1",
    "new line after": "0" * 64 + "%0a",
    "null": "%00",
    "null after": "0" * 64 + "%00",
    "non-ASCII": "%C3%A9" * 32,
    "not UTF-8": "%ff%fe",
    "full-width digits": "%EF%BC%90" * 64,
    "dots": "%2e%2e",
    "path": "..%2f..%2fetc%2fpasswd",
    "long": "0" * 8000,
    "percent": "%25",
}
PLACES = ["/v1/factorizations/{}", "/v1/factorizations/{}/events", "/v1/factorizations/{}/matrices/C", "/v1/blobs/{}"]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", IDS.values(), ids=IDS)
def test_other_ids_are_not_found_and_not_repeated(live_service: LiveService, place: str, name: str) -> None:
    answer = live_service.get(place.format(name))
    answer.problem(404, "not-found")
    assert "x-evil" not in answer.headers
    assert name not in answer.body.decode() or name == "abc"


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ("limit=0", "limit: Input should be greater than or equal to 1; got '0'"),
        ("limit=many", "got 'many'"),
        ("workload=a%00", "workload: a kind has printable characters alone"),  # PostgreSQL takes no NUL
    ],
)
def test_a_query_value_is_refused_with_the_value(live_service: LiveService, query: str, told: str) -> None:
    assert told in live_service.get(f"/v1/factorizations?{query}").problem(422, "invalid-parameter")["detail"]


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "evil.example:80",
        "localhost@evil",
        "",
        "[::1",
        "1",
    ],
)
def test_other_hosts_are_refused(live_service: LiveService, host: str) -> None:
    live_service.get("/healthz", {"Host": host}).problem(400, "unknown-host")


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:80", "127.0.0.1", "127.0.0.9:1", "[::1]:8000", "[::1]"])
def test_loopback_names_are_known(live_service: LiveService, host: str) -> None:
    assert live_service.get("/healthz", {"Host": host}).status == 200


def test_a_host_of_the_settings_is_known(tmp_path: Path) -> None:
    with serving(tmp_path / "store", allowed_hosts=("Factors.example",)) as live:
        assert live.get("/healthz", {"Host": "factors.EXAMPLE:80"}).status == 200
        live.get("/healthz", {"Host": "other.example"}).problem(400, "unknown-host")


def test_pages_of_other_sites_cannot_post(live_service: LiveService) -> None:
    live_service.post(GOOD, {"Origin": "https://evil.example"}).problem(403, "foreign-origin")
    live_service.post(GOOD, {"Origin": "null"}).problem(403, "foreign-origin")
    assert live_service.send("POST", "/v1/canonicalize", GOOD, {"Origin": live_service.url}).status == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"X-Long": "a" * 100_000},
        {"X-Long": "a" * 17_000},
        {f"X-{i}": "1" for i in range(2000)},
        {f"X-{i}": "1" for i in range(65)},
    ],
    ids=["100 KB", "17 KB", "2000 fields", "65 fields"],
)
def test_large_header_blocks(live_service: LiveService, headers: dict[str, str]) -> None:
    live_service.get("/healthz", headers).problem(431, "too-many-headers")


def test_an_endless_header_block_is_cut_off(live_service: LiveService) -> None:
    answer = live_service.raw(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 400_000)
    assert answer.startswith(b"HTTP/1.1 431 ")
    assert b"/problems/too-many-headers" in answer


def test_large_bodies(live_service: LiveService) -> None:
    body = b'{"workload":"' + b"a" * (1 << 20) + b'"}'
    live_service.post(body).problem(413, "too-much-data")
    chunked = b"".join(b"10000\r\n" + b"a" * 0x10000 + b"\r\n" for _ in range(17)) + b"0\r\n\r\n"
    live_service.post(chunked, {"Transfer-Encoding": "chunked"}).problem(413, "too-much-data")
    declared = live_service.raw(
        b"POST /v1/factorizations HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 99999999999999\r\n\r\n"
    )
    assert declared.startswith(b"HTTP/1.1 413 ")


def test_compressed_bodies(live_service: LiveService) -> None:
    live_service.post(GOOD, {"Content-Encoding": "gzip"}).problem(415, "compressed-body")


RAW = {
    "no host": b"GET /healthz HTTP/1.1\r\n\r\n",
    "no host in 1.0": b"GET /healthz HTTP/1.0\r\n\r\n",
    "version 0.9": b"GET /healthz\r\n\r\n",
    "two hosts": b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nHost: evil\r\n\r\n",
    "two lengths for one body": b"POST /v1/canonicalize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "two different lengths": b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
    "a negative length": b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
    "unknown transfer coding": b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gzip\r\n\r\n",
    "bytes in the target": b"GET /\xff\xfe HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "another protocol": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 50 + b"\r\n\r\n",
    "bad chunk size": b"POST /v1/canonicalize HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
}


@pytest.mark.parametrize("data", RAW.values(), ids=RAW)
def test_broken_http_is_answered_and_closed(live_service: LiveService, data: bytes) -> None:
    head, _, body = live_service.raw(data).partition(b"\r\n\r\n")
    lines = head.decode("latin-1").lower().split("\r\n")
    assert lines[0] == "http/1.1 400 bad request", lines
    assert "content-type: application/problem+json" in lines
    assert json.loads(body)["type"] in ("/problems/bad-request", "/problems/unknown-host")


@pytest.fixture(scope="module")
def hasty_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveService]:
    """A service that waits for one second at most."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server, "RECEIVE_SECONDS", 1)
        patch.setattr(server, "STALL_SECONDS", 1)
        with serving(tmp_path_factory.mktemp("hasty") / "store") as live:
            yield live


HEAD = b"POST /v1/canonicalize HTTP/1.1\r\nHost: localhost\r\n"
UNFINISHED = {
    "nothing at all": b"",
    "half a request line": b"GET /hea",
    "half a header block": HEAD,
    "half a body": HEAD + b"Content-Length: 100\r\n\r\n{",
    "half a chunk": HEAD + b"Transfer-Encoding: chunked\r\n\r\n10\r\n{",
    "a second request's half": b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n" + HEAD,
}


@pytest.mark.parametrize("data", UNFINISHED.values(), ids=UNFINISHED)
def test_unfinished_requests_are_closed(hasty_service: LiveService, data: bytes) -> None:
    answer = hasty_service.raw(data)
    assert b"HTTP/1.1 408" in answer
    assert b"/problems/request-timeout" in answer


def test_a_header_block_byte_by_byte_is_closed(hasty_service: LiveService) -> None:
    with hasty_service.connected() as connection:
        connection.settimeout(0.1)
        answer = b""
        for letter in b"GET /healthz HTTP/1.1\r\nX: " + b"a" * 200:
            try:
                connection.sendall(bytes([letter]))
                answer += connection.recv(4096)
            except TimeoutError:
                continue
            except OSError:
                break
            if not answer or answer.endswith(b"}"):
                break
        assert b"HTTP/1.1 408" in answer


def test_a_client_that_takes_nothing_is_dropped(hasty_service: LiveService) -> None:
    name = hasty_service.store.put(make(4000))["digest"]
    host, port = hasty_service.host.rsplit(":", 1)
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect((host, int(port)))
        connection.settimeout(120)
        connection.sendall(f"GET /v1/factorizations/{name}/matrices/B HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        wait_for(lambda: hasty_service.service.readers)  # the answer has begun
        wait_for(lambda: not hasty_service.service.readers)  # the reader is dropped
        received = 0
        with pytest.raises(ConnectionResetError):
            while part := connection.recv(1 << 20):
                received += len(part)
            raise ConnectionResetError  # the end of the stream, before the end of the answer
        assert received < 8 * 4000 * 4000


@pytest.mark.parametrize(
    ("limit", "status", "slug"), [("MAX_CONNECTIONS", 503, b"unavailable"), ("MAX_PER_ADDRESS", 429, b"busy")]
)
def test_one_connection_too_many_is_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, status: int, slug: bytes
) -> None:
    monkeypatch.setattr(server, limit, 3)
    request = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    with serving(tmp_path / "store") as crowded:
        with ExitStack() as idle:
            for _ in range(3):
                idle.enter_context(crowded.connected())
            answer = crowded.raw(request)
            assert answer.startswith(b"HTTP/1.1 %d " % status) and b"/problems/" + slug in answer
            assert b"retry-after: 1" in answer.lower()
        wait_for(lambda: crowded.raw(request).startswith(b"HTTP/1.1 200"))  # those that are closed do not count

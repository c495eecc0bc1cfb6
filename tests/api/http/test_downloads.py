"""Files and rows, over a real connection: whole, in part, and never damaged."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import math
import zlib
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hostile_server import make
from patience import wait_for
from servers import Answer, LiveService

from factorize.api.http.answers import _pieces
from factorize.factors.factorization import Factorization
from factorize.storage.blobs import blob_key

TOEPLITZ: dict[str, Any] = {"workload": {"kind": "prefix", "n": 20}, "mechanism": {"kind": "square_root"}}
DENSE: dict[str, Any] = {"workload": {"kind": "prefix", "n": 20}, "mechanism": {"kind": "dense"}}
USER: dict[str, Any] = {
    "workload": {"kind": "matrix", "rows": [[1.0, 0.0], [1.0, 1.0], [0.0, 3.0]]},
    "mechanism": {"kind": "dense"},
}


@pytest.fixture(scope="module")
def sha256(live_service: LiveService) -> str:
    """Name of a stored file."""
    return live_service.solve(DENSE)["files"][0]["sha256"]


@pytest.fixture(scope="module")
def whole(live_service: LiveService, sha256: str) -> Answer:
    return live_service.get(f"/v1/blobs/{sha256}")


def test_a_file_is_what_its_name_says(live_service: LiveService, sha256: str, whole: Answer) -> None:
    assert whole.status == 200
    assert hashlib.sha256(whole.body).hexdigest() == sha256
    assert int(whole.headers["content-length"]) == len(whole.body)
    assert whole.headers["etag"] == f'"{sha256}"'
    assert whole.headers["accept-ranges"] == "bytes"
    assert "immutable" in whole.headers["cache-control"]
    digest = base64.b64encode(bytes.fromhex(sha256)).decode()
    assert whole.headers["repr-digest"] == f"sha-256=:{digest}:"
    assert whole.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    ("asked", "start", "stop"),
    [
        ("bytes=0-0", 0, 1),
        ("bytes=5-9", 5, 10),
        ("bytes=7-", 7, None),
        ("bytes=-3", -3, None),
        ("bytes=10-999999999999", 10, None),
        ("bytes=-999999999999", 0, None),
        (" Bytes = 2 - 4 ", 2, 5),
    ],
)
def test_one_range(
    live_service: LiveService, sha256: str, whole: Answer, asked: str, start: int, stop: int | None
) -> None:
    part = live_service.get(f"/v1/blobs/{sha256}", {"Range": asked})
    expected = whole.body[start:stop]
    first = whole.body.index(expected) if start >= 0 else len(whole.body) + start
    assert (part.status, part.body) == (206, expected)
    assert (
        part.headers["content-range"]
        == f"bytes {start % len(whole.body)}-{first + len(expected) - 1}/{len(whole.body)}"
    )
    assert int(part.headers["content-length"]) == len(expected)
    assert part.headers["etag"] == f'"{sha256}"'


@pytest.mark.parametrize(
    "asked",
    [
        "bytes=0-1,4-5",
        "bytes=" + ",".join(f"{i}-{i}" for i in range(1000)),
        "bytes=999999999-",
        "bytes=-0",
        "bytes=9-5",
        "bytes=-",
        "bytes=a-b",
        "bytes=" + "9" * 400 + "-",
        "bytes=" + "9" * 5000 + "-",
        "bytes",
    ],
    ids=lambda asked: asked[:24],
)
def test_other_ranges_are_not_satisfiable(live_service: LiveService, sha256: str, whole: Answer, asked: str) -> None:
    answer = live_service.get(f"/v1/blobs/{sha256}", {"Range": asked})
    answer.problem(416, "range-not-satisfiable")
    assert answer.headers["content-range"] == f"bytes */{len(whole.body)}"


@pytest.mark.parametrize("asked", ["lines=1-2", "nonsense", ""])
def test_ranges_in_other_units_are_ignored(live_service: LiveService, sha256: str, whole: Answer, asked: str) -> None:
    answer = live_service.get(f"/v1/blobs/{sha256}", {"Range": asked})
    assert (answer.status, answer.body) == (200, whole.body)


def test_if_range_guards_a_resumed_download(live_service: LiveService, sha256: str, whole: Answer) -> None:
    same = live_service.get(f"/v1/blobs/{sha256}", {"Range": "bytes=4-7", "If-Range": f'"{sha256}"'})
    assert (same.status, same.body) == (206, whole.body[4:8])
    for other in ('"' + "0" * 64 + '"', f'W/"{sha256}"', "Fri, 20 Nov 2026 05:00:00 GMT"):
        answer = live_service.get(f"/v1/blobs/{sha256}", {"Range": "bytes=4-7", "If-Range": other})
        assert (answer.status, answer.body) == (200, whole.body)


@pytest.mark.parametrize("condition", ['"{}"', 'W/"{}"', '"x", "{}"', "*"])
def test_a_current_copy_is_not_sent_again(live_service: LiveService, sha256: str, condition: str) -> None:
    other = live_service.get(f"/v1/blobs/{sha256}", {"If-None-Match": f'"{"0" * 64}"'})
    assert other.status == 200 and hashlib.sha256(other.body).hexdigest() == sha256
    answer = live_service.get(f"/v1/blobs/{sha256}", {"If-None-Match": condition.format(sha256)})
    assert (answer.status, answer.body) == (304, b"")
    assert answer.headers["etag"] == f'"{sha256}"'


def test_head_has_the_headers_and_no_body(live_service: LiveService, sha256: str, whole: Answer) -> None:
    head = live_service.send("HEAD", f"/v1/blobs/{sha256}")
    volatile = ("date", "x-request-id")
    assert (head.status, head.body) == (200, b"")
    assert {k: v for k, v in head.headers.items() if k not in volatile} == {
        k: v for k, v in whole.headers.items() if k not in volatile
    }


@pytest.mark.parametrize("spec", [TOEPLITZ, DENSE, USER], ids=["toeplitz", "dense", "user"])
def test_rows_of_every_matrix_multiply_to_the_workload(live_service: LiveService, spec: dict[str, Any]) -> None:
    name = live_service.solve(spec)["spec_digest"]
    found = {matrix: rows(live_service, name, matrix) for matrix in ("C", "C_inv", "B")}
    n = len(found["C"])
    given = spec["workload"].get("rows")
    workload = np.tril(np.ones((n, n))) if given is None else np.array(given)
    np.testing.assert_allclose(found["B"] @ found["C"], workload, rtol=0, atol=1e-12)
    np.testing.assert_allclose(found["C_inv"] @ found["C"], np.eye(n), rtol=0, atol=1e-12)


def rows(live: LiveService, name: str, matrix: str, query: str = "") -> np.ndarray:
    answer = live.get(f"/v1/factorizations/{name}/matrices/{matrix}{query}")
    assert answer.status == 200, answer
    shape = tuple(int(side) for side in answer.headers["x-factorize-shape"].split(","))
    assert answer.headers["x-factorize-dtype"] == "float64"
    assert int(answer.headers["content-length"]) == 8 * math.prod(shape)
    return np.frombuffer(answer.body, dtype="<f8").reshape(shape)


@pytest.mark.parametrize(
    ("query", "part"), [("3:5", slice(3, 5)), (":2", slice(2)), ("17:", slice(17, 20)), ("4:4", slice(0))]
)
def test_some_rows(live_service: LiveService, query: str, part: slice) -> None:
    manifest = live_service.solve(DENSE)
    everything = rows(live_service, manifest["digest"], "C_inv")
    np.testing.assert_allclose(rows(live_service, manifest["digest"], "C_inv", f"?rows={query}"), everything[part])


def test_rows_name_the_bytes_they_come_from(live_service: LiveService) -> None:
    manifest = live_service.solve(DENSE)
    for name, kept in ((manifest["digest"], True), (manifest["spec_digest"], False)):
        answer = live_service.send("HEAD", f"/v1/factorizations/{name}/matrices/B?rows=0:1")
        assert (answer.status, answer.headers["content-length"]) == (200, "160")
        assert answer.headers["x-factorize-digest"] == manifest["digest"]
        assert ("immutable" in answer.headers["cache-control"]) is kept


def test_a_block_of_rows_carries_its_digest(live_service: LiveService, monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to 4 MiB; what was computed once is not computed again, and what is kept is what is sent."""
    name = live_service.store.put(make(1500))["digest"]
    computed = []
    original = Factorization.rows
    monkeypatch.setattr(Factorization, "rows", lambda self, *which: computed.append(which) or original(self, *which))
    for query, in_one_block in (("0:349", True), ("0:349", True), ("0:350", False), ("7:7", True)):
        answer = live_service.get(f"/v1/factorizations/{name}/matrices/C_inv?rows={query}")
        stated = f"sha-256=:{base64.b64encode(hashlib.sha256(answer.body).digest()).decode()}:"
        assert answer.headers.get("repr-digest") == (stated if in_one_block else None)
        checksum = f"{zlib.crc32(answer.body):08x}"
        assert answer.headers.get("x-factorize-crc32") == (checksum if in_one_block else None)
    assert [which for which in computed if which == ("C_inv", 0, 349)] == [("C_inv", 0, 349)] * 2  # 350 rows: 349 + 1
    assert live_service.send("HEAD", f"/v1/factorizations/{name}/matrices/C?rows=0:1").headers["repr-digest"]


def test_a_matrix_of_many_blocks_is_streamed_whole(live_service: LiveService) -> None:
    """1500 x 1500 is more than four blocks of 4 MiB."""
    stored = make(1500)
    live_service.store.put(stored)
    np.testing.assert_array_equal(rows(live_service, stored.digest, "C_inv"), stored.rows("C_inv", 0, 1500))


def test_readers_that_leave_are_not_counted(live_service: LiveService) -> None:
    """The number of readers decides how much is held for each."""
    name = live_service.store.put(make(1500))["digest"]
    with live_service.connected() as connection:
        connection.sendall(f"GET /v1/factorizations/{name}/matrices/B HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        assert connection.recv(100).startswith(b"HTTP/1.1 200")
        # The head is sent before the body begins; 18 MB do not fit into the sockets, so the body cannot have ended.
        wait_for(lambda: live_service.service.readers == 1)
    wait_for(lambda: not live_service.service.readers)


def test_the_server_hears_of_a_reader_that_leaves_before_it_writes_the_next_piece() -> None:
    """Else asyncio warns of each write to a connection that is gone, some thousand times with many readers."""

    async def nothing() -> AsyncIterator[memoryview]:
        for view in ():
            yield view

    async def heard_between_two() -> list[bool]:
        service: Any = SimpleNamespace(readers=0)
        pieces, heard = _pieces(service, memoryview(bytes(3 << 20)), nothing()), list[bool]()
        await anext(pieces)
        asyncio.get_running_loop().call_soon(heard.append, True)
        await anext(pieces)
        return heard.copy()

    assert asyncio.run(heard_between_two()) == [True]


def test_damaged_bytes_are_never_served(live_service: LiveService) -> None:
    spec = {**DENSE, "workload": {"kind": "prefix", "n": 21}}
    manifest = live_service.solve(spec)
    sha256 = manifest["files"][0]["sha256"]
    path = live_service.folder / blob_key(sha256)
    sound = path.read_bytes()
    assert live_service.get(f"/v1/blobs/{sha256}").body == sound

    path.chmod(0o644)
    path.write_bytes(sound[:-1] + bytes([sound[-1] ^ 1]))
    answer = live_service.get(f"/v1/blobs/{sha256}")
    answer.problem(503, "corrupt-object")
    assert "etag" not in answer.headers
    live_service.get(f"/v1/blobs/{sha256}", {"Range": "bytes=0-3"}).problem(503, "corrupt-object")

    by_spec = f"/v1/factorizations/{manifest['spec_digest']}"
    live_service.get(f"{by_spec}/matrices/C").problem(503, "corrupt-object")
    problem = live_service.get(by_spec).problem(503, "corrupt-object")
    assert f"the file {sha256} is damaged" in problem["detail"] and "post it again" in problem["detail"]

    again = live_service.solve(spec)
    assert live_service.get(by_spec).json() == again
    assert hashlib.sha256(live_service.get(f"/v1/blobs/{again['files'][0]['sha256']}").body).hexdigest()
    assert live_service.get(f"/v1/blobs/{again['files'][0]['sha256']}").status == 200


def test_a_solved_spec_whose_file_is_gone_says_what_is_missing(live_service: LiveService) -> None:
    spec = {**DENSE, "workload": {"kind": "prefix", "n": 23}}
    manifest = live_service.solve(spec)
    name, sha256 = manifest["spec_digest"], manifest["files"][0]["sha256"]
    (live_service.folder / blob_key(sha256)).unlink()
    for path in (f"/v1/factorizations/{name}", f"/v1/factorizations/{name}/events"):
        detail = live_service.get(path).problem(404, "not-found")["detail"]
        assert f"the file {sha256} is missing" in detail and "post it again" in detail
    assert live_service.solve(spec)["spec_digest"] == name
    assert live_service.get(f"/v1/factorizations/{name}").json()["spec_digest"] == name


def test_uploaded_matrices_are_named_by_their_numbers(live_service: LiveService) -> None:
    numbers = np.array([[1.0, 0.0], [2.0, 3.0], [0.5, 0.0]])
    sent = np.array([[1.0, -0.0], [2.0, 3.0], [0.5, 0.0]])
    answer = live_service.send("POST", "/v1/matrices?rows=3&columns=2", sent.tobytes())
    assert answer.status == 201
    assert answer.json() == {"sha256": hashlib.sha256(numbers.tobytes()).hexdigest(), "shape": [3, 2]}
    assert live_service.solve({"workload": {"kind": "matrix", **answer.json()}})["matrices"]["C"]["shape"] == [2, 2]


def test_an_upload_says_its_length_before_it_is_read(live_service: LiveService) -> None:
    chunked = {"Transfer-Encoding": "chunked"}
    live_service.send("POST", "/v1/matrices?rows=1&columns=1", b"8\r\n12345678\r\n0\r\n\r\n", chunked).problem(
        411, "length-required"
    )
    head = f"POST /v1/matrices?rows=3000&columns=3000 HTTP/1.1\r\nHost: localhost\r\nContent-Length: {8 * 3000**2}\r\n"
    answer = live_service.raw(f"{head}Connection: close\r\n\r\n".encode())
    assert answer.startswith(b"HTTP/1.1 413 ")


def test_many_downloads_at_once_are_all_right(live_service: LiveService, sha256: str, whole: Answer) -> None:
    with ThreadPoolExecutor(50) as threads:
        answers = list(threads.map(live_service.get, [f"/v1/blobs/{sha256}"] * 50))
    assert [answer.body for answer in answers] == [whole.body] * 50

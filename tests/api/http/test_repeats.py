"""Requests that come again byte for byte: the same answer without the usual way, and the usual way once anything changed."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from servers import LiveService, serving
from specs import document_of
from store_cases import factorization, flip, path_of

from factorize.api.repeats import LARGEST_REQUEST, Repeats
from factorize.api.settings import Settings
from factorize.factorization import Factorization
from factorize.storage.blobs import blob_key
from factorize.storage.gc import gc

Head = dict[str, str]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveService]:
    with serving(Settings(store=str(tmp_path_factory.mktemp("repeats")), keep_alive_seconds=1)) as live:
        yield live


@pytest.fixture
def usual(served: LiveService, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """One entry for each post that went the usual way."""
    found: list[str] = []
    obtain = served.service.obtain

    def counted(*arguments: Any) -> Any:
        found.append("obtain")
        return obtain(*arguments)

    monkeypatch.setattr(served.service, "obtain", counted)
    return found


class Wire:
    """One connection, and answers as they come."""

    def __init__(self, live: LiveService) -> None:
        host, port = live.host.split(":")
        self.socket = socket.create_connection((host, int(port)), timeout=600)
        self.host = live.host

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def post(self, spec: dict[str, Any], *fields: str, path: str = "/v1/factorizations") -> tuple[int, Head, bytes]:
        self.socket.sendall(self.request(spec, *fields, path=path))
        return self.answer()

    def request(self, spec: dict[str, Any], *fields: str, path: str = "/v1/factorizations") -> bytes:
        body = json.dumps(spec)
        lines = [f"POST {path} HTTP/1.1", f"Host: {self.host}", f"Content-Length: {len(body)}", *fields, "", body]
        return "\r\n".join(lines).encode()

    def answer(self) -> tuple[int, Head, bytes]:
        data = b""
        while b"\r\n\r\n" not in data:
            data += self._more()
        head, _, body = data.partition(b"\r\n\r\n")
        status, *lines = head.decode().split("\r\n")
        fields = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
        while len(body) < int(fields["content-length"]):
            body += self._more()
        assert len(body) == int(fields["content-length"])
        return int(status.split()[1]), fields, body

    def _more(self) -> bytes:
        data = self.socket.recv(1 << 16)
        assert data, "the service has closed the connection"
        return data


def stored(live: LiveService, n: int) -> Factorization:
    result = factorization(n)
    live.store.put(result)
    return result


def without_id(head: Head) -> Head:
    return {name: value for name, value in head.items() if name not in ("x-request-id", "date")}


def test_an_answer_is_repeated_with_an_id_of_its_own(served: LiveService, usual: list[str]) -> None:
    stored(served, 4)
    spec, known = document_of(4, "identity"), served.service.known_total
    with Wire(served) as first, Wire(served) as second:
        answers = [first.post(spec), first.post(spec), second.post(spec), second.post(spec)]
    assert usual == ["obtain"], "one post went the usual way, on the first connection"
    assert len({head["x-request-id"] for _, head, _ in answers}) == 4
    assert [(status, without_id(head), body) for status, head, body in answers] == [
        (200, without_id(answers[0][1]), answers[0][2])
    ] * 4
    assert all(set(head) == set(answers[0][1]) for _, head, _ in answers)
    assert served.service.known_total == known + 4


def test_other_bytes_go_the_usual_way(served: LiveService, usual: list[str]) -> None:
    stored(served, 5)
    spec = document_of(5, "identity")
    with Wire(served) as wire:
        for fields in ((), ("X-Other: 1",), ("Prefer: wait=1",), ("Prefer: wait=1",)):
            assert wire.post(spec, *fields)[0] == 200
        assert wire.post(spec, path="/v1/factorizations?matrices=C")[0] == 200
        assert wire.post(spec, path="/v1/factorizations?matrices=C")[0] == 200
        assert wire.post({**spec, "tolerance": 1e-3})[0] == 200
        large = f"X-Large: {'a' * LARGEST_REQUEST}"
        assert wire.post(spec, large)[0] == 431
    assert len(usual) == 7, "a wait, a form and other bytes are asked anew; a request above a limit is refused"


def test_what_is_refused_is_refused_again(served: LiveService, usual: list[str]) -> None:
    with Wire(served) as wire:
        for _ in range(2):
            assert wire.post({"workload": {"kind": "prefix", "n": 0}})[0] == 422
            assert wire.post(document_of(6, "identity"), "Origin: http://elsewhere.example")[0] == 403
    assert len(usual) == 2


def test_requests_that_come_together_or_in_pieces_are_answered_one_by_one(served: LiveService) -> None:
    stored(served, 7)
    spec = document_of(7, "identity")
    with Wire(served) as wire:
        request = wire.request(spec)
        first = wire.post(spec)
        wire.socket.sendall(request[:40])
        time.sleep(0.05)
        wire.socket.sendall(request[40:])
        assert wire.answer()[2] == first[2]
        wire.socket.sendall(request)
        assert wire.answer()[2] == first[2]
        with Wire(served) as other:
            other.socket.sendall(request + b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            data = b""
            while b'"ok"' not in data:
                data += other.socket.recv(1 << 16)
            assert first[2] in data
            assert data.count(b"HTTP/1.1 200 OK") == 2


def revoke(live: LiveService, result: Factorization) -> None:
    live.store.revoke(result.digest, "wrong")


def delete(live: LiveService, result: Factorization) -> None:
    gc(live.store, delete=[result.digest])


def blob_of(live: LiveService, result: Factorization) -> Path:
    return path_of(live.store, blob_key(live.store.manifest(result.digest)["files"][0]["sha256"]))


def damage(live: LiveService, result: Factorization) -> None:
    flip(blob_of(live, result), 900)


def lose(live: LiveService, result: Factorization) -> None:
    blob_of(live, result).unlink()


@pytest.mark.parametrize(("n", "change"), [(8, revoke), (9, delete), (10, damage), (11, lose)])
def test_nothing_is_repeated_once_the_result_has_changed(
    served: LiveService, usual: list[str], n: int, change: Callable[[LiveService, Factorization], None]
) -> None:
    result = stored(served, n)
    spec = document_of(n, "identity")
    with Wire(served) as wire:
        wire.post(spec)
        wire.post(spec)
        assert len(usual) == 1
        change(served, result)
        wire.post(spec)
        assert len(usual) == 2, "the next post goes the usual way at once"


def test_a_connection_of_repeats_alone_is_closed_when_it_is_silent_and_not_before(served: LiveService) -> None:
    stored(served, 12)
    spec = document_of(12, "identity")
    with Wire(served) as first:
        first.post(spec)
    with Wire(served) as wire:
        for _ in range(6):
            assert wire.post(spec)[0] == 200
            time.sleep(0.3)
        assert wire.socket.recv(1) == b"", "a second of silence is the limit here"


def test_what_is_remembered_is_bounded(served: LiveService) -> None:
    stored(served, 13)
    result = served.service.obtain(json.dumps(document_of(13, "identity")))
    repeats = Repeats(served.service)
    head = b"HTTP/1.1 200 OK\r\ndate: now\r\nX-Request-Id: 0123456789abcdef\r\n\r\n"
    for at in range(4000):
        repeats.note(b"POST /v1/factorizations HTTP/1.1\r\n%d" % at, head, result, lambda: True)
    assert repeats.answer(b"POST /v1/factorizations HTTP/1.1\r\n0", b"then") is None
    answer = repeats.answer(b"POST /v1/factorizations HTTP/1.1\r\n3999", b"then")
    assert answer is not None
    assert answer.startswith(b"HTTP/1.1 200 OK\r\ndate: then\r\nX-Request-Id: ")
    assert answer.endswith(b"\r\n\r\n" + result.text)
    repeats.note(
        b"POST /v1/factorizations HTTP/1.1\r\nno id", b"HTTP/1.1 200 OK\r\ndate: now\r\n\r\n", result, lambda: True
    )
    assert repeats.answer(b"POST /v1/factorizations HTTP/1.1\r\nno id", b"then") is None

"""A real HTTP server on loopback that speaks the contract, and breaks each answer as a test plans it."""

from __future__ import annotations

import base64
import json
import socket
import threading
import zlib
from collections import defaultdict, deque
from collections.abc import Callable
from functools import partial, update_wrapper
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import numpy as np
from specs import claimed, spec_of

from factorize.encoding import sha256
from factorize.factorization import Factorization
from factorize.spec import parse_spec
from factorize.structures.dense import DenseMatrix
from factorize.structures.toeplitz import ToeplitzMatrix

Fault = Callable[["Handler", int, dict[str, str], bytes], None]


def square_root(n: int) -> np.ndarray:
    """First column of the square root of the prefix matrix: c_k = c_{k-1} (2k - 1) / (2k)."""
    return np.cumprod(np.concatenate([[1.0], (2 * np.arange(1, n) - 1) / (2 * np.arange(1, n))]))


def make(n: int, *, dense: bool = False, **spec: Any) -> Factorization:
    """Return a certified square-root factorization of the prefix workload, stored dense if asked."""
    strategy = ToeplitzMatrix(square_root(n), n)
    parsed = spec_of(n, **{"mechanism": "square_root", **spec})
    return claimed(parsed, DenseMatrix(strategy.dense()) if dense else strategy)


class HostileService:
    """Serves factorizations; `plan` says how the next answers of one kind are broken.

    Kinds are `post`, `status`, `blob` and `rows`. Jobs: documents that `status` answers before the manifest.
    """

    def __init__(self, folder: Path, *factorizations: Factorization) -> None:
        self.blobs: dict[str, bytes] = {}
        self.manifests: dict[str, dict[str, Any]] = {}
        self.by_digest: dict[str, Factorization] = {}
        self.jobs: dict[str, deque[dict[str, Any]]] = defaultdict(deque)
        self.plans: dict[str, deque[Fault]] = defaultdict(deque)
        self.seen: list[tuple[str, str, dict[str, str]]] = []
        self.release = threading.Event()
        for factorization in factorizations:
            self.add(folder, factorization)

    def add(self, folder: Path, factorization: Factorization) -> None:
        """Serve one more."""
        path = folder / f"{factorization.digest}.safetensors"
        factorization.save(path)
        data = path.read_bytes()
        self.blobs[sha256(data)] = data
        manifest = {**factorization.manifest, "files": [{"sha256": sha256(data), "bytes": len(data)}]}
        for name in (factorization.digest, factorization.spec_digest):
            self.manifests[name] = manifest
            self.by_digest[name] = factorization

    def plan(self, kind: str, *faults: Fault) -> None:
        """Break the next answers of a kind, one fault each; later ones are right again."""
        self.plans[kind].extend(faults)

    def paths(self, part: str) -> list[str]:
        """Return the paths asked for that hold a text."""
        return [path for _, path, _ in self.seen if part in path]

    def __enter__(self) -> HostileService:
        self._server = _Server(("127.0.0.1", 0), type("Bound", (Handler,), {"service": self}))
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.release.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = False

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is part of the tests."""


class Handler(BaseHTTPRequestHandler):
    service: HostileService
    protocol_version = "HTTP/1.1"
    timeout = 20
    disable_nagle_algorithm = True

    def log_message(self, *_: object) -> None:
        pass

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self._note()
        if self.path.endswith("/compare"):
            return self._answer("post", 200, {"Content-Type": "text/event-stream"}, b"")
        spec = parse_spec(body)
        if spec.mechanism.kind == "auto":
            spec = parse_spec({**spec.document(), "mechanism": {"kind": "square_root"}})
        job = self.service.jobs.get(spec.digest)
        if job:
            self._json("post", 202, job.popleft())
        elif spec.digest in self.service.manifests:
            self._json("post", 200, self.service.manifests[spec.digest])
        else:
            self._json("post", 422, {"title": "Refused", "detail": "n is too large", "pointer": "/workload/n"})

    def do_GET(self) -> None:
        self._note()
        parts = urlsplit(self.path)
        steps = parts.path.strip("/").split("/")
        if steps[1] == "blobs":
            self._blob(steps[2])
        elif len(steps) == 3:
            self._status(steps[2])
        else:
            self._rows(steps[2], steps[4], parse_qs(parts.query)["rows"][0])

    def _status(self, digest: str) -> None:
        job = self.service.jobs.get(digest)
        if job:
            self._json("status", 200, job.popleft())
        elif digest in self.service.manifests:
            self._json("status", 200, self.service.manifests[digest])
        else:
            self._json("status", 404, {"title": "Not found", "detail": "no such factorization"})

    def _blob(self, digest: str) -> None:
        data = self.service.blobs[digest]
        headers = {"ETag": f'"{digest}"'}
        given = self.headers.get("Range")
        if given is None or self.headers.get("If-Range") != headers["ETag"]:
            self._answer("blob", 200, headers, data)
        else:
            start = int(given.removeprefix("bytes=").removesuffix("-"))
            headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
            self._answer("blob", 206, headers, data[start:])

    def _rows(self, digest: str, matrix: str, rows: str) -> None:
        start, stop = map(int, rows.split(":"))
        block = self.service.by_digest[digest].rows(matrix, start, stop)
        body = block.astype("<f8").tobytes()
        headers = {
            "X-Factorize-Digest": digest,
            "X-Factorize-Shape": f"{block.shape[0]},{block.shape[1]}",
            "X-Factorize-Dtype": "float64",
            "X-Factorize-Crc32": f"{zlib.crc32(body):08x}",
            "Repr-Digest": f"sha-256=:{base64.b64encode(bytes.fromhex(sha256(body))).decode()}:",
        }
        self._answer("rows", 200, headers, body)

    def _json(self, kind: str, status: int, document: dict[str, Any]) -> None:
        self._answer(kind, status, {"Content-Type": "application/json"}, json.dumps(document).encode())

    def _answer(self, kind: str, status: int, headers: dict[str, str], body: bytes) -> None:
        plan = self.service.plans[kind]
        (plan.popleft() if plan else honest)(self, status, headers, body)

    def _note(self) -> None:
        self.service.seen.append((self.command, self.path, dict(self.headers)))

    def head(self, status: int, headers: dict[str, str]) -> None:
        """Send status line and headers."""
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()


def honest(handler: Handler, status: int, headers: dict[str, str], body: bytes) -> None:
    """Answer as the contract says."""
    handler.head(status, {**headers, "Content-Length": str(len(body))})
    handler.wfile.write(body)


def fault(broken: Callable[..., None]) -> Callable[[int], Fault]:
    """Make a function of a number and of an answer one of the number alone."""
    return lambda number: update_wrapper(partial(broken, number), broken)


@fault
def cut(at: int, handler: Handler, status: int, headers: dict[str, str], body: bytes) -> None:
    """Announce the whole body, send `at` bytes of it and close."""
    handler.head(status, {**headers, "Content-Length": str(len(body))})
    handler.wfile.write(body[:at])
    handler.close_connection = True


@fault
def reset(at: int, handler: Handler, status: int, headers: dict[str, str], body: bytes) -> None:
    """Send `at` bytes and reset the connection."""
    cut(at)(handler, status, headers, body)
    handler.wfile.flush()
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")


@fault
def stall(at: int, handler: Handler, status: int, headers: dict[str, str], body: bytes) -> None:
    """Send `at` bytes and then nothing until the test is over."""
    cut(at)(handler, status, headers, body)
    handler.wfile.flush()
    handler.service.release.wait(10)


@fault
def flip(at: int, handler: Handler, status: int, headers: dict[str, str], body: bytes) -> None:
    """Flip one bit."""
    changed = bytearray(body)
    changed[at % len(changed)] ^= 0x10
    honest(handler, status, headers, bytes(changed))


@fault
def shortened(by: int, handler: Handler, status: int, headers: dict[str, str], body: bytes) -> None:
    """Leave out the end, and say so: a well-formed answer of the wrong length (negative: lengthened)."""
    honest(handler, status, headers, body[:-by] if by > 0 else body + bytes(-by))


@fault
def close_delimited(at: int, handler: Handler, status: int, headers: dict[str, str], body: bytes) -> None:
    """State no length, send `at` bytes and close: what many clients take for the whole body."""
    handler.close_connection = True
    handler.head(status, {**headers, "Connection": "close"})
    handler.wfile.write(body[:at])


@fault
def chunked_cut(at: int, handler: Handler, status: int, headers: dict[str, str], body: bytes) -> None:
    """Send chunks and close without the last one."""
    handler.head(status, {**headers, "Transfer-Encoding": "chunked"})
    handler.wfile.write(b"%x\r\n%s\r\n" % (at, body[:at]))
    handler.close_connection = True


@fault
def swapped(at: int, handler: Handler, status: int, headers: dict[str, str], body: bytes) -> None:
    """Exchange the two parts of the body."""
    honest(handler, status, headers, body[at:] + body[:at])


def relabelled(**changes: str) -> Fault:
    """Send the right body under changed headers; `_` stands for `-`."""
    new = {name.replace("_", "-"): value for name, value in changes.items()}
    return lambda handler, status, headers, body: honest(handler, status, headers | new, body)


def problem(status: int, **document: Any) -> Fault:
    """Answer with a problem document."""
    body = json.dumps(document).encode()
    return lambda handler, *_: honest(handler, status, {"Content-Type": "application/problem+json"}, body)


def vanish(handler: Handler, *_: object) -> None:
    """Close without a byte."""
    handler.close_connection = True

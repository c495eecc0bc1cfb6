"""A server between a client and a real service, which breaks each answer as a test plans it."""

from __future__ import annotations

import json
import socket
import threading
from collections import defaultdict, deque
from collections.abc import Callable
from functools import partial, update_wrapper
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from servers import Client
from specs import claimed, spec_of

from factorize.factors.factorization import Factorization
from factorize.solvers.formulas.closed_form import strategy_coefficients
from factorize.structures.dense import DenseMatrix
from factorize.structures.toeplitz import ToeplitzMatrix

Fault = Callable[["Handler", int, dict[str, str], bytes], None]
_OWN = {"content-length", "transfer-encoding", "connection", "date", "server"}
"""The headers that each server writes for itself."""


def make(n: int, *, dense: bool = False, **spec: Any) -> Factorization:
    """Return a certified square-root factorization of the prefix workload, stored dense if asked."""
    strategy = ToeplitzMatrix(strategy_coefficients(n, 0.0), n)
    parsed = spec_of(n, **{"mechanism": "square_root", **spec})
    return claimed(parsed, DenseMatrix(strategy.dense()) if dense else strategy)


class HostileService:
    """Passes requests on to a service, and breaks its answers as `plan` says, each kind of its own.

    Kinds are `post`, `status`, `blob` and `rows`.

    Args:
        behind: the service.
    """

    def __init__(self, behind: Client) -> None:
        self.behind = behind
        self.plans: dict[str, deque[Fault]] = defaultdict(deque)
        self.seen: list[tuple[str, str, dict[str, str]]] = []
        self.release = threading.Event()

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
        """Say nothing: a client that went away is part of the tests."""


class Handler(BaseHTTPRequestHandler):
    service: HostileService
    protocol_version = "HTTP/1.1"
    timeout = 20
    disable_nagle_algorithm = True

    def log_message(self, *_: object) -> None:
        pass

    def do_POST(self) -> None:
        self._pass_on("post", self.rfile.read(int(self.headers["Content-Length"])))

    def do_GET(self) -> None:
        kinds = {"/blobs/": "blob", "rows=": "rows"}
        self._pass_on(next((kind for part, kind in kinds.items() if part in self.path), "status"), None)

    def _pass_on(self, kind: str, body: bytes | None) -> None:
        self.service.seen.append((self.command, self.path, dict(self.headers)))
        plan = self.service.plans[kind]
        fault = plan.popleft() if plan else honest
        sent = {name: value for name, value in self.headers.items() if name.lower() != "host"}
        answer = self.service.behind.send(self.command, self.path, body, sent)
        kept = {name: value for name, value in answer.headers.items() if name not in _OWN}
        fault(self, answer.status, kept, answer.body)

    def head(self, status: int, headers: dict[str, str]) -> None:
        """Send status line and headers."""
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()


def honest(handler: Handler, status: int, headers: dict[str, str], body: bytes) -> None:
    """Answer as the contract says."""
    handler.head(status, {**headers, "content-length": str(len(body))})
    handler.wfile.write(body)


def fault(broken: Callable[..., None]) -> Callable[[int], Fault]:
    """Make a function of a number and of an answer one of the number alone."""
    return lambda number: update_wrapper(partial(broken, number), broken)


@fault
def cut(at: int, handler: Handler, status: int, headers: dict[str, str], body: bytes) -> None:
    """Announce the whole body, send `at` bytes of it and close."""
    handler.head(status, {**headers, "content-length": str(len(body))})
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
    handler.head(status, {**headers, "connection": "close"})
    handler.wfile.write(body[:at])


@fault
def chunked_cut(at: int, handler: Handler, status: int, headers: dict[str, str], body: bytes) -> None:
    """Send chunks and close without the last one."""
    handler.head(status, {**headers, "transfer-encoding": "chunked"})
    handler.wfile.write(b"%x\r\n%s\r\n" % (at, body[:at]))
    handler.close_connection = True


@fault
def swapped(at: int, handler: Handler, status: int, headers: dict[str, str], body: bytes) -> None:
    """Exchange the two parts of the body."""
    honest(handler, status, headers, body[at:] + body[:at])


def relabelled(**changes: str) -> Fault:
    """Send the right body under changed headers; `_` stands for `-`."""
    new = {name.replace("_", "-").lower(): value for name, value in changes.items()}
    return lambda handler, status, headers, body: honest(handler, status, headers | new, body)


def answering(document: dict[str, Any], status: int = 200) -> Fault:
    """Answer with another document."""
    body = json.dumps(document).encode()
    return lambda handler, *_: honest(handler, status, {"content-type": "application/json"}, body)


def vanish(handler: Handler, *_: object) -> None:
    """Close without a byte."""
    handler.close_connection = True

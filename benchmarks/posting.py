"""Posts that many clients make at once, each timed, and the bare application that the service is measured against.

    python -m benchmarks.posting        serves the bare application

One process plays all clients: raw sockets and one selector, so that it takes less of a core than any server of ours.
Each client sends its next request when its last answer is whole. The bare application answers the same number of bytes
after it has read the body, behind uvicorn with the protocol that uvicorn ships.
"""

from __future__ import annotations

import selectors
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

BACKLOG = 2048  # uvicorn has the same
_END = b"\r\n\r\n"


@dataclass(frozen=True)
class Posts:
    """The answers that many clients saw.

    Attributes:
        seconds: seconds of each answer, in the order in which they came.
        wall: seconds of all.
        size: bytes of an answer's body.
    """

    seconds: tuple[float, ...]
    wall: float
    size: int

    @property
    def rate(self) -> float:
        """Return the answers per second."""
        return len(self.seconds) / self.wall

    def quantile(self, share: float) -> float:
        """Return the seconds within which this share of the answers came."""
        return float(np.quantile(self.seconds, share))


def post_request(host: str, path: str, body: bytes, *, more: str = "") -> bytes:
    """Return the bytes of a POST; `more` are further lines of its head, each with its end."""
    head = f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    return (head + more).encode() + b"\r\n" + body


def posts(host: str, request: bytes, *, clients: int, count: int) -> Posts:
    """Send a request `count` times over so many connections.

    Args:
        host: host:port.
        request: all bytes of it.
        clients: connections.
        count: answers to wait for.

    Raises:
        ValueError: an answer is not a 200, or a connection was closed.
    """
    name, port = host.split(":")
    times: list[float] = []
    with ExitStack() as opened, selectors.DefaultSelector() as selector:
        begun: dict[int, float] = {}
        started, left, size = time.perf_counter(), count - clients, 0
        for _ in range(clients):
            one = opened.enter_context(socket.create_connection((name, int(port))))
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            selector.register(one, selectors.EVENT_READ)
            begun[one.fileno()] = time.perf_counter()
            one.sendall(request)
        while len(times) < count:
            for key, _ in selector.select():
                one: Any = key.fileobj
                size = _take(one)
                now = time.perf_counter()
                times.append(now - begun[key.fd])
                if left > 0:
                    left -= 1
                    begun[key.fd] = now
                    one.sendall(request)
        return Posts(tuple(times), time.perf_counter() - started, size)


def _take(one: socket.socket) -> int:
    """Read one answer and return the size of its body."""
    data = one.recv(1 << 18)
    while _END not in data:
        data += _more(one)
    head, _, rest = data.partition(_END)
    if not head.startswith(b"HTTP/1.1 200"):
        raise ValueError(f"not a 200: {data[:300]!r}")
    fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
    size, have = int(fields[b"content-length"]), len(rest)
    while have < size:
        have += len(_more(one))
    return size


def _more(one: socket.socket) -> bytes:
    data = one.recv(1 << 18)
    if not data:
        raise ValueError("the server closed the connection in the middle of an answer")
    return data


@contextmanager
def bare_server(size: int) -> Iterator[str]:
    """Serve the bare application in a process of its own; gives host:port.

    Args:
        size: bytes of each answer.
    """
    command = [sys.executable, "-m", "benchmarks.posting", str(size)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


async def bare(scope: Any, receive: Any, send: Any) -> None:
    """Read a body and answer as many bytes as the command line says."""
    if scope["type"] != "http":
        return
    while (await receive()).get("more_body"):
        pass
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(_ANSWER)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": _ANSWER})


_ANSWER = b"x" * int(sys.argv[1]) if __name__ == "__main__" else b""


def main() -> None:
    """Serve until terminated."""
    import uvicorn

    # With the protocol named, asyncio turns Nagle's algorithm off, as uvicorn's own sockets have it.
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(BACKLOG)
        print("{}:{}".format(*listener.getsockname()), flush=True)
        config = uvicorn.Config(bare, lifespan="off", log_level="warning", access_log=False, ws="none")
        uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()

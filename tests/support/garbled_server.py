"""A server that says the same bytes to whoever connects, for clients that expect something else."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress


@contextmanager
def answering(words: bytes) -> Iterator[int]:
    """Listen on loopback and say these bytes, once to each; give the port. A client that asks for more waits."""
    heard: list[socket.socket] = []

    def serve() -> None:
        with suppress(OSError):  # it has ended
            while True:
                heard.append(server.accept()[0])
                heard[-1].sendall(words)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield int(server.getsockname()[1])
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()
            for connection in heard:
                connection.close()

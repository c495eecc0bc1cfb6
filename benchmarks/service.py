"""What the service costs beside the solver: a cached POST, and a file of 128 MiB against a raw loopback transfer.

    python -m benchmarks.service

The raw transfer is a process that sends the same number of bytes from memory over a socket; both sides take turns, so
that what else runs on the machine falls on both.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from typing import Any
from urllib.parse import urlsplit

from benchmarks.report import Report

SMALL = {"workload": {"kind": "prefix", "n": 64}, "mechanism": {"kind": "square_root"}}
LARGE = {"workload": {"kind": "prefix", "n": 4096}, "mechanism": {"kind": "dense"}}
ROUNDS = 12
_buffer = bytearray(1 << 22)


def main() -> tuple[float, float, float]:
    """Run all and print one line each; returns seconds of a cached POST, of a download, and its ratio to a raw one."""
    with tempfile.TemporaryDirectory() as store, service(store) as host:
        solve(host, SMALL)
        posted = statistics.median(cached_posts(host, 500))
        print(f"cached POST: median {1e3 * posted:.2f} ms")
        file = solve(host, LARGE)["files"][0]
        size = file["bytes"]
        print(f"sha256: {size / 1e6 / hashing(size):.0f} MB/s")
        print(f"first download of {size / 1e6:.0f} MB, hash-checked: {download(host, file):.0f} MB/s")
        with raw_server(size) as address:
            pairs = [(raw(address, size), download(host, file)) for _ in range(ROUNDS)]
        raws, downloads = zip(*pairs, strict=True)
        print(f"repeated download: median {statistics.median(downloads):.0f} MB/s")
        print(f"raw loopback: median {statistics.median(raws):.0f} MB/s")
        ratio = statistics.median(got / most for most, got in pairs)
        print(f"ratio: median {ratio:.2f}")
        return posted, size / 1e6 / statistics.median(downloads), ratio


def run(report: Report) -> None:
    """Print two rows; there is no quick form."""
    if report.quick:
        report.remark("nothing is measured in a quick run")
        return
    posted, seconds, ratio = main()
    report.heading("A cached POST, and a download")
    report.row("cached POST", seconds=posted, **report.dgemms(posted))
    report.row(
        "repeated download of 134 MB against a raw loopback transfer",
        seconds=seconds,
        ratio=ratio,
        of="of raw",
    )


@contextmanager
def service(store: str) -> Iterator[str]:
    """Run `factorize serve` in a process of its own; gives host:port."""
    command = [sys.executable, "-m", "factorize.api.cli", "serve", "--port", "0", "--store", store]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            yield urlsplit(process.stdout.readline().decode().split()[-1]).netloc
        finally:
            process.terminate()


def solve(host: str, spec: dict[str, Any]) -> dict[str, Any]:
    """Post a spec until its manifest comes."""
    while True:
        connection = http.client.HTTPConnection(host)
        connection.request("POST", "/v1/factorizations", json.dumps(spec), {"Prefer": "wait=30"})
        answer = connection.getresponse()
        document = json.loads(answer.read())
        if answer.status == 200:
            return document
        assert document["state"] in ("queued", "running"), document


def cached_posts(host: str, count: int) -> list[float]:
    """Seconds of each of `count` POSTs of a known spec on one connection."""
    connection, body, times = http.client.HTTPConnection(host), json.dumps(SMALL), []
    for _ in range(count):
        began = time.perf_counter()
        connection.request("POST", "/v1/factorizations", body)
        connection.getresponse().read()
        times.append(time.perf_counter() - began)
    return times


def hashing(size: int) -> float:
    """Seconds that sha256 takes over that many bytes."""
    data = bytes(size)
    began = time.perf_counter()
    hashlib.sha256(data).digest()
    return time.perf_counter() - began


def download(host: str, file: dict[str, Any]) -> float:
    """MB/s of one download into a buffer."""
    name, port = host.split(":")
    request = f"GET /v1/blobs/{file['sha256']} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()
    return timed((name, int(port)), request, file["bytes"])


def raw(address: tuple[str, int], size: int) -> float:
    """MB/s of the raw transfer."""
    return timed(address, b"x", size)


def timed(address: tuple[str, int], request: bytes, size: int) -> float:
    """MB/s from the first byte of the request until `size` bytes have come back."""
    with socket.create_connection(address) as connection:
        began = time.perf_counter()
        connection.sendall(request)
        received = 0
        while received < size:
            received += connection.recv_into(_buffer)
        return size / 1e6 / (time.perf_counter() - began)


@contextmanager
def raw_server(size: int) -> Iterator[tuple[str, int]]:
    """Run a process that answers each connection with `size` bytes."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        process = get_context("fork").Process(target=_send, args=(listener, size), daemon=True)
        process.start()
        try:
            yield listener.getsockname()
        finally:
            process.terminate()


def _send(listener: socket.socket, size: int) -> None:
    data = bytes(size)
    while True:
        connection, _ = listener.accept()
        with connection:
            connection.recv(1)
            connection.sendall(data)


if __name__ == "__main__":
    main()

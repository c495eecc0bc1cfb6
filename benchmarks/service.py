"""The cost of the service beside the solver: a cached POST, and a file of 128 MiB against a raw loopback transfer.

    python -m benchmarks.service

The raw transfer is a process that hands the same file to the kernel (sendfile). Both take turns, and are compared by
the processor time of client and server together, which other work on the machine changes least.
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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil

from benchmarks.report import Report
from factorize.storage.blobs import blob_key

SMALL_SPEC = {"workload": {"kind": "prefix", "n": 64}, "mechanism": {"kind": "square_root"}}
LARGE_SPEC = {"workload": {"kind": "prefix", "n": 4096}, "mechanism": {"kind": "dense"}}
ROUNDS = 6
TRANSFERS = 4
"""The transfers between two looks at the clocks of processors, which count hundredths."""
_buffer = bytearray(1 << 22)


def main() -> tuple[float, float, float]:
    """Run all and print one line each; returns seconds of a POST, of a download, and its ratio to sendfile."""
    with tempfile.TemporaryDirectory() as store, service(store) as host:
        solve(host, SMALL_SPEC)
        posted = statistics.median(cached_posts(host, 500))
        print(f"cached POST: median {1e3 * posted:.2f} ms")
        file = solve(host, LARGE_SPEC)["files"][0]
        size = file["bytes"]
        print(f"sha256: {size / 1e6 / hashing(size):.0f} MB/s")
        print(f"first download of {size / 1e6:.0f} MB, hash-checked: {download(host, file):.0f} MB/s")
        spent, rates = [0.0, 0.0], []
        with raw_server(Path(store) / blob_key(file["sha256"]), size) as address:
            for _ in range(ROUNDS):
                spent[0] += processor_seconds(lambda: timed(address, b"x", size))
                spent[1] += processor_seconds(lambda: rates.append(download(host, file)))
        print(f"repeated download: median {statistics.median(rates):.0f} MB/s")
        print(f"processor time: {1e3 * spent[1] / ROUNDS:.0f} ms, of sendfile {1e3 * spent[0] / ROUNDS:.0f} ms")
        return posted, size / 1e6 / statistics.median(rates), spent[0] / spent[1]


def processor_seconds(work: Callable[[], Any]) -> float:
    """Run some work, and return the processor time of this process and of those that it started."""
    family = [psutil.Process(), *psutil.Process().children(recursive=True)]
    before = sum(sum(process.cpu_times()[:2]) for process in family)
    for _ in range(TRANSFERS):
        work()
    return (sum(sum(process.cpu_times()[:2]) for process in family) - before) / TRANSFERS


def run(report: Report) -> None:
    """Print two rows; there is no quick form."""
    if report.quick:
        report.remark("nothing is measured in a quick run")
        return
    posted, seconds, ratio = main()
    report.heading("A cached POST, and a download")
    report.row("cached POST", seconds=posted, **report.dgemms(posted))
    report.row(
        "repeated download of 134 MB against sendfile",
        seconds=seconds,
        ratio=ratio,
        of="by processor time",
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
    """Return the seconds of each of `count` POSTs of a known spec on one connection."""
    connection, body, times = http.client.HTTPConnection(host), json.dumps(SMALL_SPEC), []
    for _ in range(count):
        began = time.perf_counter()
        connection.request("POST", "/v1/factorizations", body)
        connection.getresponse().read()
        times.append(time.perf_counter() - began)
    return times


def hashing(size: int) -> float:
    """Return the seconds that sha256 takes over that many bytes."""
    data = bytes(size)
    began = time.perf_counter()
    hashlib.sha256(data).digest()
    return time.perf_counter() - began


def download(host: str, file: dict[str, Any]) -> float:
    """Return the MB/s of one download into a buffer."""
    name, port = host.split(":")
    request = f"GET /v1/blobs/{file['sha256']} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()
    return timed((name, int(port)), request, file["bytes"])


def timed(address: tuple[str, int], request: bytes, size: int) -> float:
    """Return the MB/s from the first byte of the request until `size` bytes have come back."""
    with socket.create_connection(address) as connection:
        began = time.perf_counter()
        connection.sendall(request)
        received = 0
        while received < size:
            received += connection.recv_into(_buffer)
        return size / 1e6 / (time.perf_counter() - began)


@contextmanager
def raw_server(path: Path, size: int) -> Iterator[tuple[str, int]]:
    """Run a process that answers each connection with a file."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        process = get_context("fork").Process(target=_send, args=(listener, path, size), daemon=True)
        process.start()
        try:
            yield listener.getsockname()
        finally:
            process.terminate()


def _send(listener: socket.socket, path: Path, size: int) -> None:
    while True:
        connection, _ = listener.accept()
        with connection, path.open("rb") as file:
            connection.recv(1)
            connection.sendfile(file, count=size)


if __name__ == "__main__":
    main()

"""Rows streamed from a local service against a plain repeated download, and how long a training step waits for one.

    python -m benchmarks rows

n = 4096, blocks of 4 MB on two connections, each block checked by the client. The download is that of
benchmarks/service.py: a bare socket into one buffer, nothing checked; `urllib` reads the file and hashes it.
All take turns. The first pass over rows of C^-1, which the service computes then, is apart.
"""

from __future__ import annotations

import hashlib
import statistics
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from typing import Any

from benchmarks.report import Report
from benchmarks.service import download, service, solve
from factorize.client import Rows, connect

N = 4096
ROUNDS = 9
STEP_SECONDS = 0.002
MEGABYTES = 8e-6 * N * N


def run(report: Report) -> None:
    """Print a row for C and for C^-1, and the waits of a job whose steps take 2 ms."""
    if report.quick:
        report.remark("nothing is measured in a quick run")
        return
    spec = {"workload": {"kind": "prefix", "n": N}, "mechanism": {"kind": "dense"}}
    with tempfile.TemporaryDirectory() as store, service(store) as host:
        manifest = solve(host, spec)
        file, url = manifest["files"][0], f"http://{host}"
        factors = connect(manifest["digest"], url=url)
        download(host, file)
        report.heading(f"All {N} rows ({MEGABYTES:.0f} MB), in blocks of 4 MB, checked")
        for matrix in ("C", "C_inv"):
            stream = factors.rows(matrix)
            report.row(f"{matrix}, first pass", seconds=(first := _pass(stream)), ratio=MEGABYTES / first, of="MB/s")
            turns = [
                (_pass(stream), file["bytes"] / 1e6 / download(host, file), _urllib(url, file)) for _ in range(ROUNDS)
            ]
            seconds, plain, checked = zip(*turns, strict=True)
            ratio = statistics.median(b / a for a, b, _ in turns)
            beside = statistics.median(c / a for a, _, c in turns)
            report.row(
                f"{matrix}, again",
                seconds=statistics.median(seconds),
                ratio=ratio,
                of="of a plain download",
                note=f"{_rates(seconds)}; download {_rates(plain)}; {beside:.2f} of urllib and sha256",
                times=seconds,
                plain=plain,
                urllib=checked,
            )
        waits = _waits(factors.rows("C_inv"))
        late = sum(wait > STEP_SECONDS for wait in waits)
        report.row(
            "longest wait of a step for its row",
            seconds=max(waits),
            ratio=max(waits) / STEP_SECONDS,
            of="of a step of 2 ms",
            note=f"{late} of {len(waits)} steps waited longer than that; in all {sum(waits):.4f} s",
        )


def _rates(seconds: Sequence[float]) -> str:
    return f"{MEGABYTES / statistics.median(seconds):.0f} MB/s, best {MEGABYTES / min(seconds):.0f}"


def _pass(stream: Rows) -> float:
    began = time.perf_counter()
    rows = sum(len(block) for block in stream.blocks())
    assert rows == N
    return time.perf_counter() - began


def _urllib(url: str, file: dict[str, Any]) -> float:
    """Return the seconds of a download as most programs would write it, checked."""
    began = time.perf_counter()
    with urllib.request.urlopen(f"{url}/v1/blobs/{file['sha256']}") as answer:
        assert hashlib.sha256(answer.read()).hexdigest() == file["sha256"]
    return time.perf_counter() - began


def _waits(stream: Rows) -> list[float]:
    """Return the seconds that each step waits for its row once the first block came, in a job whose steps take 2 ms."""
    rows, waits = stream.iterate(), []
    next(rows)
    for _ in range(N - 1):
        time.sleep(STEP_SECONDS)
        began = time.perf_counter()
        next(rows)
        waits.append(time.perf_counter() - began)
    return waits

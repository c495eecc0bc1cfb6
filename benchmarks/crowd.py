"""`python -m benchmarks.crowd PART [--count N]`: one real service under more of one thing than a test affords.

    streams   N event streams (4,096) of 64 keys follow one job: until all have its state, idle, and its end
    jobs      N small jobs (10,000), one after the other, and what the service's process holds after each tenth
    sweep     fsck and gc of N results (100,000) while specs are posted
    resumed   a job of many steps, whose stream breaks off after each event and is resumed by Last-Event-ID

Ends with status 1 at the first thing that must not happen.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil

from factorize.api.http.server import allow_connections
from factorize.encoding import json_digest, sha256
from factorize.format.manifest import Manifest
from factorize.solvers import choose, solve
from factorize.spec import parse_spec
from factorize.storage.blobs import CHUNK_BYTES, blob_key
from factorize.storage.records import SpecEntry, manifest_key, seal
from factorize.storage.store import open_store

STREAMS_OF_A_KEY = 64
STREAMS_OF_AN_ADDRESS = 960
"""The streams of one address, below the 1,024 connections that it may have."""
LONG = {
    "workload": {"kind": "prefix", "n": 8192},
    "participation": {"kind": "fixed_epochs", "epochs": 16},
    "mechanism": {"kind": "buffered_linear", "buffers": 4},
}
MANY_STEPS = {"workload": {"kind": "prefix", "n": 2048}, "mechanism": {"kind": "banded", "bands": 64}}
QUIET_SECONDS = 10.0
SAMPLES = 10
POSTS_BESIDE = 4
"""The connections that post while a store is swept."""


@contextmanager
def service(store: Path, **settings: str) -> Iterator[tuple[str, psutil.Process]]:
    """Run `factorize serve` in a process of its own; gives host:port and the process."""
    variables = os.environ | {f"FACTORIZE_{name.upper()}": value for name, value in settings.items()}
    command = [sys.executable, "-m", "factorize.api.cli", "serve", "--port", "0", "--store", str(store)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=variables) as process:
        assert process.stdout is not None
        try:
            yield urlsplit(process.stdout.readline().decode().split()[-1]).netloc, psutil.Process(process.pid)
        finally:
            process.terminate()


def ask(host: str, method: str, path: str, body: Any = None, key: str = "", wait: int = 0) -> Any:
    """Return the document of an answer."""
    headers = {"Prefer": f"wait={wait}"} | ({"Authorization": f"Bearer {key}"} if key else {})
    with closing(http.client.HTTPConnection(host, timeout=120)) as connection:
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        return json.loads(connection.getresponse().read())


def demand(holds: bool, what: str) -> None:
    """End the run where something is not as it must be."""
    if not holds:
        raise SystemExit(f"FAILED: {what}")


def small(number: int) -> dict[str, Any]:
    """Return one of many specs that are solved in no time."""
    return {"workload": {"kind": "momentum", "n": 4, "momentum": number / (1 << 20)}, "mechanism": {"kind": "identity"}}


def processor_seconds(process: psutil.Process) -> float:
    """Return what a process itself has used."""
    used = process.cpu_times()
    return used.user + used.system


def streams(count: int, folder: Path) -> None:
    """Have many streams follow one job, and cancel it."""
    allow_connections(count)
    store = folder / "store"
    with service(store, require_keys="true") as (host, process):
        make = [sys.executable, "-m", "factorize.api.cli", "keys", "create", "--name", "first", "--scopes", "admin"]
        made = subprocess.run([*make, "--store", str(store), "--output", "json"], check=True, capture_output=True)
        first = json.loads(made.stdout)["token"]
        whose = [{"name": f"follower {number}", "scopes": ["admin"]} for number in range(-(-count // STREAMS_OF_A_KEY))]
        keys = [ask(host, "POST", "/v1/keys", one, first)["token"] for one in whose]
        job = ask(host, "POST", "/v1/factorizations", LONG, first)["spec_digest"]
        asyncio.run(_follow(host, process, count, keys, job))


async def _follow(host: str, process: psutil.Process, count: int, keys: list[str], job: str) -> None:
    """Open the streams, look at an idle service, and cancel the job."""
    name, port = host.split(":")
    before, used = process.memory_info().rss, processor_seconds(process)

    async def follow(number: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        address = f"127.0.0.{2 + number // STREAMS_OF_AN_ADDRESS}", 0
        reader, writer = await asyncio.open_connection(name, int(port), local_addr=address)
        head = f"GET /v1/factorizations/{job}/events HTTP/1.1\r\nHost: {host}\r\n"
        writer.write(f"{head}Authorization: Bearer {keys[number // STREAMS_OF_A_KEY]}\r\n\r\n".encode())
        demand(b" 200 " in await reader.readline(), "a stream was refused")
        await reader.readuntil(b"event: ")
        return reader, writer

    began = time.monotonic()
    opened = []
    for start in range(0, count, STREAMS_OF_A_KEY):
        opened += await asyncio.gather(
            *(follow(number) for number in range(start, min(start + STREAMS_OF_A_KEY, count)))
        )
    spent = processor_seconds(process) - used
    print(f"{count} streams were told of the job within {time.monotonic() - began:.1f} s, {spent:.1f} s of processor")
    print(f"a stream holds {(process.memory_info().rss - before) / count / 1024:.0f} KiB of the service")

    async def end(reader: asyncio.StreamReader) -> None:
        while b"event: cancelled" not in (line := await reader.readline()):
            demand(bool(line), "a stream ended before its job")

    ends = [asyncio.ensure_future(end(reader)) for reader, _ in opened]
    used, began, probes = processor_seconds(process), time.monotonic(), []
    while time.monotonic() - began < QUIET_SECONDS:
        asked = time.monotonic()
        await asyncio.to_thread(ask, host, "GET", "/healthz")
        probes.append(time.monotonic() - asked)
        await asyncio.sleep(0.2)
    share = (processor_seconds(process) - used) / (time.monotonic() - began)
    print(f"while they follow, the service takes {share:.2f} of a core; /healthz {_spread(probes)}")
    began = time.monotonic()
    await asyncio.to_thread(ask, host, "DELETE", f"/v1/factorizations/{job}", None, keys[0])
    await asyncio.gather(*ends)
    print(f"all were told of the end within {time.monotonic() - began:.1f} s")


def _spread(seconds: list[float]) -> str:
    return f"median {1e3 * statistics.median(seconds):.0f} ms, longest {1e3 * max(seconds):.0f} ms"


def resumed(count: int, folder: Path) -> None:
    """Break a job's stream off after each event, and resume it."""
    with service(folder / "store") as (host, _):
        job = ask(host, "POST", "/v1/factorizations", MANY_STEPS)["spec_digest"]
        seen: list[tuple[int, str]] = []
        while not seen or seen[-1][1] in ("state", "progress"):
            with closing(http.client.HTTPConnection(host, timeout=120)) as connection:
                last = {"Last-Event-ID": str(seen[-1][0])} if seen else {}
                connection.request("GET", f"/v1/factorizations/{job}/events", headers=last)
                answer = connection.getresponse()
                lines = [answer.readline().decode().strip() for _ in range(2)]
                while lines[-1].startswith(":") or not lines[-1].startswith("event: "):
                    lines.append(answer.readline().decode().strip())
                number = next(int(line[4:]) for line in lines if line.startswith("id: "))
                demand(not seen or number > seen[-1][0], f"event {number} came after {seen[-1:]}")
                seen.append((number, lines[-1][7:]))
            demand(len(seen) < count, f"no end within {count} events")
        demand(seen[-1][1] == "done", f"the job ended with {seen[-1][1]}")
        print(f"{len(seen)} events on as many connections, each after the last, and then done")


def jobs(count: int, folder: Path) -> None:
    """Have many small jobs solved, and look at what the service's process holds."""
    with service(folder / "store") as (host, process):
        for number in range(count):
            answer = ask(host, "POST", "/v1/factorizations", small(number), wait=30)
            demand("certificate" in answer, f"job {number} was answered {answer}")
            if (number + 1) % (count // SAMPLES) == 0:
                print(f"{number + 1} jobs: {process.memory_info().rss / 2**20:.1f} MiB", flush=True)


def fill(folder: Path, count: int) -> None:
    """Write results into a store as puts do, without their solves and syncs."""
    store = open_store(folder)
    first = store.put(solve(choose(parse_spec(small(0)))))
    for number in range(1, count):
        spec = {**first.spec, "workload": {**first.spec["workload"], **small(number)["workload"]}}
        data = b"%d" % number
        file = {"sha256": sha256(data), "bytes": len(data), "chunk_bytes": CHUNK_BYTES, "chunks": [sha256(data)]}
        made = Manifest.sealed({**first, "spec": spec, "spec_digest": json_digest(spec), "files": [file]})
        records = SpecEntry.of(made).records(lambda key: True)
        for key, text in (
            (blob_key(sha256(data)), data),
            (manifest_key(made.digest), seal(made)),
            *((key, sealed) for key, sealed, _ in records),
        ):
            path = folder / key
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text)


def sweep(count: int, folder: Path) -> None:
    """Check and sweep a store of many results while a service takes posts for it."""
    with service(folder / "store") as (host, _):
        fill(folder / "store", count)
        ended, posted, codes = threading.Event(), [], []

        def post(first: int) -> None:
            number = first
            while not ended.is_set():
                asked = time.monotonic()
                answer = ask(host, "POST", "/v1/factorizations", small(number), wait=30)  # or a job by then
                posted.append((answer, time.monotonic() - asked))
                number += POSTS_BESIDE

        beside = [threading.Thread(target=post, args=(count + one,)) for one in range(POSTS_BESIDE)]
        for thread in beside:
            thread.start()
        for name in ("fsck", "gc"):
            began = time.monotonic()
            command = [sys.executable, "-m", "factorize.api.cli", name, "--store", str(folder / "store")]
            done = subprocess.run(command, capture_output=True, text=True)
            used = resource.getrusage(resource.RUSAGE_CHILDREN)
            said = done.stdout.splitlines()[-1:]
            print(f"{name}: {time.monotonic() - began:.0f} s, exit {done.returncode}: {said}", flush=True)
            print(f"  so far {used.ru_utime + used.ru_stime:.0f} s of processor, at most {used.ru_maxrss >> 10} MiB")
            codes.append(done.returncode)
        ended.set()
        for thread in beside:
            thread.join()
        demand(not any(codes), "a store that takes posts is found damaged")
        for answer, _ in posted:
            demand("spec_digest" in answer, f"a post was answered {answer}")
            while "certificate" not in answer:
                answer = ask(host, "GET", f"/v1/factorizations/{answer['spec_digest']}")
                demand(answer.get("state") not in ("failed", "cancelled"), f"a post has ended with {answer}")
                time.sleep(0.2 * ("certificate" not in answer))
        print(f"{len(posted)} posts beside, none lost: {_spread([seconds for _, seconds in posted])}")


PARTS = {"streams": (streams, 4080), "jobs": (jobs, 10_000), "sweep": (sweep, 100_000), "resumed": (resumed, 10_000)}
"""The parts, each with its count; 16 connections are left to others than the streams."""


def main() -> None:
    """Run one part."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.crowd")
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--count", type=int)
    given = parser.parse_args()
    run, count = PARTS[given.part]
    with tempfile.TemporaryDirectory() as folder:
        run(given.count or count, Path(folder))


if __name__ == "__main__":
    main()

"""Sockets that hold a service up, beside honest requests: 500 slow ones and 2,000 idle ones at once, again and again.

    python -m benchmarks.soak sockets [--minutes N]

A slow one sends a byte a second, of a header block or of a body; an idle one sends nothing, or nothing more after its
first answer. The service is a process of its own with the settings as they are by default.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import resource
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import psutil

SLOW, IDLE = 500, 2000
MOST_SECONDS = 10.0
"""Within which each socket is closed, from its first moment."""
MOST_P99 = 0.5
"""Seconds of an honest request, of which 99 in 100 take less."""
_GIVE_UP = 60.0
_PAUSE = 0.005  # between honest requests
SPEC: dict[str, Any] = {"workload": {"kind": "prefix", "n": 64}, "mechanism": {"kind": "square_root"}}
_POST = b"POST /v1/canonicalize HTTP/1.1\r\nHost: localhost\r\n"
HELD: dict[str, tuple[bytes, bytes]] = {
    "slow header": (_POST + b"X-Slow: ", b"a"),
    "slow body": (_POST + b"Content-Length: 1000\r\n\r\n", b"{"),
    "nothing": (b"", b""),
    "kept": (b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n", b""),
}
"""By kind of socket: what it sends at once, and then every second."""


@dataclass
class SocketRound:
    """What one round has seen.

    Attributes:
        held: seconds until each hostile socket was closed, by kind.
        honest: seconds of each honest request.
        wrong: answers to honest requests that were none.
    """

    held: dict[str, list[float]] = field(default_factory=lambda: {kind: [] for kind in HELD})
    honest: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    @property
    def p99(self) -> float:
        """The seconds that 99 of 100 honest requests stay below."""
        return sorted(self.honest)[int(0.99 * len(self.honest))]

    @property
    def longest(self) -> float:
        """The seconds of the hostile socket that was held longest."""
        return max(max(seconds) for seconds in self.held.values())


def one_round(host: str, name: str, *, slow: int = SLOW, idle: int = IDLE) -> SocketRound:
    """Hold so many sockets until the service has closed them all, and ask honestly meanwhile.

    Args:
        host: of the service, with its port.
        name: digest of a result that it has.
        slow: sockets that send a byte a second, in halves of two kinds.
        idle: sockets that send nothing, in halves of two kinds.
    """
    found, over = SocketRound(), threading.Event()
    asking = threading.Thread(target=_ask, args=(host, name, found, over))
    asking.start()
    try:
        asyncio.run(_hold_all(host, found, slow, idle))
    finally:
        over.set()
        asking.join()
    return found


async def _hold_all(host: str, found: SocketRound, slow: int, idle: int) -> None:
    counts = zip(HELD, (slow - slow // 2, slow // 2, idle - idle // 2, idle // 2), strict=True)
    async with asyncio.TaskGroup() as group:
        for kind, count in counts:
            for _ in range(count):
                group.create_task(_hold(host, kind, found))


async def _hold(host: str, kind: str, found: SocketRound) -> None:
    """Keep one socket until it is closed; one that is not after a minute counts as a minute."""
    first, more = HELD[kind]
    name, _, port = host.rpartition(":")
    reader, writer = await asyncio.open_connection(name, int(port))
    began = time.monotonic()
    try:
        writer.write(first)
        dripping = asyncio.create_task(_drip(writer, more))
        with suppress(ConnectionError, TimeoutError):
            await asyncio.wait_for(reader.read(), _GIVE_UP)
        found.held[kind].append(time.monotonic() - began)
        dripping.cancel()
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


async def _drip(writer: asyncio.StreamWriter, piece: bytes) -> None:
    while piece:
        await asyncio.sleep(1)
        writer.write(piece)


def _ask(host: str, name: str, found: SocketRound, over: threading.Event) -> None:
    """Look results and specs up, each on a connection of its own, until it is over."""
    requests = [("GET", f"/v1/factorizations/{name}", None), ("POST", "/v1/canonicalize", json.dumps(SPEC))]
    while not over.wait(_PAUSE):
        method, path, body = requests[len(found.honest) % 2]
        began = time.monotonic()
        connection = http.client.HTTPConnection(host, timeout=_GIVE_UP)
        try:
            connection.request(method, path, body)
            with connection.getresponse() as answer:
                answer.read()
                if answer.status != 200:
                    found.wrong.append(f"{method} {path} was answered {answer.status}")
        except (OSError, http.client.HTTPException) as error:
            found.wrong.append(f"{method} {path} was not answered: {error!r}")
        finally:
            connection.close()
        found.honest.append(time.monotonic() - began)


def soak(end: float, demand: Callable[[bool, str], None], folder: Path) -> str:
    """Go through rounds until time is up, one at least.

    Args:
        end: as `time.monotonic` gives it.
        demand: ends the run where what it is given does not hold.
        folder: for the service's store.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    servers: Any = import_module("servers")
    rounds: list[SocketRound] = []
    with servers.serving_apart(folder / "sockets") as (client, process):
        name = client.solve(SPEC)["digest"]
        one_round(client.host, name, slow=4, idle=4)
        before = psutil.Process(process.pid).memory_info().rss
        while not rounds or time.monotonic() < end:
            seen = one_round(client.host, name)
            rounds.append(seen)
            demand(not seen.wrong, f"{len(seen.wrong)} honest requests failed, the first: {seen.wrong[:1]}")
            demand(seen.longest < MOST_SECONDS, f"a socket was held for {seen.longest:.1f} s")
            demand(seen.p99 < MOST_P99, f"one honest request in 100 took more than {seen.p99:.3f} s")
        growth = (psutil.Process(process.pid).memory_info().rss - before) >> 20
    honest = sorted(seconds for seen in rounds for seconds in seen.honest)
    held, p99 = max(seen.longest for seen in rounds), max(seen.p99 for seen in rounds)
    return (
        f"{len(rounds)} rounds of {SLOW} slow and {IDLE} idle sockets, held for {held:.1f} s at most; "
        f"{len(honest)} honest requests: median {1e3 * honest[len(honest) // 2]:.1f} ms, p99 in the worst round "
        f"{1e3 * p99:.1f} ms, longest {1e3 * honest[-1]:.0f} ms; memory grew by {growth} MiB"
    )

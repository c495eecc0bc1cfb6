"""What a key costs a request: the check of the access guard, with the key known and with a look into the ledger.

    python -m benchmarks key_check [--quick]

Around an application that does nothing, in processor time. The ratio is that of the same request at a service that asks
for no keys.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from typing import Any

from benchmarks.report import Report, at_most
from factorize.api.access.gate import Gate
from factorize.api.access.key_register import KeyRegister
from factorize.api.access.usage import UsageMeter
from factorize.api.http.gateway.access_guard import AccessGuard
from factorize.api.jobs.ledger import Ledger
from factorize.api.settings import Settings

LIMIT_MICROSECONDS = 50.0
_PATHS = ("/v1/factorizations/" + "a" * 64, "/v1/factorizations/" + "a" * 64 + "/matrices/C")


def run(report: Report) -> None:
    """Measure both checks."""
    count = 200 if report.quick else 2000
    with tempfile.TemporaryDirectory() as folder, Ledger(f"sqlite:///{folder}/jobs.sqlite") as ledger:
        token = KeyRegister(ledger.engine).create("bench", ["read"])[1].text
        meter = UsageMeter(ledger.engine)

        def seconds(*, keys: bool, known: bool = True) -> float:
            settings = Settings(store=folder, require_keys=keys)
            return asyncio.run(
                _seconds(settings, KeyRegister(ledger.engine), meter, token, count if known else 50, known)
            )

        without, known, looked = seconds(keys=False), seconds(keys=True), seconds(keys=True, known=False)
    report.row("a route's row, no key asked for", seconds=without, ratio=1.0, of="x no keys")
    goal = at_most("microseconds of the check of a key that is known", 1e6 * known, LIMIT_MICROSECONDS)
    goals = [] if report.quick else [goal]
    report.row("a key that is known", seconds=known, ratio=known / without, of="x no keys", goals=goals)
    report.row("a key looked up in SQLite", seconds=looked, ratio=looked / without, of="x no keys")


async def _seconds(
    settings: Settings, register: KeyRegister, meter: UsageMeter, token: str, count: int, known: bool
) -> float:
    """Return the processor seconds of one request, the least of a few rounds."""
    guard = AccessGuard(_nothing, settings, Gate(register), meter)
    rounds = []
    for _ in range(20):
        began = time.process_time()
        for at in range(count):
            if not known:
                guard = AccessGuard(_nothing, settings, Gate(register), meter)
            await guard(_request(_PATHS[at % len(_PATHS)], token), _receive, _send)
        rounds.append((time.process_time() - began) / count)
    return min(rounds)


def _request(path: str, token: str) -> dict[str, Any]:
    headers = [(b"host", b"localhost"), (b"authorization", b"Bearer " + token.encode())]
    return {"type": "http", "method": "GET", "path": path, "client": ("127.0.0.1", 1), "headers": headers}


async def _nothing(scope: Any, receive: Any, send: Any) -> None:
    """Answer nothing."""


async def _receive() -> Any:
    return {"type": "http.disconnect"}


async def _send(message: Any) -> None:
    raise AssertionError(f"the request was refused: {message}")

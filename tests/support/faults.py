"""Faults on a whole cluster: whatever dies, stands still or is cut off, no accepted job is lost and no answer is wrong.

Whatever has died is started again, as an init system does. Before and after each fault specs are posted. At the end each
accepted spec must have its result, each result must be whole and the only one of its spec, and the store must be clean.
What is drawn repeats with the seed; what the processes do at that moment does not.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import statistics
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from functools import partial
from http.client import HTTPException
from typing import Any

from cluster import Balancer, Cluster
from servers import Client

from factorize.storage.fsck import fsck
from factorize.storage.store import Store, open_store

POSTS = 4
READY_GOAL = 15.0
PATIENCE = 600.0
PARTS = ("service0", "service1", "worker0", "worker1", "scheduler")
MECHANISMS = ("square_root", "identity", "dense")
FAULTS = (*(f"kill {part}" for part in PARTS), *(f"stop {part}" for part in PARTS), "restart postgres", "cut bucket")


class Proxy(Balancer):
    """Passes connections on, unless it is cut."""

    def __init__(self, port: int) -> None:
        self.whole = True
        super().__init__([port])

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.whole:
            await super()._accept(reader, writer)
        else:
            writer.close()

    def cut(self, seconds: float) -> None:
        """End every connection, and take no other for some seconds."""
        self.whole = False
        self._loop.call_soon_threadsafe(lambda: [task.cancel() for task in list(self._tasks)])
        time.sleep(seconds)
        self.whole = True


class Faults:
    """One run.

    Args:
        cluster: not started yet.
        stack: ends what is started.
        seed: of what is drawn.
        proxy: before its bucket, to be cut.
        restarted: parts that are started anew when they have ended.
    """

    def __init__(
        self,
        cluster: Cluster,
        stack: ExitStack,
        seed: int,
        *,
        proxy: Proxy | None = None,
        restarted: Iterable[str] = PARTS,
    ) -> None:
        self.luck = random.Random(seed)
        self.cluster, self.proxy, self.restarted = cluster, proxy, frozenset(restarted)
        self.codes: defaultdict[str, list[int]] = defaultdict(list)
        """The exit codes of the parts that were started anew."""
        self._ending = threading.Event()
        self.client = Client(self.cluster.start())
        supervisor = threading.Thread(target=self._supervise)
        supervisor.start()
        stack.callback(supervisor.join)
        stack.callback(self._ending.set)
        self.accepted: dict[str, dict[str, Any]] = {}
        self.digests: dict[str, str] = {}
        self.number = 0
        self.injected: Counter[str] = Counter()
        self.waits: list[float] = []

    def run(self, faults: Iterable[str], *, posts: int = POSTS) -> str:
        """Inject faults, then see that nothing is lost or wrong; return what was found, in one line."""
        self._until_ready()
        for fault in faults:
            self._post(posts)
            self._inject(*fault.split())
            self.injected[fault] += 1
            self._post(posts)
            self._look_at_some()
            self.waits.append(self._until_ready())
            print(f"{sum(self.injected.values())}: {fault}, ready after {self.waits[-1]:.1f} s", flush=True)
        self._settle()
        return self._judged()

    def _inject(self, what: str, part: str) -> None:
        process = self.cluster.processes.get(part)
        if what == "kill":
            assert process is not None
            process.kill()
        elif what == "stop":
            assert process is not None
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGSTOP)
                time.sleep(self.luck.uniform(1, 4))
                os.kill(process.pid, signal.SIGCONT)
        elif what == "restart":
            self.cluster.postgres.kill()
            time.sleep(self.luck.uniform(0, 2))
            self.cluster.postgres.start()
        else:
            assert self.proxy is not None
            self.proxy.cut(self.luck.uniform(1, 4))

    def _supervise(self) -> None:
        """Start anew what has ended."""
        start: dict[str, Callable[[], None]] = {"scheduler": self.cluster.start_scheduler}
        for number in range(2):
            start[f"worker{number}"] = partial(self.cluster.start_worker, number)
            start[f"service{number}"] = partial(self.cluster.start_service, number)
        while not self._ending.wait(0.2):
            for name in self.restarted:
                code = self.cluster.processes[name].poll()
                if code is not None:
                    self.codes[name].append(code)
                    start[name]()

    def _post(self, count: int) -> None:
        """Post new specs; one that is not accepted is not owed."""
        for _ in range(count):
            self.number += 1
            kind = self.luck.choice(MECHANISMS)
            rate = 0.5 + self.number / 10_000
            workload = {"kind": "decay", "n": self.luck.randrange(4, 40), "rate": rate}
            spec = {"workload": workload, "mechanism": {"kind": kind}}
            with suppress(OSError, HTTPException, ValueError):
                answer = self.client.send("POST", "/v1/factorizations", spec, timeout=60)
                if answer.status in (200, 202):
                    self.accepted[answer.json()["spec_digest"]] = spec
                elif answer.status < 500:
                    raise SystemExit(f"FAILED: {spec} was answered with {answer}")

    def _look_at_some(self) -> None:
        for name in self.luck.sample(sorted(self.accepted), min(len(self.accepted), 5)):
            with suppress(OSError, HTTPException, ValueError):
                answer = self.client.send("GET", f"/v1/factorizations/{name}", timeout=60)
                if answer.status == 200 and "certificate" in answer.json():
                    self._same(name, answer.json()["digest"])

    def _same(self, name: str, digest: str) -> None:
        if self.digests.setdefault(name, digest) != digest:
            raise SystemExit(f"FAILED: {name} was answered by {self.digests[name]} and by {digest}")

    def _until_ready(self) -> float:
        began = time.monotonic()
        while time.monotonic() - began < PATIENCE:
            with suppress(OSError, HTTPException, ValueError):
                if self.client.send("GET", "/readyz", timeout=30).json().get("status") == "ready":
                    return time.monotonic() - began
            time.sleep(0.1)
        raise SystemExit(f"FAILED: not ready after {PATIENCE:g} s")

    def _settle(self) -> None:
        """Wait for the result of each accepted spec."""
        end = time.monotonic() + PATIENCE
        waiting = sorted(self.accepted)
        while waiting and time.monotonic() < end:
            left = []
            for name in waiting:
                try:
                    document = self.client.send("GET", f"/v1/factorizations/{name}", timeout=60).json()
                except (OSError, HTTPException, ValueError):
                    document = {}
                if "certificate" in document:
                    self._same(name, document["digest"])
                elif document.get("state") in ("failed", "cancelled"):
                    raise SystemExit(f"FAILED: the accepted {name} ended as {document}")
                else:
                    left.append(name)
            waiting = left
            time.sleep(0.2)
        if waiting:
            raise SystemExit(f"FAILED: {len(waiting)} accepted jobs have no result, {waiting[0]} for one")

    def _judged(self) -> str:
        os.environ.update(self.cluster.buckets.environment)
        store = open_store(self.cluster.store)
        self._whole(store)
        report = fsck(store)
        if not report.clean:
            raise SystemExit(f"FAILED: {[finding for finding in report.findings if finding.error]}")
        late = sum(wait > READY_GOAL for wait in self.waits)
        median, worst = statistics.median(self.waits), max(self.waits)
        return (
            f"{sum(self.injected.values())} faults {dict(sorted(self.injected.items()))}, {len(self.accepted)} "
            "accepted jobs, 0 lost, 0 wrong, 0 answered twice; ready again after "
            f"{median:.1f} s, {worst:.1f} s at worst, {late} times later than {READY_GOAL:g} s"
        )

    def _whole(self, store: Store) -> None:
        """See that each result proves its claims from its bytes, and is the only one of its spec."""
        found: dict[str, list[str]] = {}
        for manifest in store.items():
            found.setdefault(manifest["spec_digest"], []).append(manifest["digest"])
        for name in self.accepted:
            if found.get(name) != [self.digests[name]]:
                raise SystemExit(
                    f"FAILED: {name} has the results {found.get(name)}, and {self.digests[name]} was given"
                )
            store.load(self.digests[name]).verify()

"""A real service on loopback, in this process or in one of its own, and a client that hides nothing."""

from __future__ import annotations

import asyncio
import atexit
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import uvicorn
from jsonschema import Draft202012Validator
from kept_openapi import KEPT
from patience import wait_for

from factorize.api.http.app import ROUTES
from factorize.api.http.server import address, listen, server
from factorize.api.service import SolverService
from factorize.api.settings import Settings
from factorize.api.workers.pool import Pool
from factorize.api.workers.worker import PROVER, SOLVER
from factorize.storage.medium.location import directory_of

ROOT = Path(__file__).parents[2]
SLOW_SOLVER = "slow_solver"


_PATTERNS = [(row, re.compile(re.sub(r"\\{\w+\\}", r"[^/\n]+", re.escape(row.path)))) for row in ROUTES]


@cache
def _document() -> Any:
    return json.loads(KEPT.read_text())


@cache
def _validator(method: str, path: str, status: int) -> Draft202012Validator | None:
    operation = _document()["paths"].get(path, {}).get(method.lower())
    if operation is None:
        return None
    content = operation["responses"][str(status)]["content"]
    return Draft202012Validator({**content["application/json"]["schema"], "components": _document()["components"]})


def check_described(method: str, target: str, status: int, body: bytes) -> None:
    """Refuse an answer that is not of its schema.

    Args:
        method: of the request.
        target: its path and query.
        status: of the answer, a good one.
        body: its JSON.

    Raises:
        AssertionError: what is wrong with it.
    """
    known, path = "GET" if method == "HEAD" else method, target.partition("?")[0]
    row = next((row for row, pattern in _PATTERNS if row.method == known and pattern.fullmatch(path)), None)
    validator = None if row is None else _validator(method, row.path, status)
    if validator is not None:
        errors = [f"{error.json_path}: {error.message[:300]}" for error in validator.iter_errors(json.loads(body))]
        assert not errors, (method, target, status, errors)


@dataclass(frozen=True)
class Answer:
    """An answer of the service."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    def problem(self, status: int, slug: str) -> Any:
        """Return the document of a problem, checked to be a complete one of this kind."""
        assert (self.status, self.headers["content-type"]) == (status, "application/problem+json"), self
        document = self.json()
        assert document["type"] == f"/problems/{slug}", document
        assert document["status"] == status
        assert document["title"] and document["detail"]
        assert document["request_id"] == self.headers["x-request-id"]
        return document


class Client:
    """Requests to one service, each on its own connection."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.host = urlsplit(url).netloc

    def send(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None, timeout: float = 600
    ) -> Answer:
        if isinstance(body, dict):
            body = json.dumps(body)
        connection = http.client.HTTPConnection(self.host, timeout=timeout)
        try:
            connection.request(method, path, body, dict(headers or {}))
            with (
                connection.getresponse() as answer
            ):  # where the service closes, it holds the socket, not the connection
                found = {name.lower(): value for name, value in answer.getheaders()}
                whole = Answer(answer.status, found, answer.read())
        finally:
            connection.close()
        if whole.status < 300 and whole.headers.get("content-type") == "application/json" and whole.body:
            check_described(method, path, whole.status, whole.body)
        return whole

    def get(self, path: str, headers: Mapping[str, str] | None = None) -> Answer:
        return self.send("GET", path, headers=headers)

    def post(self, spec: Any, headers: Mapping[str, str] | None = None, query: str = "") -> Answer:
        return self.send("POST", f"/v1/factorizations{query}", spec, headers)

    def solve(self, spec: dict[str, Any], query: str = "") -> dict[str, Any]:
        """Have a spec solved and return its manifest, however long a loaded machine takes."""
        answer = self.post(spec, {"Prefer": "wait=30"}, query)
        while answer.status == 202:
            answer = self.post(spec, {"Prefer": "wait=30"}, query)
        assert answer.status == 200, answer
        return answer.json()

    def spec_digest(self, spec: dict[str, Any]) -> str:
        return self.send("POST", "/v1/canonicalize", spec).json()["spec_digest"]

    def solves(self) -> float:
        """Return the solver processes that this service has started."""
        lines = self.get("/metrics").body.decode().splitlines()
        return float(next(line for line in lines if line.startswith("factorize_solves_total ")).split()[1])

    def connected(self) -> socket.socket:
        """Give a connection of one's own."""
        host, port = self.host.rsplit(":", 1)
        return socket.create_connection((host, int(port)), timeout=600)

    def raw(self, data: bytes) -> bytes:
        """Send bytes as they are and return all that comes back until the service closes the connection."""
        with self.connected() as connection:
            connection.sendall(data)
            return b"".join(iter(lambda: connection.recv(65536), b""))

    def until(self, path: str, done: Any, seconds: float = 600) -> Any:
        """Ask again until a JSON answer satisfies a condition."""
        return wait_for(lambda: document if done(document := self.get(path).json()) else None, seconds)


class LiveService(Client):
    """A service in this process, whose store and service object a test may look into."""

    def __init__(self, url: str, service: SolverService) -> None:
        super().__init__(url)
        self.service = service
        self.store = service.store

    @property
    def folder(self) -> Path:
        """The folder of the store, where it is one."""
        return directory_of(self.store.url)

    def one(self) -> Client:
        """Return the client of one service, which is this one; a cluster has several."""
        return self

    def go(self) -> None:
        """Let slow children end."""
        (self.folder / "go").touch()


@cache
def shared_pool(modules: tuple[str, str], memory_mb: int | None, processors: int | None) -> Pool:
    """Return workers that end with this process."""
    pool = Pool(memory_mb, processors, modules)
    atexit.register(pool.close)
    return pool


@contextmanager
def serving(store: Path | str, *, solver: str = SOLVER, **options: Any) -> Iterator[LiveService]:
    """Run a service in a thread of this process, with workers that services of other tests use too.

    Args:
        store: a folder or a bucket.
        solver: the module of its solvers.
        options: further settings.
    """
    settings = Settings(store=str(store), **options)
    in_bucket = "://" in settings.store  # its workers need the environment of the test
    pool = None if in_bucket else shared_pool((solver, PROVER), settings.capacity_mb, settings.processors)
    service = SolverService(settings, pool=pool)
    running = server(settings, service=service)
    with listen(settings.host, 0) as listener:
        thread = threading.Thread(target=running.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            while not running.started:
                assert thread.is_alive(), "the service has not started"
                time.sleep(0.005)
            yield LiveService(address(listener), service)
        finally:
            running.should_exit = True
            thread.join(300)
            assert not thread.is_alive(), "\n".join(_waits(running))


def _waits(running: uvicorn.Server) -> Iterator[str]:
    """Say what each task of a server that does not end waits for, and where each thread is."""
    for listening in running.servers:
        yield from map(repr, asyncio.all_tasks(listening.get_loop()))
    for thread in threading.enumerate():
        frame = sys._current_frames().get(thread.ident or 0)
        if frame is not None and thread is not threading.current_thread():
            last = traceback.extract_stack(frame)[-6:]
            yield f"{thread.name}: " + " > ".join(f"{Path(one.filename).name}:{one.lineno} {one.name}" for one in last)


@contextmanager
def serving_apart(
    store: Path, *, slow: bool = False, keys: bool = False
) -> Iterator[tuple[Client, subprocess.Popen[bytes]]]:
    """Run a service in a process of its own, which a test may kill; one that asks for keys has its store's ledger."""
    program = [sys.executable, __file__, str(store), "slow" if slow else "fast", "keys" if keys else "open"]
    with subprocess.Popen(program, stdout=subprocess.PIPE, cwd=ROOT, env=_environment()) as process:
        assert process.stdout is not None
        try:
            yield Client(process.stdout.readline().decode().strip()), process
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(600)


def _environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FACTORIZE_")}
    return kept | {"PYTHONPATH": str(ROOT)}


def main(store: str, speed: str, access: str) -> None:
    settings = Settings(store=store, port=0, require_keys=access == "keys")
    service = SolverService(settings, pool=Pool(modules=(SLOW_SOLVER, PROVER)) if speed == "slow" else None)
    with listen(settings.host, 0) as listener:
        print(address(listener), flush=True)
        server(settings, service=service).run(sockets=[listener])


if __name__ == "__main__":
    main(*sys.argv[1:])

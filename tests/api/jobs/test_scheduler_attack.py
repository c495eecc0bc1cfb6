"""Whoever reaches a scheduler, or holds a worker's certificate, runs no code in a service and ends no job with a word.

Over TLS whoever has a certificate of the authority works, and who has none is not let in.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import struct
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from certificates import authority_with, certificate
from distributed.comm import listen
from ports import free_ports
from scheduler_attacker import Bomb
from servers import Client

from factorize.api.jobs import dask_cluster
from factorize.api.jobs.dask_cluster import plain
from factorize.api.jobs.solve_job import SolveEnding
from factorize.api.workers.worker import Ending

ROOT = Path(__file__).parents[3]
SPEC = {"workload": {"kind": "prefix", "n": 5}, "mechanism": {"kind": "square_root"}}


def test_a_worker_that_turns_against_its_service_runs_no_code_there(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    opened = tmp_path / "opened"
    opened.mkdir()
    pickle.loads(pickle.dumps(Bomb(str(opened))))
    assert (opened / str(os.getpid())).exists(), "the bomb goes off where it is opened"
    address = f"tls://127.0.0.1:{port}"
    files = [str(path) for path in authority_with(tmp_path, "member")]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FACTORIZE_")}
    paths = os.pathsep.join([str(ROOT), str(ROOT / "tests" / "support")])
    environment = kept | {"PYTHONPATH": paths, "PYTHONUNBUFFERED": "1"}

    with ExitStack() as stack:

        def start(*command: str, **more: str) -> subprocess.Popen[str]:
            process = stack.enter_context(
                subprocess.Popen([sys.executable, *command], env=environment | more, stdout=subprocess.PIPE, text=True)
            )
            stack.callback(process.kill)
            return process

        def named(names: tuple[str, ...], files: list[str]) -> list[str]:
            return [part for pair in zip(names, files, strict=False) for part in pair]

        def worker(scheduler: str, files: list[str]) -> subprocess.Popen[str]:
            secured = named(("--tls-ca", "--tls-cert", "--tls-key"), files)
            order = ["worker", "--scheduler", scheduler, "--memory-mb", "2000", "--processors", "1"]
            return start("-m", "factorize.api.cli", *order, *stored, *secured)

        scheduler = ["-m", "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", str(port), "--protocol"]
        quiet = ["--no-dashboard", "--dashboard-address", "127.0.0.1:0"]
        start(*scheduler, "tls", *quiet, *named(("--tls-ca-file", "--tls-cert", "--tls-key"), files))
        stored = ["--store", str(tmp_path / "store")]
        own = dict(zip(("FACTORIZE_TLS_CA", "FACTORIZE_TLS_CERT", "FACTORIZE_TLS_KEY"), files, strict=False))
        service = start("-m", "factorize.api.cli", "serve", "--port", "0", "--scheduler", address, *stored, **own)
        assert service.stdout is not None
        client = Client(service.stdout.readline().split()[-1])
        client.until("/readyz", lambda answer: answer.get("status") == "ready", 600)
        attacker = start(str(ROOT / "tests" / "support" / "scheduler_attacker.py"), address, str(opened), *files)
        assert attacker.stdout is not None and attacker.stdout.readline() == "ready\n"
        name = client.post(SPEC).json()["spec_digest"]
        assert attacker.stdout.readline() == "done\n"
        attacker.wait(600)
        job = client.get(f"/v1/factorizations/{name}").json()
        assert job["state"] in ("queued", "running") and "certificate" not in job, "a foreign answer ends no job"
        assert not (opened / str(service.pid)).exists(), "the service has opened a stranger's pickle"
        certificate(tmp_path, "other", certificate(tmp_path, "stranger"))
        forged = [str(tmp_path / name) for name in ("authority.crt", "other.crt", "other.key")]
        outsiders = [worker(f"tcp://127.0.0.1:{port}", []), worker(address, forged)]
        worker(address, files)
        client.until(f"/v1/factorizations/{name}", lambda answer: "certificate" in answer, 600)
        assert not (opened / str(service.pid)).exists()
        for outsider in outsiders:
            out, _ = outsider.communicate(timeout=600)
            assert outsider.returncode == 5 and out == "", "the scheduler has not let it in"


def test_a_message_that_is_read_holds_nothing_that_could_be_unpickled() -> None:
    assert plain({"a": (1, [2.5, None, True, {"b": b"\x80"}]), b"c": bytearray(b"\x80"), "d": memoryview(b"")}) == {
        "a": (1, (2.5, None, True, {"b": None})),
        None: None,
        "d": None,
    }


GOOD: dict[str, Any] = {
    "ending": "FAILED", "digest": None, "error": {"type": "t", "message": "m"}, "seconds": 1.0,
    "timings": {"solve": (1.0, 2.0)}, "progress": {"iteration": 3, "phase": "rm -rf", "seconds": 1, "seconds_left": "long"},
}  # fmt: skip


def test_an_end_is_read_as_it_was_written() -> None:
    said = SolveEnding.read(GOOD)
    assert said is not None and said.ending is Ending.FAILED and said.error == GOOD["error"]
    assert said.progress is not None and (said.progress["iteration"], said.progress["phase"]) == (3, None)
    assert SolveEnding.read(said.document()) == said
    done = SolveEnding(Ending.DONE, "0" * 64, None, 0.5)
    assert SolveEnding.read(done.document()) == done


@pytest.mark.parametrize(
    "spoil",
    [
        lambda said: said.update(ending="REMOVED"),
        lambda said: said.update(ending=None),
        lambda said: said.update(ending="DONE"),
        lambda said: said.update(ending="DONE", error=None, digest="../../etc"),
        lambda said: said.update(digest="0" * 64),
        lambda said: said.update(error="no mapping"),
        lambda said: said.update(error={"type": 1, "message": "m"}),
        lambda said: said.update(seconds=float("nan")),
        lambda said: said.update(seconds=-1),
        lambda said: said.update(seconds="1"),
        lambda said: said.pop("seconds"),
    ],
)
def test_what_is_no_end_ends_nothing(spoil: Callable[[dict[str, Any]], object]) -> None:
    said = dict(GOOD)
    spoil(said)
    assert SolveEnding.read(said) is None
    assert all(SolveEnding.read(other) is None for other in (None, 1, "FAILED", (), asyncio))


def test_a_connection_is_ended_as_dask_ends_it() -> None:
    from distributed.comm import tcp
    from distributed.comm.registry import backends

    from factorize.api.jobs import dask_cluster

    for scheme, comm in (("tcp", tcp.TCP), ("tls", tcp.TLS)):
        plain_comm = backends[f"{dask_cluster.PREFIX}{scheme}"]._connector_class.comm_class
        assert issubclass(plain_comm, comm) and plain_comm.abort is comm.abort


def test_a_worker_makes_no_room_for_a_frame_beyond_the_limit() -> None:
    async def announce() -> bytes:
        dask_cluster.configure()
        async with listen("tcp://127.0.0.1:0", lambda comm: comm.read()) as listener:
            reader, writer = await asyncio.open_connection(*listener.get_host_port())
            writer.write(struct.pack("<Q", 1 << 33))
            before = await asyncio.wait_for(reader.read(), 600)  # ends where the connection is closed
            writer.close()
            return before

    assert len(asyncio.run(announce())) < 1000

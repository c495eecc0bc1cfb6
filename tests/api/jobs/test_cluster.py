"""Two services, two workers, a scheduler, PostgreSQL and a bucket as real processes: one solve per spec, whatever dies."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import cluster as cluster_module
import pytest
from bucket_server import BucketServer
from garbled_server import answering
from postgres_server import PostgresServer
from servers import Client

from factorize.api.jobs.cluster_worker import secure, tls_of
from factorize.errors import InvalidParameter
from factorize.storage.fsck import fsck
from factorize.storage.store import open_store


def asked(n: int) -> dict[str, Any]:
    return {"workload": {"kind": "prefix", "n": n}, "mechanism": {"kind": "square_root"}}


@pytest.fixture
def parts(postgres: PostgresServer, bucket_server: BucketServer) -> Iterator[tuple[cluster_module.Cluster, Client]]:
    with cluster_module.running(postgres, bucket_server) as (running, url):
        client = Client(url)
        client.until("/readyz", lambda answer: answer.get("status") == "ready", 120)
        yield running, client


def states(client: Client) -> dict[str, str]:
    return {job["spec_digest"]: job["state"] for job in client.get("/v1/factorizations?limit=1000").json()["items"]}


def test_a_cluster_solves_each_spec_once_and_survives_what_dies(parts, monkeypatch):
    running, client = parts
    with ThreadPoolExecutor(10) as pool:
        answers = list(pool.map(lambda _: client.post(asked(5), {"Prefer": "wait=30"}), range(30)))
    assert {answer.status for answer in answers} == {200}
    assert len({answer.json()["digest"] for answer in answers}) == 1
    assert sum(Client(f"http://127.0.0.1:{port}").solves() for port in running.service_ports) == 1

    names = [client.post(asked(n)).json()["spec_digest"] for n in range(10, 16)]
    for name in ("worker0", "service0"):
        running.processes[name].kill()
        running.processes[name].wait()
    for name in names:
        client.until(f"/v1/factorizations/{name}", lambda answer: "certificate" in answer, 180)
    assert states(client)[names[0]] == "done"

    running.processes["scheduler"].kill()
    running.processes["scheduler"].wait()
    last = client.post(asked(20)).json()["spec_digest"]
    running.start_scheduler()
    assert running.processes["worker1"].wait(120) == 5, "it has noticed, and whoever runs it starts it again"
    running.start_worker(1)
    client.until(f"/v1/factorizations/{last}", lambda answer: "certificate" in answer, 180)

    for name, value in running.buckets.environment.items():
        monkeypatch.setenv(name, value)
    store = open_store(running.store)
    assert fsck(store).clean and len(list(store.items())) == 8


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("tcp://8.8.8.8:8786", "can be reached from other networks"),
        ("tcp://0.0.0.0:8786", "can be reached from other networks"),
        ("tls://127.0.0.1:8786", "wants TLS"),
        ("127.0.0.1:8786", "no scheduler's address"),
        ("tcp://127.0.0.1", "no scheduler's address"),
        ("http://127.0.0.1:1", "no scheduler's address"),
        ("tcp://127.0.0.1:x", "no scheduler's address"),
    ],
)
def test_a_scheduler_that_others_reach_wants_tls(address, why):
    with pytest.raises(InvalidParameter, match=why):
        secure(address, None)


def test_tls_takes_three_files(tmp_path: Path):
    for name in ("ca", "cert", "key"):
        (tmp_path / name).touch()
    assert tls_of(None, None, None) is None
    ca, cert, key = (str(tmp_path / name) for name in ("ca", "cert", "key"))
    tls = tls_of(ca, cert, key)
    with pytest.raises(InvalidParameter, match="tls_key is missing"):
        tls_of(ca, cert, None)
    with pytest.raises(InvalidParameter, match="not a file"):
        tls_of(ca, cert, str(tmp_path / "none"))
    with pytest.raises(InvalidParameter, match="tls://"):
        secure("tcp://127.0.0.1:8786", tls)
    secure("tcp://127.0.0.1:8786", None)


def test_a_worker_without_a_scheduler_or_with_something_else_at_its_address_says_so(tmp_path):
    """In a process of its own, which a worker takes for itself: its loop, its sockets, its children."""
    (port,) = cluster_module.free_ports(1)
    with answering(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n") as other:
        command = ["worker", "--store", str(tmp_path / "store"), "--scheduler"]
        code = (
            "from factorize.api.jobs import cluster_worker\n"
            "from factorize.api.commands.application import run\n"
            "cluster_worker.CONNECT_SECONDS = 5.0\n"
            f"print(*[run([*{command!r}, f'tcp://127.0.0.1:{{port}}']) for port in ({port}, {other})])"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0 and done.stdout == "5 5\n", done
    assert f"no scheduler answers at tcp://127.0.0.1:{port}" in done.stderr
    assert f"tcp://127.0.0.1:{other} does not answer as a dask scheduler" in done.stderr

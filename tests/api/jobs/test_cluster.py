"""Two services, two workers, a scheduler, PostgreSQL and a bucket as real processes: one solve per spec, whatever dies."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import cluster as cluster_module
import dask
import pytest
from faults import Faults
from garbled_server import answering
from patience import wait_for
from ports import free_ports
from servers import Client

from factorize.api.commands import serve
from factorize.api.commands.application import run
from factorize.api.jobs.cluster_worker import secure
from factorize.api.settings import load_settings
from factorize.errors import InvalidParameter


def asked(n: int) -> dict[str, Any]:
    return {"workload": {"kind": "prefix", "n": n}, "mechanism": {"kind": "square_root"}}


def test_a_cluster_solves_each_spec_once_and_survives_what_dies(postgres, bucket_server, tmp_path, monkeypatch):
    """A short form of `python -m benchmarks.cluster_faults`. The killed service and worker stay away."""
    for name, value in bucket_server.environment.items():
        monkeypatch.setenv(name, value)
    with ExitStack() as stack:
        parts = cluster_module.Cluster(tmp_path, stack, postgres, bucket_server)
        faults = Faults(parts, stack, seed=16, restarted=("scheduler", "worker1"))
        with ThreadPoolExecutor(10) as pool:
            answers = list(pool.map(lambda _: faults.client.post(asked(5), {"Prefer": "wait=30"}), range(30)))
        assert {answer.status for answer in answers} <= {200, 202}
        faults.client.solve(asked(5))
        assert sum(Client(f"http://127.0.0.1:{port}").solves() for port in parts.service_ports) == 1
        said = faults.run(("kill worker0", "stop scheduler", "kill service0", "kill scheduler"), posts=2)
        assert "0 lost, 0 wrong, 0 answered twice" in said
        wait_for(lambda: faults.codes["worker1"])  # a worker ends without its scheduler
        assert set(faults.codes["worker1"]) == {5}, "it has noticed, and whoever runs it starts it again"


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("tcp://8.8.8.8:8786", "can be reached from other networks"),
        ("tcp://0.0.0.0:8786", "can be reached from other networks"),
        ("tcp://100.64.0.1:8786", "can be reached from other networks"),
        ("tls://127.0.0.1:8786", "requires TLS"),
        ("127.0.0.1:8786", "not a scheduler's address"),
        ("tcp://127.0.0.1", "not a scheduler's address"),
        ("http://127.0.0.1:1", "not a scheduler's address"),
        ("tcp://127.0.0.1:x", "not a scheduler's address"),
    ],
)
def test_a_scheduler_that_others_reach_wants_tls(address, why):
    with pytest.raises(InvalidParameter, match=why):
        secure(address, load_settings())


def test_tls_takes_three_files(tmp_path: Path):
    for name in ("ca", "cert", "key"):
        (tmp_path / name).touch()
    ca, cert, key = (str(tmp_path / name) for name in ("ca", "cert", "key"))
    with pytest.raises(InvalidParameter, match="tls_key is missing"):
        secure("tls://127.0.0.1:8786", load_settings(tls_ca=ca, tls_cert=cert))
    with pytest.raises(InvalidParameter, match="not a file"):
        secure("tls://127.0.0.1:8786", load_settings(tls_ca=ca, tls_cert=cert, tls_key=str(tmp_path / "none")))
    with pytest.raises(InvalidParameter, match="tls://"):
        secure("tcp://127.0.0.1:8786", load_settings(tls_ca=ca, tls_cert=cert, tls_key=key))
    secure("tcp://127.0.0.1:8786", load_settings())


def test_a_worker_reads_options_then_variables_then_the_file(monkeypatch, tmp_path: Path):
    """As `factorize serve` does; certificates, memory and processors each come from another place here."""
    files = {name: str(tmp_path / name) for name in ("tls_ca", "tls_cert", "tls_key")}
    for path in files.values():
        Path(path).touch()
    config = tmp_path / "settings.toml"
    config.write_text(f'tls_ca = "{files["tls_ca"]}"\ntls_cert = "absent"\ncapacity_mb = 1000\nprocessors = 2\n')
    variables = {"CONFIG": str(config), "TLS_CERT": files["tls_cert"], "TLS_KEY": "absent", "PROCESSORS": "3"}
    for name, value in variables.items():
        monkeypatch.setenv(f"FACTORIZE_{name}", value)
    rooms: list[dict[str, Any]] = []
    named: dict[str, Any] = {}
    monkeypatch.setattr(serve, "run_worker", lambda _address, **room: rooms.append(room))
    monkeypatch.setattr(dask.config, "set", named.update)
    store, address = str(tmp_path / "store"), "tls://127.0.0.1:8786"
    command = ["worker", "--scheduler", address, "--store", store, "--tls-key", files["tls_key"]]
    assert run(command) == run([*command, "--processors", "4", "--memory-mb", "2000"]) == 0
    assert [(room["memory_mb"], room["processors"]) for room in rooms] == [(1000, 3), (2000, 4)]
    used = [named[f"distributed.comm.tls.{name}"] for name in ("ca-file", "worker.cert", "worker.key")]
    assert used == list(files.values())


def test_a_worker_without_a_scheduler_or_with_something_else_at_its_address_says_so(tmp_path):
    """In a process of its own, which a worker takes for itself: its loop, its sockets, its children."""
    (port,) = free_ports(1)
    with answering(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n") as other:
        command = ["worker", "--store", str(tmp_path / "store"), "--scheduler"]
        code = (
            "from factorize.api.jobs import cluster_worker\n"
            "from factorize.api.commands.application import run\n"
            "cluster_worker.CONNECT_SECONDS = 5.0\n"
            f"print(*[run([*{command!r}, f'tcp://127.0.0.1:{{port}}']) for port in ({port}, {other})])"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0 and done.stdout == "5 5\n", done
    assert f"no scheduler answers at tcp://127.0.0.1:{port}" in done.stderr
    assert f"tcp://127.0.0.1:{other} does not answer as a dask scheduler" in done.stderr

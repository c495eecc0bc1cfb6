"""A cluster over TLS: who has a certificate of the authority works, and who has none is not let in."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
from certificates import certificate
from cluster import free_ports
from servers import Client

ROOT = Path(__file__).parents[3]
SPEC = {"workload": {"kind": "prefix", "n": 5}, "mechanism": {"kind": "square_root"}}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    authority = certificate(tmp_path, "authority")
    certificate(tmp_path, "member", authority)
    stranger = certificate(tmp_path, "stranger")
    certificate(tmp_path, "other", stranger)
    return tmp_path


def test_solves_go_over_tls_and_strangers_stay_outside(folder):
    (port,) = free_ports(1)
    address = f"tls://127.0.0.1:{port}"
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FACTORIZE_")}
    environment = kept | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}

    def files(name: str, authority: str = "authority") -> tuple[str, str, str]:
        return str(folder / f"{authority}.crt"), str(folder / f"{name}.crt"), str(folder / f"{name}.key")

    def worker(scheduler: str, *tls: str) -> list[str]:
        options = [part for pair in zip(("--tls-ca", "--tls-cert", "--tls-key"), tls, strict=False) for part in pair]
        command = [sys.executable, "-m", "factorize.api.cli", "worker", "--scheduler", scheduler]
        return [*command, "--store", str(folder / "store"), "--memory-mb", "2000", "--processors", "1", *options]

    with ExitStack() as stack:

        def start(command: list[str], **more: str) -> subprocess.Popen[str]:
            process = stack.enter_context(
                subprocess.Popen(command, env=environment | more, stdout=subprocess.PIPE, text=True)
            )
            stack.callback(process.kill)
            return process

        ca, cert, key = files("member")
        start(
            [sys.executable, "-m", "distributed.cli.dask_scheduler", "--protocol", "tls", "--host", "127.0.0.1",
             "--port", str(port), "--no-dashboard", "--dashboard-address", "127.0.0.1:0",
             "--tls-ca-file", ca, "--tls-cert", cert, "--tls-key", key]
        )  # fmt: skip
        member = start(worker(address, ca, cert, key))
        assert member.stdout is not None and member.stdout.readline().startswith("working tls://")
        plain = start(worker(f"tcp://127.0.0.1:{port}"))
        stranger = start(worker(address, *files("other", "stranger")))
        names = dict(zip(("FACTORIZE_TLS_CA", "FACTORIZE_TLS_CERT", "FACTORIZE_TLS_KEY"), (ca, cert, key), strict=True))
        serve = [sys.executable, "-m", "factorize.api.cli", "serve", "--port", "0", "--scheduler", address]
        service = start([*serve, "--store", str(folder / "store")], **names)
        assert service.stdout is not None
        client = Client(service.stdout.readline().split()[-1])
        client.until("/readyz", lambda answer: answer.get("status") == "ready", 120)
        name = client.post(SPEC).json()["spec_digest"]
        client.until(f"/v1/factorizations/{name}", lambda answer: "certificate" in answer, 120)
        for outsider in (plain, stranger):
            out, _ = outsider.communicate(timeout=600)
            assert outsider.returncode == 5 and out == "", "the scheduler has not let it in"

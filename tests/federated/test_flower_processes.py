"""Flower's own processes on this machine: a SuperLink, a SuperNode that restarts, and `flwr run`."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from ports import free_ports

from factorize import Spec, solvers
from factorize.checker.receipt import check_receipt

PATIENCE_SECONDS = 600.0
APP = """
[project]
name = "phones"
version = "1.0.0"
description = "An app of the tests"
license = { file = "LICENSE" }
dependencies = ["flwr>=1.42.0"]
[tool.flwr.app]
publisher = "tests"
fab-format-version = 1
flwr-version-target = "1.42.0"
[tool.flwr.app.components]
serverapp = "phones.flower_app:server"
clientapp = "phones.flower_phone:client"
"""


@contextmanager
def process(folder: Path, *command: str) -> Iterator[None]:
    """Run a command of Flower beside this process until the block ends."""
    with (folder / "log").open("a") as log:
        running = subprocess.Popen(command, env=environment(folder), stdout=log, stderr=log)
        try:
            yield
        finally:
            running.terminate()  # a SuperNode then says that it leaves
            running.wait(PATIENCE_SECONDS)


def environment(folder: Path) -> dict[str, str]:
    """Return the variables of a command: the programs of this environment, files in the folder, no telemetry."""
    programs = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    own = {"FLWR_HOME": str(folder), "FLWR_TELEMETRY_ENABLED": "0", "FLOWER_APP_FOLDER": str(folder)}
    return {**os.environ, **own, "PATH": programs}


def wait_for(folder: Path, name: str) -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while not (folder / name).exists():
        assert time.monotonic() < end, (folder / "log").read_text()[-8000:]
        time.sleep(0.1)


def written_app(folder: Path, address: str) -> Path:
    """Write the app and the address of the SuperLink, as `flwr run` finds them."""
    package = folder / "app" / "phones"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    here = Path(__file__).parent
    for module in ("flower_app.py", "flower_phone.py"):
        shutil.copy(here / module, package)
    shutil.copy(here.parents[1] / "LICENSE", folder / "app")
    (folder / "app/pyproject.toml").write_text(APP)
    (folder / "config.toml").write_text(
        f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "{address}"\ninsecure = true\n'
    )
    return folder / "app"


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def run_app(folder: Path, app: Path, port: int) -> None:
    """Hand the app to the SuperLink, once it listens."""
    end = time.monotonic() + PATIENCE_SECONDS
    while not listens(port):
        assert time.monotonic() < end, (folder / "log").read_text()[-8000:]
        time.sleep(0.1)
    command = ["flwr", "run", str(app), "here"]
    done = subprocess.run(command, env=environment(folder), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_phone_whose_supernode_restarts_keeps_its_timer(tmp_path: Path) -> None:
    """The SuperNode has another node id afterwards; the one round that the phone may be in was the first."""
    about = {"workload": {"kind": "prefix", "n": 2}, "participation": {"kind": "single"}}
    solvers.solve(Spec.model_validate({**about, "mechanism": {"kind": "identity"}})).save(
        tmp_path / "factors.safetensors"
    )
    port, *others = free_ports(3)
    address = f"127.0.0.1:{port}"
    app = written_app(tmp_path, address)
    local = ("--insecure", "--host", "127.0.0.1", "--port")
    link = ("flower-superlink", "--disable-runtime-dependency-installation", *local, str(port))
    node = ("flower-supernode", "--superlink", address, "--node-config", 'client-id="phone-1"', *local)
    with ExitStack() as stack:
        stack.enter_context(process(tmp_path, *link))
        with process(tmp_path, *node, str(others[0])):
            run_app(tmp_path, app, port)
            wait_for(tmp_path, "first")
        with process(tmp_path, *node, str(others[1])):
            (tmp_path / "restarted").touch()
            wait_for(tmp_path, "last")
    first, second = (tmp_path / "nodes").read_text().split()
    assert first != second and (tmp_path / "trained").read_text().split() == [first]
    assert (tmp_path / "last").read_text() == "(2, ['phone-1'], {})"
    report = check_receipt((tmp_path / "receipt.json").read_bytes(), [(tmp_path / "factors.safetensors").read_bytes()])
    assert report.supported and not report.unseen, report.failed

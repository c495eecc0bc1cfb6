"""The services of the manifests, run as these say, become ready by the probes that these send, which hold no key."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml
from ports import free_ports
from servers import Client

ROOT = Path(__file__).parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
KUBERNETES = {
    (document["kind"], document["metadata"]["name"]): document
    for path in sorted((ROOT / "deploy" / "kubernetes").glob("*.yaml"))
    for document in yaml.safe_load_all(path.read_text())
}
MODULES = {"serve": "factorize.api.cli", "scheduler": "distributed.cli.dask_scheduler"}


def composed(name: str) -> tuple[list[str], dict[str, str], list[str]]:
    """Command, environment and probe of a service."""
    service = COMPOSE["services"][name]
    kind, *probe = service["healthcheck"]["test"]
    assert kind == "CMD" and probe[0] == "python"
    return service["command"], service["environment"], probe


def orchestrated() -> tuple[list[str], dict[str, str], list[str]]:
    """Command, environment and readiness probe of the pods."""
    (api,) = KUBERNETES["Deployment", "factorize-api"]["spec"]["template"]["spec"]["containers"]
    environment = KUBERNETES["ConfigMap", "factorize"]["data"] | {one["name"]: one["value"] for one in api["env"]}
    asked = api["readinessProbe"]["httpGet"]
    headers = {one["name"]: one["value"] for one in asked["httpHeaders"]}
    (port,) = (one["containerPort"] for one in api["ports"] if one["name"] == asked["port"])
    code = (
        f"import urllib.request as u; r = u.Request('http://127.0.0.1:{port}{asked['path']}', headers={headers}); "
        "u.urlopen(r, timeout=8)"
    )
    return api["args"], environment, ["python", "-c", code]


@pytest.mark.parametrize("manifest", ["api", "api-1", "kubernetes"])
def test_a_service_of_a_manifest_becomes_ready_by_its_probe(manifest: str, tmp_path: Path) -> None:
    """Only places are others: folders, ports, the database and the store; the host is this machine."""
    command, environment, probe = orchestrated() if manifest == "kubernetes" else composed(manifest)
    port, scheduler_port = free_ports(2)
    subprocess.run(["sh", str(ROOT / "deploy" / "certificates.sh"), str(tmp_path / "tls")], check=True)
    places = {
        "tls://scheduler:8786": f"tls://127.0.0.1:{scheduler_port}",
        "tls://factorize-scheduler:8786": f"tls://127.0.0.1:{scheduler_port}",
        "/run/secrets/tls_ca": f"{tmp_path}/tls/ca.crt",
        "/run/secrets/tls_service_cert": f"{tmp_path}/tls/service.crt",
        "/run/secrets/tls_service_key": f"{tmp_path}/tls/service.key",
        "/run/secrets/tls_scheduler_cert": f"{tmp_path}/tls/scheduler.crt",
        "/run/secrets/tls_scheduler_key": f"{tmp_path}/tls/scheduler.key",
        "/tls/ca.crt": f"{tmp_path}/tls/ca.crt",
        "/tls/tls.crt": f"{tmp_path}/tls/service.crt",
        "/tls/tls.key": f"{tmp_path}/tls/service.key",
        "8000": str(port),
        "8786": str(scheduler_port),
    }
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("FACTORIZE_", "AWS_"))}
    kept |= {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    own = {name: places.get(value, value) for name, value in environment.items()}
    own["FACTORIZE_STORE"] = str(tmp_path / "store")
    if manifest != "api":
        own["FACTORIZE_DATABASE"] = f"sqlite:///{tmp_path}/jobs.sqlite"
    with ExitStack() as stack:

        def start(module: str, arguments: list[str], **more: str) -> None:
            moved = [places.get(argument, argument) for argument in arguments]
            with open(tmp_path / f"{module}.log", "wb") as log:
                process = subprocess.Popen(
                    [sys.executable, "-m", module, *moved], env=kept | more, stdout=log, stderr=log
                )
            stack.callback(process.wait)
            stack.callback(process.kill)

        if "--scheduler" in command:
            here = ["--host", "127.0.0.1", "--dashboard-address", "127.0.0.1:0"]
            start(MODULES["scheduler"], [*COMPOSE["services"]["scheduler"]["command"], *here])
        start(MODULES["serve"], command, **own)
        asked = [sys.executable, "-c", probe[2].replace(":8000", f":{port}")]
        end = time.monotonic() + 600
        while (said := subprocess.run(asked, capture_output=True, text=True, check=False)).returncode:
            logs = "".join(path.read_text() for path in tmp_path.glob("*.log"))
            assert time.monotonic() < end, f"{shlex.join(asked)}\n{said.stderr}\n{logs}"
            time.sleep(0.5)
        host = {"Host": json.loads(own["FACTORIZE_ALLOWED_HOSTS"])[0]} if "FACTORIZE_ALLOWED_HOSTS" in own else {}
        client = Client(f"http://127.0.0.1:{port}")
        assert client.get("/readyz", host).json() == {"status": "ready"}, "who sends no key is told no more"
        client.get("/metrics", host).problem(401, "unauthorized")
        unknown = client.send("GET", "/readyz", headers=host | {"Authorization": "Bearer none"})
        assert unknown.json() == {"status": "ready"}, "a key of nobody says no more than none"

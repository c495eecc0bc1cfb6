"""Runs of Schemathesis against a service that asks for keys: values of every schema, at its edges and beside it, and chains of
requests.

tests/contract/schemathesis.toml says how it reads the OpenAPI document, and schema_hooks.py what that does not say.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from schema_hooks import KNOWN
from servers import Client

from factorize import solvers
from factorize.spec import parse_spec
from factorize.storage.store import Store

CONFIG = Path(__file__).parents[1] / "contract" / "schemathesis.toml"


def put_known(store: Store) -> dict[str, Any]:
    """Store the result that the requests ask for, and return its manifest."""
    return store.put(solvers.solve(parse_spec(KNOWN)))


def schema_run(
    client: Client, manifest: dict[str, Any], token: str, folder: Path, *, phase: str, examples: int
) -> tuple[int, str]:
    """Send one phase of requests; return how many, and what was wrong with their answers, in words.

    Args:
        client: of the service.
        manifest: see `put_known`.
        token: of a key that may do all.
        folder: for the configuration and the report.
        phase: `coverage` for values at the edges of schemas and `fuzzing` for any, each request alone; `stateful` for
            chains along the document's links.
        examples: for each operation, about; chains in all.
    """
    document, config, report = (folder / name for name in ("openapi.json", "run.toml", "report.json"))
    answer = client.get("/openapi.json", {"Authorization": f"Bearer {token}"})
    document.write_bytes(answer.body)
    text = CONFIG.read_text() + f'\n[auth.openapi.key]\nbearer = "{token}"\n'
    if phase == "coverage":  # in chains the names are those of the answers before
        names = {"name": manifest["digest"], "sha256": manifest["files"][0]["sha256"]}
        text += "\n[parameters]\n" + "".join(f'{name} = "{value}"\n' for name, value in names.items())
    config.write_text(text)
    command = [str(Path(sys.executable).with_name("st")), "--config-file", str(config), "run", str(document)]
    command += ["--url", client.url, "--phases", phase, "--max-examples", str(examples)]
    command += ["--report", "json", "--report-json-path", str(report)]
    paths = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(command, cwd=folder, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True)
    said = "" if done.returncode == 0 else done.stdout[-20_000:] + done.stderr[-2000:]
    return (json.loads(report.read_text())["test_cases"]["generated"] if report.exists() else 0), said

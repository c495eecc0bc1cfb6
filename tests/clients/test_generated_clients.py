"""Generated clients against a running service: a spec posted, waited for, downloaded and proved from its bytes.

The last test breaks answers, and ends the service, while a client goes on.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from typing import Any

import httpx
import pytest
from hostile_server import HostileService, answering, chunked_cut, close_delimited, cut, reset, vanish
from servers import LiveService, serving

from factorize.checker.check import check_factor_file
from factorize.format.manifest import Manifest

PREFIX = {"workload": {"kind": "prefix", "n": 6}}
MOMENTUM = {
    "workload": {"kind": "momentum", "n": 8, "momentum": 0.9},
    "participation": {"kind": "fixed_epochs", "epochs": 2},
    "mechanism": {"kind": "banded", "bands": 2},
    "objective": {"kind": "weighted", "weights": [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 2.0]},
}

BUSY = {"type": "unavailable", "title": "x", "status": 503, "detail": "x", "request_id": "0" * 16}
FAULTS = (cut(40), reset(40), vanish, close_delimited(40), chunked_cut(40), answering(BUSY, 503))
UNHEARD = (httpx.TransportError, ValueError)
"""What a client raises of an answer that does not come, or is no JSON any more."""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveService]:
    with serving(tmp_path_factory.mktemp("clients") / "store") as running:
        yield running


@pytest.fixture(scope="module")
def folder(service: LiveService, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder that is imported from, with the document."""
    made = tmp_path_factory.mktemp("generated")
    (made / "openapi.json").write_bytes(service.get("/openapi.json").body)
    sys.path.insert(0, str(made))
    yield made
    sys.path.remove(str(made))


def generated(folder: Path, module: str, *arguments: str) -> str:
    """Run a generator, which may not complain of anything, and return what it has said."""
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    return said


def check_file(data: bytes, manifest: Any) -> None:
    """Check a download against its manifest and its own claims."""
    Manifest.check(manifest)
    assert hashlib.sha256(data).hexdigest() == manifest["files"][0]["sha256"]
    found = check_factor_file(data)
    assert found.supported, found.failed


@pytest.fixture(scope="module")
def models(folder: Path) -> Any:
    """Models of datamodel-code-generator."""
    kinds = ["--input-file-type", "openapi", "--output-model-type", "pydantic_v2.BaseModel"]
    generated(folder, "datamodel_code_generator", "--input", "openapi.json", "--output", "generated_models.py", *kinds)
    return import_module("generated_models")


@pytest.mark.parametrize("document", [PREFIX, MOMENTUM], ids=["defaults", "all parts"])
def test_models_carry_a_spec_to_a_file(service: LiveService, models: Any, document: Any) -> None:
    spec = models.Spec.model_validate(document)
    body = spec.model_dump(mode="json", exclude_none=True, by_alias=True)
    manifest = service.solve(body)
    read = models.Manifest.model_validate(manifest)
    assert read.certificate.sensitivity.value > 0 and read.spec.workload.kind == document["workload"]["kind"]
    check_file(service.get(f"/v1/blobs/{read.files[0].sha256}").body, manifest)
    page = models.FactorizationPage.model_validate(service.get("/v1/factorizations").json())
    assert manifest["digest"] in [entry.digest for entry in page.items]


@pytest.fixture(scope="module")
def client(folder: Path, service: LiveService) -> Iterator[Any]:
    """The client of openapi-python-client, which warns of each schema that it cannot take."""
    where = ["--path", "openapi.json", "--output-path", "generated_client", "--meta", "none"]
    said = generated(folder, "openapi_python_client", "generate", *where)
    assert "Unable" not in said and "WARNING" not in said, said
    with import_module("generated_client").Client(base_url=service.url) as opened:
        yield opened


def call(module: str, *arguments: Any, **keywords: Any) -> Any:
    """Return the parsed answer of an operation, by tag and operation id."""
    return import_module(f"generated_client.api.{module}").sync(*arguments, **keywords)


@pytest.mark.parametrize("document", [PREFIX, MOMENTUM], ids=["defaults", "all parts"])
def test_a_client_carries_a_spec_to_a_file(service: LiveService, client: Any, document: Any) -> None:
    types = import_module("generated_client.models")
    spec = types.Spec.from_dict(document)
    answer = call("factorizations.post_factorization", client=client, body=spec)
    if isinstance(answer, types.Job):
        asked = answer.spec_digest
        service.until(f"/v1/factorizations/{asked}", lambda found: "certificate" in found)
        answer = call("factorizations.get_factorization", asked, client=client)
    assert isinstance(answer, types.Manifest)
    file = call("matrices.get_blob", answer.files[0].sha256, client=client)
    check_file(file.payload.read(), answer.to_dict())
    asked = types.CalibrationRequest(epsilon=2.0, delta=1e-6)
    noise = call("questions.calibrate", answer.digest, client=client, body=asked)
    assert isinstance(noise, types.Calibration) and noise.epsilon == 2.0 and noise.noise_multiplier > 0


def test_a_client_reads_a_problem(client: Any) -> None:
    types = import_module("generated_client.models")
    spec = types.Spec.from_dict({"workload": {"kind": "prefix", "n": 6}, "tolerance": 2.0})
    problem = call("factorizations.post_factorization", client=client, body=spec)
    assert isinstance(problem, types.Problem)
    assert problem.status == 422 and [error.pointer for error in problem.errors] == ["/tolerance"]


def test_a_client_whose_answers_break_off_loses_nothing(client: Any, tmp_path: Path) -> None:
    """Each call ends right, or by an error that has a name; what was acknowledged is there once the service is back."""
    types, ended, files = import_module("generated_client.models"), Counter[str](), dict[str, bytes]()

    def until(operation: str, *arguments: Any, **keywords: Any) -> Any:
        """Call until there is an answer; a job's end is waited for where that is what was asked for."""
        for _ in range(600):
            try:
                answer = call(operation, *arguments, client=unsure, **keywords)
            except UNHEARD as error:
                ended[type(error).__name__] += 1
                continue
            if not isinstance(answer, types.Problem | types.Job) or (isinstance(answer, types.Job) and not arguments):
                return answer
            assert isinstance(answer, types.Job) or answer.status == 503, answer
            ended[type(answer).__name__] += 1
            time.sleep(0.1)
        raise AssertionError(f"no answer: {ended}")

    with ExitStack() as stack:
        life = stack.enter_context(ExitStack())
        hostile = stack.enter_context(HostileService(life.enter_context(serving(tmp_path / "store"))))
        unsure = stack.enter_context(import_module("generated_client").Client(base_url=hostile.url, timeout=20.0))
        for number, fault in enumerate(FAULTS, 3):
            for kind in ("post", "status", "blob"):
                hostile.plan(kind, fault)
            spec = types.Spec.from_dict({"workload": {"kind": "prefix", "n": number}})
            posted = until("factorizations.post_factorization", body=spec)
            if number % 3 == 0:  # it was acknowledged, and the service ends
                life.close()
                hostile.behind = life.enter_context(serving(tmp_path / "store"))
            found = until("factorizations.get_factorization", posted.spec_digest)
            name, data = found.files[0].sha256, b""
            while hashlib.sha256(data).hexdigest() != name:  # what broke off without a stated length looks whole
                ended["file"] += 1
                data = until("matrices.get_blob", name).payload.read()
            check_file(data, found.to_dict())
            files[found.digest] = data
        for digest, data in files.items():
            manifest = hostile.behind.get(f"/v1/factorizations/{digest}").json()
            assert hostile.behind.get(f"/v1/blobs/{manifest['files'][0]['sha256']}").body == data
    assert len(files) == len(FAULTS) and ended["file"] == len(FAULTS) + 1, ended
    assert sum(ended.values()) >= 4 * len(FAULTS), ended

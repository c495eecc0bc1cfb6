"""The OpenAPI document: complete, never less than the one that is kept, and true of every answer to many requests.

`python tests/support/kept_openapi.py` writes the document that is kept anew, for what was added to it.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kept_openapi import KEPT
from schema_hooks import KNOWN
from servers import Client, LiveService, serving

from factorize import solvers
from factorize.api.access.key_register import KeyRequest
from factorize.api.http.app import ROUTES
from factorize.api.http.problems import KINDS
from factorize.api.http.schema import BODIES
from factorize.plain_data import read_union
from factorize.spec import parse_spec

EXAMPLES = int(os.environ.get("FUZZED_EXAMPLES", "10"))
CONFIG = Path(__file__).with_name("schemathesis.toml")
_WORDS = {"description", "summary", "title", "examples", "example", "operationId", "version"}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveService]:
    with serving(tmp_path_factory.mktemp("open") / "store", solver="no_solver") as running:
        yield running


@pytest.fixture(scope="module")
def document(service: LiveService) -> Any:
    return service.get("/openapi.json").json()


def operations(document: Any) -> list[tuple[str, str, Any]]:
    return [(method, path, op) for path, ops in document["paths"].items() for method, op in ops.items()]


def lost(old: Any, new: Any, at: str = "") -> list[str]:
    """What the old document has and the new one has not; words may change, and lists may grow."""
    if isinstance(old, dict):
        if not isinstance(new, dict):
            return [at]
        found = [f"{at}/{name}" for name in old if name not in new and name not in _WORDS]
        kept = [name for name in old if name in new and name not in _WORDS]
        return found + [entry for name in kept for entry in lost(old[name], new[name], f"{at}/{name}")]
    if isinstance(old, list):
        if at.endswith("/required"):  # what was optional stays so
            return [f"{at} +{name}" for name in new if name not in old]
        if at.endswith("/security"):
            return [] if old == new else [at]
        return [f"{at}[{n}]" for n, entry in enumerate(old) if not any(lost(entry, other, at) == [] for other in new)]
    return [] if old == new else [at]


def test_the_document_only_grows(document: Any) -> None:
    """What is taken away breaks a client; `python tests/support/kept_openapi.py` keeps what was added."""
    assert lost(json.loads(KEPT.read_text()), document) == []


def test_every_operation_says_all_of_itself(document: Any) -> None:
    assert document["openapi"].startswith("3.1")
    described = {(method.upper(), path) for method, path, _ in operations(document)}
    hidden = {("GET", "/"), ("GET", "/openapi.json")}
    assert {(row.method, row.path) for row in ROUTES} - hidden - described == {
        (row.method, row.path) for row in ROUTES if row.path.startswith("/static") or row.path.startswith("/page")
    }
    for method, path, operation in operations(document):
        about = (method, path)
        assert operation["summary"] and operation["description"] and "security" in operation, about
        assert "422" in operation["responses"] or not path.startswith("/v1/"), about  # for unknown query values
        assert all(parameter.get("schema") for parameter in operation.get("parameters", [])), about
        for status, answer in operation["responses"].items():
            assert "X-Request-Id" in answer["headers"], (*about, status)
            assert status < "400" or list(answer["content"]) == ["application/problem+json"], (*about, status)
        named = {entry["name"] for entry in operation.get("parameters", []) if entry["in"] == "path"}
        assert named == set(re.findall(r"{(\w+)}", path)), about
        assert any(int(status) < 400 for status in operation["responses"]), about
        for media, body in operation.get("requestBody", {}).get("content", {}).items():
            assert media != "application/json" or body["examples"], about


def test_every_json_answer_has_a_schema_of_its_name_and_none_is_merely_an_object(document: Any) -> None:
    for method, path, operation in operations(document):
        for status, answer in operation["responses"].items():
            schema = answer.get("content", {}).get("application/json", {}).get("schema")
            assert schema is None or "$ref" in schema or all("$ref" in kind for kind in schema["anyOf"]), (
                method,
                path,
                status,
            )


def test_generators_of_clients_get_names_of_their_own_and_defaults_that_they_take(document: Any) -> None:
    schemas = document["components"]["schemas"]
    assert {name: schema["title"] for name, schema in schemas.items()} == {name: name for name in schemas}
    assert len({operation["operationId"] for _, _, operation in operations(document)}) == len(operations(document))
    assert all(len(operation["tags"]) == 1 for _, _, operation in operations(document))

    def inside(part: Any) -> Iterator[Any]:
        yield part
        for child in part.values() if isinstance(part, dict) else part if isinstance(part, list) else ():
            yield from inside(child)

    for schema in schemas.values():
        for part in (part for part in inside(schema) if isinstance(part, dict)):
            assert not isinstance(part.get("default"), dict | list), part
            assert part is schema or not isinstance(part.get("title"), str), part


def test_every_reference_has_its_place(document: Any) -> None:
    text = json.dumps(document)
    for reference in {part.partition('"')[0] for part in text.split('"$ref": "')[1:]}:
        found = document
        for name in reference.removeprefix("#/").split("/"):
            found = found[name]
        assert found


def test_every_problem_has_an_example_in_the_document(document: Any) -> None:
    examples = {slug: example["value"] for slug, example in document["components"]["examples"].items()}
    assert {slug: value["status"] for slug, value in examples.items()} == {
        slug: kind.status for slug, kind in KINDS.items()
    }


@pytest.mark.parametrize("model", sorted(BODIES))
def test_an_example_of_a_body_is_one(model: str) -> None:
    from factorize.api.questions.calibration_request import read_calibration_request
    from factorize.api.questions.comparison import read_request
    from factorize.api.questions.training_job import FleetRequest, RecommendRequest, read_job
    from factorize.predict import ask

    readers: dict[str, Any] = {
        "Spec": parse_spec,
        "PredictionRequest": lambda body: ask(body["question"]),
        "CompareRequest": read_request,
        "RecommendRequest": lambda body: read_job(body, RecommendRequest),
        "FleetRequest": lambda body: read_job(body, FleetRequest),
        "CalibrationRequest": read_calibration_request,
        "KeyRequest": lambda body: read_union(body, KeyRequest),
    }
    assert readers[model](BODIES[model])


def schema_run(
    client: Client, manifest: dict[str, Any], token: str, folder: Path, *, phase: str, examples: int
) -> tuple[int, str]:
    """Send one phase of requests; return how many, and what was wrong with their answers, in words.

    Args:
        client: of the service.
        manifest: of `KNOWN`, which is stored.
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
    paths = os.pathsep.join([str(CONFIG.parents[1] / "support"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(command, cwd=folder, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True)
    said = "" if done.returncode == 0 else done.stdout[-20_000:] + done.stderr[-2000:]
    return (json.loads(report.read_text())["test_cases"]["generated"] if report.exists() else 0), said


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveService]:
    """A service that asks for keys, whose solves all fail at once: what is fuzzed is the way to them."""
    with serving(tmp_path_factory.mktemp("keyed") / "store", solver="no_solver", require_keys=True) as running:
        yield running


@pytest.mark.parametrize("phase", ["stateful", "fuzzing", *(["coverage"] if EXAMPLES > 10 else [])])
def test_requests_get_answers_that_the_document_describes(keyed: LiveService, tmp_path: Path, phase: str) -> None:
    """Chains along the document's links, values of every schema and beside it, with a key and without one."""
    token = keyed.service.register.create(KeyRequest(name="fuzz", scopes=["admin"]))[1].text
    manifest = keyed.store.put(solvers.solve(parse_spec(KNOWN)))
    sent, wrong = schema_run(keyed, manifest, token, tmp_path, phase=phase, examples=EXAMPLES)
    assert not wrong, wrong
    assert sent > 50


def test_the_document_says_whether_keys_are_asked_for(keyed: LiveService, document: Any) -> None:
    token = keyed.service.register.create(KeyRequest(name="reader", scopes=["read"]))[1].text
    asked = json.loads(keyed.get("/openapi.json", {"Authorization": f"Bearer {token}"}).body)["paths"]
    for (method, path, open_to_all), (_, _, with_keys) in zip(
        operations(document), operations({"paths": asked}), strict=True
    ):
        needed = with_keys["security"]
        assert ({} in needed) is (path == "/readyz"), "a key brings details, and none is needed"
        assert open_to_all["security"] == (needed if not needed or {} in needed else [*needed, {}]), (method, path)

"""The OpenAPI document, beyond the routes' signatures: bodies, answers, problems."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from factorize.accounting.calibration_request import CalibrationRequest
from factorize.api.http.gateway.access import RouteRow
from factorize.api.http.gateway.answer_schemas import ANSWERS
from factorize.api.http.gateway.openapi_parts import complete
from factorize.api.http.problems import MEDIA_TYPE
from factorize.encoding import DIGEST
from factorize.spec import Spec

_REFERENCE = "#/components/schemas/{model}"


def json_body(model: str) -> dict[str, Any]:
    """Return the `openapi_extra` of a route whose body is a JSON document of a named schema."""
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": reference_to(model)}}}}


def reference_to(model: str) -> dict[str, Any]:
    """Return the schema that is another one, by its name."""
    return {"$ref": _REFERENCE.format(model=model)}


SPEC_BODY = json_body("Spec")
_BYTES = {"type": "string", "format": "binary"}
RAW_BODY: dict[str, Any] = {
    "requestBody": {"required": True, "content": {"application/octet-stream": {"schema": _BYTES}}}
}
_PROBLEM = {
    "type": "object",
    "required": ["type", "title", "status", "detail", "request_id"],
    "properties": {
        "type": {"type": "string", "description": "/problems/<slug>; a slug never changes its meaning"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string", "description": "value, limit and way out"},
        "request_id": {"type": "string"},
        "errors": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["pointer", "detail"],
                "properties": {"pointer": {"type": "string"}, "detail": {"type": "string"}},
            },
        },
    },
}
_MEANINGS = {
    200: "Found",
    201: "Stored",
    202: "Accepted: the job's document",
    206: "The range that was asked for",
    307: "The address at which the store's bucket gives the file",
    304: "The client's copy is current",
}


def answers(
    *statuses: int, document: str | Mapping[int, str] = "", media: str = "application/json", schema: Any = None
) -> dict[Any, Any]:
    """Return the `responses` of a route.

    Args:
        statuses: every status that it documents.
        document: names of the schemas of its good answers, one for all or one for each status; `A | B` is either.
        media: media type of its good answers.
        schema: their schema where `document` names none; bytes by default.
    """
    found: dict[Any, Any] = {}
    for status in statuses:
        found[status] = {"description": _MEANINGS.get(status, "A problem document")}
        if status in (304, 307):
            continue
        name = "Problem" if status >= 400 else document if isinstance(document, str) else document[status]
        kinds = [reference_to(kind) for kind in name.split(" | ") if kind]
        shape = (kinds[0] if len(kinds) == 1 else {"anyOf": kinds}) if kinds else schema or _BYTES
        found[status]["content"] = {MEDIA_TYPE if status >= 400 else media: {"schema": shape}}
    return found


def describe(app: FastAPI, rows: Sequence[RouteRow], *, keys: bool) -> None:
    """Make an application's OpenAPI document complete; it is built when it is first asked for.

    Args:
        app: the application.
        rows: its routes.
        keys: whether it asks for keys.
    """

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            found = get_openapi(title=app.title, version=app.version, summary=app.summary, routes=app.routes)
            schemas = found.setdefault("components", {}).setdefault("schemas", {})
            _drop_foreign_errors(found)
            spec = Spec.model_json_schema(ref_template=_REFERENCE)
            schemas.update(spec.pop("$defs", {}))
            schemas.update({"Spec": spec, "Problem": deepcopy(_PROBLEM), **deepcopy(dict(ANSWERS))})
            schemas.update(_unions())
            for name, schema in schemas.items():
                _settle(schema)
                schema["title"] = name
            complete(found, rows, keys=keys)
            app.openapi_schema = found
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]  # FastAPI's documented way to extend the document


def _settle(schema: Any) -> None:
    """Leave out what generators of clients make wrong names or no code of: titles of fields, objects as defaults.

    The page's forms read `x-default`.
    """
    if isinstance(schema, list):
        for part in schema:
            _settle(part)
    elif isinstance(schema, dict):
        if isinstance(schema.get("title"), str):
            del schema["title"]
        if isinstance(schema.get("default"), dict | list):
            schema["x-default"] = schema.pop("default")
        for kind in (*schema.get("anyOf", ()), *schema.get("oneOf", ())):
            if "const" in kind:  # beside a number, clients would take nothing but the constant
                kind["enum"] = [kind.pop("const")]
        for name, part in schema.items():
            if name != "x-default":
                _settle(part)


def _unions() -> dict[str, Any]:
    """Return the schemas of questions, of what is asked about jobs, and of keys."""
    from factorize import predict
    from factorize.api.access.key_request import schemas as key_schemas
    from factorize.api.comparing.compare_request import CompareRequest
    from factorize.api.recommending.recommend_request import schemas as job_schemas

    schema = predict.ADAPTER.json_schema(ref_template=_REFERENCE)
    found: dict[str, Any] = {**schema.pop("$defs", {}), "Question": schema}
    compare = CompareRequest.model_json_schema(ref_template=_REFERENCE)
    compare["properties"]["spec"] = {"$ref": _REFERENCE.format(model="Spec")}
    found["CompareRequest"] = compare
    found.update(job_schemas(_REFERENCE))
    found.update(key_schemas(_REFERENCE))
    found["CalibrationRequest"] = CalibrationRequest.model_json_schema(ref_template=_REFERENCE)
    question = {"$ref": _REFERENCE.format(model="Question")}
    digest = {"type": "string", "pattern": f"^{DIGEST}$", "description": "digest or spec digest of a stored result"}
    found["PredictionRequest"] = {
        "type": "object",
        "required": ["question"],
        "additionalProperties": False,
        "properties": {"question": question, "factorization": digest},
    }
    return found


def _drop_foreign_errors(document: dict[str, Any]) -> None:
    """Remove FastAPI's own form of validation errors, which no route here answers with."""
    for name in ("HTTPValidationError", "ValidationError"):
        document["components"]["schemas"].pop(name, None)
    for path in document["paths"].values():
        for operation in path.values():
            if "application/json" in operation["responses"].get("422", {}).get("content", {}):
                del operation["responses"]["422"]

"""The OpenAPI document, beyond the routes' signatures: bodies, answers, and what all routes share."""

import json
from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from factorize.api.access.key_register import KeyRequest
from factorize.api.http.access import RouteRow
from factorize.api.http.answer_schemas import ANSWERS
from factorize.api.http.problems import KINDS, MEDIA_TYPE, ProblemAnswer
from factorize.api.questions.registry import POSTED
from factorize.api.settings import PATH_PREFIX
from factorize.encoding import JsonObject
from factorize.spec import Spec

SECURITY_SCHEME = "key"
_ANY_REQUEST = (
    "bad-request",
    "foreign-origin",
    "request-timeout",
    "compressed-body",
    "precondition-failed",
    "too-many-headers",
    "internal",
)
"""Problems that the way in may answer any request with, one for each status; others of the same status are with it."""
_TEXT = {"type": "string"}
_REQUEST_ID = "0f" * 8
_HEADERS: dict[str, JsonObject] = {
    name: {"description": meaning, "schema": _TEXT}
    for name, meaning in {
        "X-Request-Id": "Of this request, as in logs and problem documents.",
        "Retry-After": "Seconds after which to ask again.",
        "Location": "Where the answer will be, or is.",
        "Preference-Applied": "`wait=N`, where Prefer was followed.",
        "ETag": "The digest of the bytes, strong.",
        "Cache-Control": "`immutable` where the address names the bytes.",
        "Repr-Digest": "sha256 of the whole representation (RFC 9530).",
        "Accept-Ranges": "bytes",
        "Content-Range": "The range of the file that follows.",
        "Allow": "Methods that this path has.",
        "X-Factorize-Shape": "Rows and columns that follow.",
        "X-Factorize-Dtype": "Type of each number.",
        "X-Factorize-Digest": "Digest of the factorization.",
        "X-Factorize-Crc32": "CRC-32 of the rows, where they are one block.",
        "X-Factorize-Exact": "Whether every entry was looked at.",
    }.items()
}
_HEADERS["Retry-After"]["schema"] = {"type": "integer", "minimum": 0}
_HEADERS["Location"]["schema"] = {"type": "string", "format": "uri-reference"}
_BY_STATUS = {
    "201": ("Location",),
    "202": ("Location", "Retry-After", "Preference-Applied"),
    "206": ("ETag", "Content-Range", "Accept-Ranges", "Repr-Digest"),
    "304": ("ETag", "Cache-Control"),
    "307": ("Location",),
    "405": ("Allow",),
    "416": ("Content-Range", "Accept-Ranges"),
    "429": ("Retry-After",),
    "503": ("Retry-After",),
}
_NAMED = "/v1/factorizations/{name}"
_MATRIX = ("X-Factorize-Shape", "X-Factorize-Dtype", "X-Factorize-Digest", "Cache-Control")
_OF_ANSWER = {
    "/v1/factorizations": ("ETag", "Preference-Applied"),
    _NAMED: ("ETag", "Cache-Control"),
    f"{_NAMED}/matrices/{{matrix}}": (*_MATRIX, "Repr-Digest", "X-Factorize-Crc32"),
    f"{_NAMED}/matrices/{{matrix}}/cells": (*_MATRIX, "X-Factorize-Exact"),
    f"{_NAMED}/errors": ("Cache-Control",),
    "/v1/blobs/{sha256}": ("ETag", "Accept-Ranges", "Cache-Control", "Repr-Digest"),
}
_KEY = "/v1/keys/{key_id}"
_OF_KEY = {
    "key": ("get", _KEY, {"key_id": "$response.body#/id"}),
    "revoke": ("post", f"{_KEY}/revoke", {"key_id": "$response.body#/id"}),
}
_JOB, _RESULT = {"name": "$response.body#/spec_digest"}, {"name": "$response.body#/digest"}
_POSTED = ("post", "/v1/factorizations")
_LINKS: dict[tuple[str, str, str], dict[str, tuple[str, str, dict[str, str]]]] = {
    (*_POSTED, "202"): {
        "job": ("get", _NAMED, _JOB),
        "events": ("get", f"{_NAMED}/events", _JOB),
        "cancel": ("delete", _NAMED, _JOB),
        "retry": ("post", f"{_NAMED}/retry", _JOB),
    },
    (*_POSTED, "200"): {
        "manifest": ("get", _NAMED, _RESULT),
        "rows": ("get", f"{_NAMED}/matrices/{{matrix}}", _RESULT | {"matrix": "C"}),
        "cells": ("get", f"{_NAMED}/matrices/{{matrix}}/cells", _RESULT | {"matrix": "C"}),
        "errors": ("get", f"{_NAMED}/errors", _RESULT),
        "calibrations": ("post", f"{_NAMED}/calibrations", _RESULT),
        "file": ("get", "/v1/blobs/{sha256}", {"sha256": "$response.body#/files/0/sha256"}),
    },
    ("post", "/v1/canonicalize", "200"): {"job": ("get", _NAMED, _JOB)},
    ("post", "/v1/keys", "201"): _OF_KEY,
    ("post", "/v1/matrices", "201"): {"file": ("get", "/v1/blobs/{sha256}", {"sha256": "$response.body#/sha256"})},
}
"""By method, path and status of an answer: what can be asked next, and where its parameters stand."""
BODIES: dict[str, object] = {
    "Spec": {"workload": {"kind": "prefix", "n": 512}, "mechanism": {"kind": "dense"}},
    **{question.body.__name__: question.example for question in POSTED.values()},
    "KeyRequest": {"name": "training", "scopes": ["read", "submit"], "days": 90, "quotas": {"open_jobs": 10}},
}
"""An example of each JSON body, by the name of its schema."""
_REFERENCE = "#/components/schemas/{model}"
_BYTES = {"type": "string", "format": "binary"}
RAW_BODY: dict[str, object] = {
    "requestBody": {"required": True, "content": {"application/octet-stream": {"schema": _BYTES}}}
}
_MEANINGS = {
    200: "Found",
    201: "Stored",
    202: "Accepted: the job's document",
    206: "The range that was asked for",
    307: "The address at which the store's bucket gives the file",
    304: "The client's copy is current",
}


def complete(document: JsonObject, rows: Sequence[RouteRow], *, keys: bool) -> None:
    """Add to each operation what all of them have, and the shared components.

    Args:
        document: as the framework makes it.
        rows: the routes, with what they ask of callers.
        keys: whether the service asks for keys; else the document says that no key is another choice.
    """
    components = document.setdefault("components", {})
    components["securitySchemes"] = {
        SECURITY_SCHEME: {
            "type": "http",
            "scheme": "bearer",
            "description": "A key of the service, or a token of an issuer that it knows; see docs/security.md.",
        }
    }
    components["headers"] = _HEADERS
    components["examples"] = {
        slug: {"summary": kind.meaning, "value": json.loads(ProblemAnswer(slug).body(_REQUEST_ID))}
        for slug, kind in KINDS.items()
    }
    kinds = "|".join(KINDS)
    components["schemas"]["Problem"]["properties"]["type"]["pattern"] = f"^{PATH_PREFIX}/problems/({kinds})$"
    for row in rows:
        operation = document["paths"].get(row.path, {}).get(row.method.lower())
        if operation is not None:
            _complete_operation(row, operation, keys)
    for (method, path, status), links in _LINKS.items():
        document["paths"][path][method]["responses"][status]["links"] = {
            name: {"operationId": document["paths"][at][verb]["operationId"], "parameters": parameters}
            for name, (verb, at, parameters) in links.items()
        }


def _complete_operation(row: RouteRow, operation: JsonObject, keys: bool) -> None:
    scope = row.access.scope or row.access.details
    needed: list[dict[str, list[str]]] = [] if scope is None else [{SECURITY_SCHEME: [scope.value]}]
    operation["security"] = needed if not needed or (keys and row.access.scope) else [*needed, {}]
    responses = operation["responses"]
    if "application/json" in responses.get("422", {}).get("content", {}):
        del responses["422"]  # FastAPI's own form of validation errors, which no route here answers with
    for slug in _ANY_REQUEST:
        responses.setdefault(str(KINDS[slug].status), {})
    if scope is not None:
        for status in ("401", "429", "503"):
            responses.setdefault(status, {})
    for status in sorted(responses):
        if int(status) >= 400:
            responses[status] = _problems(int(status))
        else:
            names = (
                "X-Request-Id",
                *_BY_STATUS.get(status, ()),
                *(_OF_ANSWER.get(row.path, ()) if status == "200" else ()),
            )
            responses[status]["headers"] = {name: {"$ref": f"#/components/headers/{name}"} for name in names}
    operation["responses"] = {status: responses[status] for status in sorted(responses)}
    for media in operation.get("requestBody", {}).get("content", {}).values():
        model = media["schema"].get("$ref", "").rpartition("/")[2]
        if model in BODIES:
            media["examples"] = {"usual": {"value": BODIES[model]}}


def _problems(status: int) -> dict[str, object]:
    """Return the answer of a status: its problems, each with an example."""
    known = {slug: kind for slug, kind in KINDS.items() if kind.status == status}
    names = ("X-Request-Id", *_BY_STATUS.get(str(status), ()))
    examples = {slug: {"$ref": f"#/components/examples/{slug}"} for slug in known}
    return {
        "description": "; ".join(kind.title for kind in known.values()),
        "headers": {name: {"$ref": f"#/components/headers/{name}"} for name in names},
        "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}, "examples": examples}},
    }


def json_body(model: str) -> dict[str, object]:
    """Return the `openapi_extra` of a route whose body is a JSON document of a named schema."""
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": reference_to(model)}}}}


def reference_to(model: str) -> dict[str, object]:
    """Return the schema that is another one, by its name."""
    return {"$ref": _REFERENCE.format(model=model)}


SPEC_BODY = json_body("Spec")


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
    responses: dict[Any, Any] = {status: {"description": _MEANINGS.get(status, "")} for status in statuses}
    for status in (status for status in statuses if status < 300):  # problems are filled in by `complete`
        name = document if isinstance(document, str) else document[status]
        kinds = [reference_to(kind) for kind in name.split(" | ") if kind]
        shape = (kinds[0] if len(kinds) == 1 else {"anyOf": kinds}) if kinds else schema or _BYTES
        responses[status]["content"] = {media: {"schema": shape}}
    return responses


def openapi_document(app: FastAPI, rows: Sequence[RouteRow], *, keys: bool) -> dict[str, object]:
    """Return the OpenAPI document of an application.

    Args:
        app: the application.
        rows: its routes.
        keys: whether it asks for keys.
    """
    document = get_openapi(title=app.title, version=app.version, summary=app.summary, routes=app.routes)
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    schemas.update({**deepcopy(dict(ANSWERS)), **_of_bodies()})
    for name, schema in schemas.items():
        _settle(schema)
        schema["title"] = name
    complete(document, rows, keys=keys)
    return document


def _settle(schema: object) -> None:
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


def _of_bodies() -> dict[str, object]:
    """Return the schemas of what is posted, and of all that they name."""
    models: list[type[BaseModel]] = [Spec, KeyRequest, *(question.body for question in POSTED.values())]
    _, shown = models_json_schema([(one, "validation") for one in models], ref_template=_REFERENCE)
    schemas: dict[str, object] = shown["$defs"]
    for question in POSTED.values():
        question.complete(schemas, _REFERENCE)
    return schemas

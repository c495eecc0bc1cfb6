"""The OpenAPI document, beyond the routes' signatures: bodies, answers (`openapi.toml`), and what all routes share."""

import json
import tomllib
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from factorize.api.access.key_register import KEY_ID, KeyRequest
from factorize.api.http.access import RouteRow
from factorize.api.http.answers import RAW
from factorize.api.http.problems import KINDS, MEDIA_TYPE, ProblemAnswer
from factorize.api.questions.registry import POSTED_KINDS
from factorize.api.settings import PATH_PREFIX
from factorize.encoding import DIGEST, JsonObject
from factorize.spec import Spec

Schema = dict[str, Any]
_NULLABLE_TYPES = ("text", "number", "count", "time")
"""The types whose schema names null beside theirs."""


def read_tables() -> dict[str, Any]:
    """Return what the OpenAPI document says beside the signatures of routes."""
    return tomllib.loads((files(__package__) / "openapi.toml").read_text(encoding="utf-8"))


class AnswerSchemas:
    """The schemas of a table of answers.

    Args:
        tables: the tables as `read_tables` returns them.
    """

    def __init__(self, tables: dict[str, Any]) -> None:
        self._answers, self._shared = tables["answers"], tables["shared"]
        patterns = {"digest": f"^{DIGEST}$", "key": KEY_ID}
        self._types: dict[str, Schema] = tables["types"]
        self._types |= {name: {"type": "string", "pattern": pattern} for name, pattern in patterns.items()}
        for name, stated in tables["objects"].items():
            self._types[name] = self._object(**stated)

    def by_name(self) -> dict[str, Schema]:
        """Return each schema by the name of its component."""
        return {name: self._answer(**stated) for name, stated in self._answers.items()}

    def _answer(self, extends: str = "", **stated: Any) -> Schema:
        own = self._object(**stated)
        return {"allOf": [self._type(extends), own]} if extends else own

    def _object(self, meaning: str, required: str, more: str = "", meanings: dict[str, str] | None = None) -> Schema:
        """Return the schema of an object with further fields beside these, some of which have a description."""
        needed, others = self._fields(required), self._fields(more)
        properties = {name: self._type(text) for name, text in (needed | others).items()}
        for name, words in (meanings or {}).items():
            properties[name]["description"] = words
        return {"type": "object", "description": meaning, "required": list(needed), "properties": properties}

    def _fields(self, text: str) -> dict[str, str]:
        words = (word if ":" in word else self._shared[word] for word in text.split())
        return dict(field.split(":") for field in " ".join(words).split())

    def _type(self, text: str) -> Schema:
        if text.endswith("[]"):
            return {"type": "array", "items": self._type(text[:-2])}
        if text.endswith("{}"):
            return {"type": "object", "additionalProperties": self._type(text[:-2])}
        if text.endswith("?"):
            one = self._type(text[:-1])
            null = {"type": [one.get("type"), "null"]}
            return {**one, **null} if text[:-1] in _NULLABLE_TYPES else {"anyOf": [one, {"type": "null"}]}
        return dict(self._types[text]) if text in self._types else {"$ref": f"#/components/schemas/{text}"}


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
_REQUEST_ID = "0f" * 8
BODIES: dict[str, object] = {
    "Spec": {"workload": {"kind": "prefix", "n": 512}, "mechanism": {"kind": "dense"}},
    **{question.body.__name__: question.example for question in POSTED_KINDS.values()},
    "KeyRequest": {"name": "training", "scopes": ["read", "submit"], "days": 90, "quotas": {"open_jobs": 10}},
}
"""An example of each JSON body, by the name of its schema."""
_REFERENCE = "#/components/schemas/{model}"
_BYTES = {"type": "string", "format": "binary"}
RAW_BODY: dict[str, object] = {"requestBody": {"required": True, "content": {RAW: {"schema": _BYTES}}}}
_MEANINGS = {
    200: "Found",
    201: "Stored",
    202: "Accepted: the job's document",
    206: "The range that was asked for",
    307: "The address at which the store's bucket gives the file",
    304: "The client's copy is current",
}


def complete(document: JsonObject, rows: Sequence[RouteRow], tables: JsonObject, *, keys: bool) -> None:
    """Add to each operation what all of them have, and the shared components.

    Args:
        document: the document as the framework makes it.
        rows: the routes, with what they ask of callers.
        tables: what is stated beside the routes; see `read_tables`.
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
    typed = dict.fromkeys(tables["headers"], {"type": "string"}) | tables["types_of_headers"]
    components["headers"] = {
        name: {"description": meaning, "schema": typed[name]} for name, meaning in tables["headers"].items()
    }
    components["examples"] = {
        slug: {"summary": kind.meaning, "value": json.loads(ProblemAnswer(slug).body(_REQUEST_ID))}
        for slug, kind in KINDS.items()
    }
    kinds = "|".join(KINDS)
    components["schemas"]["Problem"]["properties"]["type"]["pattern"] = f"^{PATH_PREFIX}/problems/({kinds})$"
    for row in rows:
        operation = document["paths"].get(row.path, {}).get(row.method.lower())
        if operation is not None:
            _complete_operation(row, operation, tables, keys)
    for answer, links in tables["links"].items():
        method, path, status = answer.split()
        document["paths"][path][method]["responses"][status]["links"] = {
            name: _link(document, text) for name, text in links.items()
        }


def _link(document: JsonObject, text: str) -> JsonObject:
    method, path, *parameters = text.split()
    operation = document["paths"][path][method]["operationId"]
    return {"operationId": operation, "parameters": dict(one.split("=") for one in parameters)}


def _complete_operation(row: RouteRow, operation: JsonObject, tables: JsonObject, keys: bool) -> None:
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
    if row.path.startswith("/v1/"):  # An address refuses query values that it does not take.
        responses.setdefault("422", {})
    for status in sorted(responses):
        names = f"X-Request-Id {tables['headers_of_status'].get(status, '')}"
        names += f" {tables['headers_of_path'].get(row.path, '')}" if status == "200" else ""
        headers = {name: {"$ref": f"#/components/headers/{name}"} for name in names.split()}
        responses[status] = (
            _problems(int(status), headers) if int(status) >= 400 else responses[status] | {"headers": headers}
        )
    operation["responses"] = {status: responses[status] for status in sorted(responses)}
    for media in operation.get("requestBody", {}).get("content", {}).values():
        model = media["schema"].get("$ref", "").rpartition("/")[2]
        if model in BODIES:
            media["examples"] = {"usual": {"value": BODIES[model]}}


def _problems(status: int, headers: JsonObject) -> dict[str, object]:
    """Return the answer of a status: its problems, each with an example."""
    known = {slug: kind for slug, kind in KINDS.items() if kind.status == status}
    examples = {slug: {"$ref": f"#/components/examples/{slug}"} for slug in known}
    return {
        "description": "; ".join(kind.title for kind in known.values()),
        "headers": headers,
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
        statuses: every status that it documents, but for those of problems that every route may answer with.
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
    tables = read_tables()
    schemas.update({**AnswerSchemas(tables).by_name(), **_of_bodies()})
    for name, schema in schemas.items():
        _settle(schema)
        schema["title"] = name
    complete(document, rows, tables, keys=keys)
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
            if "const" in kind:  # clients would take nothing but the constant beside a number
                kind["enum"] = [kind.pop("const")]
        for name, part in schema.items():
            if name != "x-default":
                _settle(part)


def _of_bodies() -> dict[str, object]:
    """Return the schemas of posted bodies, and of all that they name."""
    models: list[type[BaseModel]] = [Spec, KeyRequest, *(question.body for question in POSTED_KINDS.values())]
    _, shown = models_json_schema([(one, "validation") for one in models], ref_template=_REFERENCE)
    schemas: dict[str, object] = shown["$defs"]
    for question in POSTED_KINDS.values():
        question.complete(schemas, _REFERENCE)
    return schemas

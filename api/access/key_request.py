"""The request for a key, as plain data, and the schemas of all about keys."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, TypeAdapter

from factorize.api.access.caller import Quotas, Scope
from factorize.api.access.key_register import DEFAULT_DAYS, LONGEST_DAYS, LONGEST_NAME
from factorize.encoding import read_json
from factorize.errors import InvalidSpec, Violation
from factorize.plain_data import Frozen, read_union

KEY_ID = "^[0-9a-f]{12}$"
_Scope = Annotated[Scope, Field(strict=False)]  # by its name, which JSON has
_Days = Annotated[float, Field(gt=0, le=LONGEST_DAYS)]
_Limit = Annotated[int, Field(ge=0, lt=1 << 53)] | None


class KeyQuotas(Frozen):
    """Limits of a key's holder; one that is left out is the service's own. See `Quotas`.

    Attributes:
        open_jobs: jobs queued or running.
        core_seconds_per_day: processor seconds in one day (UTC).
        kept_bytes: bytes of results and of new uploads.
    """

    open_jobs: _Limit = None
    core_seconds_per_day: _Limit = None
    kept_bytes: _Limit = None


class KeyRequest(Frozen):
    """A key that is asked for.

    Attributes:
        name: whose it is: jobs, uploads and quotas belong to the name; 1 to 64 printable characters.
        scopes: what its holder may do; `admin` includes the others.
        days: until it ends.
        quotas: limits of its holder.
    """

    name: Annotated[str, Field(min_length=1, max_length=LONGEST_NAME)]
    scopes: Annotated[list[_Scope], Field(min_length=1, max_length=16)] = [Scope.READ]
    days: _Days = DEFAULT_DAYS
    quotas: KeyQuotas = KeyQuotas()

    @property
    def limits(self) -> Quotas:
        """The quotas as a caller has them."""
        return Quotas(**self.quotas.model_dump())


def read_key_request(body: bytes) -> KeyRequest:
    """Read a request from JSON text.

    Raises:
        MalformedJson: it is none.
        InvalidSpec: it is another document; pointers to the fields.
    """
    document = read_json(body)
    if not isinstance(document, dict):
        raise InvalidSpec([Violation("", "a request for a key is a JSON object")])
    return read_union(TypeAdapter(KeyRequest), document, KeyRequest)


def schemas(reference: str) -> dict[str, Any]:
    """Return the schemas of requests and answers about keys, by name.

    Args:
        reference: template of references, with `{model}`.
    """
    schema = KeyRequest.model_json_schema(ref_template=reference)
    found: dict[str, Any] = {**schema.pop("$defs", {}), "KeyRequest": schema}
    key = {"$ref": reference.format(model="AccessKey")}
    token = {"type": "string", "description": "What its holder sends. It is in this answer and nowhere else."}
    found["AccessKey"] = _key_schema(reference)
    found["AccessKeyWithToken"] = {
        "allOf": [key, {"type": "object", "required": ["token"], "properties": {"token": token}}]
    }
    found["AccessKeyPage"] = {
        "type": "object",
        "required": ["items", "next"],
        "properties": {"items": {"type": "array", "items": key}, "next": {"type": ["string", "null"]}},
    }
    found["Caller"] = _caller_schema(reference)
    return found


def _key_schema(reference: str) -> dict[str, Any]:
    time = {"type": "string", "format": "date-time"}
    properties = {
        "id": {"type": "string", "pattern": KEY_ID},
        "name": {"type": "string"},
        "state": {"type": "string", "enum": ["active", "expired", "revoked"]},
        "scopes": _scopes_schema(reference),
        "created": time,
        "expires": time,
        "revoked": {"type": ["string", "null"], "format": "date-time"},
        "quotas": {"$ref": reference.format(model="KeyQuotas")},
        "own": {"type": "boolean", "description": "Whether it is the key that asks."},
    }
    return {"type": "object", "required": list(properties), "properties": properties}


def _caller_schema(reference: str) -> dict[str, Any]:
    properties = {
        "owner": {
            "type": ["string", "null"],
            "description": "`key:<name>`, `oidc:<hash>`, or null where no key is asked for.",
        },
        "name": {"type": "string"},
        "scopes": _scopes_schema(reference),
        "quotas": {"$ref": reference.format(model="KeyQuotas")},
        "asks_for_keys": {"type": "boolean", "description": "Whether the service asks every caller for a key."},
        "looks_after_keys": {"type": "boolean", "description": "Whether the caller may use the routes of keys here."},
    }
    return {"type": "object", "required": list(properties), "properties": properties}


def _scopes_schema(reference: str) -> dict[str, Any]:
    return {"type": "array", "items": {"$ref": reference.format(model="Scope")}}

"""The requests for a key and for another secret of one, as plain data, and their schemas."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

from pydantic import Field, TypeAdapter

from factorize.api.access.caller import Quotas, Scope
from factorize.api.access.key_register import DEFAULT_DAYS, LONGEST_DAYS, LONGEST_NAME, LONGEST_OVERLAP_HOURS
from factorize.encoding import read_json
from factorize.errors import InvalidSpec, Violation
from factorize.plain_data import Frozen, read_union

DEFAULT_OVERLAP_HOURS = 24.0
KEY_ID = "^[0-9a-f]{12}$"
Request = TypeVar("Request", "KeyRequest", "RotationRequest")
_Scope = Annotated[Scope, Field(strict=False)]  # by its name, which JSON has
_Days = Annotated[float, Field(gt=0, le=LONGEST_DAYS)]
_Limit = Annotated[int, Field(ge=0, lt=1 << 53)] | None


class KeyQuotas(Frozen):
    """Limits of a key's holder; one that is left out is no limit. See `Quotas`.

    Attributes:
        requests_per_minute: requests in one minute of the clock.
        open_jobs: jobs queued or running.
        core_seconds_per_day: processor seconds in one day (UTC).
        bytes_per_day: bytes of bodies, received and sent, in one day (UTC).
    """

    requests_per_minute: _Limit = None
    open_jobs: _Limit = None
    core_seconds_per_day: _Limit = None
    bytes_per_day: _Limit = None


class KeyRequest(Frozen):
    """A key that is asked for.

    Attributes:
        name: what you call its holder, 1 to 64 printable characters.
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


class RotationRequest(Frozen):
    """Another secret that is asked for.

    Attributes:
        days: until the key ends, from now.
        overlap_hours: how long the secret before stays good.
    """

    days: _Days = DEFAULT_DAYS
    overlap_hours: Annotated[float, Field(ge=0, le=LONGEST_OVERLAP_HOURS)] = DEFAULT_OVERLAP_HOURS


def read_key_request(body: bytes, model: type[Request]) -> Request:
    """Read a request from JSON text.

    Raises:
        MalformedJson: it is none.
        InvalidSpec: it is another document; pointers to the fields.
    """
    document = read_json(body)
    if not isinstance(document, dict):
        raise InvalidSpec([Violation("", "a request about a key is a JSON object; {} takes every default there is")])
    return read_union(TypeAdapter(model), document, model)


def schemas(reference: str) -> dict[str, Any]:
    """Return the schemas of requests and answers about keys, by name.

    Args:
        reference: template of references, with `{model}`.
    """
    found: dict[str, Any] = {}
    for model in (KeyRequest, RotationRequest):
        schema = model.model_json_schema(ref_template=reference)
        found.update(schema.pop("$defs", {}))
        found[model.__name__] = schema
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
    no_time = {"type": ["string", "null"], "format": "date-time"}
    properties = {
        "id": {"type": "string", "pattern": KEY_ID},
        "name": {"type": "string"},
        "state": {"type": "string", "enum": ["active", "expired", "revoked"]},
        "scopes": _scopes_schema(reference),
        "created": time,
        "expires": time,
        "revoked": no_time,
        "previous_secret_until": no_time,
        "quotas": {"$ref": reference.format(model="KeyQuotas")},
        "own": {"type": "boolean", "description": "Whether it is the key that asks."},
    }
    return {"type": "object", "required": list(properties), "properties": properties}


def _caller_schema(reference: str) -> dict[str, Any]:
    properties = {
        "owner": {
            "type": ["string", "null"],
            "description": "`key:<id>`, `oidc:<hash>`, or null where no key is asked for.",
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

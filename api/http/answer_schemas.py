"""Schemas of the documents that routes answer with, by name, as `openapi.toml` states them."""

import tomllib
from importlib.resources import files
from typing import Any

from factorize.api.access.key_register import KEY_ID
from factorize.encoding import DIGEST

Schema = dict[str, Any]
_NULLABLE = ("text", "number", "count", "time")
"""Types whose schema names null beside theirs."""


def read_tables() -> dict[str, Any]:
    """Return what the OpenAPI document says beside the signatures of routes."""
    return tomllib.loads((files(__package__) / "openapi.toml").read_text(encoding="utf-8"))


class AnswerSchemas:
    """The schemas of a table of answers.

    Args:
        tables: as `read_tables` returns them.
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
            return {**one, **null} if text[:-1] in _NULLABLE else {"anyOf": [one, {"type": "null"}]}
        return dict(self._types[text]) if text in self._types else {"$ref": f"#/components/schemas/{text}"}

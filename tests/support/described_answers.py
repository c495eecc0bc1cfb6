"""The check that a JSON answer is what the kept OpenAPI document says of its route and status."""

from __future__ import annotations

import json
import re
from functools import cache
from typing import Any

from jsonschema import Draft202012Validator
from kept_openapi import KEPT

from factorize.api.http.app import ROUTES

_PATTERNS = [(row, re.compile(re.sub(r"\\{\w+\\}", r"[^/\n]+", re.escape(row.path)))) for row in ROUTES]


@cache
def _document() -> Any:
    return json.loads(KEPT.read_text())


@cache
def _validator(method: str, path: str, status: int) -> Draft202012Validator | None:
    operation = _document()["paths"].get(path, {}).get(method.lower())
    if operation is None:
        return None
    content = operation["responses"][str(status)]["content"]
    return Draft202012Validator({**content["application/json"]["schema"], "components": _document()["components"]})


def check_described(method: str, target: str, status: int, body: bytes) -> None:
    """Refuse an answer that is not of its schema.

    Args:
        method: of the request.
        target: its path and query.
        status: of the answer, a good one.
        body: its JSON.

    Raises:
        AssertionError: what is wrong with it.
    """
    known, path = "GET" if method == "HEAD" else method, target.partition("?")[0]
    row = next((row for row, pattern in _PATTERNS if row.method == known and pattern.fullmatch(path)), None)
    validator = None if row is None else _validator(method, row.path, status)
    if validator is not None:
        errors = [f"{error.json_path}: {error.message[:300]}" for error in validator.iter_errors(json.loads(body))]
        assert not errors, (method, target, status, errors)

"""Requests made from an OpenAPI document, most of them a little wrong, and what every answer has to be."""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from typing import Any
from urllib.parse import quote

from described_answers import check_described

from factorize.api.access.key_register import KeyRegister, KeyRequest

DEAR = {"/v1/compare", "/v1/recommend", "/v1/recommend/fleet", "/v1/predict", "/v1/factorizations/{name}/calibrations"}
"""Routes that start a process for a good request."""
_TEXTS = [
    "",
    "x",
    "C",
    "C_inv",
    "float32",
    "0:3",
    "3:0",
    "a:b",
    "\x00",
    "é€",
    "%0d%0aSet-Cookie: a",
    "../../etc/passwd",
    "9" * 40,
]
_TEXTS += ["A" * 5000, "0" * 64, "f" * 63, "null", "'; drop table jobs;--", "\ud7ff", "\u202e", "{}"]
_NUMBERS: list[Any] = [0, 1, 2, 3, 5, -1, 7, 12, 10**8, 10**15, 10**400, 0.5, 1e-9, -0.0, 1e308, 5e-324, True, "4", 4.0]
_RAW = [
    b"",
    b"{",
    b"[]",
    b"null",
    b"\xef\xbb\xbf{}",
    b'{"a":1,"a":2}',
    b'{"n":NaN}',
    b"[" * 3000,
    b"\xff\xfe",
    b'"\\ud800"',
    b"1e999",
]
_HEADERS = [
    ("Content-Encoding", "gzip"),
    ("Range", "bytes=0-9"),
    ("Range", "bytes=-0,5-9"),
    ("If-None-Match", '"x"'),
    ("Prefer", "wait=0"),
    ("Accept", "text/event-stream"),
    ("Accept", "application/xml"),
    ("Origin", "http://evil.example"),
    ("Host", "evil.example"),
    ("Authorization", "Bearer " + "x" * 300),
    ("Authorization", "Basic Og=="),
    ("Last-Event-ID", "9" * 30),
    ("X-Long", "y" * 20_000),
    ("Content-Type", "text/plain"),
]


_FORMS = {"matrices": ["C", "C,C", "x", "B,x", ""], "dtype": ["float64", "x", ""]}
"""Values of the parameters of further forms; the others ask a solver's process, which a fuzzed service has not."""


@dataclass(frozen=True)
class FuzzedRequest:
    """One request, which its text repeats.

    Args:
        method: of HTTP.
        route: the path as the document has it.
        target: path and query as they are sent.
        headers: further fields.
        body: or None.
    """

    method: str
    route: str
    target: str
    headers: dict[str, str]
    body: bytes | None


class RequestFuzzer:
    """Makes requests.

    Args:
        document: the OpenAPI document.
        names: digests that the service knows.
        seed: what repeats them.
        dear: share of requests to routes that start processes, in good shape.
        tokens: one of them goes with nearly every request.
    """

    def __init__(
        self,
        document: Mapping[str, Any],
        names: list[str],
        seed: int,
        *,
        dear: float = 0.002,
        tokens: Sequence[str] = (),
    ) -> None:
        self._tokens = tokens
        self._document = document
        self._names = names
        self._random = random.Random(seed)
        self._dear = dear
        self._operations = [
            (method.upper(), path, op) for path, ops in document["paths"].items() for method, op in ops.items()
        ]

    def operations(self) -> list[tuple[str, str, Any]]:
        """Return method, path and description of each operation."""
        return self._operations

    def request(self, method: str, path: str, operation: Mapping[str, Any]) -> FuzzedRequest:
        """Return a request to an operation."""
        chance = self._random
        query = []
        target = path
        for parameter in operation.get("parameters", []):
            value = self._parameter(parameter)
            if parameter["in"] == "path":
                target = target.replace("{" + parameter["name"] + "}", quote(value or "x", safe=""))
            elif parameter.get("required") or chance.random() < 0.4:
                query += [f"{parameter['name']}={quote(value, safe=':')}"] * (2 if chance.random() < 0.05 else 1)
        if chance.random() < 0.05:
            query.append("unknown=1")
        headers = dict([chance.choice(_HEADERS)]) if chance.random() < 0.15 else {}
        if self._tokens and chance.random() < 0.95:
            headers.setdefault("Authorization", f"Bearer {chance.choice(self._tokens)}")
        good = path not in DEAR or chance.random() < self._dear
        body = self._body(operation, good) if "requestBody" in operation else None
        return FuzzedRequest(method, path, "?".join([target, "&".join(query)][: 1 + bool(query)]), headers, body)

    def _parameter(self, parameter: Mapping[str, Any]) -> str:
        chance = self._random
        if parameter["name"] in _FORMS:
            return chance.choice(_FORMS[parameter["name"]])
        if chance.random() < 0.3:
            return chance.choice(_TEXTS).encode("utf-8", "replace").decode("utf-8")
        if parameter["name"] in ("name", "sha256"):
            return chance.choice(self._names)
        if parameter["name"] == "matrix":
            return chance.choice(["C", "C_inv", "B"])
        value = self._value(parameter["schema"], 0)
        return value if isinstance(value, str) else json.dumps(value)

    def _body(self, operation: Mapping[str, Any], good: bool) -> bytes:
        chance = self._random
        media, described = next(iter(operation["requestBody"]["content"].items()))
        if media != "application/json":
            return chance.choice([b"", bytes(8), bytes(16), os.urandom(24)])
        if chance.random() < 0.1:
            return chance.choice(_RAW)
        usual = described["examples"]["usual"]["value"]
        if good and chance.random() < 0.2:
            return json.dumps(usual).replace("512", "6").replace("64", "6").encode()
        value = self._value(described["schema"], 0)
        return json.dumps(self._wrong(value) if not good or chance.random() < 0.5 else value).encode()

    def _wrong(self, value: Any) -> Any:
        """Put something into a document that does not belong there."""
        chance = self._random
        if isinstance(value, dict) and value:
            name = chance.choice(sorted(value))
            return {**value, name: self._wrong(value[name])} if chance.random() < 0.7 else {**value, "unknown": [{}]}
        if isinstance(value, list) and value and chance.random() < 0.5:
            return [self._wrong(value[0]), *value[1:]]
        return chance.choice([None, "x", -1, [], {}, chance.choice(_NUMBERS), chance.choice(_TEXTS)])

    def _value(self, schema: Any, depth: int) -> Any:
        """Return a small value of a schema, or nearly one."""
        chance = self._random
        while "$ref" in schema:
            schema = self._document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
        for union in ("anyOf", "oneOf"):
            if union in schema:
                return self._value(chance.choice(schema[union]), depth + 1)
        if "const" in schema or "enum" in schema:
            return schema["const"] if "const" in schema else chance.choice(schema["enum"])
        kind = schema.get("type", "string")
        if depth > 12 or kind == "null":
            return None
        if kind == "object":
            needed = set(schema.get("required", []))
            return {
                name: self._value(part, depth + 1)
                for name, part in schema.get("properties", {}).items()
                if name in needed or chance.random() < 0.3
            }
        if kind == "array":
            return [self._value(schema["items"], depth + 1) for _ in range(chance.randint(0, 3))]
        if kind == "boolean":
            return chance.random() < 0.5
        if kind in ("integer", "number"):
            return chance.randint(1, 9) if chance.random() < 0.7 else chance.choice(_NUMBERS)
        return chance.choice(_TEXTS)


@dataclass
class AnswerChecks:
    """Checks answers against the document, and counts them.

    Args:
        document: the OpenAPI document.

    Attributes:
        seen: how often each status came.
        met: operations that were answered.
    """

    document: Mapping[str, Any]
    seen: Counter[int] = field(default_factory=Counter)
    met: set[tuple[str, str]] = field(default_factory=set)

    def check(self, request: FuzzedRequest, status: int, headers: Mapping[str, str], body: bytes) -> None:
        """Refuse an answer that the document does not describe.

        Raises:
            AssertionError: the request and the answer.
        """
        self.seen[status] += 1
        self.met.add((request.method, request.route))
        about = (request, status, body[:500])
        assert status < 500, about
        assert "x-request-id" in headers, about
        found = self.document["paths"][request.route][request.method.lower()]["responses"].get(str(status))
        strange = status in (401, 404, 405) and request.target.partition("?")[0].count("%")  # another path, in truth
        assert found is not None or strange, about
        if status >= 400:
            assert headers["content-type"] == "application/problem+json", about
            problem = json.loads(body)
            types = self.document["components"]["schemas"]["Problem"]["properties"]["type"]["enum"]
            assert problem["type"] in types and problem["status"] == status, about
            assert problem["request_id"] == headers["x-request-id"] and problem["detail"], about
        elif found is not None and "content" in found and body:
            assert headers["content-type"].partition(";")[0] in (*found["content"], "text/event-stream"), about
            if headers["content-type"] == "application/json" and request.method != "HEAD":
                check_described(request.method, request.target, status, body)


def answer_to(connection: HTTPConnection, request: FuzzedRequest) -> tuple[int, dict[str, str], bytes]:
    """Send a request; a stream of events is read to its first line.

    Raises:
        HTTPException: it was not answered.
    """
    try:
        connection.request(request.method, request.target, request.body, request.headers)
        answer = connection.getresponse()
    except (HTTPException, OSError):  # the service may close a connection that it has refused, before the next request
        connection.close()
        connection.request(request.method, request.target, request.body, request.headers)
        answer = connection.getresponse()
    headers = {name.lower(): value for name, value in answer.getheaders()}
    if headers.get("content-type") == "text/event-stream":
        body = answer.readline()
        connection.close()
    else:
        body = answer.read()
    return answer.status, headers, body


def fuzz(
    host: str,
    document: Mapping[str, Any],
    names: list[str],
    count: int,
    seed: int,
    *,
    dear: float,
    tokens: Sequence[str] = (),
) -> AnswerChecks:
    """Send so many requests, to each operation in turn, and check every answer.

    Args:
        host: of the service, with its port.
        document: the OpenAPI document.
        names: digests that it knows.
        count: of requests.
        seed: what repeats them.
        dear: see `RequestFuzzer`.
        tokens: see there.
    """
    fuzzer, checks = RequestFuzzer(document, names, seed, dear=dear, tokens=tokens), AnswerChecks(document)
    connection = HTTPConnection(host, timeout=300)
    try:
        operations = fuzzer.operations()
        for number in range(count):
            request = fuzzer.request(*operations[number % len(operations)])
            checks.check(request, *answer_to(connection, request))
    finally:
        connection.close()
    return checks


def tokens_of(register: KeyRegister) -> list[str]:
    """Make a key of each scope and one that has ended, and return their tokens and some that are none."""
    scopes = ("read", "submit", "upload", "monitor", "admin")
    made = [register.create(KeyRequest(name="fuzz", scopes=[scope]))[1].text for scope in scopes]
    ended = register.create(KeyRequest(name="fuzz", scopes=["admin"], days=1e-9))[1].text
    return [*made, made[-1], made[-1], ended, made[0][:-1], "eyJhbGciOiJub25lIn0.e30.", "x"]

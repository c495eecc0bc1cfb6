"""Callers do not see each other's jobs and uploads: what belongs to one is asked for by others, beside a name that nobody has."""

from __future__ import annotations

import json
import os
import random
import re
import struct
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from keyed_service import Keyed, filled, keyed_service

from factorize.api.access.caller import Scope
from factorize.api.http.access import RouteRow
from factorize.api.http.app import ROUTES

PROBES = int(os.environ.get("PROBES", "400"))
_SPEC = {"workload": {"kind": "matrix", "sha256": "@", "shape": [2, 2]}, "mechanism": {"kind": "identity"}}
_TARGET = {"epsilon": 2.0, "delta": 1e-6}
_QUESTION = {"kind": "mean_estimation", "learning_rate": 0.05, "rho": 0.5}
NAMING: dict[tuple[str, str], tuple[str, Any]] = {
    ("POST", "/v1/factorizations"): ("", _SPEC),
    ("POST", "/v1/canonicalize"): ("", _SPEC),
    ("POST", "/v1/compare"): ("", {"spec": _SPEC}),
    ("POST", "/v1/predict"): ("", {"question": _QUESTION, "factorization": "@"}),
    ("POST", "/v1/factorizations/{name}/calibrations"): ("", _TARGET),
    ("POST", "/v1/factorizations/{name}"): ("?dtype=float32", None),
}
"""Query and body of routes that need them; @ stands for the name."""
UNNAMED = {"/healthz", "/problems/{slug}", "/readyz", "/metrics", "/openapi.json", "/", "/page/{name}"}
UNNAMED |= {"/v1/matrices", "/v1/recommend", "/v1/recommend/fleet", "/v1/caller", "/v1/keys", "/v1/keys/{key_id}"}
UNNAMED |= {"/v1/keys/{key_id}/revoke", "/v1/answers/{digest}"}
"""Routes that no name of a job or an upload is asked of."""
LIST = "/v1/factorizations"
_HEADERS: list[dict[str, str]] = [
    {},
    {},
    {"If-None-Match": "*"},
    {"Range": "bytes=0-7"},
    {"Prefer": "wait=0"},
    {"Last-Event-ID": "3"},
    {"Accept": "text/event-stream"},
]
_QUERIES = ["", "", "?matrices=C,C_inv", "?dtype=float32", "?rows=0:1", "?limit=1", "?cells=2:2"]
_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")
Reply = tuple[int, tuple[tuple[str, str], ...], str]
"""Status, headers and body."""


class CrossProbes:
    """One caller with things of its own, and others who ask for them.

    Args:
        keyed: a service whose solves do not end.
        seed: of what is asked.
    """

    def __init__(self, keyed: Keyed, seed: int = 0) -> None:
        self._keyed = keyed
        self._random = random.Random(seed)
        self.private = self._begin()
        self.roles = {name: keyed.tokens[name] for name in ("two", "read", "submit", "upload", "monitor")}
        self._connection = HTTPConnection(keyed.live.host, timeout=600)

    def _begin(self) -> list[str]:
        """Have one caller post jobs and a matrix; return their names."""
        keyed = self._keyed
        jobs = []
        for n in (31, 32, 33):
            answer = keyed.ask("one", "POST", LIST, {"workload": {"kind": "prefix", "n": n}})
            assert answer.status == 202, answer
            jobs.append(answer.json()["spec_digest"])
        assert keyed.ask("one", "DELETE", f"{LIST}/{jobs[2]}").status == 202
        matrix = struct.pack("<4d", 1.0, 0.0, 0.5, 1.0)
        sent = keyed.ask("one", "POST", "/v1/matrices?rows=2&columns=2", matrix)
        assert sent.status == 201, sent
        return [*jobs, sent.json()["sha256"]]

    def run(self, count: int) -> Iterator[str]:
        """Send so many probes, every cell of route and role first; the leaks, in words."""
        cells = [(row, role) for row in ROUTES for role in (None, *self.roles)]
        assert len(cells) <= count
        for row, role in cells:
            yield from self._probe(row, role, plain=True)
        for _ in range(count - len(cells)):
            yield from self._probe(*self._random.choice(cells), plain=False)
        self._connection.close()

    def _probe(self, row: RouteRow, role: str | None, *, plain: bool) -> Iterator[str]:
        chance = self._random
        method = row.method if plain or chance.random() < 0.8 else chance.choice(_METHODS)
        headers = {} if plain else dict(chance.choice(_HEADERS))
        if role is not None:
            headers["Authorization"] = f"Bearer {self.roles[role]}"
        query, body = NAMING.get((row.method, row.path), ("", None))
        query = query or ("" if plain else chance.choice(_QUERIES))
        if (row.method, row.path) == ("GET", LIST):
            query = f"?limit={chance.choice((1, 50, 1000))}"
        mine = chance.choice(self.private)
        nobodys = f"{chance.getrandbits(256):064x}"
        pair: dict[str, Reply] = {}
        for name in chance.sample((mine, nobodys), 2):
            path = filled(row.path, name) + query
            text = None if body is None else json.dumps(body).replace("@", name)
            pair[name] = self._send(method, path, text, headers, name)
        named = any(name in body for name in self.private for _, _, body in pair.values())
        if named or pair[mine] != pair[nobodys]:
            yield f"{method} {row.path}{query} by {role}: {pair[mine]} beside {pair[nobodys]}"

    def _send(self, method: str, path: str, body: str | None, headers: dict[str, str], name: str) -> Reply:
        """Return what is answered, without what differs from answer to answer."""
        self._connection.request(method, path, body, headers)
        with self._connection.getresponse() as answer:
            kept = tuple(
                (field.lower(), value)
                for field, value in answer.getheaders()
                if field.lower() not in ("date", "x-request-id", "retry-after", "content-length")
            )
            if answer.getheader("Content-Type", "").startswith("text/event-stream"):
                self._connection.close()  # it has no end while the job has none
                return (answer.status, kept, "events")
            text = answer.read().decode("utf-8", "replace").replace(name, "NAME")
        text = re.sub(r'"request_id":"\w+"', "", text)
        if path.startswith("/metrics"):
            text = "".join(line for line in text.splitlines(keepends=True) if not _counts_route(line))
            text = re.sub(r" [-\d.e+]+$", "", text, flags=re.MULTILINE)
        if path.startswith("/v1/canonicalize"):
            text = re.sub(r'"spec_digest":"\w+"', "", text)  # of a spec that holds the name
        return (answer.status, kept, text)


def _counts_route(line: str) -> bool:
    """Whether a line of the metrics counts requests of a route by its template, as every request does, this one too."""
    route = re.search(r'^factorize_http_\w+\{.*route="([^"]*)"', line)
    return route is not None and route[1] in {"none", *(row.path for row in ROUTES)}


def test_every_route_says_where_a_name_stands_in_its_requests() -> None:
    """A new route fails here until it is probed by a name, or said to take none."""
    for row in ROUTES:
        in_path = "{name}" in row.path or "{sha256}" in row.path
        named = in_path or (row.method, row.path) in NAMING or row.path == LIST
        assert named is (row.path not in UNNAMED) or row.path == "/page/{name}", row
    assert {path for path in UNNAMED} <= {row.path for row in ROUTES}
    assert set(NAMING) <= {(row.method, row.path) for row in ROUTES}


def test_no_probe_tells_what_is_of_others_from_what_is_not_there(tmp_path: Path) -> None:
    with keyed_service(tmp_path / "store") as keyed:
        probes = CrossProbes(keyed)
        assert {*probes.roles, "admin"} == {"two", *Scope}
        assert list(probes.run(PROBES)) == []

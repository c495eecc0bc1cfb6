"""A service that asks for keys: every route with every role, and what callers see of each other."""

from __future__ import annotations

import hashlib
import http.client
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from itertools import product
from pathlib import Path

import pytest
import sqlalchemy as sa
from issuer_server import issuing, token
from keyed_service import UNKNOWN, Keyed, filled, keyed_service
from patience import wait_for

from factorize import solvers
from factorize.api.access.caller import KeyQuotas, Scope
from factorize.api.http import app
from factorize.api.http.access import RouteRow, trusts
from factorize.api.http.app import ROUTES
from factorize.api.http.schema import BODIES
from factorize.api.jobs.database import charges, reading, writing
from factorize.api.settings import Settings
from factorize.spec import parse_spec

FIVE = {"workload": {"kind": "prefix", "n": 5}, "mechanism": {"kind": "identity"}}
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "BREW")
PATHS = sorted({row.path for row in ROUTES})


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Keyed]:
    with keyed_service(tmp_path_factory.mktemp("keyed") / "store") as keyed:
        yield keyed


@pytest.mark.parametrize("row", ROUTES, ids=lambda row: f"{row.method} {row.path}")
def test_a_route_is_open_to_its_scope_and_to_nobody_else(keyed: Keyed, row: RouteRow) -> None:
    for role in (None, "fk_wrong", *Scope):
        answer = keyed.ask(role, row.method, filled(row.path))
        assert answer.status < 500
        if row.access.scope is None or role in (row.access.scope, "admin"):
            assert answer.status not in (401, 403), (role, answer)
        elif role in (None, "fk_wrong"):
            problem = answer.problem(401, "unauthorized")
            assert answer.headers["www-authenticate"].startswith("Bearer")
            assert "fk_wrong" not in str(problem)
        else:
            answer.problem(403, "forbidden")


@pytest.mark.parametrize(("method", "path"), [pair for pair in product(METHODS, PATHS)])
def test_what_has_no_row_is_nobodys(keyed: Keyed, method: str, path: str) -> None:
    """Methods that a path has not: strangers are told nothing, keys the methods there are."""
    has = {row.method for row in ROUTES if row.path == path} | {"HEAD"}
    if method in has:
        return
    assert keyed.ask(None, method, filled(path)).status == 401
    answer = keyed.ask("admin", method, filled(path))
    answer.problem(405, "method-not-allowed")
    assert set(answer.headers["allow"].split(", ")) | {"HEAD"} == has


@pytest.mark.parametrize(
    "path", ["/nothing", "/v1", "/v1/factorizations/", "/healthz%0a", "//healthz", "/v1/../healthz", "/docs", "/%00"]
)
def test_a_path_of_no_route_is_found_by_nobody(keyed: Keyed, path: str) -> None:
    keyed.ask(None, "GET", path).problem(401, "unauthorized")
    keyed.ask("admin", "GET", path).problem(404, "not-found")


TOKEN = "{token}"
BAD_HEADERS = {
    "no token": ["Bearer"],
    "blank token": ["Bearer  "],
    "other scheme": [f"Token {TOKEN}"],
    "basic": [f"Basic {TOKEN}"],
    "two tokens": [f"Bearer {TOKEN} {TOKEN}"],
    "comma": [f"Bearer {TOKEN},Bearer {TOKEN}"],
    "tab": [f"Bearer\t{TOKEN}"],
    "cut": [f"Bearer {TOKEN[:-1]}"],
    "oversized": ["Bearer " + "a" * 9000],
    "latin": ["Bearer fk_\xe9"],
    "alg none": ["Bearer eyJhbGciOiJub25lIn0.eyJzdWIiOiJhIn0."],
}


@pytest.mark.parametrize("kind", BAD_HEADERS)
def test_a_bad_header_is_refused_and_not_repeated(keyed: Keyed, kind: str) -> None:
    token = keyed.tokens["admin"]
    values = [value.replace(TOKEN, token).replace(TOKEN[:-1], token[:-1]) for value in BAD_HEADERS[kind]]
    answer = keyed.live.send("POST", "/v1/predict", "{}", {"Authorization": values[0]})
    problem = answer.problem(401, "unauthorized")
    assert token[:20] not in str(problem) and "a" * 20 not in str(problem) and "eyJ" not in str(problem)


def test_two_authorization_fields_are_a_bad_request(keyed: Keyed) -> None:
    token = keyed.tokens["admin"]
    head = "GET /v1/factorizations HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    field = f"Authorization: Bearer {token}\r\n"
    answer = keyed.live.raw(f"{head}{field}{field}\r\n".encode())
    assert answer.startswith(b"HTTP/1.1 400") and b"several Authorization fields" in answer
    assert keyed.live.raw(f"{head}{field}\r\n".encode()).startswith(b"HTTP/1.1 200")


def test_a_key_that_has_ended_is_told_so_to_its_holder_alone(keyed: Keyed) -> None:
    short = keyed.token("read", days=1e-9)
    detail = keyed.ask(short, "GET", "/v1/factorizations").problem(401, "unauthorized")["detail"]
    assert "the key is expired" in detail
    other = short[:16] + keyed.tokens["read"][16:-9]
    detail = keyed.ask(other, "GET", "/v1/factorizations").problem(401, "unauthorized")["detail"]
    assert "expired" not in detail


def test_a_revoked_key_is_refused_by_every_service_on_the_ledger(keyed: Keyed) -> None:
    token = keyed.token("read")
    with keyed_service(keyed.live.folder) as other:
        services = [keyed, other]
        assert all(service.ask(token, "GET", "/v1/factorizations").status == 200 for service in services)
        keyed.register.revoke(token[3:15])
        for service in services:  # after half a second by the gate's own clock (tests/api/access/test_key_register.py)
            wait_for(lambda service=service: service.ask(token, "GET", "/v1/factorizations").status == 401)


def test_a_stream_of_events_ends_with_its_key(keyed: Keyed) -> None:
    (keyed.live.folder / "go").unlink(missing_ok=True)
    token = keyed.token("read", "submit")
    job = keyed.ask(token, "POST", "/v1/factorizations", {"workload": {"kind": "prefix", "n": 41}})
    assert job.status == 202
    path = f"/v1/factorizations/{job.json()['spec_digest']}"
    head = (
        f"GET {path}/events HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\nConnection: close\r\n\r\n"
    )
    with keyed.live.connected() as connection:
        connection.sendall(head.encode())
        answer = connection.recv(65536)
        keyed.register.revoke(token[3:15])
        # Until the service closes it, which the job does not bring about.
        answer += b"".join(iter(lambda: connection.recv(65536), b""))
    assert answer.startswith(b"HTTP/1.1 200") and answer.endswith(b"0\r\n\r\n") and b"event: done" not in answer
    assert keyed.ask("admin", "GET", path).json()["state"] in ("queued", "running")
    assert keyed.ask("admin", "DELETE", path).status == 202


def test_a_job_is_seen_by_those_who_asked_for_it(keyed: Keyed) -> None:
    spec = {"workload": {"kind": "prefix", "n": 7}}
    (keyed.live.folder / "go").unlink(missing_ok=True)
    job = keyed.ask("one", "POST", "/v1/factorizations", spec)
    assert job.status == 202
    path = f"/v1/factorizations/{job.json()['spec_digest']}"
    missing = keyed.ask("two", "GET", f"/v1/factorizations/{UNKNOWN}").json()
    answer = keyed.ask("two", "GET", path).problem(404, "not-found")
    assert answer["detail"].replace(path[19:], UNKNOWN) == missing["detail"], "as of one that nobody has asked for"
    assert keyed.ask("one", "GET", path).json()["state"] in ("queued", "running")
    assert keyed.ask("admin", "GET", path).status == 200
    listed = {role: keyed.ask(role, "GET", "/v1/factorizations").json()["items"] for role in ("one", "two", "admin")}
    names = {role: {item["spec_digest"] for item in items} for role, items in listed.items()}
    assert path[19:] in names["one"] & names["admin"] and path[19:] not in names["two"]
    joined = keyed.ask("two", "POST", "/v1/factorizations", spec)
    assert joined.status == 202 and keyed.ask("two", "GET", path).status == 200
    assert keyed.ask("one", "DELETE", path).json()["state"] == "cancelled"
    assert keyed.as_one(path).status == 404
    assert keyed.ask("two", "GET", path).json()["state"] in ("queued", "running"), "it goes on for the other"
    assert keyed.ask("two", "DELETE", path).json()["state"] == "cancelled"
    assert keyed.ask("two", "GET", path).json()["state"] == "cancelled"
    assert keyed.ask("one", "POST", f"{path}/retry").status == 404


def test_an_upload_is_its_senders_own(keyed: Keyed) -> None:
    matrix = struct.pack("<4d", 1.0, 0.0, 1.0, 1.0)
    sent = keyed.ask("one", "POST", "/v1/matrices?rows=2&columns=2", matrix)
    assert sent.status == 201
    sha256 = sent.json()["sha256"]
    spec = {"workload": {"kind": "matrix", "sha256": sha256, "shape": [2, 2]}, "mechanism": {"kind": "identity"}}
    assert keyed.ask("two", "POST", "/v1/factorizations", spec).problem(422, "invalid-spec")
    assert keyed.ask("two", "POST", "/v1/compare", {"spec": spec}).problem(422, "invalid-spec")
    keyed.ask("two", "GET", f"/v1/blobs/{sha256}").problem(404, "not-found")
    assert keyed.as_one(f"/v1/blobs/{sha256}").body == matrix
    assert keyed.ask("admin", "GET", f"/v1/blobs/{sha256}").status == 200
    assert keyed.ask("one", "POST", "/v1/factorizations", spec).status in (200, 202)
    assert keyed.ask("two", "POST", "/v1/matrices?rows=2&columns=2", matrix).status == 201
    assert keyed.ask("two", "GET", f"/v1/blobs/{sha256}").body == matrix


def test_streams_of_one_key_leave_room_for_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "MAX_REQUESTS_PER_KEY", 2)
    with keyed_service(tmp_path / "store") as service, ExitStack() as opened:
        live = service.live
        name = service.ask("admin", "POST", "/v1/factorizations", FIVE).json()["spec_digest"]
        path = f"/v1/factorizations/{name}/events"

        def follow(role: str) -> http.client.HTTPResponse:
            connection = opened.enter_context(closing(http.client.HTTPConnection(live.host, timeout=600)))
            connection.request("GET", path, headers={"Authorization": f"Bearer {service.tokens.get(role, role)}"})
            return opened.enter_context(connection.getresponse())

        assert [follow("admin").status for _ in range(2)] == [200, 200]
        refused = service.ask("admin", "GET", path)
        refused.problem(429, "busy")
        assert int(refused.headers["retry-after"]) > 0
        assert service.ask("admin", "GET", f"/v1/factorizations/{name}").status == 200
        assert follow(service.token("admin")).status == 200
        live.go()


def test_what_is_changed_has_no_versions_to_match(keyed: Keyed) -> None:
    name = "a" * 64
    for method, path in (("DELETE", f"/v1/factorizations/{name}"), ("POST", f"/v1/factorizations/{name}/retry")):
        for condition in ("If-Match", "If-Unmodified-Since"):
            headers = {"Authorization": f"Bearer {keyed.tokens['admin']}", condition: '"x"'}
            keyed.live.send(method, path, headers=headers).problem(412, "precondition-failed")
    headers = {"Authorization": f"Bearer {keyed.tokens['admin']}", "If-Match": '"x"'}
    assert keyed.live.send("GET", "/v1/factorizations", headers=headers).status == 200


def test_a_line_of_a_request_names_the_key_and_not_its_secret(keyed: Keyed, caplog: pytest.LogCaptureFixture) -> None:
    token = keyed.token("read")
    with caplog.at_level("INFO", logger="factorize.api.http.request_guard"):
        keyed.ask(token, "GET", "/v1/factorizations")
        keyed.ask("fk_wrong", "GET", "/v1/factorizations")
    known, unknown = [record.about for record in caplog.records if hasattr(record, "about")][-2:]
    caller = keyed.register.get(token[3:15]).caller
    assert (known["key"], known["owner"]) == (caller.key, caller.owner) and token not in str(known)
    assert "key" not in unknown and unknown["status"] == 401


def test_a_quota_of_kept_bytes_refuses_an_upload_and_a_job(keyed: Keyed) -> None:
    matrix = struct.pack("<4d", 1.0, 0.0, 2.0, 1.0)
    small = keyed.token("upload", "submit", "read", quotas=KeyQuotas(kept_bytes=31))
    refused = keyed.ask(small, "POST", "/v1/matrices?rows=2&columns=2", matrix)
    refused.problem(429, "quota-exhausted")
    assert int(refused.headers["retry-after"]) >= 1
    keyed.ask("admin", "GET", f"/v1/blobs/{hashlib.sha256(matrix).hexdigest()}").problem(404, "not-found")
    full = keyed.token("upload", "submit", "read", quotas=KeyQuotas(kept_bytes=32))
    assert keyed.ask(full, "POST", "/v1/matrices?rows=2&columns=2", matrix).status == 201
    spec = {"workload": {"kind": "prefix", "n": 25}}
    keyed.ask(full, "POST", "/v1/factorizations", spec).problem(429, "quota-exhausted")


def test_keys_of_one_name_have_the_same_jobs_and_uploads(keyed: Keyed) -> None:
    (keyed.live.folder / "go").unlink(missing_ok=True)
    old, new = (keyed.token("read", "submit", name="team", quotas=KeyQuotas(open_jobs=1)) for _ in range(2))
    job = keyed.ask(old, "POST", "/v1/factorizations", {"workload": {"kind": "prefix", "n": 26}}).json()
    path = f"/v1/factorizations/{job['spec_digest']}"
    assert keyed.ask(new, "GET", path).status == 200
    other = {"workload": {"kind": "prefix", "n": 27}}
    keyed.ask(new, "POST", "/v1/factorizations", other).problem(429, "quota-exhausted")
    assert keyed.ask(new, "DELETE", path).json()["state"] == "cancelled"


def test_quotas_of_the_settings_hold_for_keys_without_their_own(tmp_path: Path) -> None:
    with keyed_service(tmp_path / "store", open_jobs=0, core_seconds_per_day=7) as service:
        said = service.ask("one", "GET", "/v1/caller").json()["quotas"]
        assert said == {"open_jobs": 0, "core_seconds_per_day": 7, "kept_bytes": None}
        service.ask("one", "POST", "/v1/factorizations", FIVE).problem(429, "quota-exhausted")
        more = service.token("submit", quotas=KeyQuotas(open_jobs=1))
        assert service.ask(more, "POST", "/v1/factorizations", FIVE).status == 202
        service.live.go()


COMPUTING: list[tuple[str, str, object]] = [
    ("POST", "/v1/compare", {"spec": {"workload": {"kind": "prefix", "n": 4}}}),
    ("POST", "/v1/recommend", BODIES["RecommendRequest"]),
    ("POST", "/v1/recommend/fleet", BODIES["FleetRequest"]),
    ("POST", "/v1/predict", BODIES["PredictionRequest"]),
    ("POST", "/v1/factorizations/{name}/calibrations", {"epsilon": 3.5, "delta": 1e-6}),
    ("POST", "/v1/factorizations/{name}?dtype=float32", None),
    ("POST", "/v1/factorizations?matrices=C,C_inv", FIVE),
    ("POST", "/v1/factorizations", {"workload": {"kind": "prefix", "n": 24}}),
]
"""Requests that have something computed by a child."""


def test_every_route_that_computes_is_counted_and_refused_when_the_quota_is_used_up(keyed: Keyed) -> None:
    digest = keyed.live.store.put(solvers.solve(parse_spec(FIVE)))["digest"]
    token = keyed.token("read", "submit", quotas=KeyQuotas(core_seconds_per_day=100))
    caller = keyed.register.get(token[3:15]).caller
    calibrations, first = f"/v1/factorizations/{digest}/calibrations", {"epsilon": 3.25, "delta": 1e-6}
    assert keyed.ask(token, "POST", calibrations, first).status == 200, "answers are kept, so this is another question"
    with reading(keyed.live.service.ledger.engine) as connection:
        used = connection.scalar(sa.select(sa.func.sum(charges.c.core_seconds)).where(charges.c.owner == caller.owner))
    assert 0 < used < 100
    little = keyed.token("read", "submit", quotas=KeyQuotas(core_seconds_per_day=3))
    refused = keyed.ask(little, "POST", "/v1/recommend", {**BODIES["RecommendRequest"], "seconds": 40}).problem(
        422, "too-large"
    )
    assert "core-seconds, and the key may use 3 in a day" in refused["detail"], "by its estimate, before it begins"
    with writing(keyed.live.service.ledger.engine) as connection:
        connection.execute(charges.insert().values(owner=caller.owner, began=time.time(), core_seconds=100.0))
    for method, path, body in COMPUTING:
        answer = keyed.ask(token, method, path.format(name=digest), body)
        answer.problem(429, "quota-exhausted")
        assert 1 <= int(answer.headers["retry-after"]) <= 86_400, path
    assert keyed.ask(token, "GET", f"/v1/factorizations/{digest}/matrices/C").status == 200
    assert keyed.ask(token, "POST", "/v1/factorizations", FIVE).status == 200, "what is stored is read for nothing"


@pytest.mark.parametrize(
    ("peer", "trusted"),
    [
        ("127.0.0.1", True),
        ("::1", True),
        ("10.1.2.3", True),
        ("::ffff:10.1.2.3", True),
        ("10.2.0.1", False),
        ("2001:db8::1", False),
        ("", False),
        ("proxy", False),
    ],
)
def test_requests_come_from_the_proxy_or_this_machine(peer: str, trusted: bool, tmp_path: Path) -> None:
    behind = Settings(store=str(tmp_path), host="0.0.0.0", trusted_proxies=("10.1.0.0/16",))
    assert trusts(behind, peer) is trusted
    assert trusts(Settings(store=str(tmp_path)), peer)


def test_tokens_of_an_issuer_are_taken_beside_keys(tmp_path: Path) -> None:
    with issuing() as issuer:
        with keyed_service(tmp_path / "store", issuers=(issuer.issuer(),)) as keyed:
            ada, bob = token(scope="mf.read mf.write"), token("ec", sub="bob", scope="mf.read")
            spec = {"workload": {"kind": "prefix", "n": 8}}
            job = keyed.ask(ada, "POST", "/v1/factorizations", spec)
            assert job.status == 202
            path = f"/v1/factorizations/{job.json()['spec_digest']}"
            assert keyed.ask(ada, "GET", path).status == 200 and keyed.ask("admin", "GET", path).status == 200
            keyed.ask(bob, "GET", path).problem(404, "not-found")
            keyed.ask(bob, "POST", "/v1/factorizations", spec).problem(403, "forbidden")
            keyed.ask(token(scope=None), "GET", "/v1/factorizations").problem(403, "forbidden")
            for wrong in (token("rsa-other", headers={"kid": "rsa"}), ada[:-4]):  # test_issuer_tokens.py has more
                problem = keyed.ask(wrong, "GET", path).problem(401, "unauthorized")
                assert not [piece for piece in wrong.split(".") if len(piece) > 8 and piece in str(problem)]
            assert keyed.ask(token(iat=int(time.time()) + 15), "GET", "/v1/factorizations").status == 200, (
                "clocks differ"
            )
            assert keyed.ask(ada, "DELETE", path).status == 202
            assert issuer.asked == ["/jwks?v=1"]
            issuer.answer = 500, {}, b""
        with keyed_service(tmp_path / "other", issuers=(issuer.issuer(),)) as keyed:
            unavailable = keyed.ask(ada, "GET", "/v1/factorizations")
            unavailable.problem(503, "unavailable")
            assert "retry-after" in unavailable.headers
            assert keyed.ask("read", "GET", "/v1/factorizations").status == 200, "keys do not wait for an issuer"

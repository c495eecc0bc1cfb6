"""Keys over HTTP: made, listed and taken back by admins; the token shown once, all written down."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from audit_rows import rows_of
from command_line import CommandLine
from issuer_server import issuing
from issuer_server import token as issued
from keyed_service import Keyed, keyed_service

from factorize.api.access.key_register import KeyRequest

KEYS = "/v1/keys"


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Keyed]:
    with keyed_service(tmp_path_factory.mktemp("keys") / "store", solver="no_solver") as keyed:
        yield keyed


def lines(keyed: Keyed) -> list[dict[str, Any]]:
    return rows_of(keyed.live.folder / "jobs.sqlite")


def own_id(keyed: Keyed, role: str = "admin") -> str:
    return keyed.tokens[role].split("_")[1]


def test_a_key_is_made_shown_replaced_and_taken_back(keyed: Keyed) -> None:
    made = keyed.ask(
        "admin", "POST", KEYS, {"name": "training", "scopes": ["read", "submit"], "quotas": {"open_jobs": 3}}
    )
    assert (made.status, made.headers["cache-control"]) == (201, "no-store")
    key = made.json()
    token, path = key.pop("token"), f"{KEYS}/{key['id']}"
    assert made.headers["location"] == path and token.split("_")[1] == key["id"]
    assert (key["scopes"], key["state"], key["own"]) == (["read", "submit"], "active", False)
    assert key["quotas"] == {"open_jobs": 3, "core_seconds_per_day": None, "kept_bytes": None}
    assert keyed.ask("admin", "GET", path).json() == key
    assert keyed.ask(token, "GET", "/v1/factorizations").status == 200

    other = keyed.ask("admin", "POST", KEYS, {"name": "training", "days": 3}).json()["token"]
    callers = [keyed.ask(one, "GET", "/v1/caller").json()["owner"] for one in (token, other)]
    assert callers == ["key:training"] * 2

    revoked = keyed.ask("admin", "POST", f"{path}/revoke")
    assert revoked.json()["state"] == "revoked" == keyed.ask("admin", "POST", f"{path}/revoke").json()["state"]
    assert keyed.live.service.register.get(key["id"]).state(0.0) == "revoked"
    assert keyed.ask(other, "GET", "/v1/caller").status == 200

    shown = b"".join(keyed.ask("admin", "GET", at).body for at in (path, f"{KEYS}?limit=1000"))
    secrets = [part.encode() for one in (token, other) for part in one.split("_")[2:]]
    assert not [secret for secret in secrets if secret in shown] and b"sha256" not in shown
    about = [line for line in lines(keyed) if line["subject"] == key["id"]]
    assert [line["event"] for line in about] == ["key created", "key revoked"]
    assert {line["actor"] for line in about} == {f"key:admin/{own_id(keyed)}"}
    assert about[0]["request_id"] == made.headers["x-request-id"]
    assert not [secret for secret in secrets if secret.decode() in json.dumps(about)]


def test_the_list_has_pages_and_filters(keyed: Keyed) -> None:
    made = [keyed.ask("admin", "POST", KEYS, {"name": f"p{i}"}).json()["id"] for i in range(3)]
    keyed.register.revoke(made[1])
    ended = keyed.register.create(KeyRequest(name="ended", scopes=["read"], days=1e-9))[0].id
    found, cursor = [], ""
    while True:
        page = keyed.ask("admin", "GET", f"{KEYS}?limit=2{cursor}").json()
        assert len(page["items"]) <= 2
        found += page["items"]
        if page["next"] is None:
            break
        cursor = f"&cursor={page['next']}"
    names = [key["id"] for key in found]
    assert len(set(names)) == len(names) == len(keyed.register.keys())
    assert names[:4] == [ended, *reversed(made)] and [key["created"] for key in found] == sorted(
        (key["created"] for key in found), reverse=True
    )
    assert [key["id"] for key in found if key["own"]] == [own_id(keyed)]
    for state, wanted in (("active", made[2]), ("revoked", made[1]), ("expired", ended)):
        items = keyed.ask("admin", "GET", f"{KEYS}?state={state}&limit=1000").json()["items"]
        assert wanted in {key["id"] for key in items} and {key["state"] for key in items} == {state}
    keyed.ask("admin", "GET", f"{KEYS}?cursor={'0' * 12}").problem(404, "not-found")


BAD: list[tuple[Any, str]] = [
    ({}, "/name"),
    ({"name": ""}, "/name"),
    ({"name": "a\nb"}, "/name"),
    ({"name": "t" * 65}, "/name"),
    ({"name": "t", "scopes": ["write"]}, "/scopes/0"),
    ({"name": "t", "scopes": []}, "/scopes"),
    ({"name": "t", "scopes": "read"}, "/scopes"),
    ({"name": "t", "days": 0}, "/days"),
    ({"name": "t", "days": 4000}, "/days"),
    ({"name": "t", "days": "90"}, "/days"),
    ({"name": "t", "quotas": {"open_jobs": -1}}, "/quotas/open_jobs"),
    ({"name": "t", "quotas": {"jobs": 1}}, "/quotas/jobs"),
    ({"name": "t", "scope": "read"}, "/scope"),
    ("[]", ""),
]


def test_what_no_key_can_be_is_said_at_its_field(keyed: Keyed) -> None:
    before = len(keyed.register.keys())
    for body, pointer in BAD:
        problem = keyed.ask("admin", "POST", KEYS, body).problem(422, "invalid-parameter")
        assert pointer in {entry["pointer"] for entry in problem["errors"]}, (body, problem)
    keyed.ask("admin", "POST", KEYS, "{").problem(400, "malformed-json")
    keyed.ask("admin", "POST", KEYS, '{"name": "t", "name": "u"}').problem(422, "invalid-parameter")
    for wrong in ("0" * 12, "f" * 11, "F" * 12, "%00"):
        for method, more in (("GET", ""), ("POST", "/revoke")):
            answer = keyed.ask("admin", method, f"{KEYS}/{wrong}{more}")
            answer.problem(*((404, "not-found") if wrong == "0" * 12 else (422, "invalid-parameter")))
    assert len(keyed.register.keys()) == before


def test_a_caller_learns_who_they_are(keyed: Keyed) -> None:
    for role, scopes, may in (("admin", ["admin"], True), ("one", ["read", "submit", "upload"], False)):
        answer = keyed.ask(role, "GET", "/v1/caller")
        assert answer.headers["cache-control"] == "no-store"
        found = answer.json()
        assert (found["owner"], found["scopes"]) == (f"key:{role}", scopes)
        assert (found["looks_after_keys"], found["asks_for_keys"]) == (may, True)


@pytest.mark.parametrize(
    ("settings", "words"),
    [({"require_keys": False}, "does not require keys"), ({"key_routes": False}, "setting key_routes")],
)
def test_where_keys_are_closed_that_is_said(tmp_path: Path, settings: dict[str, bool], words: str) -> None:
    with keyed_service(tmp_path / "store", solver="no_solver", **settings) as keyed:
        made = len(keyed.register.keys())
        path = f"{KEYS}/{own_id(keyed, 'read')}"
        for method, at in (("GET", KEYS), ("POST", KEYS), ("GET", path), ("POST", f"{path}/revoke")):
            body = {"name": "t", "scopes": ["admin"]} if at == KEYS and method == "POST" else None
            detail = keyed.ask("admin", method, at, body).problem(403, "keys-closed")["detail"]
            assert words in detail and "factorize keys" in detail
        assert keyed.ask("admin", "GET", "/v1/caller").json()["looks_after_keys"] is False
        assert len(keyed.register.keys()) == made


def test_no_key_outlives_the_token_that_makes_it(tmp_path: Path) -> None:
    """A token of five minutes makes no key of 90 days."""
    with issuing() as issuer:
        asks, ends = issuer.issuer(scopes={"mf.admin": ["admin"]}), int(time.time()) + 300
        with keyed_service(tmp_path / "store", solver="no_solver", issuers=(asks,)) as keyed:
            admin = issued(scope="mf.admin", exp=ends)
            long = keyed.ask(admin, "POST", KEYS, {"name": "long", "days": 90}).json()
            short = keyed.ask(admin, "POST", KEYS, {"name": "short", "days": 1e-3}).json()
            assert keyed.register.get(long["id"]).expires == ends > keyed.register.get(short["id"]).expires
            assert keyed.ask(long["token"], "GET", "/v1/caller").status == 200


def test_the_last_admin_key_is_revoked_and_the_command_line_makes_another(tmp_path: Path) -> None:
    with keyed_service(tmp_path / "store", solver="no_solver") as keyed:
        assert keyed.ask("admin", "POST", f"{KEYS}/{own_id(keyed)}/revoke").json()["own"] is True
        another = CommandLine(tmp_path)(
            *("keys", "create", "--name", "admin", "--scopes", "admin", "--store", tmp_path / "store")
        )
        assert keyed.ask(another.out.strip(), "GET", KEYS).status == 200

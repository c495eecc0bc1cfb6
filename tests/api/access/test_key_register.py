"""Keys in a ledger: what is stored of them, whose they are, and how they end."""

from __future__ import annotations

import hashlib
import re
import zlib
from pathlib import Path

import pytest
import sqlalchemy as sa

from factorize.api.access import caller as tokens
from factorize.api.access.caller import KeyQuotas, Scope, new_token, read_token
from factorize.api.access.key_register import KeyRegister, KeyRequest
from factorize.api.jobs.database import access_keys
from factorize.api.jobs.ledger import Ledger
from factorize.storage.fsck import fsck
from factorize.storage.store import open_store


@pytest.fixture
def register(database_url: str):
    with Ledger(database_url) as ledger:
        yield KeyRegister(ledger.engine)


def test_a_token_has_prefix_id_secret_and_checksum() -> None:
    token = new_token()
    assert re.fullmatch(tokens.PATTERN, token.text)
    body, checksum = token.text[:-9], token.text[-8:]
    assert int(checksum, 16) == zlib.crc32(body.encode())
    assert body == f"fk_{token.id}_{token.secret}"
    assert token.secret not in repr(token)
    assert read_token(token.text) == token


def test_a_token_that_was_cut_or_changed_is_none() -> None:
    text = new_token().text
    other = text[:20] + ("0" if text[20] != "0" else "1") + text[21:]
    for wrong in (text[:-1], text[:50], other, text.upper(), f" {text}", f"{text}\n", "", text + "0", "fk_\u0661" * 5):
        assert read_token(wrong) is None


def test_the_ledger_keeps_a_hash_and_not_the_secret(register: KeyRegister) -> None:
    key, token = register.create(KeyRequest(name="training", scopes=["read"], quotas=KeyQuotas(open_jobs=3)))
    with register._engine.connect() as connection:
        row = connection.execute(sa.select(access_keys)).one()._mapping
    assert row["secret_sha256"] == hashlib.sha256(token.secret.encode()).hexdigest()
    assert not any(token.secret in str(value) for value in row.values())
    assert register.get(token.id) == key
    assert key.quotas == KeyQuotas(open_jobs=3) and key.scopes == {Scope.READ}
    assert "sha256" not in str(key.document(0.0)) and token.secret not in str(key.document(0.0))


def test_a_restored_ledger_brings_no_revoked_key_back(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store")
    with Ledger(f"sqlite:///{tmp_path}/jobs.sqlite") as ledger:
        register = KeyRegister(ledger.engine, medium=lambda: store.objects)
        revoked, kept = (register.create(KeyRequest(name=name, scopes=["read"]))[0] for name in ("revoked", "kept"))
    copy = (tmp_path / "jobs.sqlite").read_bytes()
    with Ledger(f"sqlite:///{tmp_path}/jobs.sqlite") as ledger:
        KeyRegister(ledger.engine, medium=lambda: store.objects).revoke(revoked.id)
    (tmp_path / "jobs.sqlite").write_bytes(copy)
    with Ledger(f"sqlite:///{tmp_path}/jobs.sqlite") as ledger:
        register = KeyRegister(ledger.engine, medium=lambda: store.objects)
        assert register.get(revoked.id).revoked is None
        register.revoke_withdrawn()
        assert register.get(revoked.id).revoked is not None
        assert register.get(kept.id).revoked is None
    assert not fsck(store).findings

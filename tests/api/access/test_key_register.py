"""Keys in a ledger: their tokens, how long a gate goes by what it has found of them, and how they end."""

from __future__ import annotations

import asyncio
import re
import zlib
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from factorize.api.access import caller as tokens
from factorize.api.access import gate
from factorize.api.access.caller import AccessRefused, new_token, read_token
from factorize.api.access.gate import FRESH_SECONDS, Gate
from factorize.api.access.key_register import KeyRegister, KeyRequest
from factorize.api.jobs.ledger import Ledger
from factorize.errors import StoreUnavailable
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


def test_a_gate_refuses_a_revoked_key_within_a_second_and_everybody_without_a_ledger(
    register: KeyRegister, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = [1000.0]
    monkeypatch.setattr(gate, "time", SimpleNamespace(monotonic=lambda: seconds[0]))
    key, token = register.create(KeyRequest(name="k", scopes=["read"]))

    async def admit() -> None:
        door, credential = Gate(register, clock=lambda: key.created), token.text.encode()
        assert await door.admit(credential) == key.caller
        with monkeypatch.context() as outage:
            outage.setattr(register, "find", Mock(side_effect=StoreUnavailable("the job database does not answer")))
            seconds[0] += 1
            with pytest.raises(StoreUnavailable):
                await door.admit(credential)
        assert await door.admit(credential) == key.caller
        register.revoke(key.id)
        seconds[0] += FRESH_SECONDS - 0.001
        assert await door.admit(credential) == key.caller
        seconds[0] += 0.001
        assert FRESH_SECONDS <= 1
        for _ in range(2):
            with pytest.raises(AccessRefused, match="the key is revoked"):
                await door.admit(credential)

    asyncio.run(admit())


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

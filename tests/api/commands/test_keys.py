"""`factorize keys`: what is shown once, what is never shown, and the audit log that proves every change."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

from audit_rows import forbid_rows, rows_of
from command_line import CommandLine

from factorize.api.access.caller import PATTERN, AccessKey, read_token
from factorize.api.access.key_register import KeyRegister
from factorize.api.commands.serve import open_server as opened_server
from factorize.api.jobs.ledger import Ledger
from factorize.api.settings import Settings


def opened(tmp_path: Path, text: str, now: float | None = None) -> bool:
    """Whether a token opens its key in the ledger."""
    token = read_token(text)
    assert token is not None
    with Ledger(f"sqlite:///{tmp_path}/store/jobs.sqlite") as ledger:
        key: AccessKey = KeyRegister(ledger.engine).get(token.id)
    return token.is_of(key.secret_sha256) and key.state(key.created if now is None else now) == "active"


def test_a_key_is_made_changed_and_taken_back_and_the_log_proves_it(within: CommandLine, tmp_path: Path) -> None:
    def document(*arguments: str) -> Any:
        return within("keys", *arguments, "--output", "json").json()

    made = document("create", "--name", "training", "--scopes", "read,submit", "--open-jobs", "3")
    name, token = made["id"], made["token"]
    assert made["quotas"]["open_jobs"] == 3 and made["scopes"] == ["read", "submit"] and opened(tmp_path, token)
    other = document("create", "--name", "training", "--kept-bytes", "1000")
    assert other["quotas"]["kept_bytes"] == 1000 and opened(tmp_path, other["token"])
    assert document("revoke", name)["state"] == "revoked"
    assert document("revoke", name)["state"] == "revoked"  # again, which changes nothing
    assert not opened(tmp_path, token) and opened(tmp_path, other["token"])
    shown = [within("keys", "list").out, within("keys", "show", name).out, json.dumps(document("list"))]
    assert all(name in text and token not in text and token.split("_")[2] not in text for text in shown)

    file = tmp_path / "store" / "jobs.sqlite"
    lines = rows_of(file)
    assert [line["event"] for line in lines] == ["key created", "key created", "key revoked"]
    assert [line["subject"] for line in lines] == [name, other["id"], name]
    assert all(line["actor"].startswith("operator:") for line in lines)
    assert lines[0]["detail"] == {"name": "training", "scopes": ["read", "submit"], "expires": made["expires"]}
    assert not any(
        secret.encode() in file.read_bytes() for text in (token, other["token"]) for secret in text.split("_")[2:]
    )
    assert within("audit", "verify", "--output", "json").json()["rows"] == 3


def test_a_token_goes_into_a_new_file_of_its_owner(within: CommandLine, tmp_path: Path) -> None:
    file = tmp_path / "training.key"
    done = within("keys", "create", "--name", "t", "--to", str(file))
    assert done.code == 0 and "fk_" not in done.out + done.err
    assert file.stat().st_mode & 0o777 == 0o600 and opened(tmp_path, file.read_text().strip())
    shown = within("keys", "create", "--name", "s")
    assert re.fullmatch(PATTERN, shown.out.strip()) and "not shown again" in shown.err
    before = file.read_text()
    assert "name a new file" in within("keys", "create", "--name", "t", "--to", str(file)).error(2)
    assert file.read_text() == before and within("keys", "list").out.count("\n") == 2


def test_a_change_that_cannot_be_written_down_is_not_made(within: CommandLine, tmp_path: Path) -> None:
    made = within("keys", "create", "--name", "t", "--output", "json").json()
    forbid_rows(tmp_path / "store" / "jobs.sqlite")
    lost = tmp_path / "lost.key"
    for arguments in (("create", "--name", "u", "--to", str(lost)), ("revoke", made["id"])):
        done = within("keys", *arguments)
        assert done.code != 0 and "no more rows" in done.err and "fk_" not in done.out
    assert not lost.exists()
    (key,) = within("keys", "list", "--output", "json").json()["items"]
    assert key["state"] == "active" and opened(tmp_path, made["token"])


def test_a_start_that_needs_keys_makes_none_and_sees_that_there_is_none(within: CommandLine, tmp_path: Path) -> None:
    def lacks_keys(**given: Any) -> bool:
        settings = Settings(store=str(tmp_path / "store"), **given)
        running, lacks = opened_server(settings)
        running.service.ledger.close()  # nothing of it was started
        return lacks

    assert not lacks_keys()  # on loopback, without keys
    assert lacks_keys(require_keys=True) and lacks_keys(require_keys=True), "a start made a key"
    made = within("keys", "create", "--name", "admin", "--scopes", "admin", "--to", "admin.key")  # as serve says
    assert made.code == 0 and opened(tmp_path, (tmp_path / "admin.key").read_text().strip())
    assert not lacks_keys(require_keys=True)


def test_each_store_has_the_keys_of_its_own_ledger_whatever_it_is_called(within: CommandLine, tmp_path: Path) -> None:
    for name in ("a?1", "a?2", "a%3F1#", os.fsdecode(b"st\xf6re")):
        store = str(tmp_path / name)
        within("keys", "create", "--name", "training", "--store", store)
        assert len(within("keys", "list", "--store", store, "--output", "json").json()["items"]) == 1
        assert (tmp_path / name / "jobs.sqlite").is_file()
        assert within("audit", "verify", "--store", store).code == 0
    assert sorted(entry.name for entry in tmp_path.iterdir() if entry.is_file()) == []

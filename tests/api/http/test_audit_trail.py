"""What requests and commands leave in the audit log of a running service."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from audit_rows import forbid_rows, rows_of
from command_line import CommandLine
from keyed_service import keyed_service
from servers import LiveService, serving

from factorize.api.http import app
from factorize.api.http.work_gate import WorkGate

SPEC = {"workload": {"kind": "prefix", "n": 9}, "mechanism": {"kind": "square_root"}}
MATRICES, NUMBERS = "matrices?rows=1&columns=1", np.ones(1).tobytes()


def events(service: LiveService) -> list[tuple[str, str | None]]:
    rows = rows_of(service.folder / "jobs.sqlite")
    assert all(row["actor"] == "address:127.0.0.1" for row in rows if row["event"] not in ("revocation", "deletion"))
    return [(row["event"], row["subject"]) for row in rows]


def test_what_is_changed_is_written_down_and_what_is_read_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = WorkGate(100, 10)
    monkeypatch.setattr(app, "WorkGate", lambda *_: gate)
    with serving(tmp_path / "store") as service:
        asked = service.post(SPEC)
        assert asked.status == 202
        name = asked.json()["spec_digest"]
        manifest = service.solve(SPEC)
        assert set(events(service)) == {("submission", name)}
        first = rows_of(service.folder / "jobs.sqlite")[0]
        assert (first["request_id"], first["detail"]) == (asked.headers["x-request-id"], {"workload": "prefix"})
        before = len(events(service))
        assert service.post(SPEC).status == 200
        assert service.get(f"/v1/factorizations/{name}").status == 200
        assert len(events(service)) == before  # what is stored already is read, not made

        upload = service.send("POST", f"/v1/{MATRICES}", NUMBERS)
        assert upload.status == 201
        assert events(service)[-1] == ("upload", upload.json()["sha256"])

        monkeypatch.setattr(gate, "_most", 0)
        refused = [service.get("/v1/factorizations").headers["x-request-id"] for _ in range(3)]
        last = rows_of(service.folder / "jobs.sqlite")[-1]
        assert (last["event"], last["request_id"], last["detail"]["kind"]) == ("refusal", refused[0], "429 too much")

        factorize = CommandLine(tmp_path)
        digest = manifest["digest"]
        store = str(tmp_path / "store")
        assert factorize("revoke", digest, "--reason", "a test", "--store", store).code == 0
        assert events(service)[-1] == ("revocation", digest)
        assert factorize("gc", "--delete", digest, "--store", store).code == 0
        assert events(service)[-1] == ("deletion", digest)
        assert factorize("fsck", "--store", store).code == 0  # the ledger is no part of the results
        assert factorize("audit", "verify", "--store", store).code == 0
    assert rows_of(tmp_path / "store" / "jobs.sqlite")[-1]["detail"]["more_before"] == 2


def test_every_request_is_written_down_where_that_is_asked_for(tmp_path: Path) -> None:
    with serving(tmp_path / "store", solver="no_solver", audit_requests=True) as service:
        read = service.get("/v1/factorizations")
        service.get("/healthz")
        (row,) = rows_of(service.folder / "jobs.sqlite")
        assert (row["event"], row["request_id"]) == ("request", read.headers["x-request-id"])
        assert row["detail"] == {"method": "GET", "path": "/v1/factorizations", "status": 200}
        forbid_rows(service.folder / "jobs.sqlite")
        service.get("/v1/factorizations").problem(503, "unavailable")


def test_a_change_that_cannot_be_written_down_is_not_made(tmp_path: Path) -> None:
    with keyed_service(tmp_path / "store", solver="no_solver") as keyed:
        keys = keyed.register.keys()
        forbid_rows(keyed.live.folder / "jobs.sqlite")
        changes = {"keys": {"name": "t"}, f"keys/{keys[0].id}/revoke": None, "factorizations": SPEC, MATRICES: NUMBERS}
        for path, body in changes.items():
            answer = keyed.ask("admin", "POST", f"/v1/{path}", body)
            answer.problem(503, "unavailable")
            assert b"fk_" not in answer.body
        assert keyed.register.keys() == keys
        assert keyed.ask("admin", "GET", "/v1/factorizations").json()["items"] == []

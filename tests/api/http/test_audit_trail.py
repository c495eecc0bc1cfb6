"""What requests and commands leave in the audit log of a running service."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from command_line import CommandLine
from servers import LiveService, serving

from factorize.api.auditing.audit_chain import chain_files, verify_chain
from factorize.api.http import app
from factorize.api.http.gateway.work_gate import WorkGate
from factorize.api.settings import Settings

SPEC = {"workload": {"kind": "prefix", "n": 9}, "mechanism": {"kind": "square_root"}}


def events(service: LiveService) -> list[tuple[str, str | None]]:
    lines = [
        json.loads(text) for path in chain_files(service.folder / "audit") for text in path.read_text().splitlines()
    ]
    assert all(
        line["actor"] == "address:127.0.0.1" for line in lines if line["event"] not in ("revocation", "deletion")
    )
    return [(line["event"], line["subject"]) for line in lines]


def test_what_is_changed_is_written_down_and_what_is_read_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = WorkGate(100, 10)
    monkeypatch.setattr(app, "WorkGate", lambda *_: gate)
    with serving(Settings(store=str(tmp_path / "store"), port=0)) as service:
        asked = service.post(SPEC)
        assert asked.status == 202
        name = asked.json()["spec_digest"]
        manifest = service.solve(SPEC)
        written = set(events(service))
        assert written == {("submission", name)}
        before = len(events(service))
        assert service.post(SPEC).status == 200
        assert service.get(f"/v1/factorizations/{name}").status == 200
        assert len(events(service)) == before  # what is stored already is read, not made

        upload = service.send(
            "POST", "/v1/matrices?rows=1&columns=1", np.ones(1).tobytes(), {"Content-Type": "application/octet-stream"}
        )
        assert upload.status == 201
        assert events(service)[-1] == ("upload", upload.json()["sha256"])

        monkeypatch.setattr(gate, "_most", 0)
        refused = [service.get("/v1/factorizations").headers["x-request-id"] for _ in range(3)]
        last = json.loads(chain_files(service.folder / "audit")[-1].read_text().splitlines()[-1])
        assert (last["event"], last["request_id"], last["detail"]["kind"]) == ("refusal", refused[0], "429 too much")

        factorize = CommandLine(tmp_path)
        digest = manifest["digest"]
        store = str(tmp_path / "store")
        assert factorize("revoke", digest, "--reason", "a test", "--store", store).code == 0
        assert events(service)[-1] == ("revocation", digest)
        assert factorize("gc", "--delete", digest, "--store", store).code == 0
        assert events(service)[-1] == ("deletion", digest)
        assert factorize("fsck", "--store", store).code == 0  # the log is no part of the results
        assert factorize("audit", "verify", "--store", store).code == 0
    found = verify_chain(tmp_path / "store" / "audit")
    assert (found.pieces, found.unfinished) == (0, 0)
    assert (
        json.loads(chain_files(tmp_path / "store" / "audit")[-1].read_text().splitlines()[-1])["detail"]["more_before"]
        == 2
    )

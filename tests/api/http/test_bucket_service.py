"""A service whose store is in a bucket: children write to it, files stream from it or are handed out by it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from servers import LiveService, serving

from factorize.api.service import SolverService
from factorize.api.settings import Settings
from factorize.client.download import fetch
from factorize.errors import InvalidParameter, StoreUnavailable
from factorize.storage.blobs import blob_key

SPEC: dict[str, Any] = {"workload": {"kind": "prefix", "n": 9}, "mechanism": {"kind": "square_root"}}


@pytest.fixture(params=["stream", "redirect"])
def service(request: pytest.FixtureRequest, bucket: str, tmp_path: Path) -> Iterator[LiveService]:
    with serving(bucket, database=f"sqlite:///{tmp_path}/jobs.sqlite", downloads=request.param) as live:
        yield live


def test_a_solve_is_stored_in_the_bucket_and_fetched_from_it(service, tmp_path):
    manifest = service.solve(SPEC)
    (file,) = manifest["files"]
    data = service.store.objects.content(blob_key(file["sha256"]))
    assert hashlib.sha256(data).hexdigest() == file["sha256"]
    assert service.get(f"/v1/factorizations/{manifest['spec_digest']}").json() == manifest
    assert len(service.get(f"/v1/factorizations/{manifest['digest']}/matrices/C?rows=2:4").body) == 2 * 9 * 8
    target = fetch(manifest["digest"], url=service.url, to=tmp_path / "factors.safetensors")
    assert target.read_bytes() == data
    part = tmp_path / "more.safetensors.part"
    part.write_bytes(data[:100])
    assert fetch(manifest["digest"], url=service.url, to=tmp_path / "more.safetensors").read_bytes() == data

    answer = service.get(f"/v1/blobs/{file['sha256']}")
    if service.service.settings.downloads == "stream":
        assert answer.body == data
    else:
        assert answer.status == 307 and answer.body == b"" and answer.headers["cache-control"] == "no-store"
        assert answer.headers["location"].startswith("http://127.0.0.1:")
        assert service.send("HEAD", f"/v1/blobs/{file['sha256']}").headers["content-length"] == str(len(data))
    service.get(f"/v1/blobs/{'0' * 64}").problem(404, "not-found")
    service.store.revoke(manifest["digest"], "a test")
    service.get(f"/v1/blobs/{file['sha256']}").problem(410, "revoked")


def test_a_ledger_has_to_be_named(bucket):
    with pytest.raises(InvalidParameter, match="--database"):
        SolverService(Settings(store=bucket))


def test_a_service_does_not_start_on_a_bucket_that_overwrites(bucket, tmp_path, monkeypatch):
    from factorize.storage.medium.bucket import Bucket
    from factorize.storage.store import open_store

    open_store(bucket)
    monkeypatch.setattr(Bucket, "create", lambda self, key, data: not self.write(key, data))
    with pytest.raises(StoreUnavailable, match="conditional writes"):
        SolverService(Settings(store=bucket, database=f"sqlite:///{tmp_path}/jobs.sqlite"))

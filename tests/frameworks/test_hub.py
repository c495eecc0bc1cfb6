"""A mirror on a hub: pushed and pulled by huggingface_hub against a local server, and read there by our own client."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from unittest import mock
from urllib.parse import unquote

import pytest
from huggingface_hub import HfApi, snapshot_download

import factorize
from factorize.api.mirror_writer import write_mirror
from factorize.encoding import sha256
from factorize.errors import CorruptObject
from factorize.solvers import choose, solve
from factorize.spec import Spec
from factorize.storage.store import open_store

REPOSITORY = "owner/library"
COMMIT = "c" * 40


class Hub(BaseHTTPRequestHandler):
    """What the Hub answers to a push of plain files and a pull, by its documented routes."""

    files: dict[str, bytes] = {}

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def answer(self, body: bytes, **headers: str) -> None:
        self.send_response(200)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_POST(self) -> None:
        sent = self.rfile.read(int(self.headers["Content-Length"]))
        base: Any = {"url": f"http://{self.headers['Host']}/datasets/{REPOSITORY}", "name": REPOSITORY}
        if self.path.endswith("/preupload/main"):
            named = [one["path"] for one in json.loads(sent)["files"]]
            base = {"files": [{"path": name, "uploadMode": "regular", "shouldIgnore": False} for name in named]}
        elif self.path.endswith("/commit/main"):
            for line in map(json.loads, sent.splitlines()):
                if line["key"] == "file":
                    self.files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            base = {"success": True, "commitOid": COMMIT, "commitUrl": f"{base['url']}/commit/{COMMIT}"}
        self.answer(json.dumps(base).encode(), Content_Type="application/json")

    def do_GET(self) -> None:
        if self.path.startswith(f"/api/datasets/{REPOSITORY}"):
            listed = [
                {"rfilename": name, "path": name, "type": "file", "size": len(data), "oid": sha256(data)[:40]}
                for name, data in self.files.items()
            ]
            tree = "/tree/" in self.path
            found = listed if tree else {"id": REPOSITORY, "sha": COMMIT, "siblings": listed, "private": False}
            return self.answer(json.dumps(found).encode(), Content_Type="application/json")
        name = unquote(self.path.partition("?")[0]).partition("/resolve/")[2].partition("/")[2]
        if name not in self.files:
            return self.send_error(404)
        data = self.files[name]
        return self.answer(data, ETag=f'"{sha256(data)[:40]}"', X_Repo_Commit=COMMIT)

    do_HEAD = do_GET


@pytest.fixture
def endpoint() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_a_mirror_goes_to_a_hub_and_comes_back(tmp_path: Path, endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FACTORIZE_CACHE", str(tmp_path / "cache"))
    results = open_store(tmp_path / "store")
    made = solve(choose(Spec.of("prefix", n=8, mechanism="square_root")))
    results.put(made)
    with mock.patch("factorize.api.mirror_writer._draw", lambda *_: b"a picture"):
        write_mirror(results, str(tmp_path / "mirror"))
    api = HfApi(endpoint=endpoint, token="hf_test")
    api.create_repo(REPOSITORY, repo_type="dataset", exist_ok=True)
    api.upload_folder(folder_path=str(tmp_path / "mirror"), repo_id=REPOSITORY, repo_type="dataset")
    pulled = Path(
        snapshot_download(
            REPOSITORY, repo_type="dataset", endpoint=endpoint, local_dir=tmp_path / "pulled", token="hf_test"
        )
    )
    blob = f"v1/blobs/{results.manifest(made.digest).file.sha256}"
    assert (pulled / blob).read_bytes() == (tmp_path / "mirror" / blob).read_bytes()
    url = f"{endpoint}/datasets/{REPOSITORY}/resolve/main/index.json"
    spec = {"workload": {"kind": "prefix", "n": 8}, "mechanism": {"kind": "square_root"}}
    assert factorize.load(spec, url=url).digest == made.digest
    Hub.files[blob] = Hub.files[blob][:-1] + b"\0"
    with pytest.raises(CorruptObject):
        factorize.load(made.digest, url=url, cache=tmp_path / "fresh")

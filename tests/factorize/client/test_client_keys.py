"""Keys of the client: from a variable or a file, to the service alone, and never in the clear."""

from __future__ import annotations

from pathlib import Path

import pytest
from hostile_server import HostileService, honest, make

from factorize.client.connection import Connection
from factorize.errors import InvalidParameter


@pytest.fixture(autouse=True)
def no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FACTORIZE_KEY", raising=False)
    monkeypatch.delenv("FACTORIZE_KEY_FILE", raising=False)


def test_the_service_gets_the_key_and_a_bucket_does_not(monkeypatch, tmp_path: Path, live_service) -> None:
    """The bucket is the same server by another name."""
    (tmp_path / "key").write_text("fk_secret\n")
    path = f"/v1/blobs/{live_service.store.put(make(4))['files'][0]['sha256']}"
    with HostileService(live_service) as server:
        elsewhere = {"Location": f"{server.url.replace('127.0.0.1', 'localhost')}{path}?signed=1"}
        for name, value in (("FACTORIZE_KEY", "fk_secret"), ("FACTORIZE_KEY_FILE", str(tmp_path / "key"))):
            server.plan("blob", lambda handler, *_: honest(handler, 307, elsewhere, b""))
            server.plan("blob", lambda handler, *_: honest(handler, 200, {}, b"what a bucket has"))
            with monkeypatch.context() as patched:
                patched.setenv(name, value)
                Connection(server.url).send("GET", path).close()
        Connection(server.url).send("GET", path).close()
    sent = [(path, headers.get("Authorization")) for _, path, headers in server.seen]
    both = [(path, "Bearer fk_secret"), (f"{path}?signed=1", None)]
    assert sent == [*both, *both, (path, None)]


@pytest.mark.parametrize("url", ["http://192.0.2.1:8000", "http://example.org", "http://127.0.0.1.example.org"])
def test_a_key_is_not_sent_in_the_clear(url: str, monkeypatch) -> None:
    monkeypatch.setenv("FACTORIZE_KEY", "fk_secret")
    with pytest.raises(InvalidParameter, match="without encryption; use https") as refused:
        Connection(url)
    assert "fk_secret" not in str(refused.value)
    Connection(url.replace("http:", "https:"))
    for own in ("http://127.0.0.1:1", "http://[::1]:1", "http://localhost", "http://LOCALHOST.:1"):
        Connection(own)


def test_what_holds_no_token_is_said_and_not_shown(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FACTORIZE_KEY", "two words")
    with pytest.raises(InvalidParameter, match="FACTORIZE_KEY does not have a token") as refused:
        Connection("http://127.0.0.1:1")
    assert "two words" not in str(refused.value)
    monkeypatch.setenv("FACTORIZE_KEY_FILE", str(tmp_path / "none"))
    with pytest.raises(InvalidParameter, match="both set"):
        Connection("http://127.0.0.1:1")
    monkeypatch.delenv("FACTORIZE_KEY")
    with pytest.raises(InvalidParameter, match="No such file"):
        Connection("http://127.0.0.1:1")

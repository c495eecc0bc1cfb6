"""Keys of the client: from a variable or a file, to the service alone, and never in the clear."""

from __future__ import annotations

import socketserver
import threading
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from factorize.client.connection import Connection
from factorize.errors import InvalidParameter


@pytest.fixture(autouse=True)
def no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FACTORIZE_KEY", raising=False)
    monkeypatch.delenv("FACTORIZE_KEY_FILE", raising=False)


@pytest.fixture
def heard():
    """A server that redirects to itself by another name, and the Authorization fields that it was sent."""
    fields: list[tuple[str, str | None]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            fields.append((self.path, self.headers.get("Authorization")))
            if self.path == "/file":
                self.send_response(307)
                self.send_header("Location", f"http://localhost:{self.server.server_address[1]}/bucket?signed=1")
            else:
                self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with socketserver.TCPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}", fields
        server.shutdown()
        thread.join()


def test_the_service_gets_the_key_and_a_bucket_does_not(heard, monkeypatch, tmp_path: Path) -> None:
    url, fields = heard
    (tmp_path / "key").write_text("fk_secret\n")
    for name, value in (("FACTORIZE_KEY", "fk_secret"), ("FACTORIZE_KEY_FILE", str(tmp_path / "key"))):
        with monkeypatch.context() as patched:
            patched.setenv(name, value)
            Connection(url).send("GET", "/file").close()
    Connection(url).send("GET", "/other").close()
    paths = [("/file", "Bearer fk_secret"), ("/bucket?signed=1", None)]
    assert fields == [*paths, *paths, ("/other", None)]


@pytest.mark.parametrize("url", ["http://192.0.2.1:8000", "http://example.org", "http://127.0.0.1.example.org"])
def test_a_key_is_not_sent_in_the_clear(url: str, monkeypatch) -> None:
    monkeypatch.setenv("FACTORIZE_KEY", "fk_secret")
    with pytest.raises(InvalidParameter, match="in the clear; use https") as refused:
        Connection(url)
    assert "fk_secret" not in str(refused.value)
    Connection(url.replace("http:", "https:"))
    for own in ("http://127.0.0.1:1", "http://[::1]:1", "http://localhost"):
        Connection(own)


def test_what_holds_no_token_is_said_and_not_shown(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FACTORIZE_KEY", "two words")
    with pytest.raises(InvalidParameter, match="FACTORIZE_KEY holds no token") as refused:
        Connection("http://127.0.0.1:1")
    assert "two words" not in str(refused.value)
    monkeypatch.setenv("FACTORIZE_KEY_FILE", str(tmp_path / "none"))
    with pytest.raises(InvalidParameter, match="both set"):
        Connection("http://127.0.0.1:1")
    monkeypatch.delenv("FACTORIZE_KEY")
    with pytest.raises(InvalidParameter, match="No such file"):
        Connection("http://127.0.0.1:1")

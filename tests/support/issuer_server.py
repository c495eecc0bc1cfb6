"""An issuer of tokens on loopback: a key set over HTTP, and tokens by its keys."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

from factorize.api.settings import Issuer

NAME, AUDIENCE = "https://issuer.example/", "factorize"
SCOPES = {"mf.read": ("read",), "mf.write": ("submit", "upload")}


@cache
def private_key(kind: str) -> Any:
    """Return a key of its own for each name: `rsa...` or `ec...`."""
    if kind.startswith("ec"):
        return ec.generate_private_key(ec.SECP256R1())
    return rsa.generate_private_key(65537, 1024 if kind == "rsa-short" else 2048)


def public_jwk(kind: str, kid: str | None = None) -> dict[str, Any]:
    """Return the entry of a key set for a key."""
    maker = ECAlgorithm if kind.startswith("ec") else RSAAlgorithm
    return {**maker.to_jwk(private_key(kind).public_key(), as_dict=True), "kid": kid or kind, "use": "sig"}


class IssuerServer:
    """The server of an issuer: what it publishes, and how often it was asked.

    Attributes:
        keys: entries of the key set.
        answer: status, headers and body in place of the key set; None for the key set.
        asked: paths that were asked for.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.keys = [public_jwk("rsa"), public_jwk("ec")]
        self.answer: tuple[int, dict[str, str], bytes] | None = None
        self.asked: list[str] = []

    def issuer(self, **other: Any) -> Issuer:
        """Return what the settings say of it."""
        given = {"issuer": NAME, "audience": AUDIENCE, "jwks_url": f"{self.url}/jwks?v=1", "scopes": SCOPES}
        return Issuer(**(given | other))


def token(kind: str = "rsa", algorithm: str | None = None, headers: dict[str, Any] | None = None, **claims: Any) -> str:
    """Sign a token that is good for five minutes, but for what is said otherwise; None leaves a claim out."""
    now = int(time.time())
    usual = {"iss": NAME, "aud": AUDIENCE, "sub": "ada", "iat": now, "exp": now + 300, "scope": "openid mf.read"}
    payload = {name: value for name, value in (usual | claims).items() if value is not None}
    named = {"kid": kind} | (headers or {})
    return jwt.encode(
        payload,
        private_key(kind),
        algorithm or ("ES256" if kind.startswith("ec") else "RS256"),
        headers={name: value for name, value in named.items() if value is not None},
    )


@contextmanager
def issuing() -> Iterator[IssuerServer]:
    """Serve a key set."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            served.asked.append(self.path)
            status, headers, body = served.answer or (200, {}, json.dumps({"keys": served.keys}).encode())
            self.send_response(status)
            for name, value in {"Content-Length": str(len(body)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        served = IssuerServer(f"http://127.0.0.1:{server.server_address[1]}")
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield served
        finally:
            server.shutdown()
            thread.join()

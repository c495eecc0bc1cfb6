"""The public keys of an issuer (JWKS, RFC 7517): fetched from one address, within limits, and kept for a while."""

from __future__ import annotations

import http.client
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from factorize.encoding import read_json
from factorize.errors import FactorizeError, ServiceUnreachable

if TYPE_CHECKING:
    from jwt import PyJWK

FRESH_SECONDS = 600.0
STALE_SECONDS = 3600.0
"""While an issuer does not answer, its keys stay good for so long."""
PAUSE_SECONDS = 30.0
"""Between two fetches, whatever tokens name: nobody has the service flood an issuer."""
LARGEST_BYTES = 256 << 10
MOST_KEYS = 64
WAIT_SECONDS = 5.0
_RSA_BITS = range(2048, 8193)


class IssuerKeys:
    """The keys of one issuer by their `kid`. Thread-safe.

    Args:
        url: of the key set, from the settings; redirects are not followed.
        clock: seconds that never go back.
    """

    def __init__(self, url: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._url = url
        self._clock = clock
        self._keys: dict[str, Mapping[str, Any]] = {}
        self._fetched = self._tried = -float("inf")
        self._lock = threading.Lock()

    def find(self, kid: str, algorithm: str) -> PyJWK | None:
        """Return the key of a name, ready for an algorithm; None where the issuer has none.

        Args:
            kid: compared with the names in the key set, and used for nothing else.
            algorithm: that the token was signed by; one of the issuer's.

        Raises:
            ServiceUnreachable: the issuer has not answered for longer than its keys stay good.
        """
        now = self._clock()
        if now - self._fetched > FRESH_SECONDS or kid not in self._keys:
            self._refresh(wait=now - self._fetched > STALE_SECONDS)
        if self._clock() - self._fetched > STALE_SECONDS:
            raise ServiceUnreachable("the issuer of the token does not give its keys now; try again")
        found = self._keys.get(kid)
        return None if found is None else usable_key(found, algorithm)

    def _refresh(self, *, wait: bool) -> None:
        """Fetch the keys anew, unless that was tried just now or another thread is at it and there are keys."""
        if not self._lock.acquire(blocking=wait):
            return
        try:
            if self._clock() - self._tried < PAUSE_SECONDS:
                return
            self._tried = self._clock()
            self._keys = keys_in(fetch(self._url))
            self._fetched = self._clock()
        except (OSError, http.client.HTTPException, FactorizeError):
            return  # the keys there are stay good for a while
        finally:
            self._lock.release()


def fetch(url: str) -> bytes:
    """Return what an address gives: 200, at most 256 KiB, within five seconds, from this very host.

    Raises:
        OSError, HTTPException: it does not.
    """
    parts = urlsplit(url)
    host, end = parts.hostname or "", time.monotonic() + WAIT_SECONDS
    connection = (
        http.client.HTTPSConnection(host, parts.port, timeout=WAIT_SECONDS, context=ssl.create_default_context())
        if parts.scheme == "https"
        else http.client.HTTPConnection(host, parts.port, timeout=WAIT_SECONDS)
    )
    try:
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        connection.request("GET", path, headers={"Accept": "application/jwk-set+json, application/json"})
        with connection.getresponse() as answer:
            if answer.status != 200:  # a redirect too: the address in the settings is the one that is trusted
                raise OSError(f"the answer has status {answer.status}")
            pieces, size = [], 0
            while piece := answer.read1(64 << 10):
                size += len(piece)
                if size > LARGEST_BYTES or time.monotonic() > end:
                    raise OSError("the answer is too large or too slow")
                pieces.append(piece)
            return b"".join(pieces)
    finally:
        connection.close()


def keys_in(text: bytes) -> dict[str, Mapping[str, Any]]:
    """Return the keys of a key set by their names: those that sign, at most 64.

    Raises:
        MalformedJson: it is no JSON.
    """
    document = read_json(text, limit=LARGEST_BYTES)
    listed = document.get("keys") if isinstance(document, dict) else None
    keys: dict[str, Mapping[str, Any]] = {}
    for key in listed[:MOST_KEYS] if isinstance(listed, list) else []:
        if not isinstance(key, dict) or not isinstance(key.get("kid"), str) or key.get("use", "sig") != "sig":
            continue
        if key.get("kty") in ("RSA", "EC", "OKP") and "d" not in key:  # no secrets, shared or private
            keys.setdefault(key["kid"], key)
    return keys


def usable_key(key: Mapping[str, Any], algorithm: str) -> PyJWK | None:
    """Return a key for an algorithm; None where it is of another one, or too short."""
    import jwt

    if key.get("alg", algorithm) != algorithm:
        return None
    try:
        made = jwt.PyJWK(dict(key), algorithm)
    except (jwt.PyJWTError, ValueError, TypeError, KeyError, AttributeError):
        return None
    return made if key["kty"] != "RSA" or made.key.key_size in _RSA_BITS else None

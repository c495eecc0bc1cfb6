"""Tokens of issuers (OpenID Connect, JWT): from a signed token to the caller that its claims name.

PyJWT checks signature, audience, issuer and times, and fetches an issuer's keys: from the address in the settings
alone, without redirects, kept for ten minutes, and anew for an unknown name every 30 seconds at most. Before it sees a
token, the token is read strictly, its algorithm is one that the settings name, and its key is one that the issuer
publishes under the name that the token gives.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from factorize.api.access.caller import AccessRefused, Caller, Scope
from factorize.api.settings import Issuer
from factorize.encoding import read_json
from factorize.errors import MalformedJson, ServiceUnreachable

FRESH_SECONDS = 600.0
WAIT_SECONDS = 5.0
_RSA_BITS = range(2048, 8193)
_LONGEST = 8 << 10
_LONGEST_NAME = 255
_REQUIRED = ["exp", "iat", "iss", "aud", "sub"]
_UNKNOWN = "the token is neither a key of this service nor a valid token of an issuer that it knows"
_ENDED = "the token has ended, or is not good yet; ask its issuer for another"


class IssuerTokens:
    """Who the bearer of an issuer's token is. Thread-safe.

    Args:
        issuers: those that are known.
    """

    def __init__(self, issuers: Sequence[Issuer]) -> None:
        from jwt import PyJWKClient

        def keys(issuer: Issuer) -> PyJWKClient:
            return PyJWKClient(issuer.jwks_url, lifespan=FRESH_SECONDS, timeout=WAIT_SECONDS)

        self._issuers = {issuer.issuer: (issuer, keys(issuer)) for issuer in issuers}

    def caller(self, text: str) -> Caller:
        """Return the caller that a token names.

        Args:
            text: what stands behind `Bearer`.

        Raises:
            AccessRefused: the token is not valid here; the message repeats nothing of it.
            ServiceUnreachable: its issuer does not give its keys.
        """
        import jwt

        header, claims = _unverified(text)
        issuer, keys = self._issuers.get(_word(claims.get("iss")), (None, None))
        algorithm, kid = _word(header.get("alg")), _word(header.get("kid"))
        if issuer is None or keys is None or algorithm not in issuer.algorithms or not kid or "crit" in header:
            raise AccessRefused(_UNKNOWN)
        try:
            key = keys.get_signing_key(kid).key
        except (jwt.PyJWKClientConnectionError, jwt.PyJWKSetError, OSError, ValueError):
            raise ServiceUnreachable("the issuer of the token does not give its keys now; try again") from None
        except jwt.PyJWTError:
            raise AccessRefused(_UNKNOWN) from None
        if algorithm[:2] in ("RS", "PS") and getattr(key, "key_size", 0) not in _RSA_BITS:
            raise AccessRefused(_UNKNOWN)
        try:
            verified = jwt.decode(
                text,
                key,
                algorithms=[algorithm],
                audience=issuer.audience,
                issuer=issuer.issuer,
                leeway=issuer.leeway_seconds,
                options={"require": _REQUIRED},
            )
        except (jwt.ExpiredSignatureError, jwt.ImmatureSignatureError):  # only after the signature was found good
            raise AccessRefused(_ENDED) from None
        except (jwt.PyJWTError, ValueError, TypeError, OverflowError):
            raise AccessRefused(_UNKNOWN) from None
        return _caller(issuer, verified)


def _unverified(text: str) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return header and claims of a token as they are written, to know by whose keys to verify it."""
    parts = text.split(".")
    if len(parts) != 3 or len(text) > _LONGEST:
        raise AccessRefused(_UNKNOWN)
    try:
        header, claims = (read_json(base64.urlsafe_b64decode(part + "=="), limit=_LONGEST) for part in parts[:2])
    except (ValueError, MalformedJson):  # what is no base64 among them
        raise AccessRefused(_UNKNOWN) from None
    if not isinstance(header, dict) or not isinstance(claims, dict):
        raise AccessRefused(_UNKNOWN)
    return header, claims


def _word(value: Any) -> str:
    return value if isinstance(value, str) and len(value) <= 2048 else ""


def _caller(issuer: Issuer, claims: Mapping[str, Any]) -> Caller:
    """Return the caller of verified claims."""
    subject, lasts = _word(claims["sub"]), int(claims["exp"]) - int(claims["iat"])
    if not 0 < len(subject) <= _LONGEST_NAME or lasts > issuer.longest_seconds:
        raise AccessRefused(_UNKNOWN)
    said = claims.get(issuer.scopes_claim)
    words = said.split() if isinstance(said, str) else said if isinstance(said, list) else []
    scopes = {Scope(name) for word in words if isinstance(word, str) for name in issuer.scopes.get(word, ())}
    name = hashlib.sha256(f"{issuer.issuer}\n{subject}".encode()).hexdigest()[:32]
    return Caller(f"oidc:{name}", "a token's subject", frozenset(scopes), ends=float(claims["exp"]))

"""The gate: from an Authorization header to the caller that it names, by a key or a token of an issuer, or a refusal.

The gate keeps what it has found for a credential for half a second and then looks it up again, so that every service
on the ledger refuses a revoked key within a second. Where the ledger does not answer, nobody is let in.

PyJWT checks signature, audience, issuer and times of tokens (OpenID Connect, JWT), and fetches an issuer's keys: from
the address in the settings alone, without redirects, kept for ten minutes, and anew for an unknown name every 30
seconds at most. Before it sees a token, the token is read strictly, its algorithm is one that the settings name, and
its key is one that the issuer publishes under the name that the token gives.
"""

import base64
import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from anyio import CapacityLimiter
from anyio.to_thread import run_sync

from factorize.api.access.caller import PREFIX, UNLIMITED, AccessRefused, Caller, KeyQuotas, Scope, read_token
from factorize.api.access.key_register import KeyRegister
from factorize.api.settings import Issuer
from factorize.encoding import read_json
from factorize.errors import MalformedJson, ServiceUnreachable
from factorize.storage.blobs import Cache

FRESH_SECONDS = 0.5
MAX_CREDENTIAL_BYTES = 8 << 10
_MAX_KNOWN_CALLERS = 4096
_MAX_LOOKUPS = 4
_KEY_START = f"{PREFIX}_".encode()
_MISSING_KEY = "this route needs a key: send it as Authorization: Bearer, never in the address"
_UNKNOWN_KEY = "this service has no such key; check that you copied all of it"


class Gate:
    """The gate that lets callers in; for one event loop.

    Args:
        register: the keys.
        foreign: finds the caller of a credential that is no key of ours (a token of an issuer), or raises as
            `identify` does; None where only keys are taken. Called from threads.
        defaults: quotas of callers that have none of their own.
        clock: seconds since 1970, by which keys end.
    """

    def __init__(
        self,
        register: KeyRegister,
        foreign: Callable[[str], Caller] | None = None,
        defaults: KeyQuotas = UNLIMITED,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._register = register
        self._foreign = foreign
        self._defaults = defaults
        self._clock = clock
        self._known: Cache[tuple[Caller, float]] = Cache(_MAX_KNOWN_CALLERS, lambda _: 1)
        self._limiters: dict[bool, CapacityLimiter] = {}

    async def admit(self, credential: bytes) -> Caller:
        """Return the caller of a credential.

        Args:
            credential: what stands behind `Bearer` in the header.

        Raises:
            AccessRefused: nobody has it, or its key has ended or was revoked.
            StoreUnavailable: the ledger does not answer.
        """
        name, looked = hashlib.sha256(credential).digest(), time.monotonic()
        known = self._known.get(name)
        if known is not None and looked - known[1] < FRESH_SECONDS:
            return known[0]
        ours = credential.startswith(_KEY_START)  # keys of ours do not wait for an issuer that is slow
        limiter = self._limiters.setdefault(ours, CapacityLimiter(_MAX_LOOKUPS))
        try:
            caller = await run_sync(self.identify, credential, limiter=limiter)
            caller = replace(caller, quotas=caller.quotas.or_else(self._defaults))
        except AccessRefused:
            self._known.drop(name)
            raise
        self._known.put(name, (caller, looked))
        return caller

    def identify(self, credential: bytes) -> Caller:
        """Return the caller of a credential, looked up now.

        Raises:
            AccessRefused: nobody has it, or its key has ended or was revoked.
            StoreUnavailable, ServiceUnreachable: the ledger, or the issuer of a token, does not answer.
        """
        text = credential.decode("ascii", "replace")  # a credential that is not ASCII is nobody's
        if self._foreign is not None and not credential.startswith(_KEY_START):
            return self._foreign(text)
        token = read_token(text)
        key = self._register.find(token.id) if token is not None else None
        if token is None or key is None or not token.is_of(key.secret_sha256):
            raise AccessRefused(_UNKNOWN_KEY)
        if (state := key.state(self._clock())) != "active":  # only its holder learns how it ended
            raise AccessRefused(f"the key is {state}; ask the operator for another")
        return key.caller


def credential_in(values: list[bytes]) -> bytes:
    """Return the credential of a request.

    Args:
        values: values of all its Authorization fields.

    Raises:
        AccessRefused: there is none, several, or one of another scheme.
    """
    if not values:
        raise AccessRefused(_MISSING_KEY)
    if len(values) > 1:
        raise AccessRefused("the request has several Authorization fields; send one", "bad-request")
    if len(values[0]) > MAX_CREDENTIAL_BYTES:
        raise AccessRefused(f"the Authorization field is longer than {MAX_CREDENTIAL_BYTES} bytes, the limit")
    scheme, _, rest = values[0].partition(b" ")
    credential = rest.strip(b" ")
    if scheme.lower() != b"bearer" or not credential or b" " in credential or b"," in credential:
        raise AccessRefused(_MISSING_KEY)
    return credential


ISSUER_SECONDS = 600.0
WAIT_SECONDS = 5.0
_RSA_BITS = range(2048, 8193)
_MAX_TOKEN = 8 << 10
_MAX_NAME_CHARACTERS = 255
_REQUIRED_CLAIMS = ["exp", "iat", "iss", "aud", "sub"]
_UNKNOWN_TOKEN = "the token is neither a key of this service nor a valid token of an issuer that it knows"
_ENDED_TOKEN = "the token has expired or is not valid yet; ask its issuer for another"


class IssuerTokens:
    """The tokens of issuers, and the callers that they name. Thread-safe.

    Args:
        issuers: those that are known.
    """

    def __init__(self, issuers: Sequence[Issuer]) -> None:
        from jwt import PyJWKClient

        def keys(issuer: Issuer) -> PyJWKClient:
            return PyJWKClient(issuer.jwks_url, lifespan=ISSUER_SECONDS, timeout=WAIT_SECONDS)

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
            raise AccessRefused(_UNKNOWN_TOKEN)
        try:
            key = keys.get_signing_key(kid).key
        except (jwt.PyJWKClientConnectionError, jwt.PyJWKSetError, OSError, ValueError):
            raise ServiceUnreachable("the issuer of the token cannot be asked for its keys now; try again") from None
        except jwt.PyJWTError:
            raise AccessRefused(_UNKNOWN_TOKEN) from None
        if algorithm[:2] in ("RS", "PS") and getattr(key, "key_size", 0) not in _RSA_BITS:
            raise AccessRefused(_UNKNOWN_TOKEN)
        try:
            verified = jwt.decode(
                text,
                key,
                algorithms=[algorithm],
                audience=issuer.audience,
                issuer=issuer.issuer,
                leeway=issuer.leeway_seconds,
                options={"require": _REQUIRED_CLAIMS},
            )
        except (jwt.ExpiredSignatureError, jwt.ImmatureSignatureError):  # only after the signature was found good
            raise AccessRefused(_ENDED_TOKEN) from None
        except (jwt.PyJWTError, ValueError, TypeError, OverflowError):
            raise AccessRefused(_UNKNOWN_TOKEN) from None
        return _caller(issuer, verified)


def _unverified(text: str) -> tuple[Mapping[str, object], Mapping[str, object]]:
    """Return header and claims of a token as they are written, to know by whose keys to verify it."""
    parts = text.split(".")
    if len(parts) != 3 or len(text) > _MAX_TOKEN:
        raise AccessRefused(_UNKNOWN_TOKEN)
    try:
        header, claims = (read_json(base64.urlsafe_b64decode(part + "=="), limit=_MAX_TOKEN) for part in parts[:2])
    except (ValueError, MalformedJson):  # text that is no base64 raises one of these, too
        raise AccessRefused(_UNKNOWN_TOKEN) from None
    if not isinstance(header, dict) or not isinstance(claims, dict):
        raise AccessRefused(_UNKNOWN_TOKEN)
    return header, claims


def _word(value: object) -> str:
    return value if isinstance(value, str) and len(value) <= 2048 else ""


def _caller(issuer: Issuer, claims: Mapping[str, Any]) -> Caller:
    """Return the caller of verified claims."""
    subject, lasts = _word(claims["sub"]), int(claims["exp"]) - int(claims["iat"])
    if not 0 < len(subject) <= _MAX_NAME_CHARACTERS or lasts > issuer.longest_seconds:
        raise AccessRefused(_UNKNOWN_TOKEN)
    said = claims.get(issuer.scopes_claim)
    words = said.split() if isinstance(said, str) else said if isinstance(said, list) else []
    scopes = {Scope(name) for word in words if isinstance(word, str) for name in issuer.scopes.get(word, ())}
    name = hashlib.sha256(f"{issuer.issuer}\n{subject}".encode()).hexdigest()[:32]
    return Caller(f"oidc:{name}", "a token's subject", frozenset(scopes), ends=float(claims["exp"]))

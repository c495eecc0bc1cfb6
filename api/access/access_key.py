"""An access key: a name, scopes, an end and quotas, and the token that opens it, `fk_<id>_<secret>_<checksum>`.

The prefix and the checksum (CRC-32 of what stands before it) let scanners find leaked tokens without a service to ask.
The secret has 256 random bits, so its sha256 is kept without salt or slow hash: nobody guesses it.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import zlib
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from factorize.api.access.caller import Caller, KeyQuotas, Scope

PREFIX = "fk"
PATTERN = r"fk_[0-9a-f]{12}_[0-9a-f]{64}_[0-9a-f]{8}"
"""For scanners."""
_FORM = re.compile(PATTERN, re.ASCII)


@dataclass(frozen=True, slots=True)
class Token:
    """A token, taken apart. Its text form shows the id alone.

    Args:
        id: which key it is of, 12 hexadecimal digits.
        secret: 64 hexadecimal digits.
    """

    id: str
    secret: str = field(repr=False)

    @property
    def text(self) -> str:
        """The token as it is sent."""
        body = f"{PREFIX}_{self.id}_{self.secret}"
        return f"{body}_{_checksum(body)}"

    @property
    def sha256(self) -> str:
        """What is stored of the secret."""
        return hashlib.sha256(self.secret.encode("ascii")).hexdigest()

    def is_of(self, sha256: str) -> bool:
        """Say, in constant time, whether a stored hash is that of this secret."""
        return hmac.compare_digest(self.sha256, sha256)


def new_token() -> Token:
    """Return a token nobody has had, of a new key."""
    return Token(secrets.token_hex(6), secrets.token_hex(32))


def read_token(text: str) -> Token | None:
    """Return a token from its text; None where the form or the checksum is wrong, as when it was cut."""
    if not _FORM.fullmatch(text):
        return None
    body, _, checksum = text.rpartition("_")
    if _checksum(body) != checksum:
        return None
    _, key_id, secret = body.split("_")
    return Token(key_id, secret)


def _checksum(body: str) -> str:
    return f"{zlib.crc32(body.encode('ascii')):08x}"


@dataclass(frozen=True, slots=True)
class AccessKey:
    """One key. Times are seconds since 1970.

    Args:
        id: 12 hexadecimal digits.
        name: whose it is: jobs, uploads and quotas belong to the name.
        scopes: what its holder may do.
        secret_sha256: sha256 of its secret.
        created: when it was made.
        expires: when it ends.
        revoked: when it was taken back, or None.
        quotas: limits of its holder.
    """

    id: str
    name: str
    scopes: frozenset[Scope]
    secret_sha256: str
    created: float
    expires: float
    revoked: float | None = None
    quotas: KeyQuotas = KeyQuotas()

    @property
    def caller(self) -> Caller:
        """Who its holder is: one with the holders of other keys of this name."""
        return Caller(f"key:{self.name}", self.name, self.scopes, self.quotas, key=self.id)

    def state(self, now: float) -> str:
        """Return `active`, `expired` or `revoked`."""
        if self.revoked is not None:
            return "revoked"
        return "active" if now < self.expires else "expired"

    def is_opened_by(self, token: Token, now: float) -> bool:
        """Say whether a token of this id is good now."""
        return token.is_of(self.secret_sha256) and self.state(now) == "active"

    def document(self, now: float) -> dict[str, Any]:
        """Return what may be shown: everything but the hashes."""
        return {
            "id": self.id,
            "name": self.name,
            "state": self.state(now),
            "scopes": sorted(self.scopes),
            "created": _time(self.created),
            "expires": _time(self.expires),
            "revoked": None if self.revoked is None else _time(self.revoked),
            "quotas": self.quotas.document(),
        }

    def in_short(self, now: float) -> dict[str, Any]:
        """Return what the audit log says of a key."""
        document = self.document(now)
        return {name: document[name] for name in ("name", "scopes", "expires")}


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")

"""An access key: a name, scopes, an end and quotas, and the hash of the secret that opens it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from factorize.api.access.caller import Caller, Quotas, Scope
from factorize.api.access.token import Token


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
    quotas: Quotas = Quotas()

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
            "created": _text(self.created),
            "expires": _text(self.expires),
            "revoked": None if self.revoked is None else _text(self.revoked),
            "quotas": self.quotas.document(),
        }

    def in_short(self, now: float) -> dict[str, Any]:
        """Return what the audit log says of a key."""
        document = self.document(now)
        return {name: document[name] for name in ("name", "scopes", "expires")}


def _text(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")

"""A caller: who asks, what they may do, and how much of it."""

import hashlib
import hmac
import math
import re
import secrets
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any, Self

from pydantic import Field

from factorize.errors import FactorizeError, TooLarge
from factorize.plain_data import Frozen

_Limit = Annotated[int, Field(ge=0, lt=1 << 53)] | None


class Scope(StrEnum):
    """What a caller may do. `admin` includes the others."""

    READ = "read"
    SUBMIT = "submit"
    UPLOAD = "upload"
    MONITOR = "monitor"
    ADMIN = "admin"


EVERYTHING = frozenset(Scope)


class KeyQuotas(Frozen, use_attribute_docstrings=True):
    """Limits of a key's holder; one that is left out is the service's own, if that has one."""

    open_jobs: _Limit = None
    """Jobs queued or running that the holder has asked for."""
    core_seconds_per_day: _Limit = None
    """Estimated processor seconds of what was begun for the holder in one day (UTC)."""
    kept_bytes: _Limit = None
    """Bytes of the results that the holder's jobs have made, of the further forms that were made for the holder, and
    of matrices sent within the last seven days."""

    def document(self) -> dict[str, int | None]:
        """Return the limits by name, None where there is none."""
        return self.model_dump()

    def or_else(self, defaults: Self) -> Self:
        """Return these limits; one that is left out comes from the other limits."""
        return type(self)(**{name: getattr(defaults, name) if v is None else v for name, v in self.document().items()})


UNLIMITED = KeyQuotas()


@dataclass(frozen=True, slots=True)
class Caller:
    """The caller of a route, known by a key, by an issuer's token, or by nothing where no key is asked for.

    Args:
        owner: name that owns jobs, uploads and usage: `key:<name>`, `oidc:<hash>`; nothing where no key is asked for.
        name: what the operator calls the caller.
        scopes: what the caller may do.
        quotas: and how much.
        ends: when the caller's token of an issuer ends, in seconds since 1970; no key that they make outlives it.
        key: id of the key that the caller asks with; keys of one name are one owner's.
        address: address from which a caller without a key asks.
    """

    owner: str
    name: str
    scopes: frozenset[Scope]
    quotas: KeyQuotas = UNLIMITED
    ends: float = math.inf
    key: str = ""
    address: str = ""

    @property
    def actor(self) -> str:
        """The caller's name in the audit log."""
        if self.key:
            return f"{self.owner}/{self.key}"
        return self.owner or (f"address:{self.address}" if self.address else "factorize")

    def may(self, scope: Scope | None) -> bool:
        """Say whether a route of this scope is open to the caller; None is open to everyone."""
        return scope is None or scope in self.scopes or Scope.ADMIN in self.scopes

    @property
    def sees_all(self) -> bool:
        """Return whether the jobs and uploads of others are the caller's too."""
        return Scope.ADMIN in self.scopes


ANYONE = Caller("", "anyone", EVERYTHING)
"""Every caller of a service that asks for no key."""
STRANGER = Caller("", "anyone", frozenset())
"""The caller that sends no key to a route that answers without one and says more with one."""


class AccessRefused(FactorizeError):
    """A caller who is refused. The message repeats nothing of what was sent.

    Args:
        message: why, and what to do.
        problem: type of the problem document: `unauthorized`, `forbidden` or `bad-request`.
    """

    slug = "unauthorized"

    def __init__(self, message: str, problem: str = "unauthorized") -> None:
        super().__init__(message)
        self.problem = problem


class QuotaExhausted(FactorizeError):
    """A caller who has used a quota up.

    Args:
        message: limit, use and remedy.
        seconds: seconds after which the same request may be taken.
    """

    slug = "quota-exhausted"

    def __init__(self, message: str, seconds: float) -> None:
        super().__init__(message)
        self.seconds = seconds


class AboveCapacity(TooLarge):
    """A solve that this service does not admit.

    Args:
        message: estimate, limit and remedy.
        estimate: seconds and bytes.
    """

    def __init__(self, message: str, estimate: Mapping[str, float]) -> None:
        super().__init__(message)
        self.estimate = estimate


PREFIX = "fk"
PATTERN = r"fk_[0-9a-f]{12}_[0-9a-f]{64}_[0-9a-f]{8}"
"""The form of a token, for scanners of secrets."""
_FORM = re.compile(PATTERN, re.ASCII)


@dataclass(frozen=True, slots=True)
class Token:
    """A token, taken apart. Its text form shows the id alone.

    Args:
        id: id of its key, 12 hexadecimal digits.
        secret: 64 hexadecimal digits.
    """

    id: str
    secret: str = field(repr=False)

    @property
    def text(self) -> str:
        """The token as it is sent."""
        body = f"{PREFIX}_{self.id}_{self.secret}"
        return f"{body}_{zlib.crc32(body.encode('ascii')):08x}"

    @property
    def sha256(self) -> str:
        """The sha256 of the secret; nothing else of the secret is stored."""
        return hashlib.sha256(self.secret.encode("ascii")).hexdigest()

    def is_of(self, sha256: str) -> bool:
        """Say, in constant time, whether a stored hash is that of this secret."""
        return hmac.compare_digest(self.sha256, sha256)


def new_token() -> Token:
    """Return a new token, of a new key."""
    return Token(secrets.token_hex(6), secrets.token_hex(32))


def read_token(text: str) -> Token | None:
    """Return a token from its text; None where the form or the checksum is wrong, as when it was cut."""
    token = Token(*text.split("_")[1:3]) if _FORM.fullmatch(text) else None
    return token if token is not None and token.text == text else None


@dataclass(frozen=True, slots=True)
class AccessKey:
    """One key. Times are seconds since 1970.

    Args:
        id: 12 hexadecimal digits.
        name: name of its holder, to which jobs, uploads and quotas belong.
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
        """The holder as a caller: one with the holders of other keys of this name."""
        return Caller(f"key:{self.name}", self.name, self.scopes, self.quotas, key=self.id)

    def state(self, now: float) -> str:
        """Return `active`, `expired` or `revoked`."""
        if self.revoked is not None:
            return "revoked"
        return "active" if now < self.expires else "expired"

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


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")

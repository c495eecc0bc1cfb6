"""A caller: who asks, what they may do, and how much of it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from pydantic import Field

from factorize.errors import FactorizeError
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


class KeyQuotas(Frozen):
    """Limits of a key's holder; one that is left out is the service's own, if that has one.

    Attributes:
        open_jobs: jobs queued or running that the holder has asked for.
        core_seconds_per_day: estimated processor seconds of what was begun for the holder in one day (UTC).
        kept_bytes: of the results that the holder's jobs have made, and of matrices sent within the last seven days.
    """

    open_jobs: _Limit = None
    core_seconds_per_day: _Limit = None
    kept_bytes: _Limit = None

    def document(self) -> dict[str, int | None]:
        """Return the limits by name, None where there is none."""
        return self.model_dump()

    def or_else(self, defaults: KeyQuotas) -> KeyQuotas:
        """Return these limits, with those of others where there is none."""
        return KeyQuotas(**{name: getattr(defaults, name) if v is None else v for name, v in self.document().items()})


UNLIMITED = KeyQuotas()


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks.

    Args:
        owner: to whom jobs, uploads and usage belong: `key:<name>`, `oidc:<hash>`; nothing where no key is asked for.
        name: what the operator calls the caller.
        scopes: what the caller may do.
        quotas: and how much.
        ends: when the caller's token of an issuer ends, in seconds since 1970; no key that they make outlives it.
        key: id of the key that the caller asks with; keys of one name are one owner's.
        address: from where a caller without a key asks.
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
        """Who the caller is in the audit log."""
        if self.key:
            return f"{self.owner}/{self.key}"
        return self.owner or (f"address:{self.address}" if self.address else "factorize")

    def may(self, scope: Scope | None) -> bool:
        """Say whether a route of this scope is open to the caller; None is open to everyone."""
        return scope is None or scope in self.scopes or Scope.ADMIN in self.scopes

    @property
    def sees_all(self) -> bool:
        """Whether the jobs and uploads of others are the caller's too."""
        return Scope.ADMIN in self.scopes


ANYONE = Caller("", "anyone", EVERYTHING)
"""Every caller of a service that asks for no key."""
STRANGER = Caller("", "anyone", frozenset())
"""Who sends no key to a route that answers without one and says more with one."""


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
        seconds: after which the same request may be taken.
    """

    slug = "quota-exhausted"

    def __init__(self, message: str, seconds: float) -> None:
        super().__init__(message)
        self.seconds = seconds

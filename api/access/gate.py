"""The gate: from an Authorization header to the caller that it names, or a refusal.

What was found for a credential holds for half a second. Then it is looked up again, so that a key that is revoked is
refused by every service on the ledger within a second; where the ledger does not answer, nobody is let in.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace

from anyio import CapacityLimiter
from anyio.to_thread import run_sync

from factorize.api.access.caller import PREFIX, UNLIMITED, AccessRefused, Caller, KeyQuotas, read_token
from factorize.api.access.key_register import KeyRegister

FRESH_SECONDS = 0.5
LONGEST_CREDENTIAL = 8 << 10
_KNOWN = 4096
_LOOKUPS = 4
_OURS = f"{PREFIX}_".encode()
_MISSING = "this route needs a key: send it as Authorization: Bearer, never in the address"
_UNKNOWN = "the key is not one of this service; check that it was copied whole"


@dataclass(frozen=True, slots=True)
class _Known:
    caller: Caller
    looked: float


class Gate:
    """Who is let in; for one event loop.

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
        self._known: OrderedDict[bytes, _Known] = OrderedDict()
        self._pending: dict[bytes, asyncio.Future[Caller]] = {}
        self._limiters: dict[bool, CapacityLimiter] = {}

    async def admit(self, credential: bytes) -> Caller:
        """Return the caller of a credential.

        Args:
            credential: what stands behind `Bearer` in the header.

        Raises:
            AccessRefused: nobody has it, or its key has ended or was revoked.
            StoreUnavailable: the ledger does not answer.
        """
        name = hashlib.sha256(credential).digest()
        known = self._known.get(name)
        if known is not None and time.monotonic() - known.looked < FRESH_SECONDS:
            return known.caller
        looking = self._pending.get(name)
        if looking is None:  # requests that come meanwhile wait for the same look
            looking = self._pending[name] = asyncio.ensure_future(self._look(name, credential))
            looking.add_done_callback(lambda _: self._pending.pop(name, None))
        return await asyncio.shield(looking)

    async def _look(self, name: bytes, credential: bytes) -> Caller:
        ours = credential.startswith(_OURS)  # which do not wait for an issuer that is slow
        limiter = self._limiters.setdefault(ours, CapacityLimiter(_LOOKUPS))
        looked = time.monotonic()
        try:
            caller = await run_sync(self.identify, credential, limiter=limiter)
            caller = replace(caller, quotas=caller.quotas.or_else(self._defaults))
        except AccessRefused:
            self._known.pop(name, None)
            raise
        self._known[name] = _Known(caller, looked)
        self._known.move_to_end(name)
        if len(self._known) > _KNOWN:
            self._known.popitem(last=False)
        return caller

    def identify(self, credential: bytes) -> Caller:
        """Return the caller of a credential, looked up now.

        Raises:
            AccessRefused: nobody has it, or its key has ended or was revoked.
            StoreUnavailable, ServiceUnreachable: the ledger, or the issuer of a token, does not answer.
        """
        text = _text(credential)
        if self._foreign is not None and not credential.startswith(_OURS):
            return self._foreign(text)
        token = read_token(text)
        key = self._register.find(token.id) if token is not None else None
        if token is None or key is None:
            raise AccessRefused(_UNKNOWN)
        now = self._clock()
        if key.is_opened_by(token, now):
            return key.caller
        if token.is_of(key.secret_sha256) and key.state(now) != "active":  # only its holder learns how it ended
            raise AccessRefused(f"the key is {key.state(now)}; ask the operator for another")
        raise AccessRefused(_UNKNOWN)


def credential_in(values: list[bytes]) -> bytes:
    """Return the credential of a request.

    Args:
        values: of all its Authorization fields.

    Raises:
        AccessRefused: there is none, several, or one of another scheme.
    """
    if not values:
        raise AccessRefused(_MISSING)
    if len(values) > 1:
        raise AccessRefused("the request has several Authorization fields; send one", "bad-request")
    if len(values[0]) > LONGEST_CREDENTIAL:
        raise AccessRefused(f"the Authorization field is longer than {LONGEST_CREDENTIAL} bytes, the limit")
    scheme, _, rest = values[0].partition(b" ")
    credential = rest.strip(b" ")
    if scheme.lower() != b"bearer" or not credential or b" " in credential or b"," in credential:
        raise AccessRefused(_MISSING)
    return credential


def _text(credential: bytes) -> str:
    try:
        return credential.decode("ascii")
    except UnicodeDecodeError:
        raise AccessRefused(_UNKNOWN) from None

"""The key desk: keys as one caller looks after them, by the same rules over HTTP and on the command line.

No caller makes, renews or takes back a key that may do more than they may. Nobody who asks over HTTP locks all out:
what is refused for that reason can be done by the commands on the machine of the service.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from factorize.api.access.access_key import AccessKey
from factorize.api.access.caller import ANYONE, Caller, Quotas, Scope, read_scopes
from factorize.api.access.key_register import KeyRegister
from factorize.api.access.refusals import AccessRefused, LocksOut
from factorize.api.access.token import Token
from factorize.errors import InvalidParameter

LEAST_OWN_OVERLAP_HOURS = 1.0
_AT_THE_MACHINE = "run `factorize keys revoke` on the machine of the service"


@dataclass(frozen=True, slots=True)
class KeyDesk:
    """The keys of a ledger, for one caller.

    Args:
        register: the keys.
        caller: who asks; by default whoever may run commands on the machine of the ledger.
    """

    register: KeyRegister
    caller: Caller = ANYONE

    @property
    def at_the_machine(self) -> bool:
        """Whether the caller stands at the machine itself, where nobody is locked out."""
        return not self.caller.owner

    def is_own(self, key: AccessKey) -> bool:
        """Say whether it is the key that asks."""
        return key.caller.owner == self.caller.owner

    def create(
        self, name: str, scopes: Iterable[str], *, days: float, quotas: Quotas | None = None
    ) -> tuple[AccessKey, Token]:
        """Make a key; its token is nowhere else. Arguments as for `KeyRegister.create`.

        It ends with the caller's token of an issuer at the latest: who may no longer ask there keeps no key here.

        Raises:
            AccessRefused: it would do more than the caller may.
            InvalidParameter: name, scopes, days or quotas are outside their limits.
        """
        asked = read_scopes(scopes)
        self._check_scopes(asked, "make")
        return self.register.create(name, asked, days=days, quotas=quotas, latest=self.caller.ends)

    def rotate(self, key_id: str, *, days: float, overlap_hours: float) -> tuple[AccessKey, Token]:
        """Give a key a new secret and a new end, as `create` does; the secret before stays good for a while.

        Raises:
            NotFound: there is no such key.
            AccessRefused: it may do more than the caller.
            InvalidParameter: it was revoked, or a number is outside its limits.
        """
        key = self.register.get(key_id)
        self._check_scopes(key.scopes, "renew")
        if self.is_own(key) and overlap_hours < LEAST_OWN_OVERLAP_HOURS:
            raise InvalidParameter(
                f"an overlap of {overlap_hours:g} hours for the key that you ask with: were the answer lost, you "
                f"would be locked out; take {LEAST_OWN_OVERLAP_HOURS:g} or more, or ask with another key",
                field="overlap_hours",
            )
        return self.register.rotate(key_id, days=days, overlap_hours=overlap_hours, latest=self.caller.ends)

    def revoke(self, key_id: str) -> AccessKey:
        """Take a key back, for ever.

        Raises:
            NotFound: there is no such key.
            AccessRefused: it may do more than the caller.
            LocksOut: it is the key that asks, or no key with the scope admin would be left.
        """
        key = self.register.get(key_id)
        self._check_scopes(key.scopes, "revoke")
        if self.is_own(key):
            raise LocksOut(f"key {key_id} is the one that you ask with; ask with another one, or {_AT_THE_MACHINE}")
        if self.at_the_machine:
            return self.register.revoke(key_id)
        revoked = self.register.revoke_unless_last_admin(key_id)
        if revoked is None:
            raise LocksOut(
                f"key {key_id} is the last with the scope {Scope.ADMIN}; make another first, or {_AT_THE_MACHINE}"
            )
        return revoked

    def shown(self, key: AccessKey, now: float, token: Token | None = None) -> dict[str, Any]:
        """Return what a caller is told of a key, and its token where it was made just now."""
        return {**key.document(now), "own": self.is_own(key)} | ({} if token is None else {"token": token.text})

    def _check_scopes(self, scopes: frozenset[Scope], verb: str) -> None:
        beyond = sorted(scope for scope in scopes if not self.caller.may(scope))
        if beyond:
            raise AccessRefused(
                f"you do not have the scope {', '.join(beyond)}, so you cannot {verb} a key that has it", "forbidden"
            )

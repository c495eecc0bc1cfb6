"""The keys of a service, in its ledger: made, listed and taken back.

A key is a name, scopes, an expiry and quotas. Jobs, uploads and usage belong to the name: two keys of one name overlap
for as long as both are good, and either is taken back without a loss.
"""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Annotated, Any

import sqlalchemy as sa
from pydantic import AfterValidator, Field

from factorize.api.access.caller import UNLIMITED, AccessKey, KeyQuotas, Scope, Token, new_token
from factorize.api.jobs.audit_log import add_row, operator
from factorize.api.jobs.database import access_keys, reading, writing
from factorize.api.jobs.ledger import Ledger
from factorize.api.settings import ledger_url, load_settings
from factorize.errors import NotFound
from factorize.plain_data import Frozen
from factorize.storage.medium.location import WITHDRAWN_KEYS
from factorize.storage.objects import Objects
from factorize.storage.store import open_store

DAY = 86_400.0
DEFAULT_DAYS = 90.0
MAX_DAYS = 3660.0
MAX_NAME_CHARACTERS = 64
KEY_ID = "^[0-9a-f]{12}$"
_Scope = Annotated[Scope, Field(strict=False)]  # JSON has a scope by its name


def _printable(name: str) -> str:
    if not name.isprintable():
        raise ValueError(f"a key's name has 1 to {MAX_NAME_CHARACTERS} printable characters")
    return name


class KeyRequest(Frozen, use_attribute_docstrings=True):
    """A key that is asked for."""

    name: Annotated[str, Field(min_length=1, max_length=MAX_NAME_CHARACTERS), AfterValidator(_printable)]
    """Whose it is: jobs, uploads and quotas belong to the name; 1 to 64 printable characters."""
    scopes: Annotated[list[_Scope], Field(min_length=1, max_length=16)] = [Scope.READ]
    """What its holder may do; `admin` includes the others."""
    days: Annotated[float, Field(gt=0, le=MAX_DAYS)] = DEFAULT_DAYS
    """Days until the key ends."""
    quotas: KeyQuotas = UNLIMITED
    """Limits of its holder."""


class KeyRegister:
    """The keys of a ledger. Thread-safe.

    The store has the ids of revoked keys too, an empty object for each: a ledger restored from a copy brings none back.

    Args:
        engine: the ledger's database.
        actor: the one who changes them, for the audit log.
        medium: opens the store's medium; called when an id is first written or read. None keeps no account there.
    """

    def __init__(
        self, engine: sa.Engine, actor: str = "factorize", medium: Callable[[], Objects] | None = None
    ) -> None:
        self._engine, self._actor, self._medium = engine, actor, medium

    def create(self, request: KeyRequest, *, latest: float = math.inf) -> tuple[AccessKey, Token]:
        """Make a key; its token is nowhere else.

        Args:
            request: the key that is asked for.
            latest: when it ends at the latest, in seconds since 1970.
        """
        token, now = new_token(), time.time()
        expires, scopes = min(now + request.days * DAY, latest), frozenset(request.scopes)
        key = AccessKey(token.id, request.name, scopes, token.sha256, now, expires, quotas=request.quotas)
        with writing(self._engine) as connection:
            names = ("id", "name", "secret_sha256", "created", "expires", "revoked")
            row = {name: getattr(key, name) for name in names} | key.quotas.document()
            connection.execute(access_keys.insert().values(**row, scopes=" ".join(sorted(key.scopes))))
            self._note(connection, "key created", key)
        return key, token

    def find(self, key_id: str) -> AccessKey | None:
        """Return a key, or None."""
        with reading(self._engine) as connection:
            row = connection.execute(sa.select(access_keys).where(access_keys.c.id == key_id)).one_or_none()
        return None if row is None else _key(row)

    def get(self, key_id: str) -> AccessKey:
        """Return a key.

        Raises:
            NotFound: there is none of this id.
        """
        key = self.find(key_id)
        if key is None:
            raise NotFound(f"the ledger has no key {key_id[:24]}; `factorize keys list` shows those it has")
        return key

    def revoke_withdrawn(self) -> None:
        """Revoke the keys that the store has as revoked: a ledger that was restored from a copy may have them alive.

        Raises:
            StoreUnavailable: the store or the ledger does not answer.
        """
        for entry in self._medium().list(WITHDRAWN_KEYS) if self._medium else ():
            with suppress(NotFound):  # the key is one of another ledger
                self.revoke(entry.key.rpartition("/")[2])

    def revoke(self, key_id: str) -> AccessKey:
        """Take a key back, for ever; services know it within a second. One that is revoked stays as it is.

        Raises:
            NotFound: there is no such key.
        """
        key = self.get(key_id)
        if key.revoked is not None:
            return key
        mine = access_keys.c.id == key_id, access_keys.c.revoked.is_(None)
        with writing(self._engine) as connection:
            connection.execute(access_keys.update().where(*mine).values(revoked=time.time()))
            key = _key(connection.execute(sa.select(access_keys).where(access_keys.c.id == key_id)).one())
            if self._medium is not None:  # before the change stands, since a copy of the ledger may not know it
                self._medium().publish((f"{WITHDRAWN_KEYS}/{key_id}", b"", lambda: True))
            self._note(connection, "key revoked", key)
        return key

    def keys(self, *, state: str | None = None, after: str | None = None, limit: int | None = None) -> list[AccessKey]:
        """Return keys, the newest first.

        Args:
            state: only those that are `active`, `expired` or `revoked`.
            after: only those made before this one, by its id.
            limit: the most keys to return; all by default.

        Raises:
            NotFound: there is no key `after`.
        """
        made, now = access_keys.c.created, time.time()
        query = sa.select(access_keys).order_by(made.desc(), access_keys.c.id.desc()).limit(limit)
        if state is not None:
            alive = access_keys.c.expires > now if state == "active" else access_keys.c.expires <= now
            ended = access_keys.c.revoked.is_not(None)
            query = query.where(ended) if state == "revoked" else query.where(~ended, alive)
        if after is not None:
            last = self.get(after)
            query = query.where(sa.or_(made < last.created, sa.and_(made == last.created, access_keys.c.id < last.id)))
        with reading(self._engine) as connection:
            return [_key(row) for row in connection.execute(query)]

    def _note(self, connection: sa.Connection, event: str, key: AccessKey) -> None:
        document = key.document(time.time())
        detail = {name: document[name] for name in ("name", "scopes", "expires")}
        add_row(connection, event, actor=self._actor, subject=key.id, detail=detail)


@contextmanager
def open_register(database: str | None, store: str | None) -> Iterator[KeyRegister]:
    """Open the keys of a ledger for an operator; it is made where there is none: keys come before the first start."""
    settings = load_settings(database=database, store=store)
    with Ledger(ledger_url(settings)) as ledger:
        yield KeyRegister(ledger.engine, operator(), lambda: open_store(settings.store).objects)


def _key(row: sa.Row[Any]) -> AccessKey:
    values = dict(row._mapping)
    quotas = KeyQuotas(**{name: values.pop(name) for name in KeyQuotas.model_fields})
    return AccessKey(**{**values, "scopes": frozenset(map(Scope, values["scopes"].split())), "quotas": quotas})

"""A running service that asks for keys, and keys to ask it with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from servers import SLOW_SOLVER, Answer, LiveService, serving

from factorize.api.access.caller import UNLIMITED, KeyQuotas, Scope
from factorize.api.access.key_register import DEFAULT_DAYS, KeyRequest

UNKNOWN = "a" * 64


class Keyed:
    """A running service that asks for keys, with a key of each scope and one of nobody's."""

    def __init__(self, live: LiveService) -> None:
        self.live = live
        self.register = live.service.register
        self._numbers = count()
        self.tokens = {scope.value: self.token(scope, name=scope.value) for scope in Scope}
        self.tokens |= {name: self.token("read", "submit", "upload", name=name) for name in ("one", "two")}

    def token(self, *scopes: str, name: str = "", quotas: KeyQuotas = UNLIMITED, days: float = DEFAULT_DAYS) -> str:
        """Return the token of a new key; of a name that nobody else has by default."""
        whose = name or f"test {next(self._numbers)}"
        return self.register.create(KeyRequest(name=whose, scopes=list(scopes), days=days, quotas=quotas))[1].text

    def ask(self, role: str | None, method: str, path: str, body: object = None) -> Answer:
        headers = {} if role is None else {"Authorization": f"Bearer {self.tokens.get(role, role)}"}
        return self.live.send(method, path, body, headers)

    def as_one(self, path: str) -> Answer:
        return self.ask("one", "GET", path)


@contextmanager
def keyed_service(
    store: Path, *, solver: str = SLOW_SOLVER, require_keys: bool = True, **options: Any
) -> Iterator[Keyed]:
    """Run a service that asks for keys, if no option says otherwise."""
    with serving(store, solver=solver, require_keys=require_keys, **options) as live:
        yield Keyed(live)


def filled(path: str, name: str = UNKNOWN) -> str:
    """Return a path of the table with a name in its place."""
    return path.format(name=name, matrix="C", slug="forbidden", sha256=name, digest=name, key_id=name[:12])

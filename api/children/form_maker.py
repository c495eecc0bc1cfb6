"""The maker of forms: has a stored factorization written in another form by a child, bounded in memory and time."""

from __future__ import annotations

import json
from collections.abc import Sequence

from factorize.api.isolated import EXPAND
from factorize.api.jobs import supervisor
from factorize.api.jobs.ending import Ending
from factorize.api.settings import Settings
from factorize.errors import InvalidParameter, StoreUnavailable, TooLarge
from factorize.factorization import MatrixName

LIMIT_SECONDS = 600.0
_REFUSED = {kind.slug: kind for kind in (InvalidParameter, TooLarge)}


class FormMaker:
    """Makes forms in processes of their own.

    Args:
        settings: the limits.
        store: URL of the store.
    """

    def __init__(self, settings: Settings, store: str) -> None:
        self._settings = settings
        self._store = store

    def __call__(self, digest: str, matrices: Sequence[MatrixName], dtype: str | None, *, memory_mb: int) -> str:
        """Return the digest of the form, once it is stored; blocks.

        Args:
            digest: of the factorization.
            matrices: what the file is to hold beside C.
            dtype: type of C in the file, or None for its own.
            memory_mb: what the child may take, in units of 2^20 bytes.

        Raises:
            TooLarge: it took more memory or time than it may.
            InvalidParameter: there is no such form.
            StoreUnavailable: the child ended otherwise; try again.
        """
        found = supervisor.run(
            supervisor.Request(
                spec_digest=digest,
                spec=json.dumps({"digest": digest, "matrices": list(matrices), "dtype": dtype}),
                store=self._store,
                memory_mb=memory_mb,
                seconds_limit=min(LIMIT_SECONDS, self._settings.max_solve_seconds),
                threads=self._settings.processors or 1,
                module=EXPAND,
                forked=self._settings.fork_children,
            ),
            report=lambda _event: None,
            cancelled=lambda: False,
        )
        if found.ending is Ending.DONE and found.digest is not None:
            return found.digest
        error = found.error or {}
        message = error.get("message", found.ending.value)
        if found.ending in (Ending.TIMEOUT, Ending.OUT_OF_MEMORY):
            raise TooLarge(f"{message}; stream the rows instead")
        raise _REFUSED.get(error.get("type", ""), StoreUnavailable)(message)

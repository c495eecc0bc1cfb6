"""Forms: stored results with further matrices beside C, or in another type.

A form is computed, certified from its own numbers and stored by workers when it is first asked for; nothing is cast on
the way out.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from factorize.api.access.caller import Caller
from factorize.api.access.holdings import Holdings
from factorize.api.catalog import Catalog
from factorize.api.jobs.engine import JobEngine
from factorize.api.results import Results, weight
from factorize.api.settings import Settings
from factorize.api.workers.ending import Ending, WorkerEnded, without_places
from factorize.api.workers.pool import Pool
from factorize.api.workers.publishing import Form, Stages, matrices_key, published, type_key
from factorize.errors import FactorizeError, InvalidParameter, StoreUnavailable, TooLarge
from factorize.factorization import Factorization
from factorize.format.names import MATRIX_NAMES, MatrixName
from factorize.storage.index import Result

FORM_SECONDS = 600.0
"""That a further form of a result may take."""
_FORM_LEAST_MB = 512
_EXPANDING = 4  # arrays of a matrix's size that are alive while it is computed, written and read back


class Forms:
    """Further forms of a store's results. Safe for threads.

    Args:
        results: of the store.
        catalog: knows forms that are stored already; their files may be gone by now.
        holdings: says what callers have left.
        engine: says what memory there is.
        pool: the workers.
        settings: have the wall limit.
    """

    def __init__(
        self, results: Results, catalog: Catalog, holdings: Holdings, engine: JobEngine, pool: Pool, settings: Settings
    ) -> None:
        self._results, self._catalog, self._holdings = results, catalog, holdings
        self._engine, self._pool, self._settings = engine, pool, settings
        self._making = threading.Lock()
        self._known: dict[str, str] = {}

    def of(self, result: Result, form: Form, caller: Caller) -> Result:
        """Return the result whose file has this form.

        Args:
            result: any result of the factorization.
            form: what the file is to hold.
            caller: for whom it is made.

        Raises:
            TooLarge: a matrix without structure does not fit, or the form took more memory or time than it may.
            InvalidParameter: the type is unknown, or the result is rounded already.
            QuotaExhausted: it has to be made, and no core-seconds are left to the caller.
            StoreUnavailable: a worker ended otherwise; try again.
        """
        if not form:
            return result
        held = result.manifest()["matrices"]
        names = form.matrices or held
        if form.dtype not in (None, held["C"]["dtype"]):
            result = self._made(result, type_key(result.digest, str(form.dtype)), ("C",), form.dtype, caller)
            held = ("C",)
        wanted = tuple(name for name in MATRIX_NAMES if name in names or name == "C")
        if wanted == tuple(name for name in MATRIX_NAMES if name in held):
            return result
        return self._made(result, matrices_key(result.manifest(), wanted), wanted, None, caller)

    def _made(self, result: Result, key: str, names: Sequence[MatrixName], dtype: str | None, caller: Caller) -> Result:
        """Return the result in another form, made and stored the first time that it is asked for."""
        with self._making:
            known = self._known.get(key) or self._catalog.form(key)
            stored = None if known is None else self._results.whole(known)
            if stored is not None:
                return stored
            memory_mb = _memory(self._results.opened(result), names, self._engine.capacity_mb)
            more = [name for name in names if name != "C"]
            self._holdings.check_left(caller)
            with self._holdings.working(caller, self._pool.processors):
                digest = self._written({"digest": result.digest, "matrices": more, "dtype": dtype}, memory_mb)
            self._known[key] = digest
            return self._results.store.result(digest)

    def _written(self, request: dict[str, Any], memory_mb: int) -> str:
        """Have workers write, prove and store a form, and return its digest."""
        try:
            with self._pool.place() as place:
                manifest = published(
                    "form",
                    request,
                    place=place,
                    store=self._results.store,
                    stages=Stages(lambda _step: None),
                    seconds=min(FORM_SECONDS, self._settings.max_solve_seconds),
                    memory_mb=memory_mb,
                    threads=self._pool.processors,
                )
        except InvalidParameter:
            raise
        except FactorizeError as error:
            if isinstance(error, WorkerEnded) and error.ending in (Ending.TIMEOUT, Ending.OUT_OF_MEMORY):
                raise TooLarge(f"{without_places(str(error))}; stream the rows instead") from None
            raise StoreUnavailable(str(error)) from None
        return str(manifest["digest"])


def _memory(base: Factorization, names: Sequence[MatrixName], limit_mb: int | None) -> int:
    """Return the memory that a form with these matrices takes, in units of 2^20 bytes.

    Raises:
        TooLarge: it is above the limit.
    """
    if not base.endless and base.matrix.coefficients() is not None:
        return _FORM_LEAST_MB + (_EXPANDING * weight(base) >> 20)
    size = sum(8 * rows * columns for rows, columns in (base.shape(name) for name in names))
    if limit_mb is not None and _EXPANDING * size > limit_mb << 20:
        raise TooLarge(
            f"a file with {', '.join(names)} has {size / 2**30:.1f} GiB and takes {_EXPANDING} times that to make; the "
            f"limit is {limit_mb / 1024:.1f} GiB. Stream the rows instead"
        )
    return _FORM_LEAST_MB + (_EXPANDING * (size + weight(base)) >> 20)

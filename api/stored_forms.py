"""Forms: stored results with further matrices beside C, or in another type.

Workers compute a form, certify it from its own numbers and store it when a caller who may submit first posts for it. A
read finds what is stored: it makes nothing, and casts nothing on the way out.
"""

import threading
from collections.abc import Callable, Sequence
from functools import partial

from factorize.api.access.caller import Caller
from factorize.api.access.holdings import Holdings
from factorize.api.catalog import Catalog
from factorize.api.form import Form, matrices_key, type_key
from factorize.api.jobs.engine import JobEngine
from factorize.api.results import Results, weight
from factorize.api.settings import Settings
from factorize.api.workers.pool import Pool
from factorize.api.workers.publishing import Stages, make_and_store
from factorize.api.workers.worker import AnswerLimits, Ending, WorkerEnded, without_places
from factorize.errors import FactorizeError, InvalidParameter, NotFound, StoreUnavailable, TooLarge
from factorize.factors.factorization import Factorization
from factorize.format.tensors import MATRIX_NAMES, MatrixName
from factorize.storage.index import Result

FORM_SECONDS = 600.0
"""Seconds that a further form of a result may take."""
MIN_FORM_MB = 512
"""The memory of a worker that makes a form, before any matrix of it."""
SECONDS_PER_MIB = 0.1
"""Processor seconds to make, write and prove dense matrices: 9.8 s for 96 MiB at n = 2048, 2.3 s for 24 MiB at 1024."""
SIDE_OF_CUBIC_WORK = 2048
"""Above this side the products of matrices take most of the time, and the time per byte grows with the side."""
_LIVE_ARRAYS = 4  # arrays of a matrix's size are alive this many at a time, while it is computed, written and read back


class Forms:
    """Further forms of a store's results. Safe for threads.

    Args:
        results: results of the store.
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
        self._making = tuple(threading.Lock() for _ in range(64))  # two forms of one lock wait for each other
        self._known: dict[str, str] = {}

    def find(self, result: Result, form: Form) -> Result:
        """Return the stored result whose file has this form; makes nothing.

        Args:
            result: any result of the factorization.
            form: what the file is to hold.

        Raises:
            NotFound: there is none.
        """

        def stored(_base: Result, key: str, names: Sequence[MatrixName], dtype: str | None) -> Result:
            found = self._stored(key)
            if found is None:
                asked = f"matrices={','.join(names)}" + (f"&dtype={dtype}" if dtype else "")
                raise NotFound(
                    f"the file of {result.digest} with {asked} has not been made; make it with POST "
                    f"/v1/factorizations/{result.digest}?{asked} and a key of scope submit, or stream the rows"
                )
            return found

        return _in_form(result, form, stored)

    def make(self, result: Result, form: Form, caller: Caller) -> Result:
        """Return the result whose file has this form, made and stored the first time that it is asked for.

        Args:
            result: any result of the factorization.
            form: what the file is to hold.
            caller: the one for whom it is made.

        Raises:
            TooLarge: it is estimated to take more memory or time than it may, or it took more.
            InvalidParameter: the type is unknown, or the result is rounded already.
            QuotaExhausted: it has to be made, and the caller has not as much left.
            StoreUnavailable: a worker ended otherwise; try again.
        """
        return _in_form(result, form, partial(self._make, caller=caller))

    def _stored(self, key: str) -> Result | None:
        known = self._known.get(key) or self._catalog.form(key)
        return None if known is None else self._results.whole(known)

    def _make(
        self, result: Result, key: str, names: Sequence[MatrixName], dtype: str | None, *, caller: Caller
    ) -> Result:
        with self._making[hash(key) % len(self._making)]:
            stored = self._stored(key)
            if stored is not None:
                return stored
            base, limits = self._results.open(result), (self._engine.capacity_mb, self._seconds)
            core_seconds, memory_mb, file_bytes = _estimate(base, names, *limits)
            self._holdings.check_left(caller, core_seconds)
            self._holdings.check_kept(caller, file_bytes)
            more = [name for name in names if name != "C"]
            with self._holdings.working(caller, self._pool.processors):
                digest = self._write({"digest": result.digest, "matrices": more, "dtype": dtype}, memory_mb)
            self._holdings.keep_form(caller, digest)
            self._known[key] = digest
            return self._results.store.result(digest)

    @property
    def _seconds(self) -> float:
        return min(FORM_SECONDS, self._settings.max_solve_seconds)

    def _write(self, request: dict[str, object], memory_mb: int) -> str:
        """Have workers write, prove and store a form, and return its digest."""
        try:
            with self._pool.place() as place:
                manifest = make_and_store(
                    "form",
                    request,
                    place=place,
                    store=self._results.store,
                    stages=Stages(lambda _step: None),
                    limits=AnswerLimits(self._seconds, memory_mb, self._pool.processors),
                )
        except InvalidParameter:
            raise
        except FactorizeError as error:
            if isinstance(error, WorkerEnded) and error.ending in (Ending.TIMEOUT, Ending.OUT_OF_MEMORY):
                raise TooLarge(f"{without_places(str(error))}; stream the rows instead") from None
            raise StoreUnavailable(str(error)) from None
        return manifest.digest


def _in_form(
    result: Result, form: Form, get: Callable[[Result, str, Sequence[MatrixName], str | None], Result]
) -> Result:
    """Return a result whose file has a form, got step by step: first in its type, then with its matrices.

    Args:
        result: any result of the factorization.
        form: what the file is to hold.
        get: the step from a result to one with these matrices in this type, by its key.
    """
    manifest = result.manifest()
    held = manifest.names
    names = form.matrices or held
    if form.dtype not in (None, manifest.matrix("C").dtype):
        result = get(result, type_key(result.digest, str(form.dtype)), ("C",), form.dtype)
        held = ["C"]
    wanted = tuple(name for name in MATRIX_NAMES if name in names or name == "C")
    if wanted == tuple(name for name in MATRIX_NAMES if name in held):
        return result
    return get(result, matrices_key(result.manifest(), wanted), wanted, None)


def _estimate(
    base: Factorization, names: Sequence[MatrixName], limit_mb: int | None, limit_seconds: float
) -> tuple[float, int, int]:
    """Return the cost of making and proving a form with these matrices, from above where they are dense.

    Returns:
        Processor seconds, memory in units of 2^20 bytes, and the bytes of the file.

    Raises:
        TooLarge: it is above a limit.
    """
    structured = not base.endless and base.matrix.coefficients() is not None
    shapes = [base.shape(name) for name in names]
    size = len(names) * weight(base) if structured else sum(8 * rows * columns for rows, columns in shapes)
    side = max(max(shape) for shape in shapes)
    seconds = SECONDS_PER_MIB * size / 2**20 * max(1.0, side / SIDE_OF_CUBIC_WORK)
    memory_mb = MIN_FORM_MB + (_LIVE_ARRAYS * (size + weight(base)) >> 20)
    takes = f"{memory_mb / 1024:.2g} GiB and {seconds:.3g} s"
    about = f"a file with {', '.join(names)} has {size / 2**30:.2g} GiB and takes {takes}"
    if limit_mb is not None and memory_mb > limit_mb:
        raise TooLarge(f"{about} to make; the limit is {limit_mb / 1024:.1f} GiB. Stream the rows instead")
    if seconds > limit_seconds:
        raise TooLarge(f"{about} to make; the limit is {limit_seconds:g} s. Stream the rows instead")
    return seconds, memory_mb, size

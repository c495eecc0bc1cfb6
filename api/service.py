"""The service behind the doors: one path from a spec to a stored factorization.

`obtain` is what HTTP takes: parse, name the mechanism, take the digest, look into the store, and only then have it
solved by workers. The command line takes the same steps in its own process (`api/local.py`).
"""

import json
import math
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Self

import numpy as np
from prometheus_client import CollectorRegistry, Counter, Histogram

from factorize import solvers
from factorize.api.access.caller import ANYONE, AboveCapacity, Caller
from factorize.api.access.holdings import Holdings
from factorize.api.access.key_register import KeyRegister
from factorize.api.catalog import Catalog
from factorize.api.form import ANY_FORM, Form
from factorize.api.jobs.audit_log import AuditLog
from factorize.api.jobs.cluster_worker import secure
from factorize.api.jobs.engine import JobEngine
from factorize.api.jobs.ledger import Ledger
from factorize.api.jobs.solve_job import JobOrder, SolveEnding, SolveJob
from factorize.api.local import priced
from factorize.api.readiness import Readiness
from factorize.api.results import Results
from factorize.api.settings import Settings, ledger_url
from factorize.api.stored_forms import Forms
from factorize.api.telemetry import about, current_trace, record_job
from factorize.api.workers.pool import SMALL_SECONDS, Pool, wall_limit
from factorize.encoding import canonical_json
from factorize.errors import CorruptObject, InvalidParameter, InvalidSpec, NotFound, Revoked, StoreUnavailable
from factorize.spec import Spec, notes_of_choice, parse_spec
from factorize.storage.index import Result
from factorize.storage.store import Store, open_store
from factorize.workloads import UserMatrix

_SOLVE_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600, 14_400, 86_400)
_GAPS = (1e-12, 1e-10, 1e-9, 1e-8, 1e-6, 1e-4, 1e-3, 1e-2, 0.1, 1.0)
_REQUEUED_ENDS = ("CRASHED", "LOST")
_MEMORY_QUESTION = "POST /v1/recommend with a memory"

Source = bytes | str | dict[str, Any] | Spec


class StoreReadOnly(StoreUnavailable):
    """A spec to solve, for a store that this service may only read."""


class SolveCounts:
    """Counters and histograms of one service's solves.

    Args:
        registry: holds them, for the route of metrics.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        meaning, name = "Wall time of solve, certificate, proof and publication.", "factorize_solve_duration_seconds"
        self._seconds = Histogram(name, meaning, ["mechanism", "end"], buckets=_SOLVE_SECONDS, registry=registry)
        meaning = "Gap to the lower bound over all matrices that a solve has last reported."
        self._gaps = Histogram("factorize_relative_gap", meaning, ["mechanism"], buckets=_GAPS, registry=registry)
        meaning = "Solves whose process was killed or lost; all but the last of a job are queued again."
        self._retries = Counter("factorize_retries", meaning, registry=registry)

    def count_end(self, spec: str, end: str, seconds: float, progress: dict[str, Any] | None) -> None:
        """Count a solve that is over.

        Args:
            spec: canonical JSON of the spec.
            end: name of its end, such as `DONE`.
            seconds: wall time of its process.
            progress: what it has said last, or None.
        """
        mechanism = str(json.loads(spec)["mechanism"]["kind"])
        self._seconds.labels(mechanism, end.lower()).observe(seconds)
        gap = (progress or {}).get("relative_gap")
        if end == "DONE" and gap is not None:
            self._gaps.labels(mechanism).observe(gap)
        if end in _REQUEUED_ENDS:
            self._retries.inc()


class SolverService:
    """Store, ledger and engine. Safe for threads.

    Args:
        settings: the settings, which say where they are.
        pool: workers that others use too; by default the service has and ends its own.

    Raises:
        StoreUnavailable: store or database cannot be opened.
        InvalidParameter: a scheduler on a public address without TLS.
    """

    def __init__(self, settings: Settings, *, pool: Pool | None = None) -> None:
        self.settings = settings
        if settings.scheduler is not None:
            secure(settings.scheduler, settings)
        self.store: Store = open_store(settings.store, cache_bytes=settings.cache_bytes)
        self.store.objects.probe()
        self.pool = pool or Pool(settings.capacity_mb, settings.processors)
        self._owns_pool = pool is None
        self.ledger = Ledger(ledger_url(settings))
        self.catalog = Catalog(self.ledger.engine, self.store)
        self.results = Results(self.store, cache_bytes=settings.cache_bytes)
        self.counts = CollectorRegistry()
        self.solve_counts = SolveCounts(self.counts)
        self.audit = AuditLog(self.ledger.engine)
        self.register = self.keys()
        try:
            self.register.revoke_withdrawn()
        except BaseException:
            self.ledger.close()
            raise
        self.holdings = Holdings(self.ledger.engine)
        self.known_total = self.sent_bytes = self.readers = 0
        self.engine = JobEngine(
            self.ledger,
            find=self.store.durable_answer,
            store=self.store.url,
            pool=self.pool,
            scheduler=settings.scheduler,
            settled=self._count,
        )
        self.forms = Forms(self.results, self.catalog, self.holdings, self.engine, self.pool, settings)
        self.readiness = Readiness(self.ledger, self.store, self.engine)

    def warm_up(self) -> None:
        """Have the first workers of a pool of its own started now, so that the first solve need not wait for them."""
        if self.settings.scheduler is None and self._owns_pool:
            self.pool.warm_up()

    def start(self) -> Self:
        """Start the engine, which takes up what earlier runs left open."""
        self.engine.start()
        return self

    def close(self) -> None:
        """End the engine and close the ledger."""
        self.readiness.close()
        self.engine.close()
        if self._owns_pool:
            self.pool.close()
        with suppress(StoreUnavailable):  # the ledger may be what is gone
            self.audit.close()
        self.ledger.close()

    def keys(self, actor: str = "factorize") -> KeyRegister:
        """Return the keys of the ledger, for somebody who is in the audit log as `actor`."""
        return KeyRegister(self.ledger.engine, actor, lambda: self.store.objects)

    def _count(self, job: SolveJob, outcome: SolveEnding) -> None:
        """Count the end of a solve with what it had said last."""
        self.solve_counts.count_end(job.spec, outcome.ending.name, outcome.seconds, outcome.progress)
        about_job = job.about() | {"ending": outcome.ending.name}
        attributes = {f"factorize.{name}": value for name, value in about_job.items()}
        failure = None if outcome.error is None else outcome.error["message"]
        record_job(job.traceparent, job.submitted, attributes, outcome.timings, failure)

    # The one path

    @staticmethod
    def canonical(source: Source) -> Spec:
        """Return the canonical spec with its mechanism named."""
        return solvers.choose(source)

    def obtain(self, source: Source, form: Form = ANY_FORM, caller: Caller = ANYONE) -> Result | SolveJob:
        """Return the stored result of a spec, or the job that solves it.

        Args:
            source: JSON text, plain data that came through the strict reader, or a spec.
            form: what the result's file is to hold; C alone by default.
            caller: the one who asks, and holds the job then.

        Raises:
            MalformedJson, InvalidSpec, UnsupportedProblem: see `parse_spec` and `solvers.choose`.
            TooLarge: the estimate is above what this service admits.
            QuotaExhausted: it is above what is left of the caller's quotas.
            StoreReadOnly: the store has no answer, and takes none.
            StoreUnavailable, CorruptObject: from the store.
        """
        spec = self.canonical(source)
        result = self.results.answer(spec)
        if result is None:
            self._check_store_takes_files()
            self.keep_matrices(spec, caller)
            needed = solvers.estimate(spec)
            order = replace(self._order(spec, needed), caller=caller.owner)
            core_seconds = needed.seconds * order.threads
            if caller.quotas.kept_bytes is not None:
                self.catalog.catch_up()
            job = self.engine.submit(order, partial(self.holdings.enter, caller, core_seconds))
            result = self.results.answer(spec) if job.state == "done" else None
            if result is None:
                return job
        else:
            self.known_total += 1
        return self.forms.make(result, form, caller) if form else result

    def lookup(self, name: str, form: Form = ANY_FORM, caller: Caller = ANYONE) -> Result | SolveJob | None:
        """Return what is known by a digest or a spec digest: a result, else a job of the caller's, else None.

        It makes and stores nothing.

        Raises:
            Revoked: the result was taken back, and no job is solving its spec anew.
            CorruptObject: it is damaged.
            NotFound: a job has stored it, and something of it is missing; or nobody has had this form of it made.
        """
        try:
            result = self.results.find(name)
        except Revoked:
            job = self._own_job(name, caller)
            if job is None or job.state == "done":
                raise
            return job
        job = self._own_job(name, caller) if result is None else None
        if job is not None and job.state == "done":  # since the first look, or its result is not whole any more
            result = self.results.find(name)
            try:
                if result is None:
                    self.store.check_answer(name)
            except (NotFound, CorruptObject) as error:
                raise type(error)(f"{error}: the spec was solved, but its result is damaged; post it again") from None
        return self.forms.find(result, form) if result is not None and form else result or job

    def _own_job(self, name: str, caller: Caller) -> SolveJob | None:
        """Return the job of a spec digest, if the caller holds it; one of others takes as long as none."""
        return self.ledger.get(name) if self.holdings.has_job(caller, name) else None

    def canonicalize(self, source: Source) -> dict[str, object]:
        """Return canonical spec, digest, whether an answer is stored, estimate and notes. Solves and stores nothing."""
        posted = parse_spec(source)
        spec = self.canonical(posted)
        known = self.results.answer(spec) is not None
        return priced(spec, known=known) | {"notes": notes_of_choice(posted, spec, _MEMORY_QUESTION)}

    def notes(self, posted: Spec) -> list[str]:
        """Return what is to be known of the mechanism that a job of a spec is given; see `notes_of_choice`."""
        return notes_of_choice(posted, self.canonical(posted), _MEMORY_QUESTION)

    def retry(self, name: str, caller: Caller = ANYONE) -> Result | SolveJob:
        """Queue a failed or cancelled job again, as posting its spec does.

        Raises:
            NotFound: there is no job of that spec digest.
            InvalidParameter: the job has not ended so.
        """
        job = self._own_job(name, caller)
        if job is None:
            raise NotFound(f"no job has the spec digest {name}; post its spec")
        if job.state not in ("failed", "cancelled"):
            message = f"the job is {job.state}; only a failed or cancelled one can be tried again"
            raise InvalidParameter(message, field="spec_digest")
        return self.obtain(job.spec, caller=caller)

    def cancel(self, name: str, caller: Caller = ANYONE) -> SolveJob | None:
        """End a job that its caller does not want any more; None if it is not queued or running, or not the caller's.

        A job that others hold too goes on for them.
        """
        job = self._own_job(name, caller)
        if job is None or job.finished or caller.sees_all or not self.holdings.leave_to_others(caller, name):
            return None if job is None else self.engine.cancel(name, caller.actor)
        return replace(job, state="cancelled")

    def upload(self, array: np.ndarray, caller: Caller = ANYONE) -> dict[str, object]:
        """Store a user's matrix and return the names by which a spec may use it: sha256 and shape.

        Raises:
            InvalidWorkload: the numbers cannot be a workload.
        """
        return {"sha256": self._keep(array, caller), "shape": list(array.shape)}

    def _keep(self, array: np.ndarray, caller: Caller, *, within_spec: bool = False) -> str:
        self.holdings.check_kept(caller, array.nbytes)
        sha256 = self.store.put_matrix(array)
        self.holdings.keep_upload(caller, sha256, array.shape, within_spec=within_spec)
        return sha256

    # Admission

    def _check_store_takes_files(self) -> None:
        try:
            with self.store.objects.stage() as staged:
                staged.write(b"")
        except StoreUnavailable as error:
            if error.state == "store-forbidden":  # a job would wait out what else is wrong
                raise StoreReadOnly(
                    "the store of this service is read-only and has no answer to this spec; post it to a service that "
                    "fills the store, or run factorize solve"
                ) from None

    def _order(self, spec: Spec, needed: solvers.Estimate) -> JobOrder:
        """Say what a solve may take, from the estimate, before any array exists."""
        memory_mb = math.ceil(needed.bytes / 2**20)
        limit_mb, limit_seconds = self.engine.capacity_mb, self.settings.max_solve_seconds
        if needed.seconds > limit_seconds or (limit_mb is not None and memory_mb > limit_mb):
            limit = "" if limit_mb is None else f"{limit_mb / 1024:.1f} GiB and "
            raise AboveCapacity(
                f"the solve takes about {needed.bytes / 2**30:.1f} GiB and {needed.seconds:.3g} s; the limit is {limit}"
                f"{limit_seconds:g} s; use a smaller n or a structured mechanism (nu_toeplitz, say)",
                vars(needed),
            )
        return JobOrder(
            spec_digest=spec.digest,
            spec=canonical_json(spec.document()).decode("ascii"),
            workload=spec.workload.kind,
            memory_mb=memory_mb,
            seconds_limit=min(wall_limit(needed.seconds), limit_seconds),
            threads=1 if needed.seconds < SMALL_SECONDS else self.pool.processors,
            request_id=about().get("request_id", ""),
            client_request_id=about().get("client_request_id", ""),
            traceparent=current_trace(),
        )

    def keep_matrices(self, spec: Spec, caller: Caller = ANYONE, *, within: str = "") -> None:
        """Store inline matrices for the worker, and check that those known by name were uploaded.

        Args:
            spec: the spec with its matrices.
            caller: the one whose uploads they may be.
            within: pointer to the spec in what was posted.

        Raises:
            InvalidSpec: one of them was not.
        """
        message = "no matrix of this sha256 and shape was uploaded; send it to POST /v1/matrices first"
        missing = [name for name, part in spec.user_matrices().items() if not self._have(part, caller)]
        if missing:
            raise InvalidSpec.at(message, *(f"{within}/{name}/sha256" for name in missing))

    def _have(self, matrix: UserMatrix, caller: Caller) -> bool:
        if matrix.bound:
            self._keep(matrix.array, caller, within_spec=True)
            return True
        assert matrix.sha256 is not None and matrix.shape is not None  # the canonical form has both
        name = self.holdings.upload_for(caller, matrix.sha256)
        with suppress(NotFound):
            self.store.keep(name)
            return self.store.blob(name).size == 8 * math.prod(matrix.shape)
        return False

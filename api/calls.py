"""The calls of Python: solve, compare and recommend as people type them, in the words of the command line.

    factorize.solve("prefix", n=2048, epochs=8, mechanism="buffered_linear", buffers=4)
    factorize.recommend(examples=60_000, batch_size=600, epochs=10, epsilon=2.0, delta=1e-5, memory=4)

The same steps as behind `factorize solve`: with a store the answer is looked for, proved from its bytes and kept;
without one it is solved and certified in this process, and remembered in the cache of the client.
"""

import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from factorize.api.questions.advice import advise
from factorize.api.questions.comparison import comparison, request_for
from factorize.api.questions.documents import Advice, ComparisonTable
from factorize.api.questions.optimizer import JobInWords
from factorize.api.questions.training_job import about, kind_of, read_job
from factorize.api.terminal.progress import display, show_event
from factorize.api.terminal.targets import check_target
from factorize.client import load
from factorize.client.cache import VARIABLE, FactorCache, default_folder
from factorize.client.download import find_cached
from factorize.client.held_factors import look_first
from factorize.errors import CacheUnusable, FactorizeError, InvalidParameter, extras_named
from factorize.factors.factorization import Factorization
from factorize.factors.solution import ProgressCallback
from factorize.factors.strategy_file import read_strategy
from factorize.format.container import local_path
from factorize.format.keywords import Part, SpecKeywords, WorkloadKind, plain
from factorize.plain_data.words import document_of_words
from factorize.spec import Spec, notes_of_choice
from factorize.spec.mechanisms import DenseNoise
from factorize.storage.store import open_store

MAX_REMEMBERED_BYTES = 1 << 28
"""The most bytes of a result that the cache keeps without being asked: a dense C of 5792 steps."""
Asked = Spec | Part | np.ndarray | WorkloadKind | str
"""A spec, its JSON form as text or plain data, the name of a workload, or an array: a workload of the caller's own."""


def solve(
    spec: Asked,
    /,
    *,
    store: str | Path | None = None,
    service: str | None = None,
    to: str | bytes | Path | None = None,
    progress: bool | ProgressCallback | None = None,
    **words: Unpack[SpecKeywords],
) -> Factorization:
    """Return the certified factorization of a spec.

    Args:
        spec: a workload's name with its fields and everything else as keywords, `"prefix", n=2048`; its plain data; an
            array A of shape (m, n); or a whole `Spec`, as an object, plain data or JSON text.
        store: folder or URL: what it has is not solved again, and what is solved is proved from the written bytes and
            kept there. Without one the result is certified, and kept in the cache ($FACTORIZE_CACHE).
        service: URL of a service that solves and keeps it.
        to: also write the factor file there.
        progress: whether a bar is drawn (by default in terminals and notebooks), or a function that is told each step
            and may raise `factorize.errors.Cancelled`.
        **words: fields of the spec (docs/spec.md).

    Raises:
        InvalidSpec: it is none; each message names the field.
        InvalidParameter: a keyword that no kind has, a file that cannot be written, or places that exclude each other.
        UnsupportedProblem, TooLarge, SolveFailed, CertificateError: see `factorize.solvers.solve`.
        CorruptObject: the cache has the answer to another spec under this one's name.
        DenseNoise: a warning, where `auto` has become `dense` and its noise takes 128 vectors or more.
        MissingExtra: without the extra `[solve]`, or `[conic]` for the mechanisms that need it.
    """
    canonical = Spec.of(spec, **words)
    target = None if to is None else local_path(to)
    check_target(target)
    if service is not None and store is not None:
        raise InvalidParameter("a service uses its own store; leave store= out", field="service")
    with extras_named("a solve"), display(canonical.label, visible=is_visible(progress)) as shown:
        report = progress if callable(progress) else shown.report
        if service is not None:
            factors = load(canonical, url=service, progress=lambda event: show_event(shown, event))
            own = [part for part in canonical.user_matrices().values() if part.bound]
            factorization = factors.opened(matrices={str(part.sha256): part.array for part in own})
        elif store is not None:  # `factorize solve` does the same
            from factorize.api.local import obtain

            kept = open_store(store, create=True)
            factorization = kept.load(obtain(canonical, kept, progress=report)[0].digest)
        else:
            factorization = _by_cache(canonical, report)
    if target is not None:
        factorization.save(target)
    _warn(canonical, factorization.spec)
    return factorization


def certify(
    strategy: object, spec: Asked = "prefix", /, *, holds: str | None = None, **words: Unpack[SpecKeywords]
) -> Factorization:
    """Certify anybody's strategy: its sensitivity, its losses, and a lower bound where one is known or cheap.

        factorize.certify(C, "momentum", momentum=0.9, participation={"kind": "fixed_epochs", "epochs": 4})

    Args:
        strategy: C, lower triangular with a positive diagonal, shape (n, n); or a file or an object of another library
            that says it, by its coefficients, bands or buffers (`factorize.factors.strategy_file.read_strategy`).
        spec: what it is for, as for `solve`; the `n` of a named workload is that of C. A mechanism says nothing here.
        holds: what one array without a name is: `C`, `coefficients` or `inverse_coefficients`.
        **words: fields of the spec.

    Raises:
        InvalidSpec, InvalidParameter: as of `solve`.
        InvalidStrategy: no strategy matrix, or not of the spec's n.
        CertificateError: it does not serve the workload.
        MissingExtra: without the extra `[solve]`.
    """
    named = isinstance(spec, str) and not spec.lstrip().startswith("{")
    steps = words.get("n") if named else getattr(Spec.of(spec, **words).workload, "n", None)
    given = read_strategy(strategy, n=steps if isinstance(steps, int) else None, holds=holds)
    if named and "n" not in words:
        words = {**words, "n": len(given) if isinstance(given, np.ndarray) else given.n}
    with extras_named("a certificate"):
        from factorize.solvers.evidence_search import certify_own

        return certify_own(given, Spec.of(spec, **words))


def _warn(spec: Spec, chosen: Spec) -> None:
    """Warn of dense noise where `auto` has named it, and where C is optimised for another workload."""
    for note in notes_of_choice(spec, chosen, "`factorize.recommend(..., memory=4)`"):
        warnings.warn(note, DenseNoise if chosen.mechanism.unrestricted else UserWarning, stacklevel=3)


def compare(
    spec: Asked,
    /,
    *,
    buffers: int | Sequence[int] | None = None,
    bytes_per_parameter: float | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
    dataset_size: int | None = None,
    batch_size: int | None = None,
    samplings: Sequence[str] | None = None,
    max_seconds: float | None = None,
    seconds: float | None = None,
    parameters: int | None = None,
    service: str | None = None,
    progress: bool | Callable[[int, int, str], None] | None = None,
    **words: Any,
) -> ComparisonTable:
    """Return every mechanism that fits a spec side by side, and which to take.

    Args:
        spec: the spec, as for `solve`.
        buffers: vectors of noise state that may be kept for each parameter; several in one run.
        bytes_per_parameter: the same budget in bytes, at 4 bytes a number.
        epsilon: an epsilon that, with `delta`, adds error and noise at this privacy to each row.
        delta: see `epsilon`.
        dataset_size: examples in the data set; with `batch_size`, adds rows that count on sampling.
        batch_size: expected examples per step.
        samplings: schemes that rows may count on, beside a fixed order; by default all where sizes are given.
        max_seconds: mechanisms that would take longer are listed as refused.
        seconds: processor seconds for all: what promises most is tried first, and the rest is listed as refused; no
            limit by default.
        parameters: the number of the model's parameters, adds the seconds of a step's noise to each row.
        service: URL of a service that compares.
        progress: whether a bar is drawn, or a function that is told mechanisms done, their total and one that runs.
        **words: fields of the spec, as for `solve`; `**{"mechanism.buffers": 4}` where a name is an argument above.

    Raises:
        FactorizeError: as of `factorize.solvers.compare` and `solve`.
    """
    buffers = plain(buffers)
    fields = _given(
        buffers=None if isinstance(buffers, Sequence) else buffers,
        budgets=buffers if isinstance(buffers, Sequence) else None,
        bytes_per_parameter=bytes_per_parameter,
        epsilon=epsilon,
        delta=delta,
        dataset_size=dataset_size,
        batch_size=batch_size,
        samplings=samplings,
        max_seconds=max_seconds,
        seconds=seconds,
        parameters=parameters,
    )
    canonical = Spec.of(spec, **words)
    request = request_for(canonical, **fields)
    label = f"comparing for {canonical.label}"
    with extras_named("a comparison"), display(label, visible=is_visible(progress)) as shown:
        report = progress if callable(progress) else shown.count
        return ComparisonTable(comparison(request, None, report, service, look=look_first()))


def recommend(
    workload: WorkloadKind | Mapping[str, object] | str = "prefix",
    /,
    *,
    examples: int | None = None,
    batch_size: int | None = None,
    epochs: int | None = None,
    clients: int | None = None,
    clients_a_round: int | None = None,
    rounds: int | None = None,
    check_in: int | None = None,
    offline: float | None = None,
    epsilon: float,
    delta: float,
    memory: int | Sequence[int] = 4,
    samplings: Sequence[str] | None = None,
    parameters: int | None = None,
    seconds: float | None = None,
    service: str | None = None,
    progress: bool | Callable[[int, int, str], None] | None = None,
    **words: Any,
) -> Advice:
    """Return which mechanism, which sampling and how much noise a training job takes, with code that uses it.

    Args:
        workload: what the optimizer sums, or the optimizer (`"adamw"`): a name with its fields as keywords, or plain
            data; `n` follows.
        examples: the number of examples in the data set.
        batch_size: examples of a step.
        epochs: passes over the data, 1 by default.
        clients: the number of clients in a fleet, in place of `examples`: federated training.
        clients_a_round: clients that are asked in each round.
        rounds: rounds of the whole run.
        check_in: rounds after which a client returns by itself; by default the server chooses among all.
        offline: share of the fleet that does not answer, 0 by default.
        epsilon: the epsilon of (epsilon, delta)-DP, zero-out.
        delta: see `epsilon`.
        memory: vectors of noise state that may be kept, each as large as the model; of several budgets the largest is
            answered, and all are in `document["budgets"]`.
        samplings: schemes that the loader can do, beside a fixed order; by default all.
        parameters: the number of the model's parameters, for the seconds that a step's noise takes.
        seconds: processor seconds for all, 10 by default: what promises most is tried first, and the answer says what
            was not.
        service: URL of a service that compares.
        progress: whether a bar is drawn, or a function that is told mechanisms done, their total and one that runs.
        **words: fields of the workload and the objective (docs/spec.md).

    Raises:
        InvalidSpec: a number outside its limits, or the workload or the objective is none.
        InvalidParameter: a field that follows from the job, a batch larger than the data set, or a fleet that is too
            small for a round.
        ConditionNotMet: no run with these numbers is covered, or nothing fits the memory.
        MissingExtra: without the extra `[solve]`.
    """
    fields = _given(
        examples=examples,
        batch_size=batch_size,
        epochs=epochs,
        clients=clients,
        clients_a_round=clients_a_round,
        rounds=rounds,
        check_in=check_in,
        offline=offline,
        epsilon=epsilon,
        delta=delta,
        memory=[memory] if isinstance(plain(memory), int) else memory,
        samplings=samplings,
        parameters=parameters,
        seconds=seconds,
    )
    fields |= _parts(workload, words)
    job = read_job(fields, kind_of(fields))
    with extras_named("a recommendation"), display("comparing", visible=is_visible(progress)) as shown:
        return Advice(advise(job, progress if callable(progress) else shown.count, service, remember))


_MEANT = {"sampling": "name the schemes as samplings=['fixed']", "optimizer": "name the optimizer as workload='adamw'"}
"""What callers of a recommendation mean by a field that it does not have."""


def _parts(workload: object, words: Mapping[str, object]) -> dict[str, object]:
    """Return workload and objective as plain data."""
    if meant := next((name for name in _MEANT if name in words), None):
        raise InvalidParameter(f"a recommendation takes no {meant!r}; {_MEANT[meant]}", field=meant)
    words = dict(words)
    workload = words.pop("workload", workload)
    if not isinstance(workload, str | Mapping):
        message = f"workload={workload!r} is neither a name nor plain data; give workload='adamw', or leave it out"
        raise InvalidParameter(message, field="workload")
    if not isinstance(workload, str):
        if words:
            message = f"a whole workload excludes {', '.join(words)}; put them into it, or give its name and keywords"
            raise InvalidParameter(message, field=next(iter(words)))
        return about({"workload": dict(workload)})
    fields = {name: plain(value) for name, value in words.items()}
    return about(document_of_words(JobInWords, {"workload": workload, **fields}))


def _given(**fields: object) -> dict[str, object]:
    """Return the fields that a caller has given as plain data, and one name as a list of it."""
    given = {name: plain(value) for name, value in fields.items() if value is not None}
    return {name: [value] if isinstance(value, str) else value for name, value in given.items()}


def _by_cache(spec: Spec, report: ProgressCallback) -> Factorization:
    """Look into the cache, else solve here and remember it."""
    from factorize import solvers
    from factorize.factors.factor_file import load

    chosen = solvers.choose(spec)
    if not chosen.user_matrices():  # the numbers of these are in no file
        known = look_first()(chosen) or find_cached(chosen, None, FactorCache())
        if known is not None:
            return load(known.path)
    return remember(solvers.solve(spec, progress=report))


def remember(factorization: Factorization) -> Factorization:
    """Return a result that the cache has from now on, if it is not too large; a warning says where that fails.

    Raises:
        Revoked: the cache had it, and it was taken back.
    """
    FactorCache().check_not_revoked(factorization.digest)
    size = sum(array.nbytes for array in factorization.tensors().values())
    if size <= MAX_REMEMBERED_BYTES and not factorization.spec.user_matrices():
        folder = default_folder()
        try:
            cache = FactorCache(folder)
            factorization.save(cache.path(factorization.digest))
            cache.remember(factorization.spec_digest, factorization.digest)
        except (FactorizeError, OSError) as error:
            remedy = f"; set {VARIABLE} to a writable folder"
            text = f"the result could not be kept in {folder}: {str(error).removesuffix(remedy)}{remedy}"
            warnings.warn(text, CacheUnusable, stacklevel=2)
    return factorization


def is_visible(progress: object) -> bool:
    """Return whether a bar is drawn: by default where people would see it, and not where a function is told."""
    if progress is None:
        return "ipykernel" in sys.modules or sys.stderr.isatty()
    return bool(progress) and not callable(progress)

"""One spec from question to stored answer, solved in this process: what `factorize solve` and `batch` run.

The same steps as behind HTTP (name the mechanism, look into the store, solve, certify and prove, publish),
without a job: whoever started the command waits for it, and Ctrl-C ends it. Results appear in the store whole or not at
all, so an interrupt at any moment leaves what was finished and nothing else.
"""

import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from factorize import solvers
from factorize.api.proof import certify, prove, prover, write_draft
from factorize.api.workers.publishing import Stages
from factorize.client.held_factors import look_first
from factorize.client.service import Origin
from factorize.encoding import JsonObject
from factorize.errors import InvalidWorkload
from factorize.factors.factor_file import cast, load
from factorize.factors.factorization import Factorization
from factorize.factors.solution import ProgressCallback
from factorize.factors.strategy_file import read_strategy
from factorize.format.manifest import Manifest
from factorize.format.tensors import MatrixName
from factorize.solvers import choose, estimate
from factorize.solvers.evidence_search import Recognised, certify_own
from factorize.spec import Spec
from factorize.storage.store import Store

__all__ = ["bind", "certify_file", "choose", "estimate", "in_form", "keep", "keep_matrices", "obtain", "priced"]


def obtain(spec: Spec, store: Store, *, progress: ProgressCallback) -> tuple[Manifest, Origin]:
    """Return the manifest of a spec's answer, and where it came from; store it first if the store does not have it.

    Args:
        spec: what is asked; `auto` is named.
        store: the store that keeps results.
        progress: called between steps of the solver, and before the proof and the publication.

    Raises:
        UnsupportedProblem: no mechanism of this release fits.
        TooLarge: the estimate is above this machine's memory; nothing was allocated (from `solvers`).
        SolveFailed: the solver stopped without an answer.
        CertificateError: its answer does not hold, or what was written does not.
        NotFound: the numbers of a user's matrix are neither in the spec nor in the store.
        StoreUnavailable, CorruptObject: from the store.
    """
    chosen = choose(spec)
    known = store.find(chosen)
    if known is not None:
        return store.manifest(known), Origin("store", store.url)
    found = None if chosen.user_matrices() else look_first()(chosen)
    if found is not None:
        return keep(load(found.path), store), found.origin
    store.check_writable()
    prover().start()  # it imports what it needs while the solve runs
    stages = Stages(progress)
    draft = solvers.search(bind(chosen, store), progress=stages.step)
    with store.objects.stage() as staged:
        staged.produce(partial(write_draft, draft))
        stages.enter("prove")
        proof = certify(staged.path, store=store.url)
        stages.enter("store")
        return store.put_checked(staged, proof), Origin("solved")


def priced(spec: Spec, *, known: bool) -> JsonObject:
    """Return a spec that names its mechanism, whether its answer is stored, and what its solve takes."""
    return {"spec": spec.document(), "spec_digest": spec.digest, "known": known, "estimate": vars(estimate(spec))}


def keep(result: Factorization, store: Store, *, strict: bool = False) -> Manifest:
    """Store a result that another process has proved from its written bytes, and return its manifest.

    Args:
        result: the result.
        store: the store that keeps it.
        strict: see `factorize.api.proof.prove`.
    """
    return store.put(result, check=partial(prove, store=store.url, strict=strict))


def in_form(result: Factorization, matrices: Sequence[MatrixName], dtype: str | None) -> Factorization:
    """Return a result with further matrices beside C, in a type; see `cast` and `Factorization.with_matrices`."""
    made = result if dtype is None else cast(result, dtype)
    return made.with_matrices(list(matrices)) if set(matrices) - {"C"} else made


def bind(spec: Spec, store: Store) -> Spec:
    """Return the spec with the numbers of its user-supplied matrices: its own, else those in the store."""
    keep_matrices(spec, store)
    return store.matrices.bind(spec)


def keep_matrices(spec: Spec, store: Store) -> None:
    """Store the numbers that a spec brings with it, so that its canonical form is enough for whoever solves it."""
    for part in spec.user_matrices().values():
        with suppress(InvalidWorkload):  # known by its digest only
            store.put_matrix(part.array)


def certify_file(
    path: Path, spec: Spec, holds: str | None, *, as_given: bool = False, remark: Callable[[str], object]
) -> Factorization:
    """Certify the strategy of a file for a spec, in its own structure where one is found.

    Args:
        path: see `factorize.factors.strategy_file`.
        spec: canonical, users' matrices bound.
        holds: what one array without a name is.
        as_given: see `certify_own`.
        remark: is told where another structure is kept than the file's.

    Raises:
        CorruptObject, InvalidStrategy: see `read_strategy`.
        CertificateError: it does not serve the workload.
    """
    given = read_strategy(path, n=None if spec.workload.endless else spec.workload.n, holds=holds)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", Recognised)
        certified = certify_own(given, spec, as_given=as_given)
    for note in caught:
        remark(f"note: {note.message}")
    return certified

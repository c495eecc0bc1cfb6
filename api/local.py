"""One spec from question to stored answer, solved in this process: what `factorize solve` and `batch` run.

The same steps as behind HTTP (name the mechanism, look into the store, solve, certify, write, check the file, publish),
without a job: whoever started the command waits for it, and Ctrl-C ends it. Results appear in the store whole or not at
all, so an interrupt at any moment leaves what was finished and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from factorize import solvers
from factorize.api.proof import prove
from factorize.api.workers.publishing import Stages
from factorize.errors import InvalidWorkload
from factorize.solution import ProgressCallback
from factorize.spec import Spec
from factorize.storage.store import Check, Store

Estimate = solvers.Estimate
"""What a solve takes."""


@dataclass(frozen=True)
class PlannedSolve:
    """A spec that is ready to be solved.

    Attributes:
        spec: canonical, its mechanism named.
        known: digest of the stored answer, or None.
    """

    spec: Spec
    known: str | None


def plan(spec: Spec, store: Store | None) -> PlannedSolve:
    """Name the mechanism of a spec and look for its answer.

    Args:
        spec: what is asked.
        store: where to look; None where there is none yet.

    Raises:
        UnsupportedProblem: no mechanism of this release fits.
    """
    chosen = solvers.choose(spec)
    return PlannedSolve(chosen, None if store is None else store.find(chosen))


def cost(planned: PlannedSolve) -> Estimate:
    """Return the estimate of a solve.

    Raises:
        TooLarge: the estimate is above this machine's memory.
    """
    return solvers.estimate(planned.spec)


def obtain(
    planned: PlannedSolve, store: Store, *, progress: ProgressCallback, check: Check | None = None
) -> dict[str, Any]:
    """Return the manifest of a spec's answer; solve and store it first if the store does not have it.

    Args:
        planned: from `plan`.
        store: where results are kept.
        progress: called between steps of the solver, and before the proof and the publication.
        check: has the last word on the written file; by default another process proves it.

    Raises:
        TooLarge: the estimate is above this machine's memory; nothing was allocated (from `solvers`).
        SolveFailed: the solver stopped without an answer.
        CertificateError: its answer does not hold, or what was written does not.
        NotFound: the numbers of a user's matrix are neither in the spec nor in the store.
        StoreUnavailable, CorruptObject: from the store.
    """
    if planned.known is not None:
        return store.manifest(planned.known)
    stages = Stages(progress)

    def checked(path: Path) -> Mapping[str, Any]:
        stages.enter("prove")
        proof = check(path) if check is not None else prove(path, store=store.url)
        stages.enter("store")
        return proof

    return store.put(solvers.solve(bound(planned.spec, store), progress=stages.step), check=checked)


def bound(spec: Spec, store: Store) -> Spec:
    """Return the spec with the numbers of its user-supplied matrices: its own, else those in the store."""
    keep_matrices(spec, store)
    return store.matrices.bind(spec)


def keep_matrices(spec: Spec, store: Store) -> None:
    """Store the numbers that a spec brings with it, so that its canonical form is enough for whoever solves it."""
    for part in spec.user_matrices().values():
        with suppress(InvalidWorkload):  # known by its digest only
            store.put_matrix(part.array)

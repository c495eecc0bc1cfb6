"""The one path from a spec to a certified result."""

from __future__ import annotations

import platform
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace

import numpy as np

import factorize
from factorize.errors import extras_named
from factorize.factors.factorization import Factorization
from factorize.factors.solution import Draft, Progress, ProgressCallback
from factorize.numbers.blas_threads import MAX_SIDE_WHOLE, one_blas_thread
from factorize.numbers.processor_time import WATCHERS
from factorize.solvers.evidence_search import begin, with_evidence
from factorize.solvers.evidence_search import work as evidence_work
from factorize.solvers.problem import Estimate, Problem, Reporter, refuse_beyond_memory, with_work
from factorize.solvers.register import Entry, choose, entry_for
from factorize.solvers.single.few_states import has_structure
from factorize.spec import Spec, SpecSource


def estimate(spec: SpecSource, *, evidence: bool = True, way_out: bool = True) -> Estimate:
    """Return what solving a spec will cost; no array is made.

    Args:
        spec: what is asked for.
        evidence: see `solve`.
        way_out: see `choose`.

    Raises:
        InvalidSpec: see `choose`.
        UnsupportedProblem: see `choose`.
        TooLarge: more than this machine's memory, or above the limit of dense arrays; the message holds the estimate.
    """
    return _admit(choose(spec, way_out=way_out), evidence)[1]


@extras_named("a solve")
def solve(
    spec: SpecSource,
    *,
    progress: ProgressCallback | None = None,
    matrices: Mapping[str, np.ndarray] | None = None,
    evidence: bool = True,
) -> Factorization:
    """Solve a spec and certify the result.

    Args:
        spec: what is asked for.
        progress: called between steps; what it raises (`Cancelled`, say) ends the solve.
        matrices: numbers of user-supplied matrices by sha256, for specs that name them so.
        evidence: whether a claim that brings no evidence for a lower bound over all matrices gets some; without, the
            certificate has no such bound.

    Returns:
        The certified factorization; its certificate says whether the tolerance was met.

    Raises:
        InvalidSpec: see `choose`.
        UnsupportedProblem: see `choose`.
        TooLarge: see `estimate`.
        InvalidWorkload: a matrix is known by its digest only, or its numbers have another digest.
        SolveFailed: the solver found no answer that can be certified.
        CertificateError: the recomputed numbers contradict the solver's claim.
        MissingExtra: without the extra `[solve]`, or `[conic]` for the mechanisms that need it.
    """
    relay = _Relay(progress)
    with relay.compilations():
        draft = _search(choose(spec).bind(matrices or {}), relay, evidence)
        relay.enter("certify")
        return Factorization.from_solution(draft.spec, draft.solution, solver=draft.solver)


def search(spec: SpecSource, *, progress: ProgressCallback | None = None) -> Draft:
    """Solve a spec, and certify nothing; see `solve`, which has the same errors.

    Args:
        spec: what is asked for; a user's matrix bound to its numbers.
        progress: see `solve`.
    """
    relay = _Relay(progress)
    with relay.compilations():
        return _search(choose(spec), relay, evidence=True)


def _search(spec: Spec, relay: _Relay, evidence: bool) -> Draft:
    entry, needed = _admit(spec, evidence)
    began = time.monotonic()
    relay.estimate = needed.seconds
    problem = Problem(spec)
    with one_blas_thread(_side_of_products(spec), largest=MAX_SIDE_WHOLE), np.errstate(all="ignore"):
        with nullcontext() if entry.dual or not evidence else begin(spec) as searched:
            solution = entry.solve(problem, relay)
            if evidence and not (problem.evaluates_itself and solution.dual):
                solution = with_evidence(problem, solution, Reporter(relay, "bound"), searched)
    return Draft(spec, solution, _provenance(spec, time.monotonic() - began))


def _side_of_products(spec: Spec) -> int:
    """Return n where a search decomposes whole matrices; every other one multiplies small blocks, and has 0."""
    single = spec.participation.single and not spec.workload.endless
    return spec.workload.n if single and not has_structure(spec.optimize_for or spec.workload, spec) else 0


class _Relay:
    """Passes steps on with the seconds of the whole solve, and those that the estimate leaves of it."""

    estimate = 0.0

    def __init__(self, callback: ProgressCallback | None) -> None:
        self._callback = callback or (lambda _progress: None)
        self._began = time.monotonic()
        self._last = Progress(0, None, None, 0.0)

    def __call__(self, step: Progress) -> None:
        passed = time.monotonic() - self._began
        left = self.estimate - passed
        self._last = replace(step, seconds=passed, seconds_left=left if left > 0 else None)
        self._callback(self._last)

    def enter(self, phase: str) -> None:
        """Say that another phase begins, with what is known so far."""
        self(replace(self._last, phase=phase))

    @contextmanager
    def compilations(self) -> Iterator[None]:
        """Say that a kernel is compiled, where the block calls one in this thread that numba's cache has not."""
        before, WATCHERS.calls = WATCHERS.calls, (*WATCHERS.calls, self._compiles)
        try:
            yield
        finally:
            WATCHERS.calls = before

    def _compiles(self) -> None:
        passed = time.monotonic() - self._began
        self._callback(replace(self._last, phase="compile", seconds=passed, seconds_left=None))


def _admit(spec: Spec, evidence: bool) -> tuple[Entry, Estimate]:
    entry = entry_for(spec)
    needed = entry.estimate(spec)
    if evidence and not (entry.dual and spec.optimize_for is None):
        needed = with_work(needed, evidence_work(spec))
    steps = "'unbounded'" if spec.workload.endless else spec.workload.n
    refuse_beyond_memory(needed, f"{spec.mechanism.kind} with n={steps}")
    return entry, needed


def _provenance(spec: Spec, seconds: float) -> dict[str, object]:
    return {
        "mechanism": spec.mechanism.kind,
        "version": factorize.__version__,
        "seconds": seconds,
        "environment": {
            "python": platform.python_version(),
            "numpy": np.__version__,
            "machine": platform.machine(),
            "system": platform.system(),
        },
    }

"""Dual evidence for strategies that come without any, so that a closed form can state its gap to the lower bound."""

import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import replace

import numpy as np

from factorize.checker.arithmetic.near import NotEnclosed
from factorize.checker.bounds.determinants import MAX_N_OF_STATES
from factorize.checker.bounds.evidence import LowerBound
from factorize.checker.utility import lower_bound
from factorize.errors import Cancelled, SolveFailed
from factorize.factors.factorization import Factorization, structured
from factorize.factors.solution import Progress, Solution
from factorize.factors.strategy_file import Given
from factorize.solvers.epochs import decompositions, recursions
from factorize.solvers.methods.compiled import CORES
from factorize.solvers.min_sep import dual_evidence
from factorize.solvers.problem import Problem, Reporter, StepReport
from factorize.solvers.single import max_error
from factorize.solvers.single.dense import maximise as ascent_of
from factorize.solvers.single.dense import restore_weights, scaled
from factorize.solvers.single.few_states import MIN_N, dual_weights, has_structure, structure_of
from factorize.solvers.single.newton import maximise
from factorize.spec import Spec
from factorize.structures.layouts import recognised
from factorize.structures.toeplitz import BltMatrix

MAX_N_SINGLE = 1024
MAX_N_STRUCTURED = 2**20
MAX_N_TWO_SIDED = 512
MAX_N_EPOCHS = 512
MAX_RING_WORK = 1 << 22  # the limit of n x epochs^2
_ACCURACY = 1e-7
_MAX_WORK = 1e10  # multiplications for a bound beside a claim, some five seconds; its first steps bring most of it
_MIN_THREAD_WORK = 3e7  # multiplications from which a second thread pays, some two milliseconds
_LOOK_SECONDS = 0.1  # the wait for the evidence looks so often whether to go on


Found = dict[str, np.ndarray]


EvidenceSearch = Callable[[Reporter], Found]
"""Returns the evidence that is searched meanwhile, or searches it."""


@contextmanager
def begin(spec: Spec) -> Iterator[EvidenceSearch]:
    """Search evidence on a second core within the block, where that takes long, since it does not ask for a claim.

    Gives what returns the evidence: what was searched meanwhile, else it is searched then. Leaving the block without
    having asked ends the search.

    Args:
        spec: see `evidence`.
    """
    if CORES < 2 or not spec.participation.free or work(spec) < _MIN_THREAD_WORK:
        yield lambda report: evidence(spec, report)
        return
    left = threading.Event()

    def alive(_progress: Progress) -> None:
        if left.is_set():
            raise Cancelled("nobody asks for the evidence any more")

    def search_to_end(report: Reporter) -> Found:
        while wait([search], timeout=_LOOK_SECONDS).not_done:
            report(0, None)
        return search.result()

    with ThreadPoolExecutor(1, "evidence") as pool:
        search = pool.submit(evidence, spec, Reporter(alive, "bound"))
        try:
            yield search_to_end
        finally:
            left.set()


def with_evidence(
    problem: Problem, solution: Solution, report: Reporter, searched: EvidenceSearch | None = None
) -> Solution:
    """Return a claim with evidence for a bound over all matrices, unless that is too dear.

    The solver's own is kept where there is no other.

    Args:
        problem: what was solved.
        solution: the claim.
        report: told nothing of this side calculation, but asked after each step whether to go on.
        searched: returns the evidence; see `begin`.
    """
    dual = evidence(problem.spec, report) if searched is None else searched(report)
    return replace(solution, dual=dual) if dual else solution


def bound_with_dual(spec: Spec, report: Reporter) -> tuple[LowerBound | None, dict[str, np.ndarray]]:
    """Return the bound over all matrices that the evidence proves, if any, and the evidence, empty where there is none.

    Args:
        spec: canonical; its mechanism does not matter.
        report: see `with_evidence`.
    """
    dual = evidence(spec, report)
    try:
        bound = lower_bound(spec.document(), dual, spec.user_arrays()) if dual else None
    except NotEnclosed:
        return None, dual
    return (bound if bound is not None and bound.objective > 0 else None), dual


class Recognised(UserWarning):
    """A strategy was stored in a structure whose entries differ from the given ones in their last digits."""


def certify_own(strategy: Given, spec: Spec, *, as_given: bool = False) -> Factorization:
    """Return the certified factorization of a user's own C, with a lower bound where one is known or cheap.

    A C of few bands is kept as them, and one whose column is a BLT's as that BLT, with a warning: its noise then needs
    two vectors, say, and not every row.

    Args:
        strategy: C, shape (n, n), or in a structure (`factorize.factors.strategy_file`).
        spec: canonical, users' matrices bound; its mechanism says nothing here.
        as_given: keep a Toeplitz C as its column, digit by digit, where the question is about exactly that matrix.

    Raises:
        InvalidStrategy: no strategy matrix, or not of the spec's n.
        CertificateError: it does not serve the workload.
    """
    own = structured(strategy, spec.workload.n)
    found = own if as_given and own.time_invariant else recognised(own)
    if isinstance(found, BltMatrix) and found is not own:
        off = np.abs(found.dense()[:, 0] / own.dense()[:, 0] - 1).max()
        warnings.warn(
            f"C is stored and certified as a BLT of {len(found.theta)} buffers; its entries differ from the given "
            f"ones by at most {off:.1e}, each relative to its own size",
            Recognised,
            stacklevel=3,
        )
    evidence_found = bound_with_dual(spec, Reporter(lambda _step: None))[1]
    kept = strategy if found is own and isinstance(strategy, np.ndarray) else found
    return Factorization.from_strategy(spec, kept, evidence_found)


def work(spec: Spec) -> float:
    """Return the multiplications that the evidence takes, about."""
    if spec.workload.endless:
        return 0.0
    own, n = Problem(spec.model_copy(update={"optimize_for": None})), float(spec.workload.n)
    side, participation = max(own.n, own.workload.m), spec.participation
    if not spec.objective.quadratic:
        if not participation.single or max_error.is_structured(own.workload):
            return 3e5 * n
        return 3000.0 * n**3 if side <= MAX_N_TWO_SIDED else 0.0
    if participation.free:
        return dual_evidence.work(spec)
    if participation.periodic:
        epochs = participation.spread(own.n).most
        by_rings = own.n * epochs**2 <= MAX_RING_WORK and _rings(own, epochs)
        if by_rings or side > MAX_N_EPOCHS:
            return 3000.0 * n * epochs**2 * by_rings
        return _ring_work(own, epochs) if recursions.own(own.spec) else 400.0 * n**3
    if _is_bounded(own) and has_structure(own.workload, own.spec):
        return 12_000.0 * n
    if _is_bounded(own) and recursions.own(own.spec):
        return _ring_work(own, 1)
    return 100.0 * n**3 if side <= MAX_N_SINGLE else 0.0


def _ring_work(own: Problem, epochs: int) -> float:
    several_states = own.workload.outline().first_order() is None
    return (6e6 + 1.7e5 * epochs**2) * own.n if several_states else 3000.0 * own.n * epochs**2


@np.errstate(all="ignore")
def evidence(spec: Spec, report: Reporter) -> dict[str, np.ndarray]:
    """Return dual evidence for the workload that the spec evaluates on, or nothing where that is too dear.

    Numbers that leave the range of doubles on the way end or lower a bound, and warn of nothing.

    Args:
        spec: canonical; its mechanism does not matter.
        report: see `with_evidence`.
    """
    if spec.workload.endless:
        return {}
    own, participation = Problem(spec.model_copy(update={"optimize_for": None})), spec.participation

    def quiet(step: int, _gap: float | None) -> None:
        report(step, None)

    try:
        if not spec.objective.quadratic:
            return _two_sided(own, quiet) if participation.single else {}
        if participation.single:
            return _single(own, quiet)
        if participation.periodic:
            small = max(own.n, own.workload.m) <= MAX_N_EPOCHS
            rings = small or _rings(own, participation.spread(own.n).most)
            dual = _by_rings(own, quiet, settled=small) if rings else {}
            if small and not dual:
                return {"factors": decompositions.dual_factors(own, _ACCURACY, quiet, _MAX_WORK)}
            return dual
        if participation.free:
            return dual_evidence.banded_evidence(spec, report)
    except Cancelled:
        raise
    except SolveFailed:
        return {}
    return {}


def _by_rings(own: Problem, report: StepReport, *, settled: bool = False) -> dict[str, np.ndarray]:
    """Return weights or factors from the recursion folded by epochs, where the workload is one."""
    if not recursions.own(own.spec):
        return {}
    return recursions.dual_evidence(own, _ACCURACY, report, _MAX_WORK, settled=settled)


def _structured(own: Problem, report: StepReport) -> dict[str, np.ndarray]:
    """Return weights from the O(n) solver."""
    structure = structure_of(own.workload, own.spec)
    if structure is None:
        return {}
    try:
        best = maximise(structure, tolerance=_ACCURACY, report=report).best
    except (ValueError, FloatingPointError):  # numbers outside the range that its recurrences are proven for
        return {}
    return {"weights": dual_weights(own.workload, own.spec, best.v)}


def _two_sided(own: Problem, report: StepReport) -> dict[str, np.ndarray]:
    """Return weights of columns and rows for the objective `max`."""
    structured = max_error.is_structured(own.workload)
    if max(own.n, own.workload.m) > (MAX_N_STRUCTURED if structured else MAX_N_TWO_SIDED):
        return {}
    try:
        return max_error.dual_evidence(own.workload, _ACCURACY, report)
    except (ValueError, FloatingPointError, np.linalg.LinAlgError):
        return {}


def _is_bounded(own: Problem) -> bool:
    """Return whether n is one for which weights in O(n) give the certificate a bound: by log-determinants."""
    if not MIN_N <= own.n <= MAX_N_STRUCTURED:
        return False
    return own.n <= MAX_N_OF_STATES or own.workload.outline().first_order() is not None


def _single(own: Problem, report: StepReport) -> dict[str, np.ndarray]:
    dual = (_structured(own, report) or _by_rings(own, report)) if _is_bounded(own) else {}
    if dual or max(own.n, own.workload.m) > MAX_N_SINGLE:
        return dual
    ascent = ascent_of(scaled(own.target[:, own.kept]), _ACCURACY, report)
    return {"weights": restore_weights(ascent.best.v, own.kept)}


def _rings(own: Problem, epochs: int) -> bool:
    """Return whether the dual of fixed epochs and its bound need no n x n array and a few seconds at most."""
    inverse = own.workload.bidiagonal_inverse()
    weighted = None if inverse is None else own.objective.weighted_inverse(inverse)
    if weighted is None or not recursions.own(own.spec):
        return False
    uniform = bool((weighted.q[1:] == weighted.p[1:]).all())  # a schedule, which the certificate's bound is made for
    return uniform and own.n * epochs**2 <= MAX_RING_WORK

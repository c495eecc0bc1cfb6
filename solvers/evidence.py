"""Dual evidence for strategies that come without any, so that a closed form can state its gap to the lower bound."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import numpy as np

from factorize.certificate.lower_bounds.bounds import LowerBound, lower_bound
from factorize.certificate.lower_bounds.separated_bounds import separated_lower_bound
from factorize.errors import Cancelled, SolveFailed
from factorize.solvers.problem import Problem, Reporter, StepReport
from factorize.spec import Spec

LARGEST_SINGLE = 1024
LARGEST_STRUCTURED = 2**20
LARGEST_TWO_SIDED = 512
LARGEST_EPOCHS = 512
LARGEST_RING = 1 << 22  # n x epochs^2
_ACCURACY = 1e-7


_left_out: ContextVar[bool] = ContextVar("evidence is left out", default=False)


@contextmanager
def without_evidence() -> Iterator[None]:
    """Within this block closed forms bring no evidence: the bound that it proves is found once beside them."""
    token = _left_out.set(True)
    try:
        yield
    finally:
        _left_out.reset(token)


def evidence(spec: Spec, report: Reporter) -> dict[str, np.ndarray]:
    """Return dual evidence for the workload that the spec evaluates on, or nothing where that is too dear.

    Args:
        spec: canonical spec.
        report: told nothing of this side calculation, but asked after each step whether to go on.
    """
    return {} if _left_out.get() else _found(spec, report)


def bound_with_dual(spec: Spec, report: Reporter) -> tuple[LowerBound | None, dict[str, np.ndarray]]:
    """Return the bound over all matrices that the evidence proves, if any, and the evidence, empty where there is none.

    Args:
        spec: canonical; its mechanism does not matter.
        report: see `evidence`.
    """
    dual = _found(spec, report)
    bound = lower_bound(spec, dual) or separated_lower_bound(spec, dual)
    return (bound if bound is not None and bound.objective > 0 else None), dual


def work(spec: Spec) -> float:
    """Return the multiplications that the evidence takes, about."""
    own, n = Problem(spec.model_copy(update={"optimize_for": None})), float(spec.workload.n)
    side, participation = max(own.n, own.workload.m), spec.participation
    if not spec.objective.quadratic:
        from factorize.solvers.single.max_error import is_structured

        if not participation.single or is_structured(own.workload):
            return 3e5 * n
        return 3000.0 * n**3 if side <= LARGEST_TWO_SIDED else 0.0
    if participation.free:
        from factorize.solvers.banded.separated_evidence import work as separated

        return separated(spec)
    if participation.periodic:
        epochs = participation.spread(own.n).most
        by_rings = own.n * epochs**2 <= LARGEST_RING and _rings(own, epochs)
        return 3000.0 * n * epochs**2 if by_rings else 3000.0 * n**3 if side <= LARGEST_EPOCHS else 0.0
    from factorize.solvers.single.structured import SMALLEST, structure_of

    structured = SMALLEST <= own.n <= LARGEST_STRUCTURED and structure_of(own.workload, own.spec) is not None
    return 12_000.0 * n if structured else 800.0 * n**3 if side <= LARGEST_SINGLE else 0.0


def _found(spec: Spec, report: Reporter) -> dict[str, np.ndarray]:
    own, participation = Problem(spec.model_copy(update={"optimize_for": None})), spec.participation

    def quiet(step: int, _gap: float | None) -> None:
        report(step, None)

    try:
        if not spec.objective.quadratic:
            return _two_sided(own, quiet) if participation.single else {}
        if participation.single:
            return _single(own, quiet)
        if participation.periodic and _rings(own, participation.spread(own.n).most):
            from factorize.solvers.epochs.epochs_optimum import dual_factors as ring_factors

            return {"factors": ring_factors(own, _ACCURACY, quiet)}
        if participation.periodic and max(own.n, own.workload.m) <= LARGEST_EPOCHS:
            from factorize.solvers.epochs.decompositions import dual_factors

            return _by_filters(own, quiet) or {"factors": dual_factors(own, _ACCURACY, quiet)}
        if participation.free:
            from factorize.solvers.banded.separated_evidence import banded_evidence

            return banded_evidence(spec, report)
    except Cancelled:
        raise
    except SolveFailed:
        return {}
    return {}


def _by_filters(own: Problem, report: StepReport) -> dict[str, np.ndarray]:
    """Weights or factors from the filters over epochs, where the workload is a recursion."""
    from factorize.solvers.epochs import recursions as recursion_optimum

    refused = recursion_optimum.supports(own.spec) is not None
    return {} if refused else recursion_optimum.dual_evidence(own, _ACCURACY, report)


def _structured(own: Problem, report: StepReport) -> dict[str, np.ndarray]:
    """Weights from the O(n) solver, at any n."""
    from factorize.solvers.single.newton import maximise
    from factorize.solvers.single.structured import dual_weights, structure_of

    structure = structure_of(own.workload, own.spec)
    if structure is None:
        return {}
    try:
        optimum = maximise(structure, tolerance=_ACCURACY, callback=report)
    except (ValueError, FloatingPointError):  # numbers outside the range that its recurrences are proven for
        return {}
    return {"weights": dual_weights(own.workload, own.spec, optimum.v)}


def _two_sided(own: Problem, report: StepReport) -> dict[str, np.ndarray]:
    """Weights of columns and rows for the objective `max`."""
    from factorize.solvers.single.max_error import dual_evidence, is_structured

    if max(own.n, own.workload.m) > (LARGEST_STRUCTURED if is_structured(own.workload) else LARGEST_TWO_SIDED):
        return {}
    try:
        return dual_evidence(own.workload, _ACCURACY, report)
    except (ValueError, FloatingPointError, np.linalg.LinAlgError):
        return {}


def _single(own: Problem, report: StepReport) -> dict[str, np.ndarray]:
    from factorize.solvers.single.ascent import maximise, scaled
    from factorize.solvers.single.dense import restore_weights
    from factorize.solvers.single.structured import SMALLEST

    found = (_structured(own, report) or _by_filters(own, report)) if SMALLEST <= own.n <= LARGEST_STRUCTURED else {}
    if found or max(own.n, own.workload.m) > LARGEST_SINGLE:
        return found
    ascent = maximise(scaled(own.target[:, own.kept]), _ACCURACY, report)
    return {"weights": restore_weights(ascent.best.v, own.kept)}


def _rings(own: Problem, epochs: int) -> bool:
    """Whether the dual of fixed epochs and its bound need no n x n array and a few seconds at most."""
    from factorize.solvers.epochs import epochs_optimum as epoch_optimum

    inverse = own.workload.bidiagonal_inverse()
    weighted = None if inverse is None else own.objective.weighted_inverse(inverse)
    if weighted is None or epoch_optimum.supports(own.spec) is not None:
        return False
    uniform = bool((weighted.q[1:] == weighted.p[1:]).all())  # a schedule, which the certificate's bound is made for
    return uniform and own.n * epochs**2 <= LARGEST_RING

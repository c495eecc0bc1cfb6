"""The certificate: the statement of a result about itself; losses and bounds are those that the checker proves."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from factorize.checker.arithmetic.machine import require_mode
from factorize.checker.arithmetic.near import NotEnclosed
from factorize.checker.bounds.evidence import MAX_N_IN_BAND, LowerBound
from factorize.checker.losses.variances import MAX_WIDTH, width_of_losses
from factorize.checker.strategy import Strategy
from factorize.errors import CertificateError, TooLarge
from factorize.factors.sensitivity import Sensitivity, sensitivity_of
from factorize.factors.solution import Outcome
from factorize.format.claims import BOUNDS
from factorize.format.manifest import Manifest
from factorize.numbers.blas_threads import one_blas_thread
from factorize.spec import Spec
from factorize.structures.base import MAX_DENSE, Matrix
from factorize.structures.endless import AnyStrategy, EndlessMatrix
from factorize.workloads.base import Workload
from factorize.workloads.prefix import Prefix

if TYPE_CHECKING:
    from factorize.checker.losses.variances import Ends
    from factorize.checker.utility import Utility

RESIDUAL_LIMIT = 2.0**-40
"""The largest entry of B C - A, relative to the largest column sum of |A|, with which a result is certified."""
_RESIDUAL_ENTRIES = 1 << 22
"""The most entries of the rows whose residuals are computed together."""
_ENDLESS_STEPS = 4096
"""The number of first steps of a strategy without end whose residual is computed."""


@dataclass(frozen=True)
class Loss:
    """Losses of the factorization at its stated sensitivity s; e_i are the squared row norms of B.

    They are for noise whose standard deviation is s. The noise of a calibration has the error `Calibration.rmse`, which
    is rmse times sigma_of_sums / s, and not rmse times sigma_of_sums.

    Attributes:
        total_squared: s^2 sum_i e_i (a variance).
        mean_squared: the same divided by the number of outputs.
        rmse: the square root of mean_squared.
        max_error: s max_i sqrt(e_i) (a standard deviation).
        last_iterate: s sqrt(e_last).
        objective: the number that the spec minimises (a variance; see factorize/spec/objective.py).

    For a workload without end, losses that grow with the steps are infinite, and null in documents.
    """

    total_squared: float
    mean_squared: float
    rmse: float
    max_error: float
    last_iterate: float
    objective: float


@dataclass(frozen=True)
class Certificate:
    """The recomputed numbers, and for each number whether it is exact or a bound.

    Attributes:
        sensitivity: the sensitivity with kind, rule and participation.
        loss: the losses at that sensitivity.
        lower_bound: the lower bound over all matrices for that participation and objective; None where none is known.
        class_lower_bound: the same within the mechanism's class, where one is known.
        relative_gap: objective / lower_bound - 1, or None.
        residual: largest entry of |B C - A| in the first and last rows, and those of powers of two between.
        converged: whether the tolerance of the spec was met.
        warnings: sentences for the user.
    """

    sensitivity: Sensitivity
    loss: Loss
    lower_bound: LowerBound | None
    class_lower_bound: LowerBound | None
    relative_gap: float | None
    residual: float
    converged: bool
    warnings: tuple[str, ...]

    def document(self) -> dict[str, Any]:
        """Return the contract's JSON form."""
        return {
            **vars(self),
            "sensitivity": self.sensitivity.document(),
            "loss": {name: float(value) if math.isfinite(value) else None for name, value in vars(self.loss).items()},
            "lower_bound": self.lower_bound and self.lower_bound._asdict(),
            "class_lower_bound": self.class_lower_bound and self.class_lower_bound._asdict(),
            "residual": {"max_abs": self.residual},
            "warnings": list(self.warnings),
        }

    @classmethod
    def of(cls, manifest: Manifest) -> Certificate:
        """Return the certificate that a manifest states.

        Raises:
            CorruptObject: it states no sensitivity.
        """
        document = manifest.certificate
        parts = {
            "sensitivity": Sensitivity.of(manifest),
            "loss": Loss(**{name: math.inf if value is None else value for name, value in document["loss"].items()}),
            **{name: document[name] and LowerBound(**document[name]) for name in BOUNDS},
            "residual": document["residual"]["max_abs"],
            "warnings": tuple(document["warnings"]),
        }
        return cls(**document | parts)


def utility_of(spec: Spec, strategy: Matrix, dual: Mapping[str, np.ndarray]) -> Utility:
    """Return the proofs of how well C serves A; each proof is made once, when it is first needed."""
    from factorize.checker.utility import Utility

    parts = {name: getattr(spec, name).document() for name in ("workload", "participation", "objective", "mechanism")}
    return Utility(parts, Strategy(strategy.structure, strategy.tensors(), strategy.n), dual, spec.user_arrays())


def certify(
    spec: Spec,
    strategy: AnyStrategy,
    dual: Mapping[str, np.ndarray],
    *,
    outcome: Outcome,
    utility: Utility | None = None,
) -> Certificate:
    """State the proved numbers of a strategy matrix: sensitivity, losses and lower bounds.

    Args:
        spec: canonical spec with a named mechanism.
        strategy: C, of side n.
        dual: evidence for the lower bound (checker/bounds/evidence.py), possibly empty.
        outcome: the solver's outcome; it decides `converged` only where no gap is judged.
        utility: the result of `utility_of`, for a caller who needs its proofs again.

    Raises:
        CertificateError: shapes do not fit, the residual is too large, losses are not enclosed or beyond doubles, or
            this thread flushes subnormal numbers to zero.
        TooLarge: no proof reaches the losses at this size.
    """
    require_mode()
    if spec.workload.endless != (strategy.side is None):
        raise CertificateError(
            "one of strategy and workload has a last step, and the other has none; give both the same n"
        )
    if isinstance(strategy, EndlessMatrix):
        return _certify_endless(spec, strategy, outcome)
    if strategy.n != spec.workload.n:
        raise CertificateError(
            f"the strategy has {strategy.n} steps, but the workload has n={spec.workload.n}; give both the same n"
        )
    with one_blas_thread(strategy.n):
        utility = utility or utility_of(spec, strategy, dual)
        sensitivity, residual = sensitivity_of(strategy, spec.participation), _residual(spec.workload, strategy)
        ends = _ends(utility, strategy.n)
        bound = _bound(lambda: utility.lower_bound) if dual else None
        class_bound = _bound(lambda: utility.class_bound) if spec.optimize_for is None else None
    loss = _losses(sensitivity.value, ends, spec.workload.m)
    gap, class_gap = (each and loss.objective / each.objective - 1 for each in (bound, class_bound))
    judged = gap if class_gap is None else class_gap
    converged, width = _converged(spec, gap, class_gap, outcome), width_of_losses(ends)
    wide = (f"the losses are enclosed to relative {width:.2g} only, the middle is stated",) if width > MAX_WIDTH else ()
    return Certificate(
        sensitivity=sensitivity,
        loss=loss,
        lower_bound=bound,
        class_lower_bound=class_bound,
        relative_gap=gap,
        residual=residual,
        converged=converged,
        warnings=wide + _warnings(spec, sensitivity, judged, converged, outcome),
    )


def _ends(utility: Utility, n: int) -> Ends:
    try:
        return utility.losses
    except (NotEnclosed, MemoryError) as reason:
        refusal = TooLarge if n > MAX_DENSE else CertificateError
        raise refusal(f"the losses cannot be proved: {reason}; use a smaller n or another mechanism") from None


def _bound(road: Callable[[], LowerBound]) -> LowerBound | None:
    try:
        bound = road()
    except (NotEnclosed, MemoryError):
        return None
    return bound if bound.objective > 0 else None


def _residual(workload: Workload, strategy: Matrix) -> float:
    """Return the residual of some rows, computed as a job would compute them."""
    m = workload.m
    places = sorted({0, m - 1, *(2**k for k in range(m.bit_length()) if 2**k < m)})
    at_once = max(_RESIDUAL_ENTRIES // strategy.n, 1)
    residual = 0.0
    for some in (places[first : first + at_once] for first in range(0, len(places), at_once)):
        rows = workload.picked(some)
        with np.errstate(over="ignore", invalid="ignore"):
            off = np.abs(strategy.left_multiply(strategy.right_solve(rows)) - rows).max()
        residual = float(np.maximum(residual, off))  # Not a number stays one.
    largest = float(np.abs(workload.adjoint(np.ones((m, 1)))).max())
    if not residual <= RESIDUAL_LIMIT * max(largest, 1.0):
        raise CertificateError(
            f"B C differs from A by {residual:.3g}, above {RESIDUAL_LIMIT:.1e} of the workload's largest column sum "
            f"{largest:.3g}; the strategy is too ill-conditioned to be inverted in double precision; use a smaller n "
            "or another mechanism"
        )
    return residual


def _certify_endless(spec: Spec, strategy: EndlessMatrix, outcome: Outcome) -> Certificate:
    """Certify a strategy for prefix sums without end: the sensitivity is a limit, and every loss grows with the steps.

    Row t of B has the entries b_0, ..., b_t with b_s -> 1 / C(1) > 0, so its squared norm grows like t / C(1)^2.
    """
    sensitivity = sensitivity_of(strategy, spec.participation)
    rate = (sensitivity.value * strategy.gain) ** 2
    converged = _converged(spec, None, None, outcome)
    remarks = (
        "the losses are infinite and stated as null: without end the error of a prefix sum grows under every strategy; "
        f"here its variance grows by {rate:.6g} a step in the limit",
        "no lower bound: without end there is no loss to bound",
        f"the residual is that of the first {_ENDLESS_STEPS} steps",
    )
    return Certificate(
        sensitivity=sensitivity,
        loss=Loss(*[math.inf] * 6),
        lower_bound=None,
        class_lower_bound=None,
        relative_gap=None,
        residual=_residual(Prefix(kind="prefix", n=_ENDLESS_STEPS), strategy.until(_ENDLESS_STEPS)),
        converged=converged,
        warnings=_warnings(spec, sensitivity, None, converged, outcome) + remarks,
    )


def _losses(sensitivity: float, ends: Ends, outputs: int) -> Loss:
    """Return the midpoints of the proved intervals."""
    variance = sensitivity**2
    total, largest, last, objective = (variance * (0.5 * low + 0.5 * high) for low, high in ends)
    loss = Loss(
        total_squared=total,
        mean_squared=total / outputs,
        rmse=math.sqrt(total / outputs),
        max_error=math.sqrt(largest),
        last_iterate=math.sqrt(last),
        objective=objective,
    )
    worst = next((name for name, value in vars(loss).items() if not 0 <= value < math.inf), None)
    if worst is not None:
        raise CertificateError(
            f"{worst}={getattr(loss, worst)} is not finite and >= 0, so the losses of this strategy exceed the "
            "largest double, 1.8e308; scale the workload's numbers (learning rates, weights, entries) towards 1"
        )
    return loss


def _converged(spec: Spec, gap: float | None, class_gap: float | None, outcome: Outcome) -> bool:
    if spec.mechanism.bounded_in_class and spec.optimize_for is None and spec.workload.n <= MAX_N_IN_BAND:
        return class_gap is not None and class_gap <= spec.tolerance
    if spec.mechanism.unrestricted and spec.optimize_for is None:
        return gap is not None and gap <= spec.tolerance
    return outcome in (Outcome.CONVERGED, Outcome.CLOSED_FORM, Outcome.LOCAL_OPTIMUM)


def _warnings(
    spec: Spec, sensitivity: Sensitivity, gap: float | None, converged: bool, outcome: Outcome
) -> tuple[str, ...]:
    warnings = []
    if not sensitivity.exact:
        warnings.append(f"the sensitivity is an upper bound ({sensitivity.rule}): safe noise, maybe more than needed")
    if not converged:
        reached = "no gap is known" if gap is None else f"the gap reached is {gap:.3g}"
        warnings.append(f"tolerance {spec.tolerance:g} was not met: {reached}; {outcome.value}")
    remark = None if spec.workload.endless else spec.objective.remark(spec.workload.m)
    if remark is not None:
        warnings.append(remark)
    return tuple(warnings)

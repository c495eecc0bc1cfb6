"""The certificate: every number of a result, recomputed from the matrices by code that no solver uses."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from factorize.certificate.decoder import RESIDUAL_LIMIT, Decoded, decode
from factorize.certificate.lower_bounds.bounds import LowerBound, lower_bound
from factorize.certificate.lower_bounds.class_bounds import class_lower_bound
from factorize.certificate.lower_bounds.separated_bounds import separated_lower_bound
from factorize.certificate.sensitivity import Sensitivity, sensitivity_of
from factorize.errors import CertificateError, extras_named
from factorize.exact.arithmetic.machine import require_mode
from factorize.mechanisms import Banded
from factorize.numbers.blas_threads import LARGEST
from factorize.solution import Outcome
from factorize.spec import Spec
from factorize.structures.endless import AnyStrategy, EndlessMatrix

_ENDLESS_CHECK = 4096  # steps of a strategy without end
_BOUND_BESIDE = 128  # steps from which a lower bound pays for a thread


@dataclass(frozen=True)
class Loss:
    """Losses of the factorization at its stated sensitivity s; e_i are the squared row norms of B.

    Attributes:
        total_squared: s^2 sum_i e_i (a variance).
        mean_squared: the same divided by the number of outputs.
        rmse: its root.
        max_error: s max_i sqrt(e_i) (a standard deviation).
        last_iterate: s sqrt(e_last).
        objective: what the spec minimises (a variance; see factorize/objective.py).

    Without end, those that grow with the steps are infinite, and null in documents.
    """

    total_squared: float
    mean_squared: float
    rmse: float
    max_error: float
    last_iterate: float
    objective: float


@dataclass(frozen=True)
class Certificate:
    """What was recomputed, and for each number what it is.

    Attributes:
        sensitivity: with kind, rule and participation.
        loss: at that sensitivity.
        lower_bound: over all matrices for that participation and objective; None where none is known.
        class_lower_bound: the same within the mechanism's class, where one is known.
        relative_gap: objective / lower_bound - 1, or None.
        residual: largest entry of |B C - A|.
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
            "sensitivity": self.sensitivity.document(),
            "loss": {name: float(value) if math.isfinite(value) else None for name, value in vars(self.loss).items()},
            "lower_bound": self.lower_bound and self.lower_bound.document(),
            "class_lower_bound": self.class_lower_bound and self.class_lower_bound.document(),
            "relative_gap": self.relative_gap,
            "residual": {"max_abs": self.residual},
            "converged": self.converged,
            "warnings": list(self.warnings),
        }

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Certificate:
        """Read the JSON form back.

        Raises:
            KeyError, TypeError, ValueError: the document is not one of a certificate.
        """
        stated = document["sensitivity"]
        value = float.fromhex(stated["hex"])
        return cls(
            sensitivity=Sensitivity(value, stated["kind"], stated["rule"], stated["participation"]),
            loss=Loss(**{name: math.inf if value is None else value for name, value in document["loss"].items()}),
            lower_bound=_bound_from(document["lower_bound"]),
            class_lower_bound=_bound_from(document["class_lower_bound"]),
            relative_gap=document["relative_gap"],
            residual=document["residual"]["max_abs"],
            converged=document["converged"],
            warnings=tuple(document["warnings"]),
        )


def _bound_from(document: Mapping[str, Any] | None) -> LowerBound | None:
    return None if document is None else LowerBound(document["objective"], document["rule"])


@extras_named("a certificate")
def certify(spec: Spec, strategy: AnyStrategy, dual: Mapping[str, np.ndarray], *, outcome: Outcome) -> Certificate:
    """Recompute sensitivity, residual, losses and lower bound of a strategy matrix.

    Args:
        spec: canonical spec with a named mechanism.
        strategy: C, of side n.
        dual: evidence for the lower bound (lower_bounds/bounds.py), possibly empty.
        outcome: how the solver says it stopped; decides `converged` only where no gap is judged.

    Raises:
        CertificateError: shapes do not fit, the residual is too large, a number is not finite and positive, or this
            thread flushes subnormal numbers to zero.
        TooLarge: the losses would need an n x n array above the limit.
        MissingExtra: without the extra `[solve]`.
    """
    require_mode()
    if spec.workload.endless != (strategy.side is None):
        raise CertificateError("a workload without end has a strategy without end, and no other workload has one")
    if isinstance(strategy, EndlessMatrix):
        return _certify_endless(spec, strategy, outcome)
    if strategy.n != spec.workload.n:
        raise CertificateError(f"the strategy has side {strategy.n} and the workload n={spec.workload.n}")
    with ThreadPoolExecutor(1, "bound") as beside:
        # Singular values take one core, and as long as all the rest where columns are apart from each other; traces
        # leave a core idle in part. Above the limit the rest has both cores, and memory for large products.
        many = spec.participation.free and "factors" in dual
        together = bool(dual) and _BOUND_BESIDE <= strategy.n <= (math.inf if many else LARGEST)
        bounding = _begun.pop(spec, dual) or (beside.submit(_lower_bound, spec, dual) if together else None)
        sensitivity = sensitivity_of(strategy, spec.participation)
        decoder = decode(spec, strategy)
        loss = _losses(sensitivity.value, decoder)
        class_bound = class_lower_bound(spec, strategy, decoder.objective)
        bound = _lower_bound(spec, dual) if bounding is None else bounding.result()
    gap = None if bound is None or bound.objective <= 0 else loss.objective / bound.objective - 1
    class_gap = None if class_bound is None else loss.objective / class_bound.objective - 1
    judged = gap if class_gap is None else class_gap
    converged = _converged(spec, gap, class_gap, outcome)
    return Certificate(
        sensitivity=sensitivity,
        loss=loss,
        lower_bound=None if gap is None else bound,
        class_lower_bound=class_bound,
        relative_gap=gap,
        residual=decoder.residual,
        converged=converged,
        warnings=_warnings(spec, sensitivity, judged, converged, outcome) + decoder.remarks,
    )


class _Begun:
    """The lower bound of the newest evidence that a solver has told ahead; safe for threads."""

    def __init__(self) -> None:
        self._kept: tuple[Spec, list[np.ndarray], Future[LowerBound | None]] | None = None

    def start(self, spec: Spec, dual: Mapping[str, np.ndarray]) -> None:
        found: Future[LowerBound | None] = Future()
        self._kept = spec, list(dual.values()), found
        threading.Thread(target=self._fill, args=(found, spec, dict(dual)), name="bound").start()

    @staticmethod
    def _fill(found: Future[LowerBound | None], spec: Spec, dual: Mapping[str, np.ndarray]) -> None:
        try:
            found.set_result(_lower_bound(spec, dual))
        except BaseException as error:  # the certificate raises it
            found.set_exception(error)

    def pop(self, spec: Spec, dual: Mapping[str, np.ndarray]) -> Future[LowerBound | None] | None:
        """Return the bound of just these objects, once; None of any other."""
        kept, self._kept = self._kept, None
        if kept is None or kept[0] is not spec or [id(a) for a in kept[1]] != [id(a) for a in dual.values()]:
            return None
        return kept[2]


_begun = _Begun()


def begin_bound(spec: Spec, dual: Mapping[str, np.ndarray]) -> None:
    """Start on the lower bound beside what is left of a solve; the certificate of these very objects takes it.

    Args:
        spec: see `certify`.
        dual: evidence, which nothing changes any more; the arrays of the solution have to be the same objects.
    """
    for array in dual.values():
        array.setflags(write=False)
    if _BOUND_BESIDE <= spec.workload.n <= LARGEST:
        _begun.start(spec, dual)


def _lower_bound(spec: Spec, dual: Mapping[str, np.ndarray]) -> LowerBound | None:
    return lower_bound(spec, dual) or separated_lower_bound(spec, dual)


def _certify_endless(spec: Spec, strategy: EndlessMatrix, outcome: Outcome) -> Certificate:
    """Of prefix sums: the sensitivity is a limit, and every loss grows with the steps, whatever the strategy is.

    Row t of B has the entries b_0, ..., b_t with b_s -> 1 / C(1) > 0, so its squared norm grows like t / C(1)^2.
    """
    sensitivity = sensitivity_of(strategy, spec.participation)
    rate = (sensitivity.value * strategy.gain) ** 2
    converged = outcome in (Outcome.CONVERGED, Outcome.CLOSED_FORM, Outcome.LOCAL_OPTIMUM)
    remarks = (
        "the losses are infinite and stated as null: without end the error of a prefix sum grows under every strategy; "
        f"here its variance grows by {rate:.6g} a step in the limit",
        "no lower bound: without end there is no loss to bound",
        f"the residual is that of the first {_ENDLESS_CHECK} steps",
    )
    return Certificate(
        sensitivity=sensitivity,
        loss=Loss(*[math.inf] * 6),
        lower_bound=None,
        class_lower_bound=None,
        relative_gap=None,
        residual=_endless_residual(strategy),
        converged=converged,
        warnings=_warnings(spec, sensitivity, None, converged, outcome) + remarks,
    )


def _endless_residual(strategy: EndlessMatrix) -> float:
    ones = np.ones(_ENDLESS_CHECK)
    first = strategy.until(_ENDLESS_CHECK)
    quotient = first.divide(ones)
    product = None if quotient is None else first.times(quotient)
    assert product is not None  # Toeplitz matrices divide and multiply series
    residual = float(np.abs(product - ones).max())
    if not residual <= RESIDUAL_LIMIT * _ENDLESS_CHECK:
        raise CertificateError(f"B C differs from A by {residual:.3g} within the first {_ENDLESS_CHECK} steps")
    return residual


def _losses(sensitivity: float, decoder: Decoded) -> Loss:
    variance = sensitivity**2
    total = variance * float(decoder.errors.sum())
    mean = total / len(decoder.errors)
    loss = Loss(
        total_squared=total,
        mean_squared=mean,
        rmse=math.sqrt(mean),
        max_error=sensitivity * math.sqrt(float(decoder.errors.max())),
        last_iterate=sensitivity * math.sqrt(float(decoder.errors[-1])),
        objective=variance * decoder.objective,
    )
    if not all(math.isfinite(value) and value >= 0 for value in vars(loss).values()):
        worst = next(name for name, value in vars(loss).items() if not (math.isfinite(value) and value >= 0))
        raise CertificateError(
            f"{worst}={getattr(loss, worst)} is not finite and >= 0: the losses of this strategy exceed doubles, "
            "1.8e308; scale the workload's numbers (learning rates, weights, entries) towards 1"
        )
    return loss


def _converged(spec: Spec, gap: float | None, class_gap: float | None, outcome: Outcome) -> bool:
    if isinstance(spec.mechanism, Banded) and spec.optimize_for is None:
        return class_gap is not None and class_gap <= spec.tolerance
    if spec.mechanism.unrestricted and spec.optimize_for is None:
        return gap is not None and gap <= spec.tolerance
    return outcome in (Outcome.CONVERGED, Outcome.CLOSED_FORM, Outcome.LOCAL_OPTIMUM)


def _warnings(
    spec: Spec, sensitivity: Sensitivity, gap: float | None, converged: bool, outcome: Outcome
) -> tuple[str, ...]:
    found = []
    if sensitivity.kind == "upper_bound":
        found.append(f"the sensitivity is an upper bound ({sensitivity.rule}): safe noise, maybe more than needed")
    if not converged:
        reached = "no gap is known" if gap is None else f"the gap reached is {gap:.3g}"
        found.append(f"tolerance {spec.tolerance:g} was not met: {reached}; {outcome.value}")
    remark = None if spec.workload.endless else spec.objective.remark(spec.workload.m)
    if remark is not None:
        found.append(remark)
    return tuple(found)

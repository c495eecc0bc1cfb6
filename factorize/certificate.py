"""The certificate: every number of a result, recomputed from the matrices by code that no solver uses."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from factorize.errors import CertificateError
from factorize.lower_bounds.bounds import LowerBound, lower_bound
from factorize.lower_bounds.class_bounds import class_lower_bound
from factorize.lower_bounds.separated_bounds import separated_lower_bound
from factorize.mechanisms import Banded
from factorize.participation import Sensitivity
from factorize.solution import Outcome
from factorize.spec import Spec
from factorize.structures.endless import EndlessMatrix
from factorize.structures.matrix import MAX_DENSE, Matrix, check_dense
from factorize.structures.scaled_toeplitz import decoder_rows

RESIDUAL_LIMIT = 2.0**-40
_BLOCK_BYTES = 2**26
_BLOCK_ROWS = 256  # few enough that the zeros to the right of a triangle's rows are left out
_ENDLESS_CHECK = 4096  # steps of a strategy without end
_WHOLE_CHECK = 2048  # up to here every row of B counts, whatever the structure of C


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


@dataclass(frozen=True)
class _Decoder:
    """What the certificate needs of B: its squared row norms, the objective at sensitivity 1, and the residual."""

    errors: np.ndarray
    objective: float
    residual: float
    remarks: tuple[str, ...] = ()


def certify(spec: Spec, strategy: Matrix, dual: Mapping[str, np.ndarray], *, outcome: Outcome) -> Certificate:
    """Recompute sensitivity, residual, losses and lower bound of a strategy matrix.

    Args:
        spec: canonical spec with a named mechanism.
        strategy: C, of side n.
        dual: evidence for the lower bound (lower_bounds/bounds.py), possibly empty.
        outcome: how the solver says it stopped; decides `converged` only where no gap is judged.

    Raises:
        CertificateError: shapes do not fit, the residual is too large, or a number is not finite and positive.
        TooLarge: the losses would need an n x n array above the limit.
    """
    if spec.workload.endless or isinstance(strategy, EndlessMatrix):
        return _certify_endless(spec, strategy, outcome)
    if strategy.n != spec.workload.n:
        raise CertificateError(f"the strategy has side {strategy.n} and the workload n={spec.workload.n}")
    sensitivity = spec.participation.sensitivity(strategy)
    decoder = _decode(spec, strategy)
    loss = _losses(sensitivity.value, decoder)
    bound = lower_bound(spec, dual) or separated_lower_bound(spec, dual)
    class_bound = class_lower_bound(spec, strategy, decoder.objective, dual)
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


def _certify_endless(spec: Spec, strategy: Matrix, outcome: Outcome) -> Certificate:
    """Of prefix sums: the sensitivity is a limit, and every loss grows with the steps, whatever the strategy is.

    Row t of B has the entries b_0, ..., b_t with b_s -> 1 / C(1) > 0, so its squared norm grows like t / C(1)^2.
    """
    if not (spec.workload.endless and isinstance(strategy, EndlessMatrix)):
        raise CertificateError("a workload without end has a strategy without end, and no other workload has one")
    sensitivity = spec.participation.sensitivity(strategy)
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


def _decode(spec: Spec, strategy: Matrix) -> _Decoder:
    workload = spec.workload.coefficients
    if workload is not None and spec.objective.kind != "lambda_tau":
        with np.errstate(over="ignore", invalid="ignore"):
            quotient = strategy.divide(workload)
        if quotient is not None:
            return _decode_toeplitz(spec, workload, strategy, quotient)
    found = _decode_structured(spec, strategy) if strategy.n > _WHOLE_CHECK else None
    found = found or _decode_rows(spec, strategy)
    if found is not None:
        return found
    check_dense(max(strategy.n, spec.workload.m))
    return _decode_dense(spec, strategy)


def _decode_toeplitz(spec: Spec, workload: np.ndarray, strategy: Matrix, quotient: np.ndarray) -> _Decoder:
    """B is Toeplitz too: row i holds its first i + 1 coefficients."""
    with np.errstate(over="ignore", invalid="ignore"):
        product = strategy.times(quotient)
        assert product is not None  # what divides a series multiplies it
        residual = float(np.abs(product - workload).max())
    _check_residual(residual, spec)
    errors = np.cumsum(quotient**2)
    return _Decoder(errors, spec.objective.of_row_errors(errors), residual)


def _decode_structured(spec: Spec, strategy: Matrix) -> _Decoder | None:
    """Carry the covariance of the workload driven by C^-1 along the steps; no n x n array."""
    workload = spec.workload.state_space()
    errors = None if workload is None else strategy.decoder_errors(workload)
    if workload is None or errors is None:
        return None
    residual = _sampled_residual(spec, strategy)
    _check_residual(residual, spec)
    weights = spec.objective.state_space(spec.workload.m)
    remarks = (f"the residual is the largest over {len(_sampled_rows(spec.workload.m))} rows, not over all",)
    if weights is None or spec.objective.row_weights(spec.workload.m) is not None:
        return _Decoder(errors, spec.objective.of_row_errors(errors), residual, remarks)
    weighted = strategy.decoder_errors(workload.then(weights))
    if weighted is None:
        return None
    return _Decoder(errors, spec.objective.scale(spec.workload.m) * math.fsum(weighted), residual, remarks)


def _decode_rows(spec: Spec, strategy: Matrix) -> _Decoder | None:
    """Form the rows of B one after the other, for Toeplitz matrices with scaled columns; no n x n array."""
    workload, weights = spec.workload.state_space(), spec.objective.state_space(spec.workload.m)
    if workload is None or strategy.n > MAX_DENSE:
        return None
    found = decoder_rows(strategy, workload)
    if found is None:
        return None
    _check_residual(found.residual, spec)
    if weights is None or spec.objective.row_weights(spec.workload.m) is not None:
        return _Decoder(found.errors, spec.objective.of_row_errors(found.errors), found.residual)
    weighted = decoder_rows(strategy, workload.then(weights))
    assert weighted is not None  # what has a decoder has it under every recursion
    objective = spec.objective.scale(spec.workload.m) * math.fsum(weighted.errors)
    return _Decoder(found.errors, objective, found.residual)


def _sampled_rows(m: int) -> list[int]:
    """First rows, last rows and powers of two in between."""
    return sorted({0, 1, m - 2, m - 1, *(2**k for k in range(1, 27) if 2**k < m)})


def _sampled_residual(spec: Spec, strategy: Matrix) -> float:
    rows = np.concatenate([spec.workload.row_block(i, i + 1) for i in _sampled_rows(spec.workload.m)])
    with np.errstate(over="ignore", invalid="ignore"):
        return float(np.abs(strategy.left_multiply(strategy.right_solve(rows)) - rows).max())


def _decode_dense(spec: Spec, strategy: Matrix) -> _Decoder:
    workload, n = spec.workload, strategy.n
    whole = strategy.dense()
    decoder = np.empty((workload.m, n))
    residual = 0.0
    step = max(1, min(_BLOCK_ROWS, _BLOCK_BYTES // (8 * n)))
    for start in range(0, workload.m, step):
        stop = min(start + step, workload.m)
        rows = workload.row_block(start, stop)
        with np.errstate(over="ignore", invalid="ignore"):
            decoder[start:stop] = strategy.right_solve(rows)
            used = max(_width(rows), _width(decoder[start:stop]))  # C is triangular: zeros on the right stay zeros
            product = decoder[start:stop, :used] @ whole[:used, :used]
            # Not Python's max, which would drop a NaN and with it the evidence that the solve failed.
            residual = float(np.maximum(residual, np.abs(product - rows[:, :used]).max()))
    _check_residual(residual, spec)
    errors = np.einsum("ij,ij->i", decoder, decoder)
    if spec.objective.kind == "max":
        return _Decoder(errors, spec.objective.of_row_errors(errors), residual)
    weighted = spec.objective.weigh(decoder)
    return _Decoder(errors, spec.objective.scale(workload.m) * float(np.vdot(weighted, weighted)), residual)


def _width(rows: np.ndarray) -> int:
    """Return the number of columns up to the last one that is not all zero, at least 1."""
    return int(np.flatnonzero(rows.any(axis=0)).max(initial=0)) + 1


def _check_residual(residual: float, spec: Spec) -> None:
    largest = float(np.abs(spec.workload.adjoint(np.ones((spec.workload.m, 1)))).max())
    if not residual <= RESIDUAL_LIMIT * max(largest, 1.0):
        raise CertificateError(
            f"B C differs from A by {residual:.3g}, above {RESIDUAL_LIMIT:.1e} of the workload's largest column sum "
            f"{largest:.3g}; the strategy is too ill-conditioned to be inverted in double precision"
        )


def _losses(sensitivity: float, decoder: _Decoder) -> Loss:
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
        raise CertificateError("a loss is not finite; the strategy cannot be evaluated in double precision")
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
    if spec.objective.kind == "lambda_tau" and spec.workload.m % spec.objective.tau:
        found.append(
            f"tau={spec.objective.tau} does not divide {spec.workload.m}, so the last iterate has weight 1/tau"
        )
    return tuple(found)

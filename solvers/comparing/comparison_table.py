"""The result of a comparison: rows, what was refused, and the row to take for a memory budget."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from factorize.checker.bounds.evidence import LowerBound
from factorize.client.service import Origin
from factorize.encoding import JsonObject
from factorize.factors.certificate import Loss
from factorize.factors.factorization import Factorization
from factorize.format.claims import Sensitivity
from factorize.privacy import Calibration
from factorize.samplings import SAMPLINGS

_TIE_MARGIN = 1e-3  # memory decides between losses that are closer than this


@dataclass(frozen=True)
class CompareProgress:
    """The progress of a comparison.

    Attributes:
        done: mechanisms solved or refused.
        total: mechanisms to try.
        mechanism: kind of one that runs, or that has just ended.
        seconds: since the comparison began.
    """

    done: int
    total: int
    mechanism: str
    seconds: float


@dataclass(frozen=True)
class Row:
    """One mechanism, solved and certified.

    Attributes:
        mechanism: kind.
        parameters: its other fields, without `normalization`.
        normalization: `none`, `columns` or `auto`, or None where the mechanism has no such option.
        tolerance: the tolerance of its solve: the spec's, but looser for buffered_linear under a schedule of epochs.
        spec_digest: digest of the spec with this mechanism and tolerance; asking for it gives this result.
        loss: at the stated sensitivity; the table is sorted by `loss.objective`.
        relative_gap: loss.objective over the comparison's lower bound, minus 1; None without a bound.
        sensitivity: value, kind and rule, for the spec's participation.
        noise_vectors: numbers of state for each parameter.
        noise_bytes: the same in bytes of single precision.
        flops: operations for each parameter and step of noise, beside drawing.
        redraws: earlier normals that a step makes again for each parameter, beside its own; on average over the steps.
        noise_of_steps: root mean squared noise of a single step, at sigma 1 per entry of Z; an estimate.
        seconds: solve and certificate, beside whatever else ran; of what was found solved, its loading.
        origin: the place that the result came from.
        converged: whether the tolerance was met within the mechanism's class.
        warnings: warnings of the certificate.
        calibration: noise at the privacy asked for, or None.
        rmse_at_privacy: root mean squared error at that noise, or None.
        objective_at_privacy: the objective at that noise, or None; with sampling the table is sorted by it.
        sampling: the scheme of `factorize.samplings` that the calibration counts on, which then stands in for
            the spec's participation; None for a fixed order.
        spec: the spec as plain data; solving it gives this row's C.
        optimized_for: kind of another workload that C was optimised for, or None.
        optimized_under: the sampling that C was optimised for, or None.
        sigma_of_sums: standard deviation per entry of Z, for sums of contributions of norm 1; None without a privacy.
        method: what sigma_of_sums rests on: `verified` by a claim, `deterministic`, or `accountant`.
        rmse_without_secrecy: the error at the noise that this C needs for the same privacy where nothing is secret.
        next_command: gives this row's C, and its noise where a privacy is named.
    """

    mechanism: str
    parameters: JsonObject
    normalization: str | None
    tolerance: float
    spec_digest: str
    loss: Loss
    relative_gap: float | None
    sensitivity: Sensitivity
    noise_vectors: int
    noise_bytes: int
    flops: float
    redraws: float
    noise_of_steps: float
    seconds: float
    origin: Origin
    converged: bool
    warnings: tuple[str, ...]
    calibration: Calibration | None = None
    rmse_at_privacy: float | None = None
    objective_at_privacy: float | None = None
    sampling: str | None = None
    spec: Mapping[str, Any] = field(default_factory=dict)
    optimized_for: str | None = None
    optimized_under: str | None = None
    sigma_of_sums: float | None = None
    method: str | None = None
    rmse_without_secrecy: float | None = None
    next_command: str = ""

    def to_dict(self) -> dict[str, object]:
        """Return the plain JSON form."""
        return vars(self) | {
            "origin": vars(self.origin),
            "loss": {name: float(value) for name, value in vars(self.loss).items()},
            "sensitivity": {name: getattr(self.sensitivity, name) for name in ("value", "kind", "rule")},
            "warnings": list(self.warnings),
            "calibration": self.calibration and self.calibration.document(),
            "spec": dict(self.spec),
        }


@dataclass(frozen=True)
class Refused:
    """A mechanism without a row, and why.

    Attributes:
        out_of_time: the time of the comparison was over; with more of it there is a row.
    """

    mechanism: str
    parameters: JsonObject
    normalization: str | None
    reason: str
    out_of_time: bool = False


@dataclass(frozen=True)
class Recommendation:
    """The row to take.

    Attributes:
        row: its position in the table.
        reason: one sentence.
    """

    row: int
    reason: str


@dataclass(frozen=True)
class Comparison:
    """The table.

    Attributes:
        spec: what all rows have in common, as plain data without the mechanism.
        objective: kind of the objective that the rows are sorted by.
        lower_bound: the largest one certified over all matrices, or None.
        budget: vectors of noise state that may be kept, the largest number where there are several, or None.
        rows: sorted by loss.objective; with sampling, by objective_at_privacy.
        refused: mechanisms that do not fit, with the reason.
        recommendation: the row for the budget, or None if none fits it.
        solved: the factorization of the recommended row for the budget, if there is a budget.
        recommendations: the row for each budget that was asked about, ascending, the last of them `budget`.
        seconds: seconds of the whole comparison.
        samplings: the schemes that were asked for, as plain data: what the loader has to do, what is secret, and why
            no row counts on it, if none does.
        sampled_bounds: squared errors at the privacy that no matrix beats, by scheme, with their rule.
    """

    spec: JsonObject
    objective: str
    lower_bound: LowerBound | None
    budget: int | None
    rows: tuple[Row, ...]
    refused: tuple[Refused, ...]
    recommendation: Recommendation | None
    seconds: float
    samplings: tuple[Mapping[str, Any], ...] = ()
    sampled_bounds: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    recommendations: tuple[tuple[int | None, Recommendation | None], ...] = ()
    solved: Factorization | None = None

    def to_dict(self) -> dict[str, object]:
        """Return the plain JSON form."""
        return {
            "spec": self.spec,
            "objective": self.objective,
            "lower_bound": self.lower_bound and self.lower_bound._asdict(),
            "budget": self.budget,
            "rows": [row.to_dict() for row in self.rows],
            "refused": [dict(vars(refused)) for refused in self.refused],
            "recommendation": self.recommendation and dict(vars(self.recommendation)),
            "recommendations": [
                {"budget": budget, **({"row": None, "reason": "nothing fits"} if one is None else vars(one))}
                for budget, one in self.recommendations
            ],
            "seconds": self.seconds,
            "samplings": [dict(one) for one in self.samplings],
            "sampled_bounds": {name: dict(bound) for name, bound in self.sampled_bounds.items()},
        }


def recommend(rows: Sequence[Row], budget: int | None, *, late: bool = False) -> Recommendation | None:
    """Return the row with the smallest loss within the budget; of rows within 0.1 % of it, the one with least memory.

    Rounding does not decide: of equal rows, as all are of one step, independent noise comes first.

    Args:
        rows: sorted by loss, or by the loss at the privacy asked for.
        budget: vectors of state, or None for any number.
        late: whether the time did not last for all mechanisms and samplings.
    """
    fitting = [i for i, row in enumerate(rows) if budget is None or row.noise_vectors <= budget]
    if not fitting:
        return None
    best = _ranked(rows[fitting[0]], rows)
    level = [i for i in fitting if _ranked(rows[i], rows) <= best * (1 + _TIE_MARGIN)]
    chosen = min(
        level,
        key=lambda i: (rows[i].noise_vectors, float(f"{_ranked(rows[i], rows):.9g}"), rows[i].mechanism != "identity"),
    )
    row = rows[chosen]
    within = "" if budget is None else f" within {budget} vectors of noise state"
    plain = row.relative_gap is not None and row.sampling is None
    gap = (
        f", its squared error {100 * (row.relative_gap or 0.0):.3g} % above the certified lower bound" if plain else ""
    )
    first = chosen == fitting[0]
    standing = "has the smallest loss" if first else "has the fewest vectors within 0.1 % of the smallest loss"
    standing += " of what was tried" if late else ""
    reason = f"{row.mechanism} {standing}{within}{gap}; it keeps {row.noise_vectors} vectors"
    return Recommendation(chosen, reason + _at_privacy(row, [rows[i] for i in fitting], late))


def _at_privacy(row: Row, others: Sequence[Row], late: bool) -> str:
    """Say what the choice counts on under sampling, and what there is without."""
    if row.rmse_at_privacy is None or not any(other.sampling for other in others):
        return ""
    scheme = SAMPLINGS[row.sampling or "fixed"]
    text = f"; under {scheme.title} its rmse is {row.rmse_at_privacy:.4g} ({row.method})"
    alike = [other for other in others if (other.sampling is None) != (row.sampling is None)]
    untried = late and all(other.mechanism == "identity" for other in alike)
    if row.sampling is None:
        if untried:
            return text + "; there was no time to try correlated noise under sampling"
        return text + ("; not all under sampling was tried in time" if late else ", and no sampling does better")
    text += f", if nobody knows {scheme.secret}; without secrecy it is {row.rmse_without_secrecy:.4g}"
    if untried:
        return text + "; there was no time to try correlated noise without sampling"
    plain = next(iter(alike), None)
    if plain is None:
        return text
    tried = " of what was tried" if late else ""
    return f"{text}; the best without sampling{tried} is {plain.mechanism} with {plain.rmse_at_privacy:.4g}"


def _ranked(row: Row, rows: Sequence[Row]) -> float:
    """Return what the table is sorted by."""
    sampled = any(other.sampling for other in rows)
    return float(row.objective_at_privacy or 0.0) if sampled else float(row.loss.objective)


def ranked(rows: Sequence[Row]) -> list[Row]:
    """Return rows sorted by loss, or by the loss at the privacy asked for where some count on sampling."""
    return sorted(rows, key=lambda row: _ranked(row, rows))

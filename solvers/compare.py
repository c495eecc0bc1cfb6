"""Every mechanism that fits a spec side by side: losses, distance to the certified bound, memory, time, sensitivity.

Each row is a whole solve with its own certificate. The lower bound holds over all matrices, whichever row proved it, so
all rows are measured against the largest one that was certified. What does not fit is listed with the reason.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from factorize.amplification import calibrate_amplified
from factorize.errors import (
    Cancelled,
    ConditionNotMet,
    FactorizeError,
    InvalidParameter,
    TooLarge,
    UnsupportedProblem,
)
from factorize.factorization import Factorization
from factorize.lower_bounds.bounds import LowerBound
from factorize.privacy import PrivacyTarget, calibrate
from factorize.solution import Progress
from factorize.spec import Spec, parse_spec
from factorize.structures.toeplitz import ToeplitzMatrix
from solvers.candidates import left_out, mechanisms
from solvers.comparison import Comparison, Refused, Row, ranked, recommend
from solvers.evidence import sharing_evidence
from solvers.noise_cost import noise_cost
from solvers.solving import estimate, solve

STORED_BYTES = 4
"""Bytes of a number of state, kept in single precision; a budget in bytes is divided by it."""
_LEAST_SECONDS, _STEPS_A_SECOND, _LARGEST_SECONDS = 3.0, 5000, 200.0
_FIRST_SECONDS = 60.0  # more for the first, which compiles code and finds the evidence that all share
_LATE = 2.0  # times the limit, after which a mechanism whose estimate was too low is stopped


@dataclass(frozen=True)
class CompareProgress:
    """How far a comparison is.

    Attributes:
        done: mechanisms solved or refused.
        total: mechanisms to try.
        mechanism: kind of the one that runs.
        seconds: since the comparison began.
    """

    done: int
    total: int
    mechanism: str
    seconds: float


@dataclass(frozen=True)
class Sampling:
    """How a training job would sample, for amplified rows.

    Attributes:
        dataset_size: number of examples.
        batch_size: expected number of examples per step.
    """

    dataset_size: int
    batch_size: int


CompareCallback = Callable[[CompareProgress], None]
"""Called before each mechanism and between the steps of its solver; may raise `Cancelled`."""


def compare(
    spec: Spec,
    *,
    buffers: int | None = None,
    bytes_per_parameter: float | None = None,
    privacy: PrivacyTarget | None = None,
    sampling: Sampling | None = None,
    progress: CompareCallback | None = None,
    most_seconds: float | None = None,
) -> Comparison:
    """Solve a spec with every mechanism that fits it.

    Args:
        spec: its mechanism is one row among the others; `auto` adds none.
        buffers: vectors of noise state that may be kept for each parameter; mechanisms with a size take this one.
        bytes_per_parameter: the same budget in bytes, at 4 bytes a number.
        privacy: adds the noise at this privacy to each row, without amplification.
        sampling: adds rows amplified by Poisson sampling, for mechanisms with few bands (one band: DP-SGD); needs an
            epsilon and delta in `privacy`.
        progress: told before each mechanism and between its steps.
        most_seconds: mechanisms whose estimate is longer are refused, and those that take twice as long after all
            are stopped; 3 s by default, n / 5000 s above n = 15000, 200 s at most.

    Raises:
        InvalidSpec: the parts of the spec do not fit each other.
        InvalidParameter: a budget is negative.
        Cancelled: raised by `progress`.
    """
    spec = spec.canonical()
    budget = _budget(buffers, bytes_per_parameter)
    if most_seconds is None:
        most_seconds = min(max(_LEAST_SECONDS, spec.workload.n / _STEPS_A_SECOND), _LARGEST_SECONDS)
    with sharing_evidence():
        return _Run(spec, budget, privacy, sampling, progress, most_seconds).compare()


def _budget(buffers: int | None, bytes_per_parameter: float | None) -> int | None:
    for name, value in (("buffers", buffers), ("bytes_per_parameter", bytes_per_parameter)):
        if value is not None and not value >= 0:
            raise InvalidParameter(f"{name}={value!r} is negative; give the memory for noise state", field=name)
    given = [buffers] if buffers is not None else []
    given += [int(bytes_per_parameter // STORED_BYTES)] if bytes_per_parameter is not None else []
    return min(given, default=None)


class _OutOfTime(Cancelled):
    """A mechanism took much longer than its estimate."""


class _Run:
    """One comparison: what all its solves share."""

    def __init__(
        self,
        spec: Spec,
        budget: int | None,
        privacy: PrivacyTarget | None,
        sampling: Sampling | None,
        progress: CompareCallback | None,
        most_seconds: float,
    ) -> None:
        if sampling is not None and (privacy is None or privacy.epsilon is None or privacy.delta is None):
            raise InvalidParameter(
                "dataset_size and batch_size amplify an (epsilon, delta) guarantee; give both", field="epsilon"
            )
        self.spec, self.budget, self.privacy, self.sampling = spec, budget, privacy, sampling
        self.progress, self.most_seconds = progress, most_seconds
        self.began = time.monotonic()
        self.nu: float | None = None
        self.rows: list[Row] = []
        self.bounds: list[LowerBound] = []
        self.refused: list[Refused] = []

    def compare(self) -> Comparison:
        wanted = list(self._distinct(mechanisms(self.spec, self.budget)))
        for done, mechanism in enumerate(wanted):
            self._try(mechanism, done, len(wanted))
        self.refused += [Refused(kind, {}, None, reason) for kind, reason in left_out(self.spec)]
        bound = max(self.bounds, key=lambda found: found.objective, default=None)
        rows = ranked([_measured(row, bound) for row in self.rows])
        document = self.spec.document()
        del document["mechanism"]
        return Comparison(
            spec=document,
            objective=self.spec.objective.kind,
            lower_bound=bound,
            budget=self.budget,
            rows=tuple(rows),
            refused=tuple(self.refused),
            recommendation=recommend(rows, self.budget),
            seconds=time.monotonic() - self.began,
        )

    def _distinct(self, found: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        seen = []
        for mechanism in found:
            plain = {key: value for key, value in mechanism.items() if (key, value) != ("normalization", "none")}
            if plain not in seen:
                seen.append(plain)
                yield mechanism

    def _try(self, mechanism: dict[str, Any], done: int, total: int) -> None:
        if mechanism["kind"] == "nu_toeplitz" and mechanism.get("normalization") == "columns" and self.nu is not None:
            mechanism = {**mechanism, "nu": self.nu}  # tuning again for scaled columns forms a decoder for each nu

        began, last = time.monotonic(), _LATE * self.most_seconds + (0.0 if self.rows else _FIRST_SECONDS)

        def tell(_progress: Progress | None = None) -> None:
            now = time.monotonic()
            if self.progress is not None:
                self.progress(CompareProgress(done, total, mechanism["kind"], now - self.began))
            if now - began > last:
                raise _OutOfTime(f"was stopped after {now - began:.3g} s; solve this mechanism by its own spec")

        tell()
        try:
            self._solve(parse_spec({**self.spec.document(), "mechanism": mechanism}), mechanism, tell)
        except _OutOfTime as error:
            self.refused.append(Refused(*_named(mechanism), str(error)))
        except Cancelled:
            raise
        except FactorizeError as error:
            self.refused.append(Refused(*_named(mechanism), str(error)))

    def _solve(self, spec: Spec, mechanism: dict[str, Any], tell: Callable[[Progress], None]) -> None:
        needed = estimate(spec)
        if needed.seconds > self.most_seconds:
            raise TooLarge(
                f"would take about {needed.seconds:.3g} s, above most_seconds={self.most_seconds:g}; raise it, or "
                "solve this mechanism by its own spec"
            )
        began = time.monotonic()
        found = solve(spec, progress=tell)
        seconds = time.monotonic() - began
        if mechanism == {"kind": "nu_toeplitz", "nu": "tune", "normalization": "none"}:
            self.nu = _nu(found)
        if found.certificate.lower_bound is not None:
            self.bounds.append(found.certificate.lower_bound)
        self.rows.append(self._row(found, mechanism, seconds))
        self._amplify(found, self.rows[-1])

    def _row(self, found: Factorization, mechanism: dict[str, Any], seconds: float) -> Row:
        certificate = found.certificate
        cost = noise_cost(found.strategy)
        noise = None if self.privacy is None else calibrate(certificate.sensitivity, self.privacy)
        return Row(
            *_named(mechanism),
            spec_digest=found.spec_digest,
            loss=certificate.loss,
            relative_gap=None,
            sensitivity=certificate.sensitivity,
            noise_vectors=cost.vectors,
            noise_bytes=cost.vectors * STORED_BYTES,
            flops=cost.flops,
            seconds=seconds,
            converged=certificate.converged,
            warnings=certificate.warnings,
            calibration=noise,
            rmse_at_privacy=None if noise is None else noise.noise_multiplier * certificate.loss.rmse,
            objective_at_privacy=None if noise is None else noise.noise_multiplier**2 * certificate.loss.objective,
        )

    def _amplify(self, found: Factorization, row: Row) -> None:
        """Add the row again with the noise that Poisson sampling allows, where it is proved."""
        if self.sampling is None or self.privacy is None or found.strategy.bandwidth() >= found.strategy.n > 1:
            return
        try:
            noise = calibrate_amplified(
                found,
                epsilon=self.privacy.epsilon or 0.0,
                delta=self.privacy.delta or 0.0,
                dataset_size=self.sampling.dataset_size,
                batch_size=self.sampling.batch_size,
            )
        except (ConditionNotMet, UnsupportedProblem) as error:
            self.refused.append(Refused(row.mechanism, row.parameters, row.normalization, f"sampled: {error}"))
            return
        multiplier = noise.sigma * self.sampling.batch_size / row.sensitivity.value
        self.rows.append(
            replace(
                row,
                sensitivity=noise.sensitivity,
                calibration=noise,
                rmse_at_privacy=multiplier * row.loss.rmse,
                objective_at_privacy=multiplier**2 * row.loss.objective,
                sampling="cyclic_poisson",
            )
        )


def _named(mechanism: dict[str, Any]) -> tuple[str, dict[str, Any], str | None]:
    """Return kind, other parameters and normalization."""
    parameters = {key: value for key, value in mechanism.items() if key not in ("kind", "normalization")}
    return mechanism["kind"], parameters, mechanism.get("normalization")


def _nu(found: Factorization) -> float | None:
    """Return the nu that was tuned: the second coefficient of (1 - (1 - nu) x)^(-1/2) is (1 - nu) / 2."""
    strategy = found.strategy
    if not isinstance(strategy, ToeplitzMatrix) or len(strategy.column) < 2:
        return None
    return max(0.0, 1.0 - 2.0 * float(strategy.column[1] / strategy.column[0]))


def _measured(row: Row, bound: LowerBound | None) -> Row:
    if bound is None or bound.objective <= 0 or row.sampling:  # sampling stands in for the bound's participation
        return row
    return replace(row, relative_gap=row.loss.objective / bound.objective - 1)

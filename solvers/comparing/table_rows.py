"""A certified result as rows of the comparison's table: with its noise at a privacy, and with sampling."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from factorize.accounting.amplification import calibrate_amplified
from factorize.certificate.lower_bounds.bounds import LowerBound
from factorize.client.noise_source import noise_source
from factorize.errors import ConditionNotMet, UnsupportedProblem
from factorize.factorization import Factorization
from factorize.privacy import PrivacyTarget, calibrate
from factorize.solvers.comparing.comparison import Refused, Row, Sampling

STORED_BYTES = 4
"""Bytes of a number of state, kept in single precision; a budget in bytes is divided by it."""


@dataclass(frozen=True)
class TableRows:
    """How results become rows.

    Attributes:
        privacy: of the noise that each row states, or None.
        sampling: adds rows whose noise counts on it, or None; needs an epsilon and delta in `privacy`.
    """

    privacy: PrivacyTarget | None
    sampling: Sampling | None

    def of(self, found: Factorization, mechanism: dict[str, Any], seconds: float) -> list[Row | Refused]:
        """Return the row of a result, and the one with sampling or why there is none.

        Args:
            found: the result.
            mechanism: what was solved, as plain data.
            seconds: that it took.
        """
        row = self._row(found, mechanism, seconds)
        return [row, *self._amplified(found, row)]

    def _row(self, found: Factorization, mechanism: dict[str, Any], seconds: float) -> Row:
        certificate = found.certificate
        strategy = found.matrix
        cost = noise_source(strategy.structure, strategy.tensors(), strategy.n, found.digest).cost
        noise = None if self.privacy is None else calibrate(certificate.sensitivity, self.privacy)
        return Row(
            *named(mechanism),
            tolerance=found.spec.tolerance,
            spec_digest=found.spec_digest,
            loss=certificate.loss,
            relative_gap=None,
            sensitivity=certificate.sensitivity,
            noise_vectors=cost.vectors,
            noise_bytes=cost.vectors * STORED_BYTES,
            flops=cost.flops,
            redraws=cost.redraws,
            seconds=seconds,
            converged=certificate.converged,
            warnings=certificate.warnings,
            calibration=noise,
            rmse_at_privacy=None if noise is None else noise.noise_multiplier * certificate.loss.rmse,
            objective_at_privacy=None if noise is None else noise.noise_multiplier**2 * certificate.loss.objective,
        )

    def _amplified(self, found: Factorization, row: Row) -> list[Row | Refused]:
        """Return the row again with the noise that Poisson sampling allows, where it is proved."""
        if self.sampling is None or self.privacy is None or found.matrix.bandwidth() >= found.matrix.n > 1:
            return []
        try:
            noise = calibrate_amplified(
                found,
                epsilon=self.privacy.epsilon or 0.0,
                delta=self.privacy.delta or 0.0,
                dataset_size=self.sampling.dataset_size,
                batch_size=self.sampling.batch_size,
            )
        except (ConditionNotMet, UnsupportedProblem) as error:
            return [Refused(row.mechanism, row.parameters, row.normalization, f"sampled: {error}")]
        multiplier = noise.sigma * self.sampling.batch_size / row.sensitivity.value
        sampled = replace(
            row,
            sensitivity=noise.sensitivity,
            calibration=noise,
            rmse_at_privacy=multiplier * row.loss.rmse,
            objective_at_privacy=multiplier**2 * row.loss.objective,
            sampling="cyclic_poisson",
        )
        return [sampled]


def named(mechanism: dict[str, Any]) -> tuple[str, dict[str, Any], str | None]:
    """Return kind, other parameters and normalization of a mechanism as plain data."""
    parameters = {key: value for key, value in mechanism.items() if key not in ("kind", "normalization")}
    return mechanism["kind"], parameters, mechanism.get("normalization")


def measured(row: Row, bound: LowerBound | None) -> Row:
    """Return the row with its distance to a bound; not where sampling stands in for the bound's participation."""
    if bound is None or bound.objective <= 0 or row.sampling:
        return row
    return replace(row, relative_gap=row.loss.objective / bound.objective - 1)

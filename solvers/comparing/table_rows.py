"""A certified result as rows of the comparison's table: with its noise at a privacy, and with sampling."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from factorize.checker.bounds.evidence import LowerBound
from factorize.client.service import Origin
from factorize.encoding import JsonObject, canonical_json
from factorize.errors import InvalidParameter
from factorize.factors.factorization import Factorization
from factorize.noise.source import noise_source
from factorize.privacy import Calibration, PrivacyTarget
from factorize.privacy.question import SamplingOptions
from factorize.samplings import SAMPLINGS
from factorize.samplings.base import Sampling
from factorize.solvers.comparing.comparison_table import Refused, Row
from factorize.training.learning_rate import noise_of_steps

STORED_BYTES = 4
"""The bytes of a number of state, kept in single precision; a budget in bytes is divided by it."""

_MAX_SPEC_CHARACTERS = 4000  # a command shows a spec of at most this many characters


@dataclass(frozen=True)
class TableRows:
    """A maker of rows from results.

    Attributes:
        privacy: privacy of the noise that each row states, or None.
        sampling: sizes of the data set and the batch, if there are any.
        samplings: names of the schemes that rows count on, `fixed` left out; they need an epsilon and delta.
    """

    privacy: PrivacyTarget | None
    sampling: SamplingOptions = SamplingOptions()
    samplings: tuple[str, ...] = ()

    def of(self, factorization: Factorization, mechanism: dict[str, object], seconds: float, origin: Origin) -> Row:
        """Return the row of a result without sampling.

        Args:
            factorization: the result.
            mechanism: what was solved, as plain data.
            seconds: seconds that it took.
            origin: the place that it came from.
        """
        certificate, strategy = factorization.certificate, factorization.matrix
        cost = noise_source(strategy.structure, strategy.tensors(), strategy.n, factorization.digest).cost
        sampling = factorization.spec.sampling
        row = Row(
            *named(mechanism),
            tolerance=factorization.spec.tolerance,
            spec_digest=factorization.spec_digest,
            loss=certificate.loss,
            relative_gap=None,
            sensitivity=certificate.sensitivity,
            noise_vectors=cost.vectors,
            noise_bytes=cost.vectors * STORED_BYTES,
            flops=cost.flops,
            redraws=cost.redraws,
            noise_of_steps=noise_of_steps(strategy),
            seconds=seconds,
            origin=origin,
            converged=certificate.converged,
            warnings=certificate.warnings,
            spec=factorization.spec.document(),
            optimized_for=None if factorization.spec.optimize_for is None else factorization.spec.optimize_for.kind,
            optimized_under=None if sampling is None else sampling.kind,
            next_command=_solving(factorization),
        )
        if self.privacy is None:
            return row
        return self._calibrated(factorization, row, SAMPLINGS["fixed"], SamplingOptions())

    def fitting(self, factorization: Factorization) -> list[Sampling]:
        """Return the schemes that fit a result."""
        return [SAMPLINGS[name] for name in self.samplings if self.misfit(name, factorization) is None]

    def misfit(self, name: str, factorization: Factorization) -> str | None:
        """Return why a scheme does not fit a result, or None."""
        return SAMPLINGS[name].misfit(factorization.spec.participation, factorization.matrix, self.sampling)

    def sampled(self, factorization: Factorization, row: Row, scheme: Sampling) -> Row | Refused:
        """Return the row again with the noise that a sampling allows, by bounds; or why it allows none."""
        try:
            return self._calibrated(factorization, row, scheme, replace(self.sampling, method="deterministic"))
        except InvalidParameter as error:  # a noise that one scheme has no law for ends no other row
            return Refused(row.mechanism, row.parameters, row.normalization, f"sampled: {scheme.title}: {error}")

    def verified(self, factorization: Factorization, row: Row, work: int | None) -> Row:
        """Return a row with a claim that was tested by so much work, in place of bounds."""
        scheme = SAMPLINGS[row.sampling or "fixed"]
        return self._calibrated(factorization, row, scheme, replace(self.sampling, method="verified", work=work))

    def _calibrated(self, factorization: Factorization, row: Row, scheme: Sampling, options: SamplingOptions) -> Row:
        assert self.privacy is not None
        noise = scheme.calibrate(factorization, self.privacy, options)
        certified = factorization.certificate.sensitivity.value  # the losses are stated at it
        multiplier = noise.sigma_of_sums / certified
        plain = self.privacy.noise_multiplier * noise.sensitivity.value / certified
        return replace(
            row,
            sensitivity=noise.sensitivity,
            calibration=noise,
            rmse_at_privacy=multiplier * row.loss.rmse,
            objective_at_privacy=multiplier**2 * row.loss.objective,
            sampling=None if scheme.name == "fixed" else scheme.name,
            sigma_of_sums=noise.sigma_of_sums,
            method=noise.method,
            rmse_without_secrecy=plain * row.loss.rmse,
            next_command=_solving(factorization) + self._calibrating(noise, scheme, options),
        )

    def _calibrating(self, noise: Calibration, scheme: Sampling, options: SamplingOptions) -> str:
        if noise.epsilon is None or noise.delta is None:
            return ""
        target = f"--epsilon {noise.epsilon!r} --delta {noise.delta!r}"
        bounds = " --deterministic" if scheme.claimed and noise.method == "deterministic" else ""
        return f" && factorize calibrate factors.safetensors {target}{scheme.options(options)}{bounds}"


def named(mechanism: JsonObject) -> tuple[str, JsonObject, str | None]:
    """Return kind, other parameters and normalization of a mechanism as plain data."""
    parameters = {key: value for key, value in mechanism.items() if key not in ("kind", "normalization")}
    return mechanism["kind"], parameters, mechanism.get("normalization")


def measured(row: Row, bound: LowerBound | None, sampled: Mapping[str, Mapping[str, Any]]) -> Row:
    """Return the row with its distance to a bound for its own law of participation, where there is one.

    Args:
        row: the row.
        bound: bound on the objective, without sampling.
        sampled: bounds by scheme, on the objective at the privacy.
    """
    if row.sampling is None:
        known = bound is not None and bound.objective > 0
        return replace(row, relative_gap=row.loss.objective / bound.objective - 1) if bound and known else row
    own = sampled.get(row.sampling)
    if own is None or row.objective_at_privacy is None:
        return row
    return replace(row, relative_gap=row.objective_at_privacy / own["objective"] - 1)


def _solving(factorization: Factorization) -> str:
    """Return the command that gives a result."""
    text = canonical_json(factorization.spec.document()).decode()
    argument = shlex.quote(text) if len(text) <= _MAX_SPEC_CHARACTERS else "spec.json"
    return f"factorize solve {argument} --to factors.safetensors"

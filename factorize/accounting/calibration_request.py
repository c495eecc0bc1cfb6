"""A calibration as it is asked for, in plain data: the same over HTTP and between processes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, model_validator

from factorize.plain_data import Count, Frozen, Positive, read_union


class CalibrationRequest(Frozen):
    """A privacy target and a sampling scheme; or a noise whose privacy is asked for.

    Attributes:
        epsilon: of (epsilon, delta)-DP; or `rho`, or `mu`.
        delta: with `epsilon`.
        sigma: a noise that is given, for sums, with `delta` (epsilon is answered) or `epsilon` (delta is).
        rho: of rho-zCDP.
        mu: of mu-GDP.
        clip_norm: bound on one contribution.
        divisor: the fixed public divisor of means, whose `sigma_of_means` is answered.
        adjacency: `zero_out` or `replace_one`.
        sampling: a scheme of `factorize.accounting.calibrate_sampling`.
        dataset_size: public, of the Poisson schemes.
        batch_size: expected examples of a step, of the Poisson schemes; it divides nothing.
        bins: of `balls_in_bins`.
        method: of `balls_in_bins`.
    """

    epsilon: Positive | None = None
    delta: Annotated[float, Field(gt=0, lt=1, allow_inf_nan=False)] | None = None
    rho: Positive | None = None
    mu: Positive | None = None
    sigma: Positive | None = None
    clip_norm: Positive = 1.0
    divisor: Count | None = None
    adjacency: Annotated[str, Field(max_length=40)] = "zero_out"
    sampling: Annotated[str, Field(max_length=40)] = "fixed"
    dataset_size: Count | None = None
    batch_size: Count | None = None
    bins: Count | None = None
    method: Literal["verified", "deterministic"] = "verified"

    @model_validator(mode="after")
    def _one_target(self) -> CalibrationRequest:
        if self.sigma is not None:
            if (self.epsilon is None) == (self.delta is None) or (self.rho, self.mu) != (None, None):
                raise ValueError("give sigma with exactly one of epsilon and delta")
            return self
        given = [name for name in ("epsilon", "rho", "mu") if getattr(self, name) is not None]
        if len(given) != 1 or (self.epsilon is not None and self.delta is None):
            raise ValueError("give exactly one of epsilon with delta, rho, mu, and sigma with epsilon or delta")
        return self


_ADAPTER: TypeAdapter[CalibrationRequest] = TypeAdapter(CalibrationRequest)


def read_calibration_request(document: Mapping[str, Any]) -> CalibrationRequest:
    """Read a request from plain data.

    Raises:
        InvalidSpec: it is none; pointers to the fields.
    """
    return read_union(_ADAPTER, document, CalibrationRequest)


def answer(factorization: Any, request: CalibrationRequest) -> dict[str, Any]:
    """Return the calibration as plain data.

    Raises:
        See `factorize.accounting.calibrate_sampling`.
    """
    from factorize.accounting.schemes import calibrate_sampling
    from factorize.privacy_question import question_of

    numbers = {name: getattr(request, name) for name in ("epsilon", "delta", "rho", "mu", "sigma")}
    found = calibrate_sampling(
        factorization,
        question_of(**numbers),
        sampling=request.sampling,
        clip_norm=request.clip_norm,
        divisor=request.divisor,
        adjacency=request.adjacency,
        dataset_size=request.dataset_size,
        batch_size=request.batch_size,
        bins=request.bins,
        method=request.method,
    )
    return found.document()

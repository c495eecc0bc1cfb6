"""The same questions to a factorization in memory and to one that was loaded."""

from __future__ import annotations

from typing import Any

from factorize.client.engines import RowSource
from factorize.client.noise_source import Streamable, noise_source
from factorize.errors import InvalidParameter
from factorize.privacy import Adjacency, Calibration, CertifiedSensitivity, PrivacyTarget, calibrate


class Held:
    """A `factorize.client.Factors` or a `factorize.Factorization`, whichever the caller has.

    Args:
        factors: one of the two.

    Attributes:
        digest: names it.
        steps: n.
        sensitivity: certified.

    Raises:
        InvalidParameter: it is neither.
    """

    def __init__(self, factors: Any) -> None:
        self.factors = factors
        self._loaded = hasattr(factors, "noise_source")
        if not self._loaded and not hasattr(factors, "strategy"):
            raise InvalidParameter(
                f"a {type(factors).__name__} is no factorization; pass what load or solve gave",
                field="factors",
            )
        self.digest = str(factors.digest)
        self.steps = int(factors.steps if self._loaded else factors.strategy.finite().n)
        self.sensitivity: CertifiedSensitivity = (
            factors.sensitivity if self._loaded else factors.certificate.sensitivity
        )

    def source(self) -> RowSource | Streamable:
        """Return what a generator of noise needs."""
        if self._loaded:
            return self.factors.noise_source()
        strategy = self.factors.strategy
        return noise_source(strategy.structure, strategy.tensors(), self.steps, self.digest)

    def banded(self) -> Any:
        """Return the factorization with its C in memory, as accounting for sampling asks for it."""
        if not self._loaded:
            return self.factors
        from factorize.client.opening import load

        return load(self.factors.path())

    def check(self, calibration: Calibration) -> None:
        """Refuse a calibration for another sensitivity; one that counts on sampling has that of its groups.

        Raises:
            InvalidParameter: a bare number, or a calibration of another factorization.
        """
        if not isinstance(calibration, Calibration):
            raise InvalidParameter(
                f"the scale of the noise is a bare {type(calibration).__name__}; pass a Calibration",
                field="calibration",
            )
        calibration.check_belongs(self.sensitivity, lambda: self.banded().strategy, digest=self.digest)

    def calibrate(
        self, target: PrivacyTarget, *, clip_norm: float, batch_size: int | None, adjacency: Adjacency | str
    ) -> Calibration:
        """Return the noise for a target; see `factorize.privacy.calibrate`."""
        return calibrate(self.sensitivity, target, clip_norm=clip_norm, batch_size=batch_size, adjacency=adjacency)

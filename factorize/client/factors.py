"""One factorization as a training job holds it: everything it needs comes from one checked manifest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from factorize.client.connection import TIMEOUT
from factorize.client.events import ProgressCallback, ignore
from factorize.client.noise import MEMORY_BYTES, NoiseGenerator
from factorize.client.rows import BLOCK_BYTES, RowStream
from factorize.client.service import Service, SpecSource
from factorize.errors import CorruptObject, InvalidParameter
from factorize.privacy import Adjacency, Calibration, PrivacyTarget, calibrate


@dataclass(frozen=True)
class StatedSensitivity:
    """The sensitivity that a manifest's certificate states; see `factorize.participation.Sensitivity`."""

    value: float
    kind: str
    rule: str
    participation: Mapping[str, Any]

    @classmethod
    def of(cls, manifest: Mapping[str, Any]) -> StatedSensitivity:
        """Read it from the exact hexadecimal form.

        Raises:
            CorruptObject: it is missing, or its two forms are two numbers.
        """
        try:
            stated = manifest["certificate"]["sensitivity"]
            value = float.fromhex(stated["hex"])
            if value != stated["value"]:
                raise CorruptObject("the sensitivity's value and its hex form are two different numbers")
            return cls(value, stated["kind"], stated["rule"], stated["participation"])
        except (KeyError, TypeError, ValueError):
            raise CorruptObject("the manifest states no sensitivity") from None


class Factors:
    """Sensitivity, calibration, rows and noise of one factorization, which therefore cannot be mixed up.

    Args:
        service: where the rows are.
        manifest: checked against what was asked for (`Service.manifest`).

    Attributes:
        digest: pin it: it names these bytes for ever.
        sensitivity: certified, with kind, rule and participation.
        steps: n.
    """

    def __init__(self, service: Service, manifest: dict[str, Any]) -> None:
        self._service = service
        self.manifest = manifest
        self.digest = str(manifest["digest"])
        self.sensitivity = StatedSensitivity.of(manifest)
        self.steps = int(manifest["matrices"]["C"]["shape"][1])

    @classmethod
    def connect(
        cls, source: SpecSource, *, url: str, progress: ProgressCallback = ignore, timeout: float = TIMEOUT
    ) -> Factors:
        """Ask a service for a spec or digest, waiting for the solve if one is needed.

        Raises:
            See `Service.manifest`.
        """
        service = Service(url, timeout=timeout)
        return cls(service, service.manifest(source, progress=progress))

    def calibrate(
        self,
        target: PrivacyTarget,
        *,
        clip_norm: float = 1.0,
        batch_size: int | None = None,
        adjacency: Adjacency | str = Adjacency.ZERO_OUT,
    ) -> Calibration:
        """Return the noise for a privacy target; see `factorize.privacy.calibrate`."""
        return calibrate(self.sensitivity, target, clip_norm=clip_norm, batch_size=batch_size, adjacency=adjacency)

    def rows(self, matrix: Literal["C", "C_inv", "B"] = "C_inv", *, block_bytes: int = BLOCK_BYTES) -> RowStream:
        """Return the rows of C, C^-1 or B as a stream."""
        service = self._service
        return RowStream(
            service.url,
            self.digest,
            matrix,
            block_bytes=block_bytes,
            timeout=service.timeout,
            manifest=self.manifest,
        )

    def noise(
        self, calibration: Calibration, shape: int | Sequence[int], *, seed: int, memory_bytes: int = MEMORY_BYTES
    ) -> NoiseGenerator:
        """Return the noise of each step, with rows streamed from the service.

        Raises:
            InvalidParameter: the calibration is for another sensitivity than this factorization's.
        """
        if isinstance(calibration, Calibration) and calibration.sensitivity != self.sensitivity:
            other, mine = calibration.sensitivity, self.sensitivity
            raise InvalidParameter(
                f"the calibration is for sensitivity {other.value!r} under {dict(other.participation)}, this "
                f"factorization has {mine.value!r} under {dict(mine.participation)}; use its own calibrate()",
                field="calibration",
            )
        return NoiseGenerator(self.rows(), calibration, shape, seed=seed, memory_bytes=memory_bytes)

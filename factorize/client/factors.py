"""One factorization as a training job holds it: everything it needs comes from one checked manifest."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack, cast, overload

import numpy as np

from factorize.accounting.calibrating import CalibratedFactors
from factorize.client.connection import TIMEOUT
from factorize.client.engines import RowSource
from factorize.client.events import ProgressCallback, ignore
from factorize.client.loading import Source, obtain
from factorize.client.noise import NoiseGenerator, NoiseOptions, noise_of
from factorize.client.noise_source import Streamable, source_of
from factorize.client.rows import BLOCK_BYTES, FileRows, MatrixName, Rows, RowStream
from factorize.client.service import Service, SpecSource
from factorize.errors import CorruptObject, InvalidParameter
from factorize.format.claims import StatedSensitivity
from factorize.format.manifest import steps_of
from factorize.format.reading import matrix_parts
from factorize.format.views import ViewedFactors
from factorize.privacy import Calibration

if TYPE_CHECKING:
    from factorize.certificate.certificate import Certificate
    from factorize.factorization import Factorization


class Factors(ViewedFactors, CalibratedFactors):
    """Sensitivity, calibration, rows and noise of one factorization, which therefore cannot be mixed up.

    Whatever is asked of them is asked of a `factorize.Factorization` in the same words; that one has C in memory.

    Args:
        manifest: checked against what was asked for (`load`, `Service.manifest`).
        path: a verified file of it.
        service: where its rows, or its file, are to be had; used where there is no path.
        cache: folder for a file that has to be fetched.

    Attributes:
        digest: pin it: it names these bytes for ever.
        spec: what was asked, plain data.
        structure: of C, the contract's name.
        sensitivity: certified, with kind, rule and participation.
        steps: n; 10^15 - 1 where the rows have no end.
    """

    def __init__(
        self,
        manifest: dict[str, Any],
        *,
        path: Path | None = None,
        service: Service | None = None,
        cache: str | Path | None = None,
    ) -> None:
        self._service, self._path, self._cache = service, path, cache
        self.manifest = manifest
        self.digest = str(manifest["digest"])
        self.spec: dict[str, Any] = manifest["spec"]
        self.structure = str(manifest["matrices"]["C"]["structure"])
        self.sensitivity = StatedSensitivity.of(manifest)
        self.steps = steps_of(manifest)

    @classmethod
    def connect(
        cls,
        source: SpecSource,
        *,
        url: str,
        cache: str | Path | None = None,
        progress: ProgressCallback = ignore,
        timeout: float = TIMEOUT,
    ) -> Factors:
        """Ask a service for a spec or digest, waiting for the solve if one is needed; download nothing yet.

        Raises:
            FactorizeError: as of `Service.manifest`.
        """
        service = Service(url, timeout=timeout)
        return cls(service.manifest(source, progress=progress), service=service, cache=cache)

    def path(self) -> Path:
        """Return a verified file of it, fetched into the cache where there is none yet.

        Raises:
            FactorizeError: as of `fetch`.
        """
        if self._path is None:
            assert self._service is not None
            service = self._service
            self._path, _ = obtain(self.digest, url=service.url, cache=self._cache, timeout=service.timeout)
        return self._path

    @overload
    def rows(
        self, matrix: MatrixName = "C_inv", start: None = None, stop: None = None, *, block_bytes: int = BLOCK_BYTES
    ) -> Rows: ...
    @overload
    def rows(self, matrix: MatrixName, start: int, stop: int) -> np.ndarray: ...
    def rows(
        self,
        matrix: MatrixName = "C_inv",
        start: int | None = None,
        stop: int | None = None,
        *,
        block_bytes: int = BLOCK_BYTES,
    ) -> Rows | np.ndarray:
        """Return the rows of C, C^-1 or B: from the file, or as a stream where there is only a service.

        With `start` and `stop` it returns rows start..stop-1 as an array, as `Factorization.rows` does.

        Raises:
            InvalidParameter: unknown matrix, rows outside it, or only one of `start` and `stop`.
        """
        if start is not None and stop is not None:
            return self._block(matrix, start, stop)
        if start is not None or stop is not None:
            raise InvalidParameter(f"rows from {start} to {stop}: give both, or neither for all of them", field="rows")
        if self._path is not None or self._service is None:
            return FileRows(self, matrix, block_bytes=block_bytes)
        service = self._service
        return RowStream(
            service.url,
            self.digest,
            matrix,
            block_bytes=block_bytes,
            timeout=service.timeout,
            manifest=self.manifest,
        )

    def _block(self, name: str, start: int, stop: int) -> np.ndarray:
        """Return rows of a matrix: computed from the file's C, or asked of the service where there is no file yet."""
        if self._path is not None or self._service is None:
            return self._opened.rows(cast(MatrixName, name), start, stop)
        stream = self.rows(cast(MatrixName, name))
        if not 0 <= start <= stop <= stream.shape[0]:
            raise InvalidParameter(f"rows {start}:{stop} are outside {name}, rows 0:{stream.shape[0]}", field="rows")
        rows = stream.iterate(start)
        found = np.empty((stop - start, stream.shape[1]))
        for place, row in zip(range(stop - start), rows, strict=False):
            found[place] = row
        rows.close()
        return found

    @cached_property
    def _opened(self) -> Factorization:
        return self.opened()

    @cached_property
    def certificate(self) -> Certificate:
        """The certificate that the manifest states; it takes pydantic to read."""
        from factorize.certificate.certificate import Certificate

        return Certificate.from_document(self.manifest["certificate"])

    def verify(self) -> Certificate:
        """Recompute the certificate from the file; see `Factorization.verify`."""
        return self.opened().verify()

    def noise_source(self) -> RowSource | Streamable:
        """Return what a `NoiseGenerator` needs of C, from the file's C alone; the file is fetched if need be."""
        return source_of(self)

    def strategy_tensors(self) -> dict[str, np.ndarray]:
        """Return the tensors of C by suffix ('' for a dense one), as doubles, read from the file and checked.

        Raises:
            CorruptObject: the file no longer holds what the manifest says.
        """
        return matrix_parts(self.path(), self.manifest, "C")

    def opened(self) -> Factorization:
        """Return the factorization with its C in memory, as calibrations that count on sampling need it.

        It takes pydantic, as their accounting does.

        Raises:
            CorruptObject: the file holds another factorization by now.
        """
        from factorize.factor_file import load as open_file

        found = open_file(self.path())
        if found.digest != self.digest:
            raise CorruptObject(f"{self.path()} now holds {found.digest}, not {self.digest}; do not use it")
        return found

    def noise(
        self, calibration: Calibration, shape: int | Sequence[int], *, seed: int, **options: Unpack[NoiseOptions]
    ) -> NoiseGenerator:
        """Return the noise of each step.

        Args:
            calibration: from this object's `calibrate`, or from `factorize.privacy.calibrate` with this sensitivity; or
                from `factorize.accounting.amplification.calibrate_amplified` for this C, whose epsilon holds for a job
                that samples as it says: take batches from `factorize.training.sampling.CyclicPoisson`.
            shape: of the (flattened) parameters.
            seed: a secret integer, `secrets.randbits(128)`.
            **options: shard, generator, precision, memory_bytes, threads; see `NoiseGenerator`.

        Raises:
            InvalidParameter: the calibration is for another sensitivity than this factorization's.
        """
        return noise_of(self, calibration, shape, seed=seed, **options)


def load(
    source: Source,
    *,
    url: str | None = None,
    store: str | Path | None = None,
    cache: str | Path | None = None,
    progress: ProgressCallback = ignore,
    timeout: float = TIMEOUT,
) -> Factors:
    """Return the factors of a file, spec or digest: rows, sensitivity, calibration and noise.

    A digest is looked for in the cache, then in the store, then asked of the service; a spec likewise, where only the
    service can name the mechanism for `auto` and solve what nobody has. What is found has been verified byte for byte,
    and its spec compared with the one asked for.

    Args:
        source: a path; a spec (JSON text, plain data, `factorize.Spec`); a digest or spec digest; or a URL
            `http://host/v1/factorizations/<digest>`. Pin the digest in training jobs: it names the bytes for ever.
        url: of a service.
        store: URL or folder of a store.
        cache: folder for downloaded files; by default $FACTORIZE_CACHE or the platform's folder for caches.
        progress: called with the events of a running solve and of the download.
        timeout: seconds without a byte after which a connection counts as stalled.

    Raises:
        InvalidParameter: neither `url` nor `store` is given, and the cache has no answer.
        NotFound: the store does not have it.
        CorruptObject: wrong bytes, or the answer to another question.
        SolveFailed, Cancelled, ServiceError, ServiceUnreachable: see `fetch`.
        FileNotFoundError: there is no such file.
    """
    path, manifest = obtain(source, url=url, store=store, cache=cache, progress=progress, timeout=timeout)
    return Factors(manifest, path=path)

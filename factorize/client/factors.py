"""One factorization as a training job holds it: everything it needs comes from one checked manifest."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack

import numpy as np

from factorize.accounting.levels.given_noise import level_without_sampling, question_of
from factorize.client.connection import TIMEOUT
from factorize.client.engines import RowSource
from factorize.client.events import ProgressCallback, ignore
from factorize.client.file_rows import BLOCK_BYTES, FileRows
from factorize.client.loading import Source, obtain
from factorize.client.noise import NoiseGenerator, NoiseOptions
from factorize.client.noise_source import Streamable, source_of
from factorize.client.rows import RowStream
from factorize.client.service import Service, SpecSource
from factorize.errors import CorruptObject, InvalidParameter, extras_named
from factorize.format.claims import StatedSensitivity
from factorize.format.manifest import steps_of
from factorize.format.reading import matrix_parts
from factorize.privacy import Adjacency, Calibration, PrivacyTarget, calibrate, check_own

if TYPE_CHECKING:
    from factorize.factorization import Factorization


class Factors:
    """Sensitivity, calibration, rows and noise of one factorization, which therefore cannot be mixed up.

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
            See `Service.manifest`.
        """
        service = Service(url, timeout=timeout)
        return cls(service.manifest(source, progress=progress), service=service, cache=cache)

    def path(self) -> Path:
        """Return a verified file of it, fetched into the cache where there is none yet.

        Raises:
            See `fetch`.
        """
        if self._path is None:
            assert self._service is not None
            service = self._service
            self._path, _ = obtain(self.digest, url=service.url, cache=self._cache, timeout=service.timeout)
        return self._path

    def calibrate(
        self,
        target: PrivacyTarget | None = None,
        *,
        epsilon: float | None = None,
        delta: float | None = None,
        rho: float | None = None,
        mu: float | None = None,
        sigma: float | None = None,
        clip_norm: float = 1.0,
        batch_size: int | None = None,
        adjacency: Adjacency | str = Adjacency.ZERO_OUT,
        sampling: str = "fixed",
        dataset_size: int | None = None,
        bins: int | None = None,
    ) -> Calibration:
        """Return the noise for a privacy target: exactly one of (epsilon, delta), rho and mu, or a `PrivacyTarget`.

        With `sigma` and one of epsilon and delta it returns what that noise is worth: the other one is found. See
        `factorize.privacy.calibrate`; and with another `sampling` than `fixed`, which takes (epsilon, delta) and the
        file of C, `factorize.accounting.calibrate_sampling`.

        Raises:
            InvalidParameter: no target, two of them, or a value out of range.
            UnsupportedAdjacency: add/remove, or an unknown name.
        """
        numbers = {"epsilon": epsilon, "delta": delta, "rho": rho, "mu": mu, "sigma": sigma}
        if target is not None and any(value is not None for value in numbers.values()):
            raise InvalidParameter("a PrivacyTarget and numbers beside it are two targets; give one", field="target")
        asked = question_of(**numbers) if target is None else target
        if sampling == "fixed" and dataset_size is None and bins is None:
            plain: Any = calibrate if isinstance(asked, PrivacyTarget) else level_without_sampling
            return plain(self.sensitivity, asked, clip_norm=clip_norm, batch_size=batch_size, adjacency=adjacency)
        from factorize.accounting.schemes import calibrate_sampling

        with extras_named(f"a calibration for {sampling}"):
            return calibrate_sampling(
                self,
                asked,
                sampling=sampling,
                clip_norm=clip_norm,
                batch_size=batch_size,
                adjacency=adjacency,
                dataset_size=dataset_size,
                bins=bins,
            )

    def rows(
        self, matrix: Literal["C", "C_inv", "B"] = "C_inv", *, block_bytes: int = BLOCK_BYTES
    ) -> RowStream | FileRows:
        """Return the rows of C, C^-1 or B: from the file, or as a stream where there is only a service."""
        if self._path is not None or self._service is None:
            return FileRows(self.path(), self.manifest, matrix, block_bytes=block_bytes)
        service = self._service
        return RowStream(
            service.url,
            self.digest,
            matrix,
            block_bytes=block_bytes,
            timeout=service.timeout,
            manifest=self.manifest,
            fallback=lambda: FileRows(self.path(), self.manifest, matrix, block_bytes=block_bytes),
        )

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
        if isinstance(calibration, Calibration):
            check_own(calibration, self)
        return NoiseGenerator(self.noise_source(), calibration, shape, seed=seed, **options)


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

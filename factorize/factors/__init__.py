"""Factors in memory, in a file or at a service: the one noun for the results of `solve` and `load`."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack, cast, overload

import numpy as np

from factorize.errors import InvalidParameter, TooLarge, extras_named
from factorize.format.manifest import CertifiedFactors
from factorize.format.portrait import html, line
from factorize.format.tensors import MATRIX_NAMES, MatrixName
from factorize.numbers.scalars import check_choice, whole_number
from factorize.privacy import Calibration, PrivacyTarget, calibrate, check_own
from factorize.privacy.adjacency import Adjacency
from factorize.privacy.question import question_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from factorize.factors.certificate import Certificate
    from factorize.factors.rows import Rows
    from factorize.format.claims import Sensitivity
    from factorize.noise.generator import NoiseGenerator, NoiseOptions
    from factorize.spec import Spec

_PICTURES = "factorize.api.pictures.factorization_plot"
"""The module of the pictures, imported by its name, since it belongs to the api and nothing here depends on that."""
MAX_BYTES = 1 << 31
"""The most bytes of a matrix that is returned as one array: 2 GiB."""


class Factors(CertifiedFactors):
    """One factorization A = B C: its sensitivity, calibration, rows and noise, which therefore cannot be mixed up.

    `factorize.Factorization` has C in memory; `factorize.load` returns factors whose C stays where it is.
    """

    @cached_property
    def sensitivity(self) -> Sensitivity:
        """The certified sensitivity, with kind, rule and participation, once it is compared with that of C.

        Raises:
            CorruptObject: C has a larger one.
        """
        from factorize.factors.plain_sensitivity import confirm_stated

        return confirm_stated(self)

    @cached_property
    def spec(self) -> Spec:
        """The question that was solved. It takes pydantic to read; `manifest.spec` is the same as plain data."""
        from factorize.spec import parse_spec

        return parse_spec(self.manifest.spec)

    @abstractmethod
    def _read(self, matrix: MatrixName, start: int, stop: int) -> np.ndarray:
        """Return rows start..stop-1 of a matrix; see `rows`."""

    @cached_property
    def certificate(self) -> Certificate:
        """The certificate that the manifest states, with the sensitivity compared with that of C; it takes pydantic.

        Raises:
            CorruptObject: C has a larger sensitivity.
        """
        from factorize.factors.certificate import Certificate

        _ = self.sensitivity
        return Certificate.of(self.manifest)

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
        divisor: int | None = None,
        adjacency: Adjacency | str = Adjacency.ZERO_OUT,
        sampling: str = "fixed",
        dataset_size: int | None = None,
        batch_size: int | None = None,
        bins: int | None = None,
        steps: int | None = None,
        spent_mu: float | None = None,
    ) -> Calibration:
        """Return the noise for a privacy target: exactly one of (epsilon, delta), rho and mu, or a `PrivacyTarget`.

        With `sigma`, which is for sums, and one of epsilon and delta it returns the privacy of that noise, and
        finds the other number. With `steps` the answer is for the first steps of the run, if the run stops there and
        the stop does not depend on the data or on the releases; with `spent_mu` it is for the rest of the target after
        other runs on the same data. `divisor` is the public divisor of means; `batch_size` belongs to a sampling and
        divides nothing. See `factorize.privacy.calibrate`; and with another `sampling` than `fixed`, which takes
        (epsilon, delta) and the file of C, see `factorize.accounting.calibrate_sampling`.

        Raises:
            InvalidParameter: no target, two of them, or a value out of range.
            UnsupportedAdjacency: add/remove, or an unknown name.
            MissingExtra: the sampling's accounting takes the extra `[solve]`.
        """
        numbers = {"epsilon": epsilon, "delta": delta, "rho": rho, "mu": mu, "sigma": sigma, "spent_mu": spent_mu}
        if target is not None and any(value is not None for value in numbers.values()):
            raise InvalidParameter("a PrivacyTarget and other numbers are two targets; give one", field="target")
        question = question_of(**numbers) if target is None else target
        scale: dict[str, Any] = {"clip_norm": clip_norm, "divisor": divisor, "adjacency": adjacency}
        sizes = {"dataset_size": dataset_size, "batch_size": batch_size, "bins": bins, "steps": steps}
        if sampling == "fixed" and all(size is None for size in sizes.values()):
            return calibrate(self.sensitivity, question, **scale)
        from factorize.samplings.calibrating import calibrate_sampling

        with extras_named(f"a calibration for {sampling}"):
            return calibrate_sampling(self, question, sampling=sampling, **scale, **sizes)

    def noise(
        self, calibration: Calibration, shape: int | Sequence[int], *, seed: int, **options: Unpack[NoiseOptions]
    ) -> NoiseGenerator:
        """Return the noise of each step.

        Args:
            calibration: the result of this object's `calibrate`, or of `factorize.privacy.calibrate` with this
                sensitivity; or of `factorize.accounting.amplification.calibrate_amplified` for this C, whose epsilon
                holds for a job that samples as it says: take batches from `factorize.training.sampling.CyclicPoisson`.
            shape: shape of the (flattened) parameters.
            seed: a secret integer, `secrets.randbits(128)`.
            **options: shard, generator, precision, memory_bytes, threads; see `NoiseGenerator`.

        Raises:
            InvalidParameter: the calibration is for another sensitivity than this factorization's.
        """
        from factorize.noise.generator import NoiseGenerator
        from factorize.noise.source import source_of

        check_own(calibration, self)
        return NoiseGenerator(source_of(self), calibration, shape, seed=seed, **options)

    @overload
    def rows(
        self, matrix: MatrixName = "C_inv", start: None = None, stop: None = None, *, block_bytes: int | None = None
    ) -> Rows: ...
    @overload
    def rows(self, matrix: MatrixName, start: int, stop: int) -> np.ndarray: ...
    def rows(
        self,
        matrix: MatrixName = "C_inv",
        start: int | None = None,
        stop: int | None = None,
        *,
        block_bytes: int | None = None,
    ) -> Rows | np.ndarray:
        """Return rows start..stop-1 of C, C^-1 or B, float64; or all rows, one after another. Never the whole matrix.

        Args:
            matrix: `C`, `C_inv` (the noising matrix) or `B` (the decoder).
            start: first row, from 0.
            stop: one past the last row.
            block_bytes: bytes of rows that are computed, or sent, together when all rows are read; 4 MiB by default.

        Returns:
            An array of shape (stop - start, n), or (stop - start, stop) of a matrix without end; without `start` and
            `stop` the `Rows`.

        Raises:
            InvalidParameter: unknown matrix, rows outside it, or only one of `start` and `stop`.
            InvalidStrategy: C is so ill-conditioned that entries of its inverse are beyond double precision.
        """
        check_choice("matrix", matrix, MATRIX_NAMES)
        if start is not None and stop is not None:
            return self._read(matrix, whole_number("start", start, low=0), whole_number("stop", stop, low=0))
        if start is not None or stop is not None:
            raise InvalidParameter(
                f"rows need both start and stop, or neither for all; got {start} and {stop}", field="rows"
            )
        from factorize.factors.rows import Rows

        return Rows(self.manifest, matrix, self._read, block_bytes=block_bytes)

    @cached_property
    def C(self) -> np.ndarray:  # noqa: N802  the name of the matrix in formulas
        """The strategy matrix, shape (n, n), read-only; kept after the first read.

        Raises:
            TooLarge: the matrix takes more than 2 GiB; read its rows.
            UnsupportedProblem: the matrix has no last row.
        """
        return self._whole("C")

    @cached_property
    def C_inv(self) -> np.ndarray:  # noqa: N802  the name of the matrix in formulas
        """The noising matrix C^-1, shape (n, n), read-only; it raises as `C`."""
        return self._whole("C_inv")

    @cached_property
    def B(self) -> np.ndarray:  # noqa: N802  the name of the matrix in formulas
        """The decoder A C^-1, one row for each output of the workload, read-only; it raises as `C`."""
        return self._whole("B")

    def shape(self, matrix: MatrixName) -> tuple[int, int]:
        """Return the shape of C, C_inv or B; raise UnsupportedProblem where its rows have no end."""
        return self.manifest.shape(matrix)

    def _whole(self, name: MatrixName) -> np.ndarray:
        rows, n = self.shape(name)
        if 8 * rows * n > MAX_BYTES:
            raise TooLarge(
                f"{name} with n={n} takes {8 * rows * n / 2**30:.1f} GiB as an array, above {MAX_BYTES >> 30} GiB; "
                f"read some rows, factors.rows({name!r}, 0, 100), or make noise from it, which needs no whole matrix"
            )
        array = self.rows(name, 0, rows)
        array.setflags(write=False)
        return array

    def verify(self) -> Certificate:
        """Prove the claims of the certificate from the bytes, and return it; see `Factorization.verify`."""
        return self.opened().verify()

    def save(self, path: str | bytes | Path) -> None:
        """Write one safetensors file, whole or not at all; see `Factorization.save`."""
        self.opened().save(path)

    @extras_named("a picture")
    def plot(self) -> Figure:
        """Return a matplotlib figure, which notebooks show: C, C^-1, the error of each query, and the bound.

        Write it with `plot().savefig("picture.png")`; `factorize plot` has other views.

        Raises:
            MissingExtra: the extra `[cli]`, which has matplotlib, is not installed.
        """
        return cast("Figure", import_module(_PICTURES).draw(self.opened()))

    def __repr__(self) -> str:
        """Return one line: spec, sensitivity, loss, gap, digest."""
        return line(self.manifest)

    def _repr_html_(self) -> str:
        """Return the certificate in words and a small picture, for notebooks."""
        return html(self)

"""A factorization: spec, matrices, certificate and provenance under one manifest, the only thing that stores hold.

`digest` names the bytes: it is the sha256 of the canonical manifest without `digest`, `files`, `created` and the
solver's time and environment; the manifest names every tensor by its own sha256.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from factorize import __version__
from factorize.checker.arithmetic.near import NotEnclosed
from factorize.checker.report import SENSITIVITY
from factorize.checker.strategy import Strategy
from factorize.encoding import JsonObject, canonical_json, tensor_digest
from factorize.errors import (
    CertificateError,
    CorruptObject,
    InvalidParameter,
    InvalidStrategy,
    TooLarge,
    UnsupportedProblem,
    extras_named,
)
from factorize.factors import Factors
from factorize.factors.certificate import Certificate, certify
from factorize.factors.plain_sensitivity import note_confirmed
from factorize.factors.solution import Outcome, Solution
from factorize.factors.strategy_file import read_strategy
from factorize.format.claims import Sensitivity
from factorize.format.container import local_path
from factorize.format.files import Files, write_whole
from factorize.format.manifest import SCHEMA, Manifest
from factorize.format.tensors import MATRIX_NAMES, MatrixName
from factorize.numbers.covered import column_defect, covering, defect
from factorize.numbers.triangular import toeplitz_rows
from factorize.spec import Spec, parse_spec
from factorize.spec.mechanisms import Added
from factorize.structures.base import MAX_DENSE, Matrix
from factorize.structures.dense import DenseMatrix, strategy_array
from factorize.structures.endless import MAX_ROWS, AnyStrategy
from factorize.structures.layouts import build_matrix, describe
from factorize.structures.toeplitz import ToeplitzMatrix

if TYPE_CHECKING:
    from factorize.checker.utility import Utility

MAX_COVERED_STEPS = 2048
"""The largest n for which a stored C_inv without structure is enlarged by its rounding, as the checker proves it."""
MAX_ENCODER_STEPS = 2048
"""The largest n for which a B without structure gets a claim."""
_MAX_ROUNDING = 2.0**-31
"""The largest relative rounding of a stored C_inv that is covered; readers compare C_inv with their own up to 1e-9."""


class Factorization(Factors):
    """A certified factorization A = B C.

    Args:
        spec: canonical spec with a named mechanism; a user's matrix is bound to its numbers.
        strategy: C.
        dual: evidence of the lower bound, by name without the prefix `dual.`.
        manifest: the manifest of exactly these matrices.
        extra: tensors of a stored C_inv or B by name, for readers that have only a safetensors library.

    Use `from_solution` or `factorize.load`, which both check their input.
    """

    def __init__(
        self,
        spec: Spec,
        strategy: AnyStrategy,
        dual: Mapping[str, np.ndarray],
        manifest: Manifest,
        extra: Mapping[str, np.ndarray] = MappingProxyType({}),
    ) -> None:
        self.spec, self.strategy, self.manifest = spec, strategy, manifest
        self.dual, self.extra = dict(dual), dict(extra)

    @classmethod
    def from_solution(
        cls, spec: Spec, solution: Solution, *, solver: Mapping[str, object], utility: Utility | None = None
    ) -> Factorization:
        """Certify a solver's claim and describe it.

        Args:
            spec: canonical spec with a named mechanism.
            solution: the claim.
            solver: provenance (mechanism, version, seconds, iterations, environment).
            utility: see `certify`.

        Raises:
            CertificateError: the claim does not hold.
        """
        with ThreadPoolExecutor(1, "digests") as beside:  # hashing releases the interpreter's lock
            stored = beside.submit(_stored, solution.strategy, solution.strategy.tensors(), solution.dual)
            certificate = certify(spec, solution.strategy, solution.dual, outcome=solution.outcome, utility=utility)
        stopped = {"iterations": solution.iterations, "outcome": solution.outcome.name.lower()}
        document: dict[str, object] = {
            "schema": SCHEMA,
            "spec": spec.document(),
            "spec_digest": spec.digest,
            "certificate": certificate.document(),
            **stored.result(),
            "solver": {**solver, **solution.provenance, **stopped},
        }
        manifest = Manifest.sealed(document)
        note_confirmed(manifest)
        return cls(spec, solution.strategy, solution.dual, manifest)

    @classmethod
    @extras_named("a certificate")
    def from_strategy(
        cls, spec: Spec, strategy: object, dual: Mapping[str, np.ndarray] = MappingProxyType({})
    ) -> Factorization:
        """Certify a strategy that no solver of this project has made.

        Args:
            spec: the spec that the strategy is for; its mechanism becomes `added`.
            strategy: C, as a structure, or as anything that `read_strategy` takes: an array of shape (n, n), say,
                whose bytes then name it.
            dual: evidence of a lower bound for the spec, if there is any.

        Raises:
            InvalidStrategy: the array is no strategy matrix, or not of the spec's n.
            InvalidSpec: the first argument is no spec.
            CertificateError: the strategy does not serve the workload.
            MissingExtra: the extra `[solve]` is not installed.
        """
        spec = parse_spec(spec)
        given = strategy if isinstance(strategy, AnyStrategy) else read_strategy(strategy, n=spec.workload.n)
        named = [given] if isinstance(given, np.ndarray) else list(given.tensors().values())
        held = structured(given, spec.workload.n) if isinstance(given, np.ndarray) else given
        added = Added(kind="added", sha256=tensor_digest(named))
        solver = {"mechanism": added.kind, "version": __version__, "seconds": 0.0, "environment": {}}
        own = spec.model_copy(update={"mechanism": added}).canonical()
        return cls.from_solution(own, Solution(held, Outcome.ADDED, 0, dual), solver=solver)

    @cached_property
    def _decoder_coefficients(self) -> np.ndarray | None:
        workload = self.spec.workload.coefficients
        return None if workload is None else self.matrix.divide(workload)

    def strategy_tensors(self) -> Mapping[str, np.ndarray]:
        """Return the tensors of C by suffix ('' for a dense one), as doubles.

        Raises:
            CorruptObject: the manifest is of another C.
        """
        if tensor_digest(self._stored_strategy()) != self.manifest.matrix("C").sha256:
            raise CorruptObject("the manifest is of another C; make factors by factorize.certify, solve or load")
        return self.strategy.tensors()

    def opened(self) -> Factorization:
        """Return the factorization itself, since C is in memory."""
        return self

    @property
    def endless(self) -> bool:
        """Whether its matrices have no last row."""
        return self.strategy.side is None

    @property
    def matrix(self) -> Matrix:
        """The matrix C with a last row; raises UnsupportedProblem where it has none."""
        return self.strategy.finite()

    def _read(self, matrix: MatrixName, start: int, stop: int) -> np.ndarray:
        last = MAX_ROWS if self.endless else self.shape(matrix)[0]
        if not 0 <= start <= stop <= last:
            raise InvalidParameter(f"rows {start}:{stop} are outside {matrix}, which has rows 0:{last}", field="rows")
        if not stop and self.endless:
            return np.empty((0, 0))
        if matrix == "C":
            return self.strategy.rows(start, stop)
        # The check below refuses the results of an overflow.
        with extras_named(f"rows of {matrix}"), np.errstate(over="ignore", invalid="ignore"):
            if matrix == "C_inv":
                rows = self.strategy.inverse_rows(start, stop)
            elif self.endless:
                rows = self.strategy.right_solve(toeplitz_rows(np.ones(stop), start, stop))
            elif self._decoder_coefficients is not None:
                rows = toeplitz_rows(self._decoder_coefficients, start, stop)
            else:
                rows = self.strategy.right_solve(self.spec.workload.row_block(start, stop))
        if not np.isfinite(rows).all():
            raise InvalidStrategy(
                f"C is too ill-conditioned: rows {start}:{stop} of {matrix} have entries beyond the range of doubles; "
                "use another factorization",
                field="name",
            )
        return rows

    @extras_named("a verification")
    def verify(self) -> Certificate:
        """Prove the claims of the certificate from the bytes of the file, as `factorize verify` does, and return it.

        Raises:
            CertificateError: a claim is false, or the sensitivity is not proved.
            CorruptObject, TooLarge: see `factorize.checker.check.check_factor_file`.
            MissingExtra: the extra `[solve]` is not installed.
        """
        from safetensors.numpy import save

        from factorize.checker.check import check_factor_file

        report = check_factor_file(save(*self._written()), user=self.spec.user_arrays())
        if report.failed:
            raise CertificateError(report.failed[0])
        if SENSITIVITY in report.unseen:
            why = next(claim["why"] for claim in report.claims if claim["claim"] == SENSITIVITY)
            raise CertificateError(f"the sensitivity is not proved: {why}")
        note_confirmed(self.manifest)
        return self.certificate

    def with_matrices(self, names: list[MatrixName]) -> Factorization:
        """Return this factorization with C_inv or B stored with C, under a manifest (and digest) of its own.

        Raises:
            InvalidParameter: an unknown name.
            InvalidStrategy: a matrix has numbers that its type cannot hold.
            TooLarge: the matrix has no structure and n is above the limit of dense arrays.
            UnsupportedProblem: the matrix has no last row.
        """
        unknown = sorted(set(names) - set(MATRIX_NAMES))
        if unknown:
            raise InvalidParameter(f"matrix {unknown[0]!r} is not one of {', '.join(MATRIX_NAMES)}", field="matrices")
        if self.endless and set(names) - {"C"}:
            raise UnsupportedProblem(
                "C_inv and B have no last row, since n is 'unbounded'; read their rows in ranges",
                field="matrices",
            )
        matrices: dict[str, JsonObject] = {}
        extra: dict[str, np.ndarray] = {}
        for name in (name for name in MATRIX_NAMES if name in names and name != "C"):
            structure, parts = materialise(self, name)
            if name == "C_inv":
                parts = _covered(self, parts)
            parts = {suffix: _in_type(name, array, self.dtype) for suffix, array in parts.items()}
            matrices[name] = describe(name, structure, parts, self.shape(name))
            claim = _encoder_claim(self, structure, parts) if name == "B" else None
            if claim is not None:
                matrices[name]["encoder_sensitivity"] = claim
            extra |= dict(zip(matrices[name]["tensors"], parts.values(), strict=True))
        document = {key: value for key, value in self.manifest.items() if key != "files"}
        document["matrices"] = {"C": self.manifest.matrix("C")._asdict(), **matrices}
        return Factorization(self.spec, self.strategy, self.dual, Manifest.sealed(document), extra)

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the numbers, for processes that are spawned: a matrix caches functions, which cannot be pickled."""
        strategy = self.strategy.structure, self.strategy.tensors(), None if self.endless else self.matrix.n
        return _unpickled, (self.spec, strategy, self.dual, self.manifest, self.extra)

    @cached_property
    def sensitivity(self) -> Sensitivity:
        """The certified sensitivity; see `Factors.sensitivity`. It raises CorruptObject for another C, too."""
        self.strategy_tensors()
        return super().sensitivity

    def _stored_strategy(self) -> list[np.ndarray]:
        return [array.astype(self.dtype, copy=False) for array in self.strategy.tensors().values()]

    def tensors(self) -> dict[str, np.ndarray]:
        """Return every tensor of the file by name."""
        named = dict(zip(self.manifest.matrix("C").tensors, self._stored_strategy(), strict=True))
        return named | {f"dual.{name}": array for name, array in self.dual.items()} | self.extra

    def save(self, path: str | bytes | Path) -> None:
        """Write one safetensors file, whole or not at all: the tensors, and the manifest as metadata.

        Raises:
            OSError: the file cannot be written.
        """
        from safetensors.numpy import save_file

        tensors, metadata = self._written()
        with write_whole(local_path(path)) as part:
            Files().produce(part, lambda path: save_file(tensors, path, metadata))

    def _written(self) -> tuple[dict[str, np.ndarray], dict[str, str]]:
        """Return the tensors and the metadata of the file."""
        tensors = {name: np.ascontiguousarray(array) for name, array in self.tensors().items()}
        return tensors, {"manifest": canonical_json(self.manifest).decode("ascii")}


def _unpickled(
    spec: Spec,
    strategy: tuple[str, dict[str, np.ndarray], int | None],
    dual: Mapping[str, np.ndarray],
    manifest: Manifest,
    extra: Mapping[str, np.ndarray],
) -> Factorization:
    return Factorization(spec, build_matrix(*strategy), dual, manifest, extra)


def structured(strategy: np.ndarray | Matrix, n: int) -> Matrix:
    """Return a strategy as a matrix of side n; a Toeplitz array as its column, whose sensitivity has sharper rules.

    Raises:
        InvalidStrategy: it is no strategy matrix, or its side is not n.
    """
    shape = strategy.shape if isinstance(strategy, np.ndarray) else (strategy.n, strategy.n)
    if shape != (n, n):
        raise InvalidStrategy(f"the matrix has shape {shape}, but the spec has n={n}; give C of shape (n, n)")
    if isinstance(strategy, Matrix):
        return strategy
    checked = strategy_array(strategy)
    if n > 1 and (checked[1:, 1:] == checked[:-1, :-1]).all():
        return ToeplitzMatrix(checked[:, 0], n)
    return DenseMatrix(checked)


def _encoder_claim(base: Factorization, structure: str, parts: Mapping[str, np.ndarray]) -> dict[str, object] | None:
    """Return the manifest's claim for adding noise to exact results, or None where none is proved of the stored B.

    A G + B Z is B (E G + Z) with the encoder E = B^-1 A, not with C. The claim allows for twice the proved addition to
    the sensitivity of C, since another machine rounds differently.
    """
    from factorize.checker.stored import decoded

    stored = np.asarray(parts["" if structure == "dense" else "coefficients"], dtype=np.float64)
    if stored.ndim == 2 and max(stored.shape) > MAX_ENCODER_STEPS:
        return None
    strategy = Strategy(base.matrix.structure, base.matrix.tensors(), base.matrix.n)
    squared = Fraction(base.certificate.sensitivity.value) ** 2
    try:
        encoder = decoded(base.spec.document(), strategy, stored, squared, base.spec.user_arrays())[2]
    except (NotEnclosed, CertificateError):
        return None
    if isinstance(encoder, str):
        return None
    value = float(encoder[0] + encoder[1])
    return {"value": value, "hex": value.hex(), "kind": "upper_bound"} if math.isfinite(value) else None


def _in_type(name: MatrixName, array: np.ndarray, dtype: str) -> np.ndarray:
    """Return a matrix in a type; raise InvalidStrategy if its numbers overflow there, or its diagonal becomes 0."""
    with np.errstate(over="ignore"):
        stored = array.astype(dtype, copy=False)
    before, after = (each[:1] if each.ndim == 1 else np.diagonal(each) for each in (array, stored))
    if not np.isfinite(stored).all() or ((before != 0) & (after == 0)).any():
        raise InvalidStrategy(
            f"{name} has numbers outside the range of {dtype}; leave {name} out, or store float64", field="matrices"
        )
    return stored


def _covered(base: Factorization, parts: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Enlarge a C_inv by the cost of its rounding, so that the claim for C covers it, if n is small enough to know.

    A C_inv in float32 is the inverse of another matrix and stays as it is; so does one whose rounding is larger than
    readers accept for C^-1.
    """
    column = parts.get("coefficients")
    if base.dtype != "float64" or (column is None and base.matrix.n > MAX_COVERED_STEPS):
        return parts
    if column is not None:
        lost = column_defect(base.matrix.rows(base.matrix.n - 1, base.matrix.n)[0, ::-1], column)
    else:
        lost = defect(base.matrix.dense(), parts[""])
    if not lost <= _MAX_ROUNDING:
        return parts
    return {suffix: array * covering(lost) for suffix, array in parts.items()}


def materialise(base: Factorization, name: MatrixName) -> tuple[str, dict[str, np.ndarray]]:
    """Return structure and tensors, by suffix, of C_inv or B as in a file; it raises as `with_matrices` does."""
    inverse = base.matrix.divide(np.eye(1, base.matrix.n)[0]) if name == "C_inv" else None
    if inverse is not None:
        return "toeplitz", {"coefficients": inverse}
    if name == "B" and base._decoder_coefficients is not None:
        return "toeplitz", {"coefficients": base._decoder_coefficients}
    rows, n = base.shape(name)
    if max(rows, n) > MAX_DENSE:
        raise TooLarge(
            f"{name} is dense and takes {8 * rows * n / 2**30:.1f} GiB; above n={MAX_DENSE}, read its rows instead"
        )
    return "dense", {"": base.rows(name, 0, rows)}


def _stored(
    strategy: AnyStrategy, tensors: Mapping[str, np.ndarray], dual: Mapping[str, np.ndarray]
) -> dict[str, object]:
    """Return the manifest's description of the tensors, which takes a digest of all their bytes."""
    n = strategy.side
    evidence = {"tensors": [f"dual.{name}" for name in dual], "sha256": tensor_digest(dual.values())} if dual else None
    return {"matrices": {"C": describe("C", strategy.structure, tensors, (n, n))}, "dual": evidence}

"""A factorization: spec, matrices, certificate and provenance under one manifest. The only thing that is stored.

`digest` names the bytes: it is the sha256 of the canonical manifest without `digest`, `files`, `created` and the
solver's time and environment; the manifest names every tensor by its own sha256.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from factorize.certificate import Certificate, certify
from factorize.encoding import canonical_json, read_json, tensor_digest
from factorize.errors import (
    CertificateError,
    CorruptObject,
    FactorizeError,
    InvalidParameter,
    TooLarge,
    UnsupportedProblem,
)
from factorize.manifest import SCHEMA, check_manifest, manifest_digest
from factorize.numbers.series import toeplitz_rows
from factorize.solution import Outcome, Solution
from factorize.spec import Spec, parse_spec
from factorize.structures.endless import LARGEST_ROW, EndlessMatrix
from factorize.structures.layouts import DTYPES, build_matrix, describe, side
from factorize.structures.matrix import MAX_DENSE, Matrix
from factorize.workloads import UserMatrix

MatrixName = Literal["C", "C_inv", "B"]
MATRIX_NAMES: tuple[MatrixName, ...] = ("C", "C_inv", "B")
_MANIFEST_BYTES = 1 << 30
_EXTRA_ERROR = {"float64": 1e-9, "float32": 1e-6}  # allowed between stored and recomputed C_inv and B, relative


class Factorization:
    """A certified factorization A = B C.

    Args:
        spec: canonical spec with a named mechanism; a user's matrix bound to its numbers.
        strategy: C.
        dual: evidence of the lower bound, by name without the prefix `dual.`.
        manifest: the manifest that describes exactly these.

    Use `from_solution` or `load`; both check what they are given.
    """

    def __init__(self, spec: Spec, strategy: Matrix, dual: Mapping[str, np.ndarray], manifest: dict[str, Any]) -> None:
        self.spec = spec
        self.strategy = strategy
        self.dual = dict(dual)
        self.manifest = manifest

    @classmethod
    def from_solution(cls, spec: Spec, solution: Solution, *, solver: Mapping[str, Any]) -> Factorization:
        """Certify a solver's claim and describe it.

        Args:
            spec: canonical spec with a named mechanism.
            solution: the claim.
            solver: provenance (mechanism, version, seconds, iterations, environment).

        Raises:
            CertificateError: the claim does not hold.
        """
        certificate = certify(spec, solution.strategy, solution.dual, outcome=solution.outcome)
        stopped = {"iterations": solution.iterations, "outcome": solution.outcome.name.lower()}
        provenance = {**solver, **solution.provenance, **stopped}
        manifest = _manifest(spec, solution.strategy, solution.dual, certificate, provenance)
        return cls(spec, solution.strategy, solution.dual, manifest)

    @property
    def digest(self) -> str:
        """Names these bytes."""
        return str(self.manifest["digest"])

    @property
    def dtype(self) -> str:
        """Type in which C is stored; in memory its numbers are doubles."""
        return str(self.manifest["matrices"]["C"]["dtype"])

    @property
    def spec_digest(self) -> str:
        """Names what was asked."""
        return str(self.manifest["spec_digest"])

    @cached_property
    def certificate(self) -> Certificate:
        """The certificate that the manifest states."""
        return Certificate.from_document(self.manifest["certificate"])

    @cached_property
    def _decoder_coefficients(self) -> np.ndarray | None:
        workload = self.spec.workload.coefficients
        return None if workload is None else self.strategy.divide(workload)

    @property
    def endless(self) -> bool:
        """Whether its matrices have no last row."""
        return isinstance(self.strategy, EndlessMatrix)

    def shape(self, name: MatrixName) -> tuple[int, int]:
        """Return the shape of C, C_inv or B.

        Raises:
            UnsupportedProblem: the matrix has rows without end; ask `rows` for a range.
        """
        return (self.spec.workload.m if name == "B" else self.strategy.n, self.strategy.n)

    def rows(self, name: MatrixName, start: int, stop: int) -> np.ndarray:
        """Return rows start..stop-1 of a matrix, shape (stop - start, n), float64; never the whole matrix.

        Args:
            name: `C`, `C_inv` (the noising matrix) or `B` (the decoder).
            start: first row, from 0.
            stop: one past the last row.

        Returns:
            Of a matrix without end the columns up to stop - 1, shape (stop - start, stop).

        Raises:
            InvalidParameter: unknown name, or rows outside the matrix.
        """
        if name not in MATRIX_NAMES:
            raise InvalidParameter(f"matrix {str(name)[:20]!r} is not one of {', '.join(MATRIX_NAMES)}", field="name")
        last = LARGEST_ROW if self.endless else self.shape(name)[0]
        if not 0 <= start <= stop <= last:
            raise InvalidParameter(f"rows {start}:{stop} are outside {name}, which has rows 0:{last}", field="rows")
        if name == "C":
            return self.strategy.rows(start, stop)
        if name == "C_inv":
            return self.strategy.inverse_rows(start, stop)
        if self.endless:
            return self.strategy.right_solve(toeplitz_rows(np.ones(stop), start, stop))
        if self._decoder_coefficients is not None:
            return toeplitz_rows(self._decoder_coefficients, start, stop)
        return self.strategy.right_solve(self.spec.workload.row_block(start, stop))

    def verify(self) -> Certificate:
        """Recompute the certificate from the matrices and compare it with the manifest's.

        Returns:
            The recomputed certificate.

        Raises:
            CertificateError: a number of the manifest claims more than the recomputation supports.
        """
        outcome = Outcome[str(self.manifest["solver"].get("outcome", "iteration_limit")).upper()]
        fresh = certify(self.spec, self.strategy, self.dual, outcome=outcome)
        compare(self.manifest["certificate"], fresh)
        return fresh

    def with_matrices(self, names: list[MatrixName]) -> Expanded:
        """Return this factorization with C_inv or B stored beside C, under a manifest (and digest) of its own."""
        return expand(self, names)

    def tensors(self) -> dict[str, np.ndarray]:
        """Return every tensor of the file by name."""
        stored = [array.astype(self.dtype, copy=False) for array in self.strategy.tensors().values()]
        named = dict(zip(self.manifest["matrices"]["C"]["tensors"], stored, strict=True))
        return named | {f"dual.{name}": array for name, array in self.dual.items()}

    def save(self, path: str | Path) -> None:
        """Write one safetensors file: the tensors, and the manifest as metadata."""
        from safetensors.numpy import save_file

        manifest = canonical_json(self.manifest).decode("ascii")
        save_file({name: np.ascontiguousarray(a) for name, a in self.tensors().items()}, path, {"manifest": manifest})


class Expanded(Factorization):
    """A factorization whose file also holds C_inv or B, for readers that have only a safetensors library."""

    extra: dict[str, np.ndarray]

    def tensors(self) -> dict[str, np.ndarray]:
        """Return every tensor of the file by name, the additional ones included."""
        return super().tensors() | self.extra


def expand(base: Factorization, names: list[MatrixName]) -> Expanded:
    """Store further matrices beside C.

    Raises:
        InvalidParameter: unknown name.
        TooLarge: the matrix has no structure and n is above the limit of dense arrays.
    """
    if base.endless and set(names) - {"C"}:
        raise UnsupportedProblem(
            "C_inv and B of a strategy without end are no finite tensors; read their rows in ranges", field="matrices"
        )
    manifest = {key: value for key, value in base.manifest.items() if key != "files"}
    matrices = {"C": manifest["matrices"]["C"]}
    extra: dict[str, np.ndarray] = {}
    for name in (name for name in MATRIX_NAMES if name in names and name != "C"):
        structure, parts = _materialise(base, name)
        parts = {suffix: array.astype(base.dtype, copy=False) for suffix, array in parts.items()}
        matrices[name] = describe(name, structure, parts, base.shape(name))
        claim = _encoder_claim(base, structure, parts) if name == "B" else None
        if claim is not None:
            matrices[name]["encoder_sensitivity"] = claim
        extra |= dict(zip(matrices[name]["tensors"], parts.values(), strict=True))
    unknown = sorted(set(names) - set(MATRIX_NAMES))
    if unknown:
        raise InvalidParameter(f"matrix {unknown[0]!r} is not one of {', '.join(MATRIX_NAMES)}", field="matrices")
    manifest["matrices"] = matrices
    manifest["digest"] = manifest_digest(manifest)
    expanded = Expanded(base.spec, base.strategy, base.dual, manifest)
    expanded.extra = extra
    return expanded


def _encoder_claim(base: Factorization, structure: str, parts: Mapping[str, np.ndarray]) -> dict[str, Any] | None:
    from factorize.encoder import LARGEST, encoder_sensitivity, toeplitz_encoder_sensitivity

    given = (base.strategy, base.spec.workload, base.spec.participation, base.certificate.sensitivity.value)
    wide = {suffix: array.astype(np.float64, copy=False) for suffix, array in parts.items()}
    if max(base.shape("B")) <= LARGEST:
        stored = wide[""] if structure == "dense" else toeplitz_rows(wide["coefficients"], 0, base.strategy.n)
        return encoder_sensitivity(stored, *given)
    return None if structure == "dense" else toeplitz_encoder_sensitivity(wide["coefficients"], *given)


def _materialise(base: Factorization, name: MatrixName) -> tuple[str, dict[str, np.ndarray]]:
    inverse = base.strategy.divide(np.eye(1, base.strategy.n)[0]) if name == "C_inv" else None
    if inverse is not None:
        return "toeplitz", {"coefficients": inverse}
    if name == "B" and base._decoder_coefficients is not None:
        return "toeplitz", {"coefficients": base._decoder_coefficients}
    rows, n = base.shape(name)
    if max(rows, n) > MAX_DENSE:
        raise TooLarge(f"{name} has no structure and takes {8 * rows * n / 2**30:.1f} GiB; stream its rows instead")
    return "dense", {"": base.rows(name, 0, rows)}


def load(path: str | Path, *, matrices: Mapping[str, np.ndarray] | None = None) -> Factorization:
    """Open a factor file and check that its bytes are the ones its manifest names.

    The certificate is not recomputed; call `verify` for that.

    Args:
        path: a `.safetensors` file.
        matrices: numbers of user-supplied workloads by sha256, for specs with workload kind `matrix`.

    Raises:
        CorruptObject: not a factor file, a tensor is missing, or bytes and manifest disagree.
    """
    manifest, tensors = _read_file(path)
    return from_tensors(manifest, tensors, matrices=matrices)


def from_tensors(
    manifest: dict[str, Any], tensors: Mapping[str, np.ndarray], *, matrices: Mapping[str, np.ndarray] | None = None
) -> Factorization:
    """Rebuild a factorization from its manifest and tensors, checking every digest.

    Raises:
        CorruptObject: see `load`.
    """
    try:
        check_manifest(manifest)
        spec = _bound(parse_spec(manifest["spec"]), matrices or {})
        if spec.digest != manifest["spec_digest"]:
            raise CorruptObject("the manifest's spec does not hash to its spec digest")
        found = {name: _checked(name, entry, tensors) for name, entry in manifest["matrices"].items()}
        dual = _checked_dual(manifest.get("dual"), tensors)
        n = None if spec.workload.endless else spec.workload.n
        strategy = build_matrix(manifest["matrices"]["C"]["structure"], found["C"], n)
        Certificate.from_document(manifest["certificate"])
    except CorruptObject:
        raise
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise CorruptObject(f"not a manifest: {type(error).__name__}: {str(error)[:200]}") from None
    loaded: Factorization = Factorization(spec, strategy, dual, manifest)
    if len(found) > 1:
        loaded = Expanded(spec, strategy, dual, manifest)
        loaded.extra = {n: tensors[n] for key in found if key != "C" for n in manifest["matrices"][key]["tensors"]}
        _check_extra(loaded)
    return loaded


def _check_extra(expanded: Expanded) -> None:
    """Compare stored C_inv and B with what C and the workload say, to the residual that the certificate allows."""
    for name in (name for name in MATRIX_NAMES if name in expanded.manifest["matrices"] and name != "C"):
        structure, parts = _materialise(expanded, name)
        entry = expanded.manifest["matrices"][name]
        stored = [expanded.extra[tensor] for tensor in entry["tensors"]]
        for fresh, array in zip(parts.values(), stored, strict=True):
            same = entry["structure"] == structure and fresh.shape == array.shape
            if not same or np.abs(fresh - array).max() > _EXTRA_ERROR[expanded.dtype] * np.abs(fresh).max():
                raise CorruptObject(f"the stored {name} is not the one that C and the workload define")


def _bound(spec: Spec, matrices: Mapping[str, np.ndarray]) -> Spec:
    workload = spec.workload
    if isinstance(workload, UserMatrix) and workload.sha256 is not None and workload.sha256 in matrices:
        return spec.model_copy(update={"workload": workload.bind(matrices[workload.sha256])})
    return spec


def _read_file(path: str | Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            text = (file.metadata() or {}).get("manifest")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # no mapping
    except SafetensorError as error:
        raise CorruptObject(f"{path} is not a safetensors file: {error}") from None
    if text is None:
        raise CorruptObject(f"{path} has no 'manifest' in its metadata, so it is not a factor file")
    try:
        manifest = read_json(text, limit=_MANIFEST_BYTES)
    except FactorizeError as error:
        raise CorruptObject(f"the manifest of {path} is not JSON: {error}") from None
    if not isinstance(manifest, dict):
        raise CorruptObject(f"the manifest of {path} is not an object")
    return manifest, tensors


def _checked(name: str, entry: Mapping[str, Any], tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return one matrix's tensors by suffix after comparing dtype and digest."""
    arrays = {tensor.removeprefix(name).removeprefix("."): tensors[tensor] for tensor in entry["tensors"]}
    stated = entry["dtype"]
    if stated not in DTYPES or any(array.dtype != np.dtype(stated) for array in arrays.values()):
        raise CorruptObject(f"{name} is not stored as {str(stated)[:20]!r}, or that is none of {', '.join(DTYPES)}")
    if tensor_digest(arrays.values()) != entry["sha256"]:
        raise CorruptObject(f"the bytes of {name} do not hash to {entry['sha256']}; download the file again")
    return {suffix: array.astype(np.float64, copy=False) for suffix, array in arrays.items()}


def _checked_dual(entry: Mapping[str, Any] | None, tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    if entry is None:
        return {}
    arrays = {name.removeprefix("dual."): tensors[name] for name in entry["tensors"]}
    if tensor_digest(arrays.values()) != entry["sha256"]:
        raise CorruptObject(f"the bytes of the dual evidence do not hash to {entry['sha256']}")
    return arrays


def _manifest(
    spec: Spec, strategy: Matrix, dual: Mapping[str, np.ndarray], certificate: Certificate, solver: Mapping[str, Any]
) -> dict[str, Any]:
    n = side(strategy)
    manifest: dict[str, Any] = {
        "schema": SCHEMA,
        "spec": spec.document(),
        "spec_digest": spec.digest,
        "certificate": certificate.document(),
        "matrices": {"C": describe("C", strategy.structure, strategy.tensors(), (n, n))},
        "dual": None,
        "solver": dict(solver),
    }
    if dual:
        names = [f"dual.{name}" for name in dual]
        manifest["dual"] = {"tensors": names, "sha256": tensor_digest(dual.values())}
    manifest["digest"] = manifest_digest(manifest)
    return json.loads(canonical_json(manifest))


def compare(claimed: Mapping[str, Any], fresh: Certificate) -> None:
    """Check that a claimed certificate says nothing better than a recomputed one, to relative 1e-9.

    Raises:
        CertificateError: naming the first number that does not hold.
    """
    recomputed = fresh.document()
    if float.fromhex(claimed["sensitivity"]["hex"]) != claimed["sensitivity"]["value"]:
        raise CertificateError("the sensitivity's value and its hex form are two different numbers")
    if claimed["sensitivity"]["value"] < recomputed["sensitivity"]["value"] * (1 - 1e-12):
        raise CertificateError(
            f"the claimed sensitivity {claimed['sensitivity']['value']!r} is below the recomputed "
            f"{recomputed['sensitivity']['value']!r}: noise scaled to it would be too small"
        )
    for name in ("kind", "rule", "participation"):
        if claimed["sensitivity"][name] != recomputed["sensitivity"][name]:
            raise CertificateError(f"the sensitivity's {name} is claimed as {claimed['sensitivity'][name]!r}")
    for name, value in recomputed["loss"].items():
        stated = claimed["loss"][name]
        if stated is None or value is None:
            if stated is not value:
                raise CertificateError(f"loss.{name} is claimed as {stated!r}; recomputed {value!r} (null: infinite)")
        elif abs(stated - value) > 1e-9 * abs(value):
            raise CertificateError(f"loss.{name} is claimed as {claimed['loss'][name]!r}; recomputed {value!r}")
    _compare_bounds(claimed["lower_bound"], recomputed["lower_bound"])
    if claimed["converged"] and not recomputed["converged"]:
        raise CertificateError("the claim says that the tolerance was met; the recomputation does not")


def _compare_bounds(claimed: Mapping[str, Any] | None, fresh: Mapping[str, Any] | None) -> None:
    if claimed is None:
        return
    if fresh is None or claimed["objective"] > fresh["objective"] * (1 + 1e-9):
        raise CertificateError(f"the lower bound {claimed['objective']!r} is not supported by the stored evidence")

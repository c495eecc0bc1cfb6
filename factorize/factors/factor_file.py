"""The factor file, as bytes or as tensors, read into a factorization with every digest checked on the way.

A factorization in fewer bits has other numbers, and so its own manifest, digest and certificate. A rounded C is another
matrix with another sensitivity (docs/sensitivity.md), so nothing is ever cast for a reader. Entries are rounded towards
zero: if none is negative, no column can grow. In any case the result is certified from the rounded numbers.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from factorize.errors import CorruptObject, InvalidParameter, InvalidStrategy, StoreUnavailable, extras_named
from factorize.factors.certificate import certify
from factorize.factors.factorization import Factorization, materialise
from factorize.factors.solution import Outcome
from factorize.format.container import Container
from factorize.format.description import DTYPES
from factorize.format.manifest import Manifest, evidence_of, matrix_of
from factorize.format.tensors import MATRIX_NAMES
from factorize.numbers.scalars import check_choice
from factorize.spec import Spec, parse_spec
from factorize.spec.mechanisms import Added
from factorize.structures.layouts import build_matrix, describe

_MAX_ERROR = {"float64": 1e-9, "float32": 1e-6}
"""The largest difference between stored and recomputed C_inv and B, relative to the row's largest entry."""


def load(path: str | Path, *, matrices: Mapping[str, np.ndarray] | None = None) -> Factorization:
    """Open a factor file and check that its bytes are the ones its manifest names.

    The certificate is not recomputed; call `verify` for that.

    Args:
        path: a `.safetensors` file.
        matrices: numbers of user-supplied workloads by sha256, for specs with workload kind `matrix`.

    Raises:
        CorruptObject: the file is no factor file, a tensor is missing, or bytes and manifest disagree.
    """
    return from_container(Container(path), matrices=matrices)


def read_back(path: Path, *, matrices: Mapping[str, np.ndarray]) -> dict[str, str]:
    """Return `digest` and `sha256` of a new file; raise as `load` does, or StoreUnavailable where it cannot be read."""
    try:
        digest = load(path, matrices=matrices).digest
        with path.open("rb") as stream:
            return {"digest": digest, "sha256": hashlib.file_digest(stream, "sha256").hexdigest()}
    except OSError as error:
        raise StoreUnavailable(f"{path} cannot be read back: {error}; check the disk and try again") from error


def from_container(
    container: Container,
    manifest: Manifest | None = None,
    *,
    matrices: Mapping[str, np.ndarray] | None = None,
    known: Spec | None = None,
) -> Factorization:
    """Open a factor file from its path, or from its bytes, in which its numbers stay; see `load`.

    A manifest that was read from it is not read again, and neither is a spec that is `known`, with its matrices bound,
    if the manifest names it.
    """
    manifest = manifest or Manifest.read(container)
    tensors = {name: container.lying(name) for name in container.names}
    parts = {name: matrix_of(manifest, name, tensors) for name in manifest.names}
    dual = evidence_of(manifest, tensors)
    try:
        same = known is not None and known.digest == manifest.spec_digest
        spec = known if known is not None and same else parse_spec(manifest.spec).bind(matrices or {})
        n = None if spec.workload.endless else spec.workload.n
        strategy = build_matrix(manifest.matrix("C").structure, parts["C"], n)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise CorruptObject(f"not a manifest: {type(error).__name__}: {str(error)[:200]}") from None
    if spec.digest != manifest.spec_digest:
        raise CorruptObject("the manifest's spec does not hash to its spec digest")
    extra = {n: tensors[n] for key in parts if key != "C" for n in manifest.matrix(key).tensors}
    loaded = Factorization(spec, strategy, dual, manifest, extra)
    _check_extra(loaded)
    return loaded


def _check_extra(expanded: Factorization) -> None:
    """Compare stored C_inv and B with those that C and the workload define, each row relative to its own largest entry.

    Relative to the largest entry of all, one tiny diagonal entry of C would allow for anything in the other rows.
    """
    for name in (name for name in MATRIX_NAMES if name in expanded.manifest.names and name != "C"):
        structure, parts = materialise(expanded, name)
        entry = expanded.manifest.matrix(name)
        stored = [expanded.extra[tensor] for tensor in entry.tensors]
        for fresh, array in zip(parts.values(), stored, strict=True):
            same = entry.structure == structure and fresh.shape == array.shape
            if not same or _differs(fresh, array, _MAX_ERROR[expanded.dtype]):
                raise CorruptObject(
                    f"the stored {name} is not the one that C and the workload define; get the file again"
                )


def _differs(fresh: np.ndarray, stored: np.ndarray, most: float) -> bool:
    """Return whether rows differ by more than a part of their largest entry; row i of a Toeplitz column has i + 1."""
    sizes = np.abs(fresh)
    scale = np.maximum.accumulate(sizes) if fresh.ndim == 1 else sizes.max(axis=1, keepdims=True)
    return not bool((np.abs(fresh - stored) <= most * scale).all())


@extras_named("a certificate")
def cast(base: Factorization, dtype: str) -> Factorization:
    """Return the factorization with C stored in a narrower type, certified anew.

    Args:
        base: one in float64.
        dtype: `float32`; `float64` returns the base.

    Raises:
        InvalidParameter: an unknown type, a base that is rounded already, or a strategy named by its bytes.
        InvalidStrategy: the rounded numbers are no strategy matrix (because a diagonal entry became 0, or two decays
            became one, for example).
        CertificateError: the rounded matrix cannot be certified.
        MissingExtra: the extra `[solve]` is not installed.
    """
    check_choice("dtype", dtype, DTYPES)
    if dtype == base.dtype:
        return base
    if base.dtype != "float64" or isinstance(base.spec.mechanism, Added):
        raise InvalidParameter(
            "only float64 factors can be converted, and none whose spec names C by its bytes; round the matrix and "
            "add it instead",
            field="dtype",
        )
    rounded = {name: round_down(array, dtype) for name, array in base.strategy.tensors().items()}
    structure, n = base.strategy.structure, base.matrix.n
    try:
        strategy = build_matrix(structure, widened(rounded), n)
    except InvalidParameter as reason:
        raise InvalidStrategy(f"C is no strategy in {dtype}: {reason}; keep float64", field="dtype") from None
    outcome = Outcome[str(base.manifest.solver.get("outcome", "iteration_limit")).upper()]
    document = {
        **{name: value for name, value in base.manifest.items() if name not in ("files", "created")},
        "certificate": certify(base.spec, strategy, base.dual, outcome=outcome).document(),
        "matrices": {"C": describe("C", structure, rounded, (n, n))},
        "solver": {**base.manifest.solver, "cast_from": base.digest},
    }
    return Factorization(base.spec, strategy, base.dual, Manifest.sealed(document))


def round_down(array: np.ndarray, dtype: str) -> np.ndarray:
    """Return the nearest numbers of that type that are not larger in magnitude."""
    with np.errstate(over="ignore", under="ignore"):
        nearest = array.astype(dtype)
    larger = np.abs(nearest.astype(np.float64)) > np.abs(array)
    return np.asarray(np.where(larger, np.nextafter(nearest, nearest.dtype.type(0)), nearest))


def widened(parts: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the same numbers as doubles."""
    return {name: array.astype(np.float64) for name, array in parts.items()}

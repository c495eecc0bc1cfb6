"""The same factorization in fewer bits: other numbers, so a manifest, a digest and a certificate of their own.

A rounded C is another matrix with another sensitivity (docs/sensitivity.md), so nothing is ever cast on the way to a
reader. Entries are rounded towards zero: where none is negative, no column can grow. What comes out is certified from
the rounded numbers in any case.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

import numpy as np

from factorize.certificate.certificate import certify
from factorize.encoding import canonical_json
from factorize.errors import InvalidParameter
from factorize.factorization import Factorization
from factorize.format.description import DTYPES
from factorize.format.manifest import manifest_digest
from factorize.mechanisms import Added
from factorize.solution import Outcome
from factorize.structures.layouts import build_matrix, describe


def cast(base: Factorization, dtype: str) -> Factorization:
    """Return the factorization with C stored in a narrower type, certified anew.

    Args:
        base: one in float64.
        dtype: `float32`; `float64` returns the base.

    Raises:
        InvalidParameter: an unknown type, a base that is rounded already, or a strategy named by its bytes.
        InvalidStrategy: the rounded numbers make no strategy matrix (a diagonal entry became 0, say).
        CertificateError: the rounded matrix cannot be certified.
    """
    if dtype not in DTYPES:
        raise InvalidParameter(f"dtype {dtype[:20]!r} is not one of {', '.join(DTYPES)}", field="dtype")
    if dtype == base.dtype:
        return base
    if base.dtype != "float64" or isinstance(base.spec.mechanism, Added):
        raise InvalidParameter(
            "only float64 is cast, and no strategy that its spec names by its bytes; add the rounded matrix instead",
            field="dtype",
        )
    rounded = {name: round_down(array, dtype) for name, array in base.strategy.tensors().items()}
    structure, n = base.strategy.structure, base.matrix.n
    strategy = build_matrix(structure, widened(rounded), n)
    outcome = Outcome[str(base.manifest["solver"].get("outcome", "iteration_limit")).upper()]
    manifest = {
        **{name: value for name, value in base.manifest.items() if name not in ("files", "created")},
        "certificate": certify(base.spec, strategy, base.dual, outcome=outcome).document(),
        "matrices": {"C": describe("C", structure, rounded, (n, n))},
        "solver": {**base.manifest["solver"], "cast_from": base.digest},
    }
    manifest["digest"] = manifest_digest(manifest)
    return Factorization(base.spec, strategy, base.dual, json.loads(canonical_json(manifest)))


def round_down(array: np.ndarray, dtype: str) -> np.ndarray:
    """Return the nearest numbers of that type that are not larger in magnitude."""
    with np.errstate(over="ignore", under="ignore"):
        nearest = array.astype(dtype)
    larger = np.abs(nearest.astype(np.float64)) > np.abs(array)
    return np.asarray(np.where(larger, np.nextafter(nearest, nearest.dtype.type(0)), nearest))


def widened(parts: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the same numbers as doubles."""
    return {name: array.astype(np.float64) for name, array in parts.items()}

"""Factor files of random strategies, valid and spoilt, for the exact checker; and the truth about them in fractions."""

from __future__ import annotations

import copy
import itertools
import math
from fractions import Fraction
from typing import Any

import numpy as np
from safetensors.numpy import save
from specs import claimed

from factorize import parse_spec
from factorize.checker.check import check_factor_file
from factorize.checker.spec.workloads import array_of, program_of
from factorize.encoding import canonical_json, json_digest, tensor_digest
from factorize.errors import FactorizeError
from factorize.factors.factorization import Factorization
from factorize.format.manifest import manifest_digest
from factorize.structures.banded import BandedMatrix
from factorize.structures.base import Matrix
from factorize.structures.dense import DenseMatrix
from factorize.structures.toeplitz import ToeplitzMatrix


def participation_of(rng: np.random.Generator, n: int) -> dict[str, Any]:
    divisors = [k for k in range(2, n + 1) if n % k == 0]
    match rng.integers(3):
        case 0:
            return {"kind": "single"}
        case 1:
            return {"kind": "fixed_epochs", "epochs": int(rng.choice(divisors))}
    return {"kind": "min_sep", "min_sep": int(rng.integers(1, n)), "max_participations": int(rng.integers(2, n + 1))}


def min_sep_patterns(n: int, separation: int, most: int) -> list[tuple[int, ...]]:
    """Yield every set of at most `most` steps whose neighbours are at least `separation` apart."""
    return [
        chosen
        for size in range(1, most + 1)
        for chosen in itertools.combinations(range(n), size)
        if all(b - a >= separation for a, b in itertools.pairwise(chosen))
    ]


def patterns_of(participation: dict[str, Any], n: int) -> list[tuple[int, ...]]:
    match participation["kind"]:
        case "single":
            return [(i,) for i in range(n)]
        case "fixed_epochs":
            apart = n // participation["epochs"]
            return [tuple(range(j, n, apart)) for j in range(apart)]
    return min_sep_patterns(n, participation["min_sep"], participation.get("max_participations") or n)


def true_squares(array: np.ndarray, participation: dict[str, Any]) -> tuple[Fraction, Fraction]:
    """Return the largest signed and absolute Gram sum over every pattern, in integers of the smallest unit."""
    ratios = [[entry.as_integer_ratio() for entry in row] for row in array.tolist()]
    unit = math.lcm(*(denominator for row in ratios for _, denominator in row))
    columns = list(zip(*([p * (unit // q) for p, q in row] for row in ratios), strict=True))
    gram = [[sum(a * b for a, b in zip(c, d, strict=True)) for d in columns] for c in columns]
    signed = absolute = 0
    for pattern in patterns_of(participation, len(array)):
        block = [[gram[i][j] for j in pattern] for i in pattern]
        sizes = sum(abs(entry) for row in block for entry in row)
        absolute = max(absolute, sizes)
        if min(map(min, block)) >= 0:
            signed = max(signed, sizes)
            continue
        for rest in itertools.product((1, -1), repeat=len(pattern) - 1):
            u = (1, *rest)
            signed = max(signed, sum(u[i] * u[j] * x for i, row in enumerate(block) for j, x in enumerate(row)))
    return Fraction(signed, unit**2), Fraction(absolute, unit**2)


def strategy_of(rng: np.random.Generator, n: int, structure: str) -> Matrix:
    array = np.tril(rng.random((n, n)) if rng.random() < 0.5 else rng.standard_normal((n, n)))
    array[np.arange(n), np.arange(n)] = 1 + rng.random(n)
    if structure == "toeplitz":
        column = np.sort(rng.random(n))[::-1] if rng.random() < 0.5 else array[:, 0].copy()
        return ToeplitzMatrix(np.concatenate([[1.0 + column[0]], column[1:]]), n)
    if structure == "banded":
        bands = np.zeros((int(rng.integers(2, n)), n))
        for d in range(len(bands)):
            bands[d, : n - d] = np.diagonal(array, -d)
        return BandedMatrix(bands)
    return DenseMatrix(array)


def random_result(
    rng: np.random.Generator, structure: str, participation: dict[str, Any] | None = None, n: int | None = None
) -> Factorization:
    """Return a certified result: no optimum of anything, and every claim true."""
    n = n or int(rng.choice([4, 6]))
    participation = participation_of(rng, n) if participation is None else participation
    workload = [{"kind": "prefix", "n": n}, {"kind": "momentum", "n": n, "momentum": 0.9}, {"kind": "identity", "n": n}]
    document = {
        "workload": workload[rng.integers(3)],
        "participation": participation,
        "mechanism": {"kind": "dense"},  # the class of this kind holds every C
        "objective": {"kind": "lambda_tau", "tau": 2} if rng.random() < 0.3 else {"kind": "mean"},
    }
    return claimed(parse_spec(document), strategy_of(rng, n, structure))


def parts(result: Factorization) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return manifest and tensors, free to be spoilt."""
    return copy.deepcopy(result.manifest), {name: array.copy() for name, array in result.tensors().items()}


def sealed(manifest: dict[str, Any], tensors: dict[str, np.ndarray]) -> bytes:
    """Return the bytes of a file in which every digest is right that can be, whatever the rest says."""
    matrices = manifest.get("matrices")
    entries = [*matrices.values(), manifest.get("dual")] if isinstance(matrices, dict) else [manifest.get("dual")]
    for entry in entries:
        names = entry.get("tensors") if isinstance(entry, dict) else None
        if isinstance(names, list) and all(isinstance(name, str) and name in tensors for name in names):
            arrays = [tensors[name] for name in names]
            if "sha256" in entry:
                entry["sha256"] = tensor_digest(arrays)
            if "bytes" in entry and type(entry["bytes"]) is int and entry["bytes"] > 0:
                entry["bytes"] = sum(array.nbytes for array in arrays)
    if "spec" in manifest and "spec_digest" in manifest:
        manifest["spec_digest"] = json_digest(manifest["spec"])
    if isinstance(manifest.get("solver", {}), dict) and "digest" in manifest:
        manifest["digest"] = manifest_digest(manifest)
    return file_of(manifest, tensors)


def file_of(manifest: dict[str, Any], tensors: dict[str, np.ndarray]) -> bytes:
    ordered = {name: np.ascontiguousarray(array) for name, array in tensors.items()}
    return save(ordered, {"manifest": canonical_json(manifest).decode("ascii")})


def claim(manifest: dict[str, Any], value: float) -> None:
    manifest["certificate"]["sensitivity"] |= {"value": value, "hex": value.hex()}


def exact_rows(document: dict[str, Any], user: dict[str, np.ndarray] | None = None) -> np.ndarray | None:
    """A in fractions, shape (m, n), by the checker's own statement of it; None for a user's matrix that is not given."""
    program = program_of(document)
    if program is not None:
        return np.stack(list(program.run(in_fractions(np.eye(document["n"])), Fraction)))
    array = array_of(document, user or {})
    return None if array is None else in_fractions(array)


def in_fractions(array: np.ndarray) -> np.ndarray:
    return np.vectorize(Fraction, otypes=[object])(array)


def inverted(array: np.ndarray) -> np.ndarray:
    """Return the inverse of a lower-triangular matrix of fractions, by substitution."""
    n = len(array)
    found = np.full((n, n), Fraction(0), dtype=object)
    for i in range(n):
        row = -(array[i, :i] @ found[:i]) if i else np.full(n, Fraction(0), dtype=object)
        row[i] += 1
        found[i] = row / array[i, i]
    return found


def true_losses(decoder: np.ndarray, objective: dict[str, Any]) -> dict[str, Fraction]:
    """Return the losses of A C^-1 at sensitivity 1, by their definitions."""
    errors = (decoder**2).sum(axis=1).tolist()
    m, tau = len(errors), objective.get("tau", 0)
    chosen = {"mean": sum(errors) / m, "max": max(errors)}.get(objective["kind"], Fraction(0))
    if objective["kind"] == "weighted":
        chosen = sum((Fraction(w) * e for w, e in zip(objective["weights"], errors, strict=True)), Fraction(0))
    for t in range(1, m + 1) if tau else ():
        reference = t - tau if t % tau == 0 else t // tau * tau
        before = decoder[reference - 1] if reference else 0 * decoder[0]
        square = ((decoder[t - 1] - before) ** 2).sum()
        chosen += square if t % tau == 0 else square / tau
    return {"total": sum(errors), "largest": max(errors), "last": errors[-1], "objective": chosen}


def rejected(data: bytes) -> bool:
    """Return whether the checker refuses a file, or does not support all that it claims."""
    try:
        return not check_factor_file(data).supported
    except FactorizeError:
        return True

"""Twelve ways to spoil a factor file, every digest made right again, and what is true of the outcome.

The truth shares nothing with the checker or the certificate: Python integers over every pattern and every sign, the
product B C in fractions, the losses by numpy. A mutation that happens to leave a file true is drawn again.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
from checker_files import claim, participation_of, parts, random_result, sealed, true_squares

from factorize.checker.arithmetic.near import square_root_up
from factorize.factors.factorization import Factorization

Generator = np.random.Generator


class Case(NamedTuple):
    """A spoilt file and why it is wrong."""

    data: bytes
    reason: str


def participation(rng: Generator, n: int) -> dict[str, Any]:
    """Return one of few enough patterns to enumerate."""
    while True:
        found = participation_of(rng, n)
        wide = found["kind"] == "min_sep" and (n > 8 and found["min_sep"] < n // 3)
        if not wide:
            return found


def result(rng: Generator, structure: str = "dense", chosen: dict[str, Any] | None = None) -> Factorization:
    n = int(rng.choice([4, 6, 8, 12]))
    return random_result(rng, structure, participation(rng, n) if chosen is None else chosen, n)


def dense(structure: str, tensors: dict[str, np.ndarray], n: int) -> np.ndarray:
    """Return C as an array."""
    if structure == "dense":
        return tensors["C"]
    out = np.zeros((n, n))
    bands = tensors["C.bands"] if structure == "banded" else np.tile(tensors["C.coefficients"][:, None], n)
    for d, band in enumerate(bands):
        for j in range(n - d):
            out[j + d, j] = band[j]
    return out


def workload(spec: dict[str, Any]) -> np.ndarray:
    """Return A, for the three kinds in use here."""
    n = spec["workload"]["n"]
    mu = {"identity": None, "prefix": 0.0, "momentum": spec["workload"].get("momentum")}[spec["workload"]["kind"]]
    if mu is None:
        return np.eye(n)
    return np.array([[sum(mu**s for s in range(i - j + 1)) if j <= i else 0.0 for j in range(n)] for i in range(n)])


def why_wrong(manifest: dict[str, Any], tensors: dict[str, np.ndarray]) -> str | None:
    """Return a reason why a file claims something false, or None."""
    spec, claims = manifest["spec"], manifest["certificate"]
    n, structure = spec["workload"]["n"], manifest["matrices"]["C"]["structure"]
    try:
        array = dense(structure, tensors, n)
    except IndexError:
        return "the tensors do not make an n x n matrix"
    if array.shape != (n, n) or manifest["matrices"]["C"]["shape"] != [n, n]:
        return "another n"
    if not np.isfinite(array).all() or np.triu(array, 1).any() or (np.diagonal(array) <= 0).any():
        return "no strategy matrix"
    if claims["sensitivity"]["participation"] != spec["participation"]:
        return "a claim for another participation"
    stated = float.fromhex(claims["sensitivity"]["hex"])
    if Fraction(stated) ** 2 < true_squares(array, spec["participation"])[0]:
        return "understated"
    a = workload(spec)
    if "B" in manifest["matrices"]:
        b = tensors["B"]
        if (np.diagonal(b) == 0).any() or np.triu(b, 1).any():
            return "B is singular or not triangular"
        with np.errstate(all="ignore"):
            if not np.abs(b @ array - a).max() <= 1e-9:
                return "B C is not A"
    try:
        with np.errstate(all="ignore"):
            total = stated**2 * ((a @ np.linalg.inv(array)) ** 2).sum()
    except np.linalg.LinAlgError:  # a diagonal entry that a flipped exponent made next to nothing
        return "a loss that cannot be that small"
    return None if abs(total / claims["loss"]["total_squared"] - 1) <= 1e-6 else "a wrong loss"


def flipped(rng: Generator) -> Any:
    manifest, tensors = parts(result(rng))
    if rng.random() < 0.5:
        data = sealed(manifest, tensors)
        header = 8 + int.from_bytes(data[:8], "little")
        broken = bytearray(data)
        broken[int(rng.integers(header, len(data)))] ^= 1 << int(rng.integers(8))
        assert hashlib.sha256(broken).digest() != hashlib.sha256(data).digest()
        return Case(bytes(broken), "bytes that do not hash to their digest")
    i = int(rng.integers(len(tensors["C"])))
    tensors["C"].view(np.uint64)[i, int(rng.integers(i + 1))] ^= np.uint64(1 << int(rng.integers(64)))
    return manifest, tensors


def transposed(rng: Generator) -> Any:
    manifest, tensors = parts(result(rng))
    tensors["C"] = np.ascontiguousarray(tensors["C"].T)
    return manifest, tensors


def siblings(rng: Generator) -> Any:
    own = result(rng)
    other = random_result(rng, "dense", own.manifest["spec"]["participation"], own.strategy.n)
    name = "B" if rng.random() < 0.5 else "C"
    manifest, tensors = parts(own.with_matrices(["C", "B"]))
    tensors[name] = np.array(other.with_matrices(["C", "B"]).tensors()[name])
    if tensors[name].ndim == 1:  # a sibling of another workload stores B as a column
        return None
    return manifest, tensors


def column_scaled(rng: Generator) -> Any:
    manifest, tensors = parts(result(rng, chosen={"kind": "single"}))
    tensors["C"][:, np.argmax((tensors["C"] ** 2).sum(axis=0))] *= 1 + 2.0**-40
    return manifest, tensors


def claim_lowered(rng: Generator) -> Any:
    structure = str(rng.choice(["dense", "toeplitz", "banded"]))
    own = result(rng, structure)
    manifest, tensors = parts(own)
    true, _ = true_squares(own.strategy.dense(), manifest["spec"]["participation"])
    claim(manifest, math.nextafter(square_root_up(true), 0.0))
    for name in ("rmse", "max_error", "last_iterate"):  # losses follow the claim, so that only the claim is wrong
        manifest["certificate"]["loss"][name] *= 1 - 2.0**-53
    return manifest, tensors


def _participation_changed(rng: Generator, change: Callable[[dict[str, Any]], None]) -> Any:
    n = int(rng.choice([6, 8]))
    given = {"kind": "min_sep", "min_sep": int(rng.integers(2, 4)), "max_participations": 2}
    manifest, tensors = parts(random_result(rng, str(rng.choice(["dense", "toeplitz"])), given, n))
    for place in (manifest["spec"], manifest["certificate"]["sensitivity"]):
        change(place["participation"])
    return manifest, tensors


def one_more(rng: Generator) -> Any:
    return _participation_changed(rng, lambda given: given.update(max_participations=3))


def one_step_closer(rng: Generator) -> Any:
    return _participation_changed(rng, lambda given: given.update(min_sep=given["min_sep"] - 1))


def another_n(rng: Generator) -> Any:
    manifest, tensors = parts(result(rng, str(rng.choice(["dense", "toeplitz", "banded"])), {"kind": "single"}))
    n = manifest["spec"]["workload"]["n"] + int(rng.choice([-1, 1]))
    manifest["spec"]["workload"]["n"] = n
    if rng.random() < 0.5:
        manifest["matrices"]["C"]["shape"] = [n, n]
    return manifest, tensors


def band_dropped(rng: Generator) -> Any:
    manifest, tensors = parts(result(rng, "banded"))
    tensors["C.bands"] = np.ascontiguousarray(tensors["C.bands"][:-1])
    return manifest, tensors


def above_the_diagonal(rng: Generator) -> Any:
    manifest, tensors = parts(result(rng))
    i = int(rng.integers(len(tensors["C"]) - 1))
    tensors["C"][i, int(rng.integers(i + 1, len(tensors["C"])))] = 1e-300
    return manifest, tensors


def type_relabelled(rng: Generator) -> Any:
    manifest, tensors = parts(result(rng))
    where = rng.integers(3)
    if where == 0:
        return Case(sealed(manifest, tensors).replace(b'"dtype":"F64"', b'"dtype":"I64"', 1), "the wrong type")
    manifest["matrices"]["C"]["dtype"] = "float32"
    if where == 1:
        return Case(sealed(manifest, tensors), "the wrong type")
    tensors["C"] = tensors["C"].astype(np.float32)  # rounded after it was certified
    return manifest, tensors


def hidden_residual(rng: Generator) -> Any:
    manifest, tensors = parts(result(rng).with_matrices(["C", "B"]))
    if "B" not in tensors or tensors["B"].ndim != 2:
        return None
    b = tensors["B"]
    if rng.random() < 0.5:
        left, values, right = np.linalg.svd(b)
        lost = int(rng.integers(len(values)))
        tensors["B"] = b - values[lost] * np.outer(left[:, lost], right[lost])
    else:
        lost = int(rng.integers(len(b)))
        tensors["B"] = np.tril(b)
        tensors["B"][lost, lost] = 0.0
    return manifest, tensors


MUTATIONS: dict[str, Callable[[Generator], Any]] = {
    "bit flipped": flipped,
    "transposed": transposed,
    "matrix of a sibling": siblings,
    "column scaled by 1 + 2^-40": column_scaled,
    "claim lowered by one unit": claim_lowered,
    "one participation more": one_more,
    "one step of separation less": one_step_closer,
    "n off by one": another_n,
    "band dropped": band_dropped,
    "1e-300 above the diagonal": above_the_diagonal,
    "type relabelled": type_relabelled,
    "residual hidden in a singular B": hidden_residual,
}


def spoilt(name: str, seed: int) -> Iterator[Case]:
    """Yield without end files of one class that are truly wrong."""
    rng = np.random.default_rng([seed, *name.encode()])
    while True:
        found = MUTATIONS[name](rng)
        if isinstance(found, Case):
            yield found
        elif found is not None:
            reason = why_wrong(*found)
            if reason is not None:
                yield Case(sealed(*found), reason)


def valid(seed: int) -> Iterator[bytes]:
    """Yield without end files whose claims are true, every structure in turn; the truth is asserted."""
    rng = np.random.default_rng(seed)
    for structure in itertools.cycle(("dense", "toeplitz", "banded")):
        own = result(rng, structure)
        if rng.random() < 0.3:
            own = own.with_matrices(["C", "B", "C_inv"])
        manifest, tensors = parts(own)
        if "B" not in manifest["matrices"] or tensors.get("B", np.ones(1)).ndim == 2:
            assert why_wrong(manifest, tensors) is None, json.dumps(manifest["spec"])
        yield sealed(manifest, tensors)

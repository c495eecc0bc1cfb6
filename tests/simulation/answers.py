"""The specs that are asked in the simulation, and the files that are right answers to each."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from specs import document_of, solved, spec_of
from store_cases import factorization, toeplitz

from factorize.encoding import sha256
from factorize.factors.factor_file import cast
from factorize.factors.factorization import Factorization
from factorize.spec import Spec


@dataclass(frozen=True)
class Known:
    """A spec and the files that are right answers to it."""

    spec: Spec
    files: tuple[tuple[Factorization, bytes], ...]
    matrix: np.ndarray | None = None

    @property
    def digests(self) -> set[str]:
        return {one.digest for one, _ in self.files}


def _bytes_of(one: Factorization) -> bytes:
    with TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        one.save(Path(folder) / "file")
        return (Path(folder) / "file").read_bytes()


@cache
def library() -> tuple[Known, ...]:
    """Specs with two answers each; two that differ in their tolerance alone, and one of a user's matrix."""
    known = []
    for number in range(9):
        spec = spec_of(document_of({"kind": "decay", "n": 4, "rate": 0.5 + number / 100}, "identity"))
        answers = [factorization(4, of=spec), factorization(4, of=spec, strategy=toeplitz(4))]
        if number < 3:
            answers.append(cast(answers[0], "float32"))
        known.append(Known(spec, tuple((one, _bytes_of(one)) for one in answers)))
    for tolerance in (1e-2, 1e-6):
        one = solved(document_of(4, "dense", tolerance=tolerance))
        # Without the seconds that the solve took: by their hashes the files are listed, in each process in the same order.
        one = factorization(4, of=one.spec, strategy=one.strategy, dual=one.dual)
        known.append(Known(one.spec, ((one, _bytes_of(one)),)))
    matrix = np.tril(np.ones((4, 4))) * 1.5
    spec = spec_of({"workload": {"kind": "matrix", "rows": matrix.tolist()}, "mechanism": {"kind": "identity"}})
    one = factorization(4, of=spec)
    return (*known, Known(one.spec, ((one, _bytes_of(one)),), matrix))


@cache
def by_file() -> dict[str, Factorization]:
    return {sha256(data): one for known in library() for one, data in known.files}


@cache
def by_digest() -> set[str]:
    return {digest for known in library() for digest in known.digests}


@cache
def by_spec() -> dict[str, Known]:
    return {known.spec.digest: known for known in library()}

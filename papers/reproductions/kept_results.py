"""Kept results: trials of a long reproduction in one JSON file, so that a run that was cut off goes on where it was.

Factorizations are kept beside them, one file for each spec.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from factorize.factors.factor_file import load
from factorize.factors.factorization import Factorization
from factorize.solvers import solve
from factorize.spec import parse_spec


class KeptResults:
    """Arrays by label, written after each new one; a file of other settings is begun anew.

    Args:
        path: path of the JSON file.
        settings: everything that the results depend on, as plain data.
    """

    def __init__(self, path: Path, settings: Mapping[str, Any]) -> None:
        """Read what an earlier run with the same settings left."""
        self._path = path
        self._settings = json.loads(json.dumps(dict(settings)))
        self._found: dict[str, list[float]] = {}
        if path.exists():
            document = json.loads(path.read_text())
            if document.get("settings") == self._settings:
                self._found = document["results"]

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._found)

    def found(self, label: str) -> np.ndarray:
        """Return the result of a label that is there."""
        return np.array(self._found[label])

    def items(self) -> Iterator[tuple[str, np.ndarray]]:
        """Yield labels and results in the order in which they came."""
        return ((label, self.found(label)) for label in self._found)

    def once(self, label: str, compute: Callable[[], np.ndarray]) -> np.ndarray:
        """Return the result of this label, computed if it is not there yet, and then written at once."""
        return self.all_of([label], lambda _: [compute()])[0]

    def all_of(self, labels: Sequence[str], compute: Callable[[list[str]], Iterable[np.ndarray]]) -> list[np.ndarray]:
        """Return the results of these labels; those that are not there yet are computed together, and then written."""
        missing = [label for label in labels if label not in self._found]
        if missing:
            for label, values in zip(missing, compute(missing), strict=True):
                self._found[label] = [float(value) for value in values]
            beside = self._path.with_suffix(".part")
            beside.write_text(json.dumps({"settings": self._settings, "results": self._found}))
            os.replace(beside, self._path)
        return [self.found(label) for label in labels]


def prefix_sums(n: int, mechanism: Mapping[str, Any], **parts: Any) -> Factorization:
    """Return a mechanism for n prefix sums; `parts` are further fields of the spec."""
    return solve(parse_spec({"workload": {"kind": "prefix", "n": n}, "mechanism": mechanism, **parts}))


def solved_once(folder: Path, document: Mapping[str, Any]) -> Factorization:
    """Return the factorization of a spec, solved if the folder does not have it yet, and then written there."""
    spec = parse_spec(dict(document))
    path = folder / f"{spec.digest}.safetensors"
    if not path.exists():
        solve(spec).save(path)
    return load(path)

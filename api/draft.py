"""The draft: what a solver claims, as a file between the process that solves and the one that certifies and proves."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from factorize.encoding import canonical_json
from factorize.solution import Draft, Outcome, Solution
from factorize.spec import parse_spec
from factorize.structures.layouts import build_matrix

_C, _DUAL = "C.", "dual."


def write_draft(draft: Draft, path: Path) -> None:
    """Write one safetensors file: the tensors of C and of the evidence, and the rest as metadata.

    Raises:
        SafetensorError: the disk refuses.
    """
    from safetensors.numpy import save_file

    solution = draft.solution
    document = {
        "spec": draft.spec.document(),
        "structure": solution.strategy.structure,
        "outcome": solution.outcome.name,
        "iterations": solution.iterations,
        "provenance": dict(solution.provenance),
        "solver": dict(draft.solver),
    }
    named = {_C + name: array for name, array in solution.strategy.tensors().items()}
    named |= {_DUAL + name: array for name, array in solution.dual.items()}
    tensors = {name: np.ascontiguousarray(array) for name, array in named.items()}
    save_file(tensors, path, {"draft": canonical_json(document).decode("ascii")})


def read_draft(path: Path, user: Callable[[Mapping[str, Any]], Mapping[str, np.ndarray]]) -> Draft:
    """Read what `write_draft` has written.

    Args:
        path: the file.
        user: returns the numbers of user-supplied matrices by sha256, given the spec's document.
    """
    from safetensors import safe_open

    with safe_open(path, "numpy") as file:
        document = json.loads(file.metadata()["draft"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - the file is no mapping
    spec = parse_spec(document["spec"]).bind(user(document["spec"]))
    strategy, dual = (
        {name.removeprefix(start): array for name, array in tensors.items() if name.startswith(start)}
        for start in (_C, _DUAL)
    )
    solution = Solution(
        strategy=build_matrix(document["structure"], strategy, None if spec.workload.endless else spec.workload.n),
        outcome=Outcome[document["outcome"]],
        iterations=document["iterations"],
        dual=dual,
        provenance=document["provenance"],
    )
    return Draft(spec, solution, document["solver"])

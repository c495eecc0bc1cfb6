"""`factorize add`: certify a strategy of your own and store it."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from factorize.api.terminal.options import Output, StoreUrl, argument, option
from factorize.api.terminal.output import OutputForm, emit
from factorize.api.terminal.sources import open_results, read_spec
from factorize.api.terminal.text import describe_manifest
from factorize.errors import InvalidStrategy

if TYPE_CHECKING:
    import numpy as np

    from factorize.factorization import Factorization
    from factorize.spec import Spec
    from factorize.structures.base import Matrix

StrategyArgument = Annotated[Path, argument(metavar="C.npy", help="The matrix: .npy or .safetensors.")]
SpecOption = Annotated[str, option("--spec", metavar="SPEC", help="What it is for: a path, '-', or inline JSON.")]


def add(strategy: StrategyArgument, spec: SpecOption, store: StoreUrl = None, output: Output = OutputForm.TEXT) -> None:
    """Certify a strategy of your own for a spec, check it exactly from the bytes, and store it.

    Its mechanism becomes `added`, named by the sha256 of the matrix, so it never answers for a solver.
    """
    from factorize.api.proof import prove
    from factorize.checker import read_array

    array = read_array(strategy)
    asked = read_spec(spec)
    results = open_results(store, create=True)
    found = certified(array, asked, results)
    manifest = results.put(found, check=partial(prove, store=results.url, strict=True))
    emit(output, manifest, f"{describe_manifest(manifest)}\nstore         {results.url} (added)")


def certified(array: np.ndarray, asked: Spec, results: object) -> Factorization:
    """Return the certified factorization of a matrix under a spec whose mechanism is replaced by `added`.

    Args:
        array: C, shape (n, n).
        asked: canonical spec; its mechanism says nothing here.
        results: the store, for the numbers of users' workloads.

    Raises:
        InvalidStrategy: no strategy matrix, or not of the spec's n.
        CertificateError: it does not serve the workload.
    """
    import factorize
    from factorize.api.local import bound
    from factorize.encoding import tensor_digest
    from factorize.factorization import Factorization
    from factorize.mechanisms import Added
    from factorize.solution import Outcome, Solution
    from factorize.storage.store import Store

    assert isinstance(results, Store)
    if array.shape != (asked.workload.n, asked.workload.n):
        raise InvalidStrategy(f"the matrix has shape {array.shape} and the spec asks for n={asked.workload.n}")
    named = asked.model_copy(update={"mechanism": Added(kind="added", sha256=tensor_digest([array]))})
    solution = Solution(_structured(array), Outcome.ADDED, 0)
    solver = {"mechanism": "added", "version": factorize.__version__, "seconds": 0.0, "environment": {}}
    return Factorization.from_solution(bound(named, results), solution, solver=solver)


def _structured(array: np.ndarray) -> Matrix:
    """Keep a Toeplitz matrix as its column, whose sensitivity has sharper rules."""
    from factorize.structures.dense import DenseMatrix, check_strategy
    from factorize.structures.toeplitz import ToeplitzMatrix

    checked = check_strategy(array)
    if len(checked) > 1 and (checked[1:, 1:] == checked[:-1, :-1]).all():
        return ToeplitzMatrix(checked[:, 0], len(checked))
    return DenseMatrix(checked)

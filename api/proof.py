"""The proof: results are certified and checked before they are published, in a process that has never solved anything.

The process certifies what a solver claims, from a draft, and writes the factor file. It reads that file's bytes back,
proves every claim (`factorize.checker`), and answers with the sha256 of what it has read, so that what is published is
what was checked. Losses and bounds, which the certificate takes from the checker, are proved once, if the numbers in
the file are those of the certificate. The sensitivity has to hold by two programs: a second one finds it from the rows
of C in plain doubles (`factorize.factors.sensitivity`). The process is the prover of a pair of workers
(`api/workers`).
"""

import atexit
import json
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache, partial
from importlib import import_module
from pathlib import Path

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

from factorize import __version__
from factorize.api.workers.worker import PROVER, Worker
from factorize.api.workers.worker_process import Tell
from factorize.checker.arithmetic.machine import check_products
from factorize.checker.arithmetic.near import NotEnclosed
from factorize.checker.check import check_factor_file, leave_undecided
from factorize.checker.report import Report
from factorize.checker.sensitivity import BOUNDS
from factorize.checker.utility import Utility
from factorize.encoding import JsonObject, canonical_json, sha256
from factorize.errors import CertificateError, StoreUnavailable, TooLarge
from factorize.factors.certificate import utility_of
from factorize.factors.factor_file import from_container
from factorize.factors.factorization import Factorization
from factorize.factors.sensitivity import compare_plain
from factorize.factors.solution import Draft, Outcome, Solution
from factorize.format.container import Container
from factorize.format.files import Files
from factorize.format.manifest import ENDLESS_STEPS, Manifest
from factorize.numbers.blas_threads import one_blas_thread
from factorize.spec import Spec, parse_spec
from factorize.storage.records import user_matrices
from factorize.storage.store import open_store
from factorize.structures.layouts import build_matrix

_C, _DUAL = "C.", "dual."
"""The beginnings of the names of a draft's tensors."""


def prove(path: Path, *, store: str, strict: bool = False) -> JsonObject:
    """Have a factor file checked by another process, which stays for the next one and ends with this process.

    Args:
        path: the file.
        store: URL of the store that has the numbers of users' matrices.
        strict: whether everything is proved that can be, however long it takes, and a sensitivity that cannot be is
            refused.

    Returns:
        `digest` and `sha256` of what was read, `claims` with their status, `checked` and `not_checked` in sentences,
        `release` and `seconds`.

    Raises:
        CertificateError: a claim does not hold.
        CorruptObject: the bytes are not those of a factor file.
        TooLarge: the sensitivity cannot be evaluated exactly at this size, and `strict` asks for it.
        WorkerEnded: the checker ended without an answer.
    """
    return prover().ask("check", {"path": os.fspath(path), "store": store, "strict": strict})


def certify(path: Path, *, store: str) -> JsonObject:
    """Have a draft certified by that process, which writes the factor file in its place; see `prove`.

    Raises:
        CertificateError: the solver's claim does not hold.
        StoreUnavailable: the disk refuses the file.
        WorkerEnded: see `prove`.
    """
    return prover().ask("certify", {"path": os.fspath(path), "store": store})


@cache
def prover() -> Worker:
    """Return the checker of this process, which is started when it is first asked, or by `start` ahead of that."""
    worker = Worker(PROVER)
    atexit.register(worker.close)
    return worker


def certify_draft(path: Path, store: str) -> JsonObject:
    """Certify a draft, write its factor file in its place, and check that; see `inspect`."""
    spec, solution, solver = _read_draft(path, partial(_user_matrices, store=store))
    utility = None if spec.workload.endless else utility_of(spec, solution.strategy.finite(), solution.dual)
    Files().produce(path, Factorization.from_solution(spec, solution, solver=solver, utility=utility).save)
    return inspect(path, store, strict=False, proved=utility, known=spec)


def _timed(answer: Callable[..., JsonObject], request: JsonObject, _tell: Tell) -> JsonObject:
    """Return the answer about a file, with the seconds that it took; a request has its arguments by name."""
    started = time.monotonic()
    try:
        return {**answer(**request | {"path": Path(request["path"])}), "seconds": round(time.monotonic() - started, 3)}
    except OSError as error:
        raise StoreUnavailable(f"{error}; free space, check the disk and try again") from None


def write_draft(draft: Draft, path: Path) -> None:
    """Write what a solver claims as one safetensors file: the tensors of C and of the evidence, the rest as metadata.

    Raises:
        SafetensorError: the disk refuses.
    """
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


def _read_draft(path: Path, user: Callable[[Mapping[str, object]], Mapping[str, np.ndarray]]) -> Draft:
    """Read what `write_draft` has written; `user` returns a spec's numbers of user-supplied matrices by sha256."""
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


def inspect(
    path: Path, store: str, *, strict: bool, proved: Utility | None = None, known: Spec | None = None
) -> JsonObject:
    """Check a factor file in this process; see `prove` and `check_factor_file`.

    Raises:
        CertificateError: a claim does not hold.
    """
    data = path.read_bytes()
    manifest = Manifest.read(container := Container(data))
    user = _user_matrices(manifest.spec, store)
    with one_blas_thread(0 if manifest.steps == ENDLESS_STEPS else manifest.steps):
        report = examined(data, user, strict=strict, proved=proved, known=known)
    if not report.supported:
        failed = "; ".join(report.failed)
        raise CertificateError(f"the exact checker rejected the result, so nothing was stored: {failed}")
    confirm_sensitivity(report, from_container(container, manifest, matrices=user, known=known))
    return {
        "digest": manifest.digest,
        "sha256": sha256(data),
        "claims": report.claims,
        "checked": report.checked,
        "not_checked": report.not_checked,
        "release": __version__,
    }


QUESTIONS = {"check": partial(_timed, inspect), "certify": partial(_timed, certify_draft)}


def confirm_sensitivity(report: Report, result: Factorization) -> None:
    """Compare the sensitivity that was bounded, if any was, with the one of a second program, and say so in the report.

    Raises:
        CertificateError: they differ by more than 1e-9 and what the bound leaves open.
        TooLarge: see `factorize.factors.sensitivity.compare_plain`.
    """
    if report.sensitivity:
        lower, bound, off = (report.sensitivity[name] for name in ("lower", "upper", "off"))
        least = lower if report.sensitivity["rule"] in BOUNDS else None
        compare_plain(bound, result.strategy, result.spec.participation, off, least=least)
        report.checked.append("the rows of C give the same sensitivity in plain doubles, by a second program")


def examined(
    data: bytes,
    user: dict[str, np.ndarray],
    *,
    strict: bool = False,
    proved: Utility | None = None,
    known: Spec | None = None,
) -> Report:
    """Run the checker over the bytes of a factor file; see `prove` and `check_factor_file`."""
    try:
        return check_factor_file(data, user=user, proved=proved, known=known)
    except TooLarge as error:
        if strict:
            raise
        return leave_undecided(data, str(error))


def _user_matrices(spec: Mapping[str, object], store: str) -> dict[str, np.ndarray]:
    """Return the numbers of the users' matrices that a spec names, from the store."""
    if not user_matrices(spec):
        return {}

    return open_store(store, create=False).matrices.named_by(spec)


def make_ready() -> None:
    """Load what every check needs before the question comes, which may be while a solve still runs.

    The test of this machine's floating point is such a thing too: its outcome is kept.
    """
    for name in ("factorize.checker.bounds.determinants", "scipy.linalg"):
        import_module(name)

    with suppress(NotEnclosed), one_blas_thread(1):  # a check that needs it says why not
        check_products()

"""The solver's questions: solves and forms, whose files it writes where it is told, and answers that nobody stores.

Nothing is published here: what was written is checked by the prover (`api/proof.py`) before it gets its name.
"""

from __future__ import annotations

import logging
import os
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from factorize.api.questions import registry
from factorize.errors import StoreUnavailable

if TYPE_CHECKING:
    from factorize.api.questions.registry import Question
    from factorize.api.workers.worker_process import Tell
    from factorize.factorization import Factorization
    from factorize.storage.store import Store

Document = dict[str, Any]
_log = logging.getLogger(__name__)


def make_ready() -> None:
    """Import what every solve needs."""
    for name in ("numba", "scipy.linalg", "factorize.solvers"):
        import_module(name)


def solve(request: Document, tell: Tell) -> str:
    """Solve a canonical spec, write its factor file, and return the digest.

    Args:
        request: `spec`, `store`, and the `path` of the file.
        tell: told how far it is.

    Raises:
        FactorizeError: there is no file.
    """
    from factorize import solvers
    from factorize.spec import parse_spec

    spec = _store(request["store"]).matrices.bind(parse_spec(request["spec"]))
    _log.info("the worker solves", extra={"about": {"pid": os.getpid(), "mechanism": spec.mechanism.kind}})
    return _written(solvers.solve(spec, progress=lambda step: tell(**vars(step))), request["path"])


def form(request: Document, _tell: Tell) -> str:
    """Write a stored factorization in another form, and return the digest of that.

    Args:
        request: `digest`, `store`, `path`; further `matrices`, or a `dtype`.
    """
    from factorize.rounded import cast

    base = _store(request["store"]).load(request["digest"])
    dtype = request["dtype"]
    made = base.with_matrices(request["matrices"]) if dtype is None else cast(base, dtype)
    return _written(made, request["path"])


def pace(_request: Document, _tell: Tell) -> Document:
    """Measure the pace of this machine, if nobody has, and return it; see `factorize.api.pace`."""
    from factorize.api.pace import measured_pace

    return vars(measured_pace())


def _answer(question: Question, request: Document, tell: Tell) -> Document:
    return question.answer(request, partial(_store, request["store"]), tell)


QUESTIONS: dict[str, Any] = {one.__name__: one for one in (solve, form, pace)}
QUESTIONS |= {name: partial(_answer, question) for name, question in registry.QUESTIONS.items()}


def _written(found: Factorization, path: str) -> str:
    from factorize.storage.medium.files import Files

    try:
        Files().produce(Path(path), found.save)
    except OSError as error:
        raise StoreUnavailable(f"{path}: {error}; free space and try again") from None
    return found.digest


@cache
def _store(url: str) -> Store:
    from factorize.storage.store import open_store

    return open_store(url, create=False)

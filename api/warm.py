"""Warming of a machine or an image: the kernels of solves and their proofs are compiled ahead, on all its processors.

`python -m factorize.api.warm` solves and proves small specs that reach the kernels of all searches. numba keeps what it
compiles in NUMBA_CACHE_DIR, or beside the source, for processes with the same NUMBA_CPU_NAME and NUMBA_CPU_FEATURES.
"""

import json
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from importlib.resources import files
from multiprocessing import get_context
from tempfile import TemporaryDirectory
from typing import Any

from factorize.api.local import obtain
from factorize.spec import parse_spec
from factorize.storage.store import open_store

SPECS: list[dict[str, Any]] = json.loads((files(__package__) / "warm_specs.json").read_text(encoding="utf-8"))
"""The specs, those that compile longest first. Other routines find and certify the optimum from n = 128 on, and over
epochs from 257 on."""


def warm(specs: Sequence[dict[str, object]] = SPECS) -> None:
    """Solve and prove them, one on each processor of this machine.

    Args:
        specs: documents of specs, by default all of the list.
    """
    with ProcessPoolExecutor(os.cpu_count(), get_context("spawn")) as pool:
        list(pool.map(_answer, specs))  # which raises what one of them has raised


def _answer(document: dict[str, object]) -> None:
    with TemporaryDirectory(prefix="factorize.warm.") as folder:
        store = open_store(folder)
        obtain(parse_spec(document), store, progress=lambda _step: None)


if __name__ == "__main__":
    warm()

"""Warming of a machine or an image: the kernels of solves and their proofs are compiled ahead, on all its processors.

`python -m factorize.api.warm` solves and proves small specs that reach the kernels of all searches. numba keeps what it
compiles in NUMBA_CACHE_DIR, or beside the source, for processes with the same NUMBA_CPU_NAME and NUMBA_CPU_FEATURES.
"""

import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from tempfile import TemporaryDirectory
from typing import Any

from factorize.api.local import obtain
from factorize.spec import parse_spec
from factorize.storage.store import open_store

_PREFIX = {"kind": "prefix", "n": 12}
_MOMENTUM = {"kind": "momentum", "momentum": 0.9}
_TWO_EPOCHS = {"kind": "fixed_epochs", "epochs": 2}
_MECHANISMS: tuple[dict[str, object], ...] = (
    {"kind": "blt", "buffers": 2},
    {"kind": "tree", "decoder": "online"},
    {"kind": "banded_inverse_square_root", "bands": 4},
    {"kind": "banded_square_root", "bands": 4},
    {"kind": "toeplitz"},
)
# Those that compile longest come first. The optimum is found and certified by other routines from n = 128 on, over
# epochs from 257 on.
SPECS: tuple[dict[str, Any], ...] = (
    {"workload": _PREFIX, "mechanism": {"kind": "banded", "bands": 4}},
    {"workload": {**_PREFIX, "n": 130}, "mechanism": {"kind": "buffered_linear", "buffers": 2}},
    {"workload": {**_MOMENTUM, "n": 258}, "participation": _TWO_EPOCHS},
    {"workload": {**_PREFIX, "n": 258}, "participation": _TWO_EPOCHS},
    {"workload": {**_MOMENTUM, "n": 130}},
    {"workload": {"kind": "srg", "n": 130, "momentum": 0.9, "decay": 0.1}},
    {"workload": _PREFIX, "participation": _TWO_EPOCHS, "mechanism": {"kind": "buffered_linear", "buffers": 2}},
    {"workload": {**_MOMENTUM, "n": 130, "nesterov": True}},
    {"workload": {**_PREFIX, "n": 130}},
    {"workload": {**_PREFIX, "n": 130}, "objective": {"kind": "max"}},
    *({"workload": _PREFIX, "mechanism": mechanism} for mechanism in _MECHANISMS),
)


def warm(specs: Sequence[dict[str, object]] = SPECS) -> None:
    """Solve and prove them, one on each processor of this machine.

    Args:
        specs: documents of specs, by default all of the list.
    """
    with ProcessPoolExecutor(os.cpu_count(), get_context("spawn")) as pool:
        for _ in pool.map(_answer, specs):
            pass


def _answer(document: dict[str, object]) -> None:
    with TemporaryDirectory(prefix="factorize.warm.") as folder:
        store = open_store(folder)
        obtain(parse_spec(document), store, progress=lambda _step: None)


if __name__ == "__main__":
    warm()

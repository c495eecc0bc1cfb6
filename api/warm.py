"""Warming of a machine or an image: the kernels that usual solves and their proofs need are compiled ahead.

`python -m factorize.api.warm` solves and proves small specs. What numba compiles is kept in NUMBA_CACHE_DIR, for
processes whose NUMBA_CPU_NAME and NUMBA_CPU_FEATURES are the same.
"""

from __future__ import annotations

from typing import Any

from factorize.api.local import obtain, plan
from factorize.spec import parse_spec
from factorize.storage.medium.scratch_folders import ScratchFolder
from factorize.storage.store import open_store

_PREFIX = {"kind": "prefix", "n": 12}
_MECHANISMS: tuple[dict[str, Any], ...] = (
    {"kind": "dense"},
    {"kind": "square_root"},
    {"kind": "banded_inverse_square_root", "bands": 4},
    {"kind": "toeplitz"},
    {"kind": "banded", "bands": 4},
    {"kind": "blt", "buffers": 2},
    {"kind": "buffered_linear", "buffers": 2},
    {"kind": "banded_square_root", "bands": 4},
    {"kind": "tree", "decoder": "online"},
)
SPECS: tuple[dict[str, Any], ...] = (
    *({"workload": _PREFIX, "mechanism": mechanism} for mechanism in _MECHANISMS),
    {"workload": _PREFIX, "participation": {"kind": "fixed_epochs", "epochs": 3}},
    {"workload": _PREFIX, "participation": {"kind": "min_sep", "min_sep": 4}},
    {"workload": {**_PREFIX, "kind": "momentum", "momentum": 0.9}},
    {"workload": _PREFIX, "objective": {"kind": "max"}},
    # The optimum is found by other routines from n = 257 on, and certified by others from 641 on.
    {"workload": {**_PREFIX, "n": 258}, "participation": {"kind": "fixed_epochs", "epochs": 2}},
    {"workload": {**_PREFIX, "n": 642}},
)


def warm() -> None:
    """Solve and prove all of them."""
    with ScratchFolder("warm") as folder:
        store = open_store(folder.path)
        for document in SPECS:
            obtain(plan(parse_spec(document), store), store, progress=lambda _step: None)


if __name__ == "__main__":
    warm()

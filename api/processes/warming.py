"""Warming: what the nursery does before it is asked, so that its children need not.

Everything that a child may need is imported and compiled code is loaded, by solving and checking small specs, all with
one thread: BLAS and OpenMP keep threads once they have used them, and a process with threads cannot be forked soundly.
A child sets its own number of threads, and BLAS starts them there.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from factorize.api.isolated import ANSWER, CALIBRATE, COMPARE, EXPAND, PROVE, RECOMMEND, SOLVE
from factorize.api.processes.pages import Range, copy_ahead, gather, written
from factorize.storage.medium.scratch_folders import ScratchFolder

if TYPE_CHECKING:
    from factorize.storage.incoming import Check

_FIRST = (SOLVE, PROVE, "scipy.linalg", "numba")
_ANSWERS = ("factorize.predict",)
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
    # The optimum is found by other routines from n = 257 on, and certified by others from 641 on. These two are last
    # and as short as that allows: whoever asks meanwhile waits for one of them.
    {"workload": {**_PREFIX, "n": 258}, "participation": {"kind": "fixed_epochs", "epochs": 2}},
    {"workload": {**_PREFIX, "n": 642}},
)
_USUAL: dict[str, Any] = {"workload": {**_PREFIX, "n": 144}, "mechanism": {"kind": "square_root"}}
"""What writes to pages that nearly all small solves write to, and to few others."""


class Warmth:
    """What is loaded, piece by piece, with the thread pools that a child sets."""

    def __init__(self) -> None:
        self._pieces = self._all_pieces()
        self._needed = len(_FIRST) + 2  # and the thread pools, and one solve
        self._pools: Any = None
        self._pages: dict[bool, list[Range]] = {}

    def next(self) -> bool:
        """Load one more piece; False where everything is loaded."""
        piece = next(self._pieces, None)
        if piece is None:
            return False
        self._needed = max(0, self._needed - 1)
        with suppress(Exception):  # a child that needs it says why it cannot be had
            piece()
        return True

    @property
    def needed(self) -> bool:
        """Whether pieces are missing that every child would have to load: until then it pays to let it wait."""
        return self._needed > 0

    def use_threads(self, threads: int) -> None:
        """Set the threads of the libraries that are loaded; in a child."""
        if self._pools is not None and threads != 1:
            self._pools.limit(limits=threads)

    def make_ready(self, *, child: bool) -> None:
        """Do what a solve or its proof does first, and have the pages copied that it writes to; in one that waits."""
        copy_ahead(self._pages.get(child, ()))
        if not child and PROVE in sys.modules:
            sys.modules[PROVE].make_ready()

    def _all_pieces(self) -> Iterator[Callable[[], object]]:
        for name in _FIRST:
            yield partial(importlib.import_module, name)
        yield self._look_for_pools
        for spec in SPECS:
            yield partial(rehearse, spec)
        for name in (CALIBRATE, COMPARE, RECOMMEND, ANSWER, EXPAND, *_ANSWERS):
            yield partial(importlib.import_module, name)
        yield _settle
        yield gather
        yield self._look_at_pages

    def _look_at_pages(self) -> None:
        with ScratchFolder("nursery") as folder:
            file = folder.path / "file"
            digest: str = rehearse(_USUAL, partial(_proved, kept=file))["digest"]
            solves = written(partial(rehearse, _USUAL, lambda _file: {"digest": digest}))
            self._pages = {True: solves, False: written(partial(_proved, file))}

    def _look_for_pools(self) -> None:
        from threadpoolctl import ThreadpoolController

        self._pools = ThreadpoolController()


def one_thread() -> bool:
    """Say whether this process has one thread only, as a process that forks must."""
    return len(os.listdir("/proc/self/task")) == 1


def rehearse(document: dict[str, Any], check: Check | None = None) -> dict[str, Any]:
    """Solve, write and check one small spec as a child does, in a store that nobody sees; returns its last word."""
    solving = importlib.import_module(SOLVE)
    with ScratchFolder("nursery") as folder:
        found: dict[str, Any] = solving.solve(
            {"spec": document, "store": str(folder.path)}, lambda **_: None, check=check or _proved
        )
    return found


def _proved(path: Path, kept: Path | None = None) -> dict[str, Any]:
    """Check a written file as the proof's process does, and keep a copy of it where one is wanted."""
    found = importlib.import_module(PROVE).inspect(path, os.fspath(path.parent), strict=False)
    if kept is not None:
        kept.write_bytes(path.read_bytes())
    return {name: found[name] for name in ("digest", "sha256")}


def _settle() -> None:
    """Keep what is there out of the collector's sight: a collection in a child would copy all of it."""
    gc.collect()
    gc.freeze()

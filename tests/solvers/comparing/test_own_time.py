"""Own time of a thread: what numba compiles in it is not counted, and what another thread compiles neither."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import numba

from factorize.solvers.comparing.own_time import own_seconds


def compile_something() -> None:
    @numba.njit
    def inner(x):
        return x * 3 + 1

    @numba.njit
    def outer(x):
        return inner(x) + inner(x + 1)

    assert outer(2) == 17


def measured() -> tuple[float, float]:
    """Own and all seconds that one compilation of two functions takes, one inside the other."""
    own, began = own_seconds(), time.thread_time()
    compile_something()
    return own_seconds() - own, time.thread_time() - began


def test_compilation_is_not_counted_in_any_thread():
    found: list[tuple[float, float]] = []
    thread = threading.Thread(target=lambda: found.append(measured()))
    thread.start()
    thread.join()
    before = own_seconds()
    found.append(measured())
    for own, everything in found:
        assert 0 <= own < everything / 2  # most of what it did was to compile
    assert own_seconds() >= before


def test_numba_is_imported_before_threads_begin() -> None:
    """Two threads that import it at once wait for each other for ever: one has the module's lock, the other LLVM's."""
    code = (
        "import sys; from factorize.solvers.comparing.side_by_side import run_all\n"
        "seen = []\n"
        "assert 'numba' not in sys.modules\n"
        "run_all([lambda tell: seen.append('numba.core.event' in sys.modules)] * 3, print, workers=2)\n"
        "assert seen == [True] * 3, seen\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr

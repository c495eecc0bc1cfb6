"""Ctrl-C that works at once: a solve may sit in one LAPACK call for minutes, and Python cannot interrupt that.

The first SIGINT becomes a KeyboardInterrupt as always. If the main thread has not come back from where it was after
`GRACE_SECONDS`, or at the second SIGINT, the process ends. That is safe at any moment: the store publishes results
whole or not at all, and files get their names by renaming.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from factorize.api.terminal.output import ExitCode

GRACE_SECONDS = 3.0
_SHOW_CURSOR = b"\x1b[?25h"


@contextmanager
def prompt_interrupt(grace_seconds: float = GRACE_SECONDS) -> Iterator[None]:
    """End the process soon after SIGINT, whatever the block is doing; for the main thread only.

    Args:
        grace_seconds: what the block gets to end by itself after the first SIGINT.
    """
    signals_read, signals_write = os.pipe()
    done_read, done_write = os.pipe()
    os.set_blocking(signals_write, False)
    watcher = threading.Thread(target=_watch, args=(signals_read, done_read, grace_seconds), daemon=True)
    # The interpreter's own C handler writes the signal's number there, also while the main thread is in a C call.
    before = signal.set_wakeup_fd(signals_write, warn_on_full_buffer=False)
    hook, sys.unraisablehook = sys.unraisablehook, _without_interrupts(sys.unraisablehook)
    watcher.start()
    try:
        yield
    finally:
        sys.unraisablehook = hook
        signal.set_wakeup_fd(before)
        os.close(done_write)
        watcher.join()
        for descriptor in (signals_read, signals_write, done_read):
            os.close(descriptor)


def _without_interrupts(hook: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a hook that is silent on a KeyboardInterrupt lost in a callback; the watcher has seen its signal."""

    def report(unraisable: Any) -> None:
        if not issubclass(unraisable.exc_type, KeyboardInterrupt):
            hook(unraisable)

    return report


def _watch(signals: int, done: int, grace_seconds: float) -> None:
    """Wait for SIGINT, then for the block's end, the next SIGINT or the end of the grace, whichever comes first."""
    patience: float | None = None
    while True:
        ready, _, _ = select.select([signals, done], [], [], patience)
        if done in ready:
            return
        interrupts = os.read(signals, 64).count(signal.SIGINT) if ready else 0  # both, if they come at once
        if interrupts > 1 or (patience is not None and (interrupts or not ready)):
            _end()
        if interrupts:
            patience = grace_seconds
            _announce(grace_seconds)


def _announce(grace_seconds: float) -> None:
    clear = b"\r\x1b[K" if sys.stderr.isatty() else b""
    text = f"ending after this step, in {grace_seconds:g} s at the latest; Ctrl-C again ends at once\n"
    os.write(2, clear + text.encode())


def _end() -> None:
    if sys.stderr.isatty():
        os.write(2, _SHOW_CURSOR + b"\n")
    os.write(2, b"interrupted inside a numerical routine; what is finished is stored\n")
    os._exit(ExitCode.INTERRUPTED)

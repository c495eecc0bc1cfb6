"""Progress of solves and comparisons on stderr, or in a notebook.

In a terminal it is drawn as bars by rich; where a command's stderr is no terminal it is a plain line now and then, so
that logs stay readable; below a notebook's cell it is an HTML element.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from html import escape
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from factorize.client.connection import Event
from factorize.factors.solution import Progress

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID


QUIET_SECONDS = 2.0
"""Seconds before the first plain line of one solve, and then between the first lines."""
REMAINING_SECONDS = 10.0
"""Seconds between plain lines that say how long a list still takes."""
_NOTEBOOK_SECONDS = 0.1
_PHASE_TEXTS = {
    "compile": "compiling, once on this machine",
    "coarse grid": "on a coarse grid, {gap} there",
    "bound": "searching a lower bound, {gap} of that search",
    "certify": "certifying",
    "prove": "proving the written bytes",
    "store": "storing",
}


class Display:
    """The progress of one solve after the other; this one shows nothing.

    Args:
        total: number of solves, or None for a single one.
    """

    def __init__(self, total: int | None = None) -> None:
        self._total, self._done, self._label = total, 0, ""
        self._began = time.monotonic()

    def start(self, label: str) -> None:
        """Begin a solve."""
        self._label = label

    def report(self, progress: Progress) -> None:
        """Show one step of it, with the share of the estimated time that has passed; the callback of solvers."""
        left = progress.seconds_left
        share = None if left is None else progress.seconds / max(progress.seconds + left, 1e-9)
        step = f"iteration {progress.iteration}, " if progress.iteration else ""
        self._show(step + state_text(progress), share)

    def note(self, text: str) -> None:
        """Show that something else than an iteration has moved on."""
        self._show(text, None)

    def count(self, done: int, total: int, text: str) -> None:
        """Show how many of a known number of parts are done; they differ too much to tell how long the rest takes."""
        self._show(f"{done} of {total}, {text}", done / max(total, 1))

    def finish(self, line: str) -> None:
        """End it; `line` says how, or is empty where the result itself will."""
        self._done += 1

    def _show(self, text: str, share: float | None) -> None:
        """Show what is being done, and the share that is done, None where nobody knows it."""


def _left(began: float, done: int, total: int) -> str:
    """Return the time that the rest takes at the pace so far; empty where nothing is known or left."""
    if not 0 < done < total:
        return ""
    return f", about {describe_seconds((time.monotonic() - began) / done * (total - done))} left"


class Bars(Display):
    """Bars in a terminal: one for the running solve, one for all of a list.

    Args:
        bars: the started bars.
        total: number of solves, or None.
    """

    def __init__(self, bars: RichProgress, total: int | None) -> None:
        super().__init__(total)
        self._bars = bars
        self._current: TaskID | None = None
        self._all = None if total is None else bars.add_task("all specs", total=total, state=f"0 of {total}")

    def start(self, label: str) -> None:
        """Add a bar; it has no end until somebody knows one."""
        self._current = self._bars.add_task(label, total=None, state="starting")

    def _show(self, text: str, share: float | None) -> None:
        if self._current is not None:
            self._bars.update(self._current, state=text, completed=share, total=None if share is None else 1.0)

    def finish(self, line: str) -> None:
        """Replace the bar by its line."""
        super().finish(line)
        if self._current is not None:
            self._bars.remove_task(self._current)
            self._current = None
        if line:
            self._bars.console.print(line, markup=False, highlight=False, soft_wrap=True)
        if self._all is not None and self._total is not None:
            state = f"{self._done} of {self._total}{_left(self._began, self._done, self._total)}"
            self._bars.update(self._all, completed=self._done, state=state)


class Lines(Display):
    """Plain lines for logs: one per finished solve, and one now and then while it runs."""

    def __init__(self, total: int | None) -> None:
        super().__init__(total)
        self._spoken, self._next, self._pause = self._began, 0.0, QUIET_SECONDS

    def start(self, label: str) -> None:
        """Stay silent at first: most solves end before there is anything to say."""
        super().start(label)
        self._pause = QUIET_SECONDS
        self._next = time.monotonic() + self._pause

    def _show(self, text: str, share: float | None) -> None:
        """Write a line at growing distances: after 2 s, then 4 s later, up to a minute."""
        now = time.monotonic()
        if now >= self._next:
            self._pause = min(2 * self._pause, 60.0)
            self._next = now + self._pause
            _write(f"{self._label}: {text}")

    def finish(self, line: str) -> None:
        """Write the line with its number."""
        super().finish(line)
        if line:
            _write(line if self._total is None else f"[{self._done}/{self._total}] {line}")
        now = time.monotonic()
        if self._total is not None and self._done < self._total and now >= self._spoken + REMAINING_SECONDS:
            self._spoken = now
            _write(f"all specs: {self._done} of {self._total}{_left(self._began, self._done, self._total)}")


def _write(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


class NotebookBar(Display):
    """An element below a notebook's cell, drawn again in its place, with HTML's own bar."""

    def __init__(self) -> None:
        super().__init__()
        from IPython.display import HTML, display

        self._html: Any = HTML
        self._handle: Any = display(HTML(""), display_id=True)
        self._next = 0.0

    def _show(self, text: str, share: float | None) -> None:
        now = time.monotonic()
        if now >= self._next:
            self._next = now + _NOTEBOOK_SECONDS
            value = "" if share is None else f' value="{share:.3f}"'
            shown = f'<progress max="1"{value}></progress> <code>{escape(f"{self._label}: {text}")}</code>'
            self._handle.update(self._html(shown))

    def finish(self, line: str) -> None:
        """Leave an empty element."""
        self._handle.update(self._html(""))


@contextmanager
def display(label: str = "", total: int | None = None, *, visible: bool = True) -> Iterator[Display]:
    """Show solves on stderr or below a notebook's cell while the block runs.

    Args:
        label: name of the one thing that the block does; empty where it says itself what it begins and ends.
        total: number of solves for an overall bar; None for a single solve.
        visible: whether anything is shown. Without rich (the extra `[cli]`) a terminal gets plain lines.
    """
    if not visible:
        yield Display()
        return
    notebook = "ipykernel" in sys.modules
    drawn = sys.stderr.isatty() and not notebook and find_spec("rich") is not None
    with _rich() if drawn else nullcontext() as bars:
        shown = Bars(bars, total) if bars else NotebookBar() if notebook else Lines(total)
        if label:
            shown.start(label)
        try:
            yield shown
        finally:
            if label:
                shown.finish("")


def _rich() -> RichProgress:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[state]}", markup=False),
        TimeElapsedColumn(),
    )
    return Progress(*columns, console=Console(stderr=True), transient=True, refresh_per_second=8)


def show_event(shown: Display, event: Event) -> None:
    """Show the progress of a service's solve, and of a download."""
    data = event.data
    match event.kind:
        case "download":
            shown.note(f"{data['bytes'] / 1e6:.1f} of {data['total'] / 1e6:.1f} MB")
        case "progress":
            gaps = (data.get("relative_gap"), data.get("class_gap"))
            phase, left = data.get("phase") or "refine", data.get("seconds_left")
            shown.report(Progress(data.get("iteration") or 0, *gaps, data.get("seconds") or 0.0, phase, left))


GRACE_SECONDS = 3.0
_END_BYTE = b"\0"  # no signal has this number
_SHOW_CURSOR = b"\x1b[?25h"


@contextmanager
def prompt_interrupt(grace_seconds: float = GRACE_SECONDS) -> Iterator[None]:
    """End the process soon after SIGINT, whatever the block is doing; for the main thread only.

    Args:
        grace_seconds: what the block gets to end by itself after the first SIGINT.
    """
    signals_read, signals_write = os.pipe()
    os.set_blocking(signals_write, False)
    watcher = threading.Thread(target=_watch, args=(signals_read, grace_seconds), daemon=True)
    # The interpreter's own C handler writes the signal's number there, also while the main thread is in a C call.
    before = signal.set_wakeup_fd(signals_write, warn_on_full_buffer=False)
    hook, sys.unraisablehook = sys.unraisablehook, _without_interrupts(sys.unraisablehook)
    watcher.start()
    try:
        yield
    finally:
        sys.unraisablehook = hook
        signal.set_wakeup_fd(before)
        os.write(signals_write, _END_BYTE)
        watcher.join()
        for descriptor in (signals_read, signals_write):
            os.close(descriptor)


def _without_interrupts(hook: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a hook that is silent on a KeyboardInterrupt lost in a callback; the watcher has seen its signal."""

    def report(unraisable: Any) -> None:
        if not issubclass(unraisable.exc_type, KeyboardInterrupt):
            hook(unraisable)

    return report


def _watch(signals: int, grace_seconds: float) -> None:
    """Wait for SIGINT, then for the block's end, the next SIGINT or the end of the grace, whichever comes first."""
    patience: float | None = None
    while True:
        ready, _, _ = select.select([signals], [], [], patience)
        numbers = os.read(signals, 64) if ready else b""
        if _END_BYTE in numbers:
            return
        interrupts = numbers.count(signal.SIGINT)  # both, if they come at once
        if interrupts > 1 or (patience is not None and (interrupts or not ready)):
            _end()
        if interrupts:
            patience = grace_seconds
            clear = b"\r\x1b[K" if sys.stderr.isatty() else b""
            text = f"ending after this step, in {grace_seconds:g} s at the latest; Ctrl-C again ends at once\n"
            os.write(2, clear + text.encode())


def _end() -> None:
    if sys.stderr.isatty():
        os.write(2, _SHOW_CURSOR + b"\n")
    os.write(2, b"interrupted inside a numerical routine; what is finished is stored\n")
    os._exit(128 + signal.SIGINT)


def describe_seconds(seconds: float) -> str:
    """Return a duration in the unit that fits it, to two digits: `0.05 s`, `40 s`, `12 min`, `3.1 h`."""
    if seconds < 120:
        return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def describe_cost(seconds: float) -> str:
    """Return an estimate for idle cores, for the present load where there is one, and what compiling adds."""
    cores, load = os.cpu_count() or 1, os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    text = f"{describe_seconds(seconds)} on idle cores"
    if load > cores / 2:
        waiting = describe_seconds(seconds * (1 + load / cores))
        text += f", about {waiting} at the present load of {load:.0f} on {cores} cores"
    return f"{text}; the first of each kind also compiles for up to 8 s of a core, once for each machine"


def state_text(progress: Progress) -> str:
    """Return what a solve is doing, the gap that it has and of which problem, and the time left, in a few words."""
    left = "" if progress.seconds_left is None else f", about {max(1, round(progress.seconds_left))} s left"
    gap = "no gap yet" if progress.class_gap is None else f"gap within its class {progress.class_gap:.2e}"
    gap = gap if progress.relative_gap is None else f"gap {progress.relative_gap:.2e}"
    return _PHASE_TEXTS.get(progress.phase, "{gap}").format(gap=gap) + left

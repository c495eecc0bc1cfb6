"""The output of the command line: results on stdout, progress and remarks on stderr.

In a terminal progress is drawn as bars; anywhere else it is a plain line now and then, so that logs stay readable.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol

import typer

from factorize.api.terminal.exit_codes import ExitCode
from factorize.api.terminal.text import describe_seconds
from factorize.api.terminal.text import state_text as state_text

if TYPE_CHECKING:
    from rich.progress import Progress as Bars
    from rich.progress import TaskID

    from factorize.client.events import Event
    from factorize.solution import Progress

QUIET_SECONDS = 2.0
"""Without a terminal: seconds before the first line of one solve, and then between the first lines."""
REMAINING_SECONDS = 10.0
"""Without a terminal: seconds between lines that say how long a list still takes."""


class OutputForm(StrEnum):
    """Form of the result on stdout."""

    TEXT = "text"
    JSON = "json"


def emit(form: OutputForm, document: Any, text: str) -> None:
    """Write the result to stdout, as one JSON document or as text.

    Raises:
        typer.Exit: whoever read stdout has gone.
    """
    shown = json.dumps(document, indent=2, ensure_ascii=True, allow_nan=False) if form is OutputForm.JSON else text
    try:
        sys.stdout.write(shown + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        # What is left in the buffer would fail again when the interpreter closes stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(ExitCode.BROKEN_PIPE) from None


def remark(text: str) -> None:
    """Write a line to stderr."""
    print(text, file=sys.stderr, flush=True)


class Display(Protocol):
    """Shows the progress of one solve after the other."""

    def start(self, label: str) -> None:
        """A solve begins."""

    def report(self, progress: Progress) -> None:
        """One step of it; the callback that solvers call."""

    def note(self, text: str) -> None:
        """Something else than an iteration has moved on."""

    def count(self, done: int, total: int, text: str) -> None:
        """So many of a known number of parts are done."""

    def finish(self, line: str) -> None:
        """It has ended; `line` says how, or is empty where the result itself will."""


@contextmanager
def display(total: int | None = None) -> Iterator[Display]:
    """Show solves on stderr while the block runs.

    Args:
        total: number of solves for an overall bar; None for a single solve.
    """
    if not sys.stderr.isatty():
        yield Lines(total)
        return
    with _bars() as bars:
        yield Drawn(bars, total)


def _bars() -> Bars:
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


class Drawn:
    """Bars in a terminal: one for the running solve, one overall.

    A bar has an end where one is known: a number of parts, or the time left by the estimate.

    Args:
        bars: the started bars.
        total: number of solves, or None.
    """

    def __init__(self, bars: Bars, total: int | None) -> None:
        self._bars, self._total, self._done = bars, total, 0
        self._overall: TaskID | None = None
        self._began = time.monotonic()
        if total is not None:
            self._overall = bars.add_task("all specs", total=total, state=f"0/{total}")
        self._current: TaskID | None = None

    def start(self, label: str) -> None:
        """Add a bar; it has no end until somebody knows one."""
        self._current = self._bars.add_task(label, total=None, state="starting")

    def report(self, progress: Progress) -> None:
        """Show the step and what it does; the bar is full where the estimated time has passed."""
        step = f"step {progress.iteration}, " if progress.iteration else ""
        known = progress.seconds_left is not None
        whole = progress.seconds + (progress.seconds_left or 0.0)
        self._show(step + state_text(progress), (progress.seconds, max(whole, 1e-3)) if known else None)

    def note(self, text: str) -> None:
        """Show the text in the bar."""
        self._show(text, None)

    def count(self, done: int, total: int, text: str) -> None:
        """Show how many parts are done, and the time left if the others take as long."""
        left = _left(self._began, done, total)
        self._show(
            f"{done}/{total}, {text}" + (f", about {describe_seconds(left)} left" if left else ""), (done, total)
        )

    def _show(self, text: str, part: tuple[float, float] | None) -> None:
        if self._current is not None:
            done, total = part or (None, None)
            self._bars.update(self._current, state=text, completed=done, total=total)

    def finish(self, line: str) -> None:
        """Replace the bar by its line."""
        if self._current is not None:
            self._bars.remove_task(self._current)
            self._current = None
        if line:
            self._bars.console.print(line, markup=False, highlight=False, soft_wrap=True)
        if self._overall is not None and self._total is not None:
            self._done += 1
            left = _left(self._began, self._done, self._total)
            state = f"{self._done}/{self._total}" + (f", about {describe_seconds(left)} left" if left else "")
            self._bars.update(self._overall, completed=self._done, state=state)


def _left(began: float, done: int, total: int) -> float | None:
    """Return the seconds that the rest takes at the pace so far, or None where nothing is known or left."""
    return (time.monotonic() - began) / done * (total - done) if 0 < done < total else None


class Lines:
    """Plain lines for logs: one per finished solve, and one now and then while it runs.

    Args:
        total: number of solves, or None.
    """

    def __init__(self, total: int | None) -> None:
        self._total = total
        self._done = 0
        self._began = self._spoken = time.monotonic()
        self._label = ""
        self._next = 0.0
        self._pause = QUIET_SECONDS

    def start(self, label: str) -> None:
        """Stay silent at first: most solves end before there is anything to say."""
        self._label = label
        self._pause = QUIET_SECONDS
        self._next = time.monotonic() + self._pause

    def report(self, progress: Progress) -> None:
        """Note iteration and gap."""
        self.note(f"iteration {progress.iteration}, {state_text(progress)}, {progress.seconds:.1f} s")

    def note(self, text: str) -> None:
        """Write a line at growing distances: after 2 s, then 4 s later, up to a minute."""
        now = time.monotonic()
        if now >= self._next:
            self._pause = min(2 * self._pause, 60.0)
            self._next = now + self._pause
            remark(f"{self._label}: {text}")

    def count(self, done: int, total: int, text: str) -> None:
        """Note how many parts are done."""
        self.note(f"{done} of {total}, {text}")

    def finish(self, line: str) -> None:
        """Write the line with its number."""
        self._done += 1
        if line:
            remark(line if self._total is None else f"[{self._done}/{self._total}] {line}")
        now = time.monotonic()
        if self._total is not None and self._done < self._total and now >= self._spoken + REMAINING_SECONDS:
            self._spoken = now
            left = _left(self._began, self._done, self._total) or 0.0
            remark(f"all specs: {self._done} of {self._total}, about {describe_seconds(left)} left")


def show_event(shown: Display, event: Event) -> None:
    """Show what a service says of a solve, and how far a download is."""
    data = event.data
    if event.kind == "download":
        shown.note(f"{data['bytes'] / 1e6:.1f} of {data['total'] / 1e6:.1f} MB")
    elif event.kind == "progress":
        shown.report(progress_of(data))


def progress_of(event: Mapping[str, Any]) -> Progress:
    """Return what a service says of a running solve."""
    from factorize.solution import Progress

    gaps = (event.get("relative_gap"), event.get("class_gap"))
    phase, left = event.get("phase") or "refine", event.get("seconds_left")
    return Progress(event.get("iteration") or 0, *gaps, event.get("seconds") or 0.0, phase, left)

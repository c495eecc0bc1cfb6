"""A progress bar for Python: one line in a terminal, one element in a notebook, nothing anywhere else.

It needs no package: a notebook has IPython already, and a terminal takes a line that is written again.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from typing import Any, Protocol

from factorize.api.terminal.text import state_text
from factorize.solution import Progress

_PAUSE = 0.1  # seconds between two drawings
_WIDTH = 24


class DrawingPlace(Protocol):
    """What a bar is drawn on."""

    def draw(self, share: float | None, text: str) -> None:
        """Show the share that is done, None where nobody knows it, and what is being done."""

    def clear(self) -> None:
        """Leave nothing behind."""


class TerminalLine:
    """A line of stderr."""

    def draw(self, share: float | None, text: str) -> None:
        """Write it over the one before."""
        width = shutil.get_terminal_size().columns - 1
        full = 0 if share is None else round(_WIDTH * share)
        bar = "" if share is None else f"[{'#' * full}{'.' * (_WIDTH - full)}] "
        sys.stderr.write(f"\r\x1b[K{(bar + text)[:width]}")
        sys.stderr.flush()

    def clear(self) -> None:
        """Empty the line."""
        sys.stderr.write("\r\x1b[K")
        sys.stderr.flush()


class NotebookElement:
    """An element below a notebook's cell, drawn again in its place."""

    def __init__(self) -> None:
        from IPython.display import HTML, display

        self._html: Any = HTML
        self._handle: Any = display(HTML(""), display_id=True)

    def draw(self, share: float | None, text: str) -> None:
        """Show HTML's own bar, and the text."""
        value = "" if share is None else f' value="{share:.3f}"'
        self._handle.update(self._html(f'<progress max="1"{value}></progress> <code>{escape(text)}</code>'))

    def clear(self) -> None:
        """Leave an empty element."""
        self._handle.update(self._html(""))


class ProgressLine:
    """The bar of one solve or comparison.

    Args:
        label: what is solved.
        surface: where it is drawn.
    """

    def __init__(self, label: str, surface: DrawingPlace) -> None:
        self._label, self._surface = label, surface
        self._next = 0.0

    def step(self, progress: Progress) -> None:
        """Show a step of a solve: the share of the time by the estimate, the certified gap, the time left."""
        left = progress.seconds_left
        share = None if left is None else progress.seconds / max(progress.seconds + left, 1e-9)
        self._show(share, f"iteration {progress.iteration}, {state_text(progress)}")

    def count(self, done: int, total: int, text: str) -> None:
        """Show that so many of a known number of parts are done."""
        self._show(done / max(total, 1), f"{done} of {total}, {text}")

    def note(self, text: str) -> None:
        """Show a text of which no share is known."""
        self._show(None, text)

    def _show(self, share: float | None, text: str) -> None:
        now = time.monotonic()
        if now >= self._next:
            self._next = now + _PAUSE
            self._surface.draw(share, f"{self._label}: {text}")


def surface() -> DrawingPlace | None:
    """Return where people would see a bar: in the notebook whose kernel this is, in the terminal, or nowhere."""
    if "ipykernel" in sys.modules:
        return NotebookElement()
    return TerminalLine() if sys.stderr.isatty() else None


@contextmanager
def progress_line(label: str, wanted: bool | None) -> Iterator[ProgressLine | None]:
    """Give a bar while the block runs, and clear it at the end.

    Args:
        label: what is done.
        wanted: whether there is one; None for one where people would see it.
    """
    drawn = None if wanted is False else surface() or (TerminalLine() if wanted else None)
    if drawn is None:
        yield None
        return
    try:
        yield ProgressLine(label, drawn)
    finally:
        drawn.clear()

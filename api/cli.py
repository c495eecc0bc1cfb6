"""The command line: `factorize COMMAND`, also `python -m factorize.api.cli COMMAND`.

Results go to stdout, everything else to stderr; exit codes are in `api/terminal/output.py`. The commands are in
`api/commands/`.
"""

import gc
import io
import os
import signal
import sys
import warnings
from collections.abc import Callable
from typing import Any, cast

from factorize.api.workers.search_path import leave_working_folder

INTERRUPT_CODE = 130
MISSING_CODE = 2
_SHOWN_WARNINGS: set[str] = set()


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit.

    Args:
        arguments: the words after the program's name, by default those of the process.
    """
    gc.set_threshold(10_000, 10, 10)  # imports make much and drop little of it
    leave_working_folder()
    _open_streams()
    if os.environ.get("COLUMNS") == "0":  # Shells within editors set this; help would be empty.
        del os.environ["COLUMNS"]
    os.environ.pop("MPLBACKEND", None)  # A notebook's own, which may not be installed here; pictures are files.
    warnings.showwarning = cast(Any, _show_warning)
    try:
        # Imported here, so that Ctrl-C during the imports ends as quietly as later.
        run = _commands()
        code = run(sys.argv[1:] if arguments is None else arguments)
    except KeyboardInterrupt:
        code = INTERRUPT_CODE
    except RuntimeError as error:  # Python wraps what ends the creation of a class, during an import.
        if not isinstance(error.__cause__, KeyboardInterrupt):
            raise
        code = INTERRUPT_CODE
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # what is left ends in a moment, and Python shows what stops it
    gc.freeze()  # or a last collection looks at all that was imported, for a fifth of a second
    sys.exit(code)


class _Remarks(io.FileIO):
    """Standard error that drops what it cannot write (a full disk, a reader that is gone), so that no command fails."""

    def write(self, data: Any) -> int:
        """Write what can be written."""
        try:
            return super().write(data) or 0
        except OSError:
            return len(data)


def _open_streams() -> None:
    """Open the null device for closed streams (`>&-`), so that no later file or connection gets their numbers."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # A result may name a file whose name is no text.
    if sys.__stderr__ is not None and sys.stderr is sys.__stderr__:
        remarks = io.BufferedWriter(_Remarks(2, "w", closefd=False))
        sys.stderr = io.TextIOWrapper(remarks, sys.stderr.encoding, "backslashreplace", line_buffering=True)


def _show_warning(message: Warning | str, *_place: object) -> None:
    """Show a warning as commands do, once, without the line of code that it comes from."""
    if str(message) not in _SHOWN_WARNINGS:
        _SHOWN_WARNINGS.add(str(message))
        print(f"warning: {message}", file=sys.stderr, flush=True)


def _commands() -> Callable[[list[str]], int]:
    """Return what runs a command line, or say what a training image does not have."""
    from factorize.errors import MissingExtra, extras_named

    try:
        with extras_named("the command line"):
            from factorize.api.commands.application import run
    except MissingExtra as missing:
        print(f"error: {missing}", file=sys.stderr)
        sys.exit(MISSING_CODE)
    return run


if __name__ == "__main__":
    main()

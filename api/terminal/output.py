"""The output of the command line: results on stdout, remarks on stderr."""

from __future__ import annotations

import json
import os
import sys
from enum import StrEnum
from typing import Any

import typer

from factorize.api.terminal.exit_codes import ExitCode


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

"""The command line as a user runs it in a folder: in this process, or in one of its own that is left running."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from contextlib import chdir, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from factorize.api.commands.application import run

ROOT = Path(__file__).parents[2]
PROGRAM = (sys.executable, "-m", "factorize.api.cli")


@dataclass(frozen=True)
class Run:
    """The end of a command, and what it said."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        return json.loads(self.out)

    def error(self, code: int) -> str:
        """Return what stderr says of an expected error: no traceback, nothing on stdout."""
        assert self.code == code, self
        assert "Traceback" not in self.err and self.out == "", self
        return self.err


def environment(home: Path) -> dict[str, str]:
    """Return variables without settings from outside; the default store is below `home`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("FACTORIZE_", "XDG_"))}
    return kept | {"PYTHONPATH": str(ROOT), "HOME": str(home), "COLUMNS": "100"}


class CommandLine:
    """Commands that share a home folder, and with it the default store.

    Args:
        home: the folder that they run in.
        variables: further environment variables.
    """

    def __init__(self, home: Path, **variables: str) -> None:
        self.home, self._variables = home, variables

    def __call__(self, *arguments: object, stdin: str = "", **variables: str) -> Run:
        """Run a command in this process, which sees what a process of its own would see."""
        own = environment(self.home) | self._variables | variables
        typed, out, err = (io.TextIOWrapper(io.BytesIO(data), "utf-8") for data in (stdin.encode(), b"", b""))
        with mock.patch.dict(os.environ, own, clear=True), mock.patch.object(sys, "stdin", typed), chdir(self.home):
            with redirect_stdout(out), redirect_stderr(err):
                code = run([str(argument) for argument in arguments])
        return Run(code, *(_written(stream) for stream in (out, err)))

    def start(self, *arguments: object) -> subprocess.Popen[str]:
        """Start a command and leave it running; Ctrl-C reaches it even where the tests run in the background."""
        return subprocess.Popen(
            [*PROGRAM, *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.home,
            env=environment(self.home),
            preexec_fn=_heed_interrupts,
        )


def _written(stream: io.TextIOWrapper) -> str:
    stream.seek(0)
    return stream.read()


def _heed_interrupts() -> None:
    """Let a command heed SIGINT: a shell has its background jobs ignore it, and their children inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)

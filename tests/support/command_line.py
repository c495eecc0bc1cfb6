"""The real command in a process of its own, forked from one that has its imports or started."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forked_commands import COMMANDS, POSSIBLE

ROOT = Path(__file__).parents[2]
PROGRAM = (sys.executable, "-m", "factorize.api.cli")
SECONDS = 600


@dataclass(frozen=True)
class Run:
    """How a command ended and what it said."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        return json.loads(self.out)

    def error(self, code: int) -> str:
        """What stderr says of an expected error: no traceback, nothing on stdout."""
        assert self.code == code, self
        assert "Traceback" not in self.err and self.out == "", self
        return self.err


Within = Callable[..., Run]
"""Runs commands in this process."""


def environment(home: Path) -> dict[str, str]:
    """No setting from outside; the default store is below `home`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("FACTORIZE_", "XDG_"))}
    return kept | {"PYTHONPATH": str(ROOT), "HOME": str(home), "COLUMNS": "100"}


class CommandLine:
    """Commands that share a home folder, and with it the default store."""

    def __init__(self, home: Path) -> None:
        self.home = home

    def __call__(self, *arguments: object, stdin: str = "", **variables: str) -> Run:
        given, own = list(map(str, arguments)), environment(self.home) | variables
        if POSSIBLE:
            return Run(*COMMANDS.run(given, stdin=stdin, folder=self.home, environment=own, seconds=SECONDS))
        done = subprocess.run(
            [*PROGRAM, *given],
            input=stdin,
            capture_output=True,
            text=True,
            cwd=self.home,
            env=own,
            timeout=SECONDS,
        )
        return Run(done.returncode, done.stdout, done.stderr)

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


def _heed_interrupts() -> None:
    """A shell has its background jobs ignore SIGINT, and their children inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)

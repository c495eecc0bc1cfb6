"""Commands of the command line in processes forked from one that has its imports, for a test's processor time is mostly those.

What a command sees is what it would see if it were started: arguments, environment, folder, standard streams. The tests of
imports, signals and start-up start real ones.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
IMPORTED = (
    "numpy",
    "scipy.linalg",
    "scipy.optimize",
    "scipy.signal",
    "scipy.special",
    "numba",
    "factorize.api.commands.application",
    "factorize.api.local",
    "factorize.solvers",
    "factorize.checker",
    "factorize.client",
)
POSSIBLE = sys.platform == "linux"


class ForkedCommands:
    """The process that is forked: it does one command at a time, and is started at the first."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def run(
        self, arguments: list[str], *, stdin: str, folder: Path, environment: dict[str, str], seconds: float
    ) -> tuple[int, str, str]:
        """Return exit code, stdout and stderr of a command."""
        with tempfile.TemporaryDirectory(prefix="factorize-command-") as place:
            streams = [Path(place) / name for name in ("in", "out", "err")]
            for path in streams:
                path.write_text(stdin if path.name == "in" else "")
            code = self._ask(
                {
                    "arguments": arguments,
                    "environment": environment,
                    "folder": str(folder),
                    "streams": list(map(str, streams)),
                },
                seconds,
            )
            return code, streams[1].read_text(), streams[2].read_text()

    def _ask(self, document: dict[str, Any], seconds: float) -> int:
        process = self._process = self._process or _started()
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps(document) + "\n")
        process.stdin.flush()
        if not select.select([process.stdout], [], [], seconds)[0]:
            self.close()
            raise subprocess.TimeoutExpired(document["arguments"], seconds)
        return int(process.stdout.readline())

    def close(self) -> None:
        """End the process, and with it a command that is still running."""
        process, self._process = self._process, None
        if process is not None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


def _started() -> subprocess.Popen[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("FACTORIZE_", "XDG_"))}
    return subprocess.Popen(
        [sys.executable, "-P", __file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=kept | {"PYTHONPATH": str(ROOT), "COLUMNS": "100"},
        start_new_session=True,
    )


COMMANDS = ForkedCommands()
atexit.register(COMMANDS.close)


def _serve() -> dict[str, Any] | None:
    """Fork for each line; return its document in the child, and None at the end."""
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            return dict(json.loads(line))
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)
    return None


def _become(document: dict[str, Any]) -> None:
    """Take streams, environment, folder and arguments of a command."""
    for number, path in enumerate(document["streams"]):
        opened = os.open(path, os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_APPEND)
        os.dup2(opened, number)
        os.close(opened)
    sys.stdin = open(0, closefd=False)  # what the one before has read ahead is not this one's
    os.environ.clear()
    os.environ.update(document["environment"])
    os.chdir(document["folder"])
    sys.argv = ["factorize", *document["arguments"]]


if __name__ == "__main__":
    from importlib import import_module

    from factorize.api.cli import main

    for name in IMPORTED:
        import_module(name)
    asked = _serve()
    if asked is not None:
        _become(asked)
        main()

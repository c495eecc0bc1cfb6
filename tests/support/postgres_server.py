"""A real PostgreSQL server in a process of its own, and databases on it."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from patience import wait_for

USER = "postgres"
_SERVER = ("-c", "listen_addresses=", "-c", "fsync=off", "-c", "full_page_writes=off", "-c", "max_connections=80")


class PostgresServer:
    """A running server, reachable over a socket in its folder only.

    Args:
        folder: where its data and its socket are.
        programs: where its programs are.
    """

    def __init__(self, folder: Path, programs: Path) -> None:
        self.folder = folder
        self._programs = programs
        self._numbers = itertools.count()
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until it answers."""
        command = [self._programs / "postgres", "-D", self.folder / "data", "-k", self.folder, *_SERVER]
        with open(self.folder / "log", "ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self.folder, **_as_user())
        ready = [str(self._programs / "pg_isready"), "-q", "-h", str(self.folder), "-U", USER]
        wait_for(lambda: not subprocess.run(ready).returncode)

    def kill(self) -> None:
        """End it as a power loss does; what it has committed is there after the next start."""
        assert self._process is not None
        subprocess.run(["kill", "-QUIT", str(self._process.pid)], check=True)
        self._process.wait(600)

    def database(self) -> str:
        """Make a database, and return its URL."""
        name = f"ledger{next(self._numbers)}"
        create = [str(self._programs / "createdb"), "-h", str(self.folder), "-U", USER, "-T", "template0", name]
        subprocess.run(create, check=True)
        return f"postgresql+psycopg://{USER}@/{name}?host={self.folder}"


@contextmanager
def running() -> Iterator[PostgresServer]:
    """Start a server on data of its own and end it."""
    found = programs()
    assert found is not None, "PostgreSQL is not installed; on Debian: apt-get install postgresql"
    with tempfile.TemporaryDirectory(prefix="factorize-postgres-", dir="/tmp", ignore_cleanup_errors=True) as name:
        user = _as_user()
        if user:
            shutil.chown(name, user=user["user"])
        options = ["-U", USER, "-A", "trust", "-E", "UTF8", "--locale=C", "-N", "-D", f"{name}/data"]
        subprocess.run([found / "initdb", *options], check=True, stdout=subprocess.DEVNULL, cwd=name, **user)
        server = PostgresServer(Path(name), found)
        server.start()
        try:
            yield server
        finally:
            server.kill()


def programs() -> Path | None:
    """Return where the programs of the newest installed release are."""
    places = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: float(path.parent.name))
    on_path = shutil.which("initdb")
    if on_path:
        places.append(Path(on_path).resolve().parent)
    return next((place for place in reversed(places) if (place / "initdb").exists()), None)


def _as_user() -> dict[str, Any]:
    """Return the user to run as: PostgreSQL does not run as root; Debian's package brings a user of its own."""
    return {"user": USER, "group": USER, "extra_groups": []} if os.geteuid() == 0 else {}

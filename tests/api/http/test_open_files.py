"""The limit of open files, in a process that has one of its own: raised for connections, never lowered."""

from __future__ import annotations

import json
import subprocess
import sys

PROGRAM = """
import json, resource
from factorize.api.http.server import SPARE_FILES, allow_connections
def tried(now, most, count):
    resource.setrlimit(resource.RLIMIT_NOFILE, (now, most))
    return allow_connections(count), resource.getrlimit(resource.RLIMIT_NOFILE)[0]
most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
print(json.dumps([SPARE_FILES, tried(256, most, 300), tried(1000, most, 300), tried(256, 900, 600)]))
"""


def test_the_limit_holds_the_connections_where_the_system_lets_it() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    spare, raised, enough, most = json.loads(done.stdout)
    assert raised == [300 + spare] * 2
    assert enough == [1000] * 2
    assert most == [900] * 2 and "may open only 900 files, too few for 600 connections" in done.stderr

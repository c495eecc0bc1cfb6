"""A calibration in a process of its own: a claim takes seconds of all processors, and a large C takes memory.

Reads one JSON line `{"spec": {"digest": ..., "request": ..., "to": path}, "store": ...}` from stdin, writes the answer
to the path and says on stdout how it ended (api/jobs/supervisor.py has the protocol). Nothing is stored.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

from factorize.encoding import canonical_json
from factorize.errors import FactorizeError


def main() -> int:
    """Calibrate what stdin asks for; the exit status is 0 where the answer was written."""
    from factorize.accounting.calibration_request import answer, read_calibration_request
    from factorize.storage.store import open_store

    asked = json.loads(sys.stdin.readline())
    out = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(2, 1)  # whatever a library prints is no line of the protocol

    def say(event: dict[str, Any]) -> None:
        out.write(json.dumps(event) + "\n")
        out.flush()

    try:
        request = read_calibration_request(asked["spec"]["request"])
        found = canonical_json(answer(open_store(asked["store"]).load(asked["spec"]["digest"]), request))
        Path(asked["spec"]["to"]).write_bytes(found)
    except (FactorizeError, MemoryError) as error:
        kind = error.slug if isinstance(error, FactorizeError) else "MemoryError"
        say({"event": "failed", "error": {"type": kind, "message": str(error)}})
        return 1
    say({"event": "done", "digest": hashlib.sha256(found).hexdigest()})
    return 0


if __name__ == "__main__":
    sys.exit(main())

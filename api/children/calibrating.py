"""A calibration in a process of its own: a claim takes seconds of all processors, and a large C takes memory.

It is asked `{"spec": {"digest": ..., "request": ..., "to": path}, "store": ...}` (api/child_protocol.py), writes the
answer to the path and names its digest. Nothing is stored.
"""

from __future__ import annotations

import sys

from factorize.api.child_protocol import Document, Tell, serve, written


def calibrate(asked: Document, _tell: Tell) -> Document:
    """Write the noise of a stored factorization.

    Raises:
        FactorizeError: nothing was written.
    """
    from factorize.accounting.calibration_request import answer, read_calibration_request
    from factorize.storage.store import open_store

    given = asked["spec"]
    request = read_calibration_request(given["request"])
    return written(given["to"], answer(open_store(asked["store"]).load(given["digest"]), request))


def main() -> int:
    """Answer what stdin asks for; see `serve`."""
    return serve(calibrate)


if __name__ == "__main__":
    sys.exit(main())

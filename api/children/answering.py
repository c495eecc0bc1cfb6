"""Answers of predictions in a process of their own, bounded in memory and time: they store nothing.

It is asked `{"spec": {"request": ..., "digest": ..., "to": path}, "store": ...}`
(api/child_protocol.py), writes `{"answer": ...}` or `{"refused": {"type", "message", "pointer"}}` to the path and names
its digest.
"""

from __future__ import annotations

import sys
from typing import Any

from factorize.api.child_protocol import Document, Tell, serve, written


def work_out(asked: Document, _tell: Tell) -> Document:
    """Write the answer to a question, or why it has none."""
    from factorize.errors import FactorizeError

    given = asked["spec"]
    try:
        found = {"answer": _answer(given, asked["store"])}
    except FactorizeError as error:
        pointer = getattr(error, "field", None)
        found = {"refused": {"type": error.slug, "message": str(error), "pointer": pointer}}
    return written(given["to"], found)


def _answer(given: Document, store: str) -> dict[str, Any]:
    from factorize.predict import ask, parse_question
    from factorize.storage.store import open_store

    question = parse_question(given["request"])
    return ask(question, open_store(store).load(given["digest"]) if given["digest"] else None).document()


def main() -> int:
    """Answer what stdin asks for; see `serve`."""
    return serve(work_out)


if __name__ == "__main__":
    sys.exit(main())

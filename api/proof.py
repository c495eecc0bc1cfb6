"""The proof: a written factor file is checked before it is published, in a process that has not solved.

The process reads the file's bytes and nothing else of the solve, re-derives every claim in exact arithmetic
(`factorize.exact`), and answers with the sha256 of what it has read, so that what is published is what was checked.
The whole certificate is also computed anew in double precision, by the code that the solve has used
(`factorize.certificate.certificate`): a number has to hold by both. It is asked `{"path", "store", "strict"}`
(child_protocol.py), and its answer is in the last event.
"""

from __future__ import annotations

import json
import os
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from factorize.api.child_protocol import Document, Tell, last_word, serve
from factorize.api.isolated import PROVE
from factorize.api.processes.sibling import beside
from factorize.errors import CertificateError, CorruptObject, LimitExceeded, StoreUnavailable, TooLarge

if TYPE_CHECKING:
    import numpy as np

    from factorize.exact import Report
    from factorize.factorization import Factorization

INTEGERS = 1024
"""Longest n for which integers decide before publication what recursions and doubles leave open: 4 s there."""

_ERRORS = {error.slug: error for error in (CertificateError, CorruptObject, StoreUnavailable, TooLarge)}


def prove(path: Path, *, store: str, strict: bool = False) -> dict[str, Any]:
    """Have a factor file checked by another process.

    Args:
        path: the file.
        store: URL of the store that has the numbers of users' matrices.
        strict: whether everything is proved that can be, however long it takes, and a sensitivity that cannot be is
            refused.

    Returns:
        `digest` and `sha256` of what was read, `claims` with their status, `checked` and `not_checked` in sentences,
        `release` and `seconds`.

    Raises:
        CertificateError: a claim does not hold.
        CorruptObject: the bytes are not those of a factor file.
        TooLarge: the sensitivity cannot be evaluated exactly at this size, and `strict` asks for it.
        LimitExceeded: the checker ended without an answer.
    """
    answer = _asked({"path": os.fspath(path), "store": store, "strict": strict})
    if answer.pop("failed"):
        raise CertificateError(f"the exact checker refuses the result, nothing is stored: {answer['refused']}")
    del answer["refused"]
    return answer


def _asked(request: Document) -> Document:
    """Return what a child answers; it is bounded like the process that asks, whose limits it has."""
    done = beside(PROVE, json.dumps(request) + "\n")
    end = last_word(done.stdout)
    if end is None:
        last = done.stderr.strip().splitlines()[-1:] or ["it was killed, perhaps for memory"]
        raise _without_answer(done.returncode, last[0])
    if end["event"] == "done":
        answer: Document = end["answer"]
        return answer
    kind, message = end["error"]["type"], end["error"]["message"]
    if kind == MemoryError.__name__:
        raise _without_answer(done.returncode, f"{kind} {message}".strip())
    raise _ERRORS.get(kind, CertificateError)(message)


def _without_answer(status: int, reason: str) -> LimitExceeded:
    return LimitExceeded(f"the checker ended with status {status} and without an answer: {reason}; nothing is stored")


def check(asked: Document, _tell: Tell) -> Document:
    """Check the file that a request names, and say how long it took."""
    started = time.monotonic()
    try:
        answer = inspect(Path(asked["path"]), asked["store"], strict=asked["strict"])
    except OSError as error:
        raise StoreUnavailable(f"{error}; check the disk and try again") from None
    return {"answer": {**answer, "seconds": round(time.monotonic() - started, 3)}}


def inspect(path: Path, store: str, *, strict: bool) -> dict[str, Any]:
    """Check a factor file in this process; see `prove`."""
    from factorize import __version__
    from factorize.encoding import sha256
    from factorize.factor_file import from_bytes
    from factorize.format.container import Container
    from factorize.format.manifest import ENDLESS, steps_of
    from factorize.format.reading import read_manifest
    from factorize.numbers.blas_threads import LARGEST, one_blas_thread

    data = path.read_bytes()
    manifest = read_manifest(Container(data))
    user = _user_matrices(manifest["spec"], store)
    steps = steps_of(manifest)
    with ThreadPoolExecutor(1, "reading") as beside, one_blas_thread(0 if steps == ENDLESS else steps):
        # To hash a large file takes as long as a matrix product, on a core that the products leave idle.
        reading, hashing = beside.submit(from_bytes, data, matrices=user), beside.submit(sha256, data)
        early = beside.submit(_verify, reading) if steps <= LARGEST else None  # above, there is memory for one
        report = _exactly(data, user, strict)
        again = reading.result()
    if report.supported:
        if early is None:
            again.verify()
        else:
            early.result()
        report.checked.append(
            "the certificate agrees with one that was computed anew in double precision from the file"
        )
    return {
        "digest": manifest["digest"],
        "sha256": hashing.result(),
        "failed": not report.supported,
        "refused": "; ".join(report.failed),
        "claims": report.claims,
        "checked": report.checked,
        "not_checked": report.not_checked,
        "release": __version__,
    }


def _verify(reading: Future[Factorization]) -> None:
    reading.result().verify()


def _exactly(data: bytes, user: dict[str, np.ndarray], strict: bool) -> Report:
    """Run the exact checker, as far as time and memory allow before a publication."""
    from factorize.exact import check_factor_file, undecided
    from factorize.exact.losses.residual import LARGEST

    try:
        return check_factor_file(data, user=user, integers_up_to=LARGEST if strict else INTEGERS)
    except MemoryError:
        return check_factor_file(data, user=user, whole=0)
    except TooLarge as error:
        if strict:
            raise
        return undecided(data, str(error))


def _user_matrices(spec: dict[str, Any], store: str) -> dict[str, np.ndarray]:
    """Return the numbers of the users' matrices that a spec names, from the store."""
    from factorize.storage.records import user_matrices

    if not user_matrices(spec):
        return {}
    from factorize.storage.store import open_store

    return open_store(store, create=False).matrices_of(spec)


def main() -> int:
    """Answer what stdin asks for; see `serve`."""
    make_ready()
    return serve(check)


def make_ready() -> None:
    """Load what every check needs before the question comes, which may be while a solve still runs (`sibling.begun`).

    The test of this machine's floating point is such a thing too: its outcome is kept.
    """
    import factorize.exact.file
    import factorize.factor_file
    import factorize.storage.records  # noqa: F401  loaded ahead, that is all
    from factorize.exact.arithmetic.intervals import NotEnclosed
    from factorize.exact.arithmetic.machine import check_products
    from factorize.numbers.blas_threads import one_blas_thread

    with suppress(NotEnclosed), one_blas_thread(1):  # a check that needs it says why not
        check_products()


if __name__ == "__main__":
    sys.exit(main())

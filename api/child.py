"""`python -m api.child`: one solve in a process of its own.

It reads one JSON line `{"spec": ..., "store": ...}` from stdin, solves, certifies, writes the file, reads it back,
recomputes the certificate from those bytes, and publishes them in the store; nothing is visible there before. On
stdout it says how far it is and how it ended (api/supervisor.py has the protocol).
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from factorize.errors import FactorizeError

if TYPE_CHECKING:
    import numpy as np

    from factorize.factorization import Factorization
    from factorize.spec import Spec


def main() -> int:
    """Solve what stdin asks for; the exit status is 0 where it is stored."""
    request = json.loads(sys.stdin.readline())
    with _own_stdout() as out:
        try:
            digest = solve(request["spec"], request["store"], out)
        except FactorizeError as error:
            return _failed(out, error.slug, str(error))
        except MemoryError as error:
            return _failed(out, "MemoryError", str(error))
        _say(out, {"event": "done", "digest": digest})
    return 0


def solve(document: dict[str, Any], url: str, out: IO[str]) -> str:
    """Solve a spec and store the answer.

    Args:
        document: the canonical spec.
        url: where the store is.
        out: takes the progress lines.

    Returns:
        The digest of what is stored.

    Raises:
        FactorizeError: nothing was stored, or what was stored does not hold.
    """
    import solvers
    from factorize.solution import Progress
    from factorize.spec import parse_spec
    from factorize.store import open_store

    def report(progress: Progress) -> None:
        _say(out, {"event": "progress", **vars(progress)})

    store = open_store(url)
    spec = store.bind(parse_spec(document))
    checked = read_back(solvers.solve(spec, progress=report))
    digest: str = store.put(checked)["digest"]
    return digest


def read_back(found: Factorization) -> Factorization:
    """Return the factorization that the written bytes hold, its certificate recomputed from them.

    The file is a temporary one (TMPDIR).

    Raises:
        CertificateError: they do not hold what the manifest claims.
        CorruptObject: other bytes were read than written.
    """
    from factorize.factorization import load

    with tempfile.TemporaryDirectory(prefix="factorize-") as folder:
        path = Path(folder) / "file.safetensors"
        found.save(path)
        read = load(path, matrices=user_matrices(found.spec))
    read.verify()
    return read


def user_matrices(spec: Spec) -> dict[str, np.ndarray]:
    """Return the numbers of the user's matrices that a spec is bound to, by sha256."""
    from factorize.workloads import UserMatrix

    parts = (spec.workload, spec.optimize_for)
    return {part.sha256: part.array for part in parts if isinstance(part, UserMatrix) and part.sha256 is not None}


def _own_stdout() -> IO[str]:
    """Return the pipe to the supervisor, and let whatever a library prints go to stderr."""
    out = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(2, 1)
    return out


def _say(out: IO[str], event: dict[str, Any]) -> None:
    out.write(json.dumps(event) + "\n")
    out.flush()


def _failed(out: IO[str], kind: str, message: str) -> int:
    _say(out, {"event": "failed", "error": {"type": kind, "message": message}})
    return 1


if __name__ == "__main__":
    sys.exit(main())

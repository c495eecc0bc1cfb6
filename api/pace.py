"""The pace of this machine: from the estimate of a solve to seconds until its result is proved and stored.

The estimate of a solver (solvers/budget.py) counts multiplications; a user waits for processes, proofs, the disk and
what stands around the products too. A short measurement says how fast these are here: a float64 matrix product, a tiny
spec from question to stored answer, and the start of a Python. It is made once, by a worker of a service or when a
command first asks, takes a few seconds, and is kept as `pace.json` in the user's cache folder; another machine, another
number of cores or another release measures anew. What was measured on a busy machine is measured again an hour later,
at the next start or question, and the best of both is kept. Without a measurement (nobody has measured yet, or there is
no room for it) the pace of the reference machine stands in.

Seconds of a step's noise are a model of one processor core: what drawing a normal and what an operation on large arrays
took here, times how many of both a step has for each parameter. Both are measured once in a process, in some hundredths
of a second.
"""

from __future__ import annotations

import json
import math
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np

from factorize import __version__
from factorize.api.local import Estimate, obtain, plan
from factorize.api.proof import inspect
from factorize.api.workers.pool import SMALL_SECONDS
from factorize.api.workers.search_path import search_path
from factorize.encoding import read_json
from factorize.errors import FactorizeError
from factorize.spec import Spec, parse_spec
from factorize.storage.store import Store, open_store

PROOF_PRODUCTS = 2.0
"""Products of side n, at the pace of small ones, that the whole proof of a dense result takes as long as."""
STRUCTURED_PRODUCTS = 3.0  # the same of a structured result
EPOCHS_PRODUCTS = 4.0  # more of them under fixed epochs, whose evidence has blocks
APART_PRODUCTS = 12.0  # more of them under min_sep: a polar factor is guessed, and two bounds are proved
PROOF_SQUARES = 8192.0  # multiplications per n^2 in the proof of a large structured one
LARGEST_DENSE_PROOF = 1024
STORED_DENSE = ("dense", "semidefinite")
ROWS_OF_TINY, MOST_ROWS = 200.0, 1024
"""Rows of which certificate and proof take as long as a tiny spec, row by row in Python; up to so many, they do."""
SEARCHES = {"blt": 4.0, "buffered_linear": 2.0}
"""Searches whose steps are short, so that what stands around their products outweighs these: in tiny specs."""
BUSY_SECONDS = 3600.0
"""After which a machine that was busy when it was measured is measured again."""
WIDTH = 1 << 20
"""Entries of the arrays that are timed: beyond the caches."""
KEPT_BYTES = 256 << 20
"""Of Z, where C has no recurrence; above, earlier rows are drawn again, for `ROWS_AT_ONCE` steps at a time."""
ROWS_AT_ONCE = 16
_SIDE = 512
_MAX_BYTES = 1 << 16


@dataclass(frozen=True)
class Pace:
    """How fast a machine is, in this process's surroundings.

    Attributes:
        multiplications: a second, of float64 matrix products on all cores.
        tiny: seconds from a tiny spec to its proved and stored answer, where nothing has to be imported.
        start: seconds of a Python that imports what it needs.
    """

    multiplications: float = 3e10
    tiny: float = 0.05
    start: float = 0.6

    def service(self, spec: Spec, needed: Estimate) -> float:
        """Return seconds until a posted spec is done; what is long gets workers of its own.

        Args:
            spec: canonical, its mechanism named.
            needed: what its solver estimates.
        """
        return self.tiny + (self.start if needed.seconds >= SMALL_SECONDS else 0.0) + self.work(spec, needed)

    def command(self, spec: Spec, needed: Estimate) -> float:
        """Return seconds until `factorize solve` has ended; the proof's Python starts meanwhile."""
        return self.tiny + self.start + self.work(spec, needed)

    def lane(self, spec: Spec, needed: Estimate) -> float:
        """Return seconds of a spec in a batch, whose processes stay; arguments as for `service`."""
        return self.tiny + self.work(spec, needed)

    def best(self, other: Pace) -> Pace:
        """Return the faster of two measurements in each respect."""
        faster = max(self.multiplications, other.multiplications)
        return Pace(faster, min(self.tiny, other.tiny), min(self.start, other.start))

    def work(self, spec: Spec, needed: Estimate) -> float:
        """Return seconds of solver and proof beyond those of a tiny spec; arguments as for `service`."""
        products = needed.multiplications + proof_multiplications(spec)
        return self.tiny * around_products(spec) + products / self.multiplications


def around_products(spec: Spec) -> float:
    """Return what solver, certificate and proof take beside their products, in tiny specs."""
    rows = 0 if spec.workload.endless else min(spec.workload.n, MOST_ROWS)
    return rows / ROWS_OF_TINY + SEARCHES.get(spec.mechanism.kind, 0.0)


def proof_multiplications(spec: Spec) -> float:
    """Return what the proof of a result costs, in multiplications."""
    from factorize.checker.doubles.nuclear_norms import LARGEST_VECTORS

    n = 1 if spec.workload.endless else spec.workload.n
    dense = spec.mechanism.kind in STORED_DENSE
    each = PROOF_PRODUCTS if dense else STRUCTURED_PRODUCTS
    if n <= LARGEST_VECTORS:
        each += APART_PRODUCTS if spec.participation.free else EPOCHS_PRODUCTS if spec.participation.periodic else 0.0
    products = each * n**3
    if dense or n <= LARGEST_DENSE_PROOF:
        return products
    return min(products, PROOF_SQUARES * n**2)


def pace_file() -> Path:
    """Return where the measurement is kept: `factorize/pace.json` in the user's cache folder."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "factorize" / "pace.json"


def known_pace() -> Pace | None:
    """Return the measurement of this machine and release, or None where there is none that can be read."""
    return _known()[0]


def _known() -> tuple[Pace | None, bool]:
    """Return the measurement, and whether the machine was busy and should be measured again by now."""
    with suppress(OSError, FactorizeError, TypeError, KeyError, ValueError):
        path = pace_file()
        about = path.stat()
        if about.st_size <= _MAX_BYTES:
            document = read_json(path.read_bytes(), limit=_MAX_BYTES)
            numbers = {field.name: float(document["pace"][field.name]) for field in fields(Pace)}
            if document["machine"] == _machine() and all(0 < number < math.inf for number in numbers.values()):
                again = document.get("busy") is True and not 0 <= time.time() - about.st_mtime < BUSY_SECONDS
                return Pace(**numbers), again
    return None, True


def is_measured() -> bool:
    """Whether there is a measurement, and none is due."""
    known, again = _known()
    return known is not None and not again


def measured_pace() -> Pace:
    """Return the measurement of this machine; it is made and kept if there is none, or made again; see above."""
    known, again = _known()
    if known is not None and not again:
        return known
    busy = _is_busy()
    try:
        pace = measure()
    except (OSError, FactorizeError):  # no room for a tiny store, say: nobody should be refused an estimate for it
        return known or Pace()
    pace = pace if known is None else pace.best(known)
    with suppress(OSError):
        _keep(pace, busy=busy)
    return pace


def _is_busy() -> bool:
    """Whether more processes want to run than there are cores, where the system says so."""
    return hasattr(os, "getloadavg") and os.getloadavg()[0] > (os.cpu_count() or 1)


def measure() -> Pace:
    """Measure this machine, in a store of its own that is removed; takes a few seconds."""
    with TemporaryDirectory(prefix="factorize.pace.") as folder:
        store = open_store(Path(folder) / "store")
        tiny = min(_seconds(partial(_solve, n, store)) for n in (12, 13, 14))
    return Pace(_rate(), tiny, _start())


def _solve(n: int, store: Store) -> None:
    """Solve, certify, prove and publish a tiny spec, all in this process: what it takes once processes are there."""
    spec = plan(parse_spec({"workload": {"kind": "prefix", "n": n}, "mechanism": {"kind": "dense"}}), store)
    obtain(spec, store, progress=lambda _progress: None, check=partial(_inspected, store=store.url))


def _inspected(path: Path, *, store: str) -> dict[str, Any]:
    found = inspect(path, store, strict=False)
    return {"digest": found["digest"], "sha256": found["sha256"]}


def _seconds(call: Any) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def _rate() -> float:
    """Return multiplications a second of a matrix product."""
    a = np.random.default_rng(0).standard_normal((_SIDE, _SIDE))
    return float(_SIDE**3) / min(_seconds(lambda: a @ a) for _ in range(4))


def _start() -> float:
    """Return seconds of a Python that imports what a solve needs."""
    command = [sys.executable, "-P", "-c", "import factorize.api.local"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(search_path())}
    return _seconds(lambda: subprocess.run(command, check=True, env=environment, stdin=subprocess.DEVNULL))


def _machine() -> dict[str, Any]:
    """Return what a measurement belongs to."""
    return {"node": platform.node(), "processor": platform.machine(), "cores": os.cpu_count(), "release": __version__}


def pace_document(pace: Pace, *, busy: bool = False) -> dict[str, Any]:
    """Return the JSON form of a measurement, with the machine that it belongs to, and whether that was busy."""
    return {"machine": _machine(), "pace": asdict(pace), "busy": busy}


def _keep(pace: Pace, *, busy: bool) -> None:
    path = pace_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    part.write_text(json.dumps(pace_document(pace, busy=busy), indent=1) + "\n")
    os.replace(part, path)


class StepPace(NamedTuple):
    """Seconds of one core for each parameter.

    Attributes:
        normal: drawing a normal and putting it away.
        operation: an addition or a multiplication of the recurrence, with its traffic to memory.
    """

    normal: float
    operation: float

    def seconds(self, row: Mapping[str, Any], parameters: int, steps: int | None) -> float:
        """Return the seconds of one step's noise for a model of so many parameters.

        Args:
            row: of a comparison.
            parameters: of the model.
            steps: n, None where training has no end.
        """
        redraws = float(row["redraws"])
        if steps is not None and row["noise_vectors"] >= steps and 8 * steps * parameters > KEPT_BYTES:
            redraws += steps / 2 / ROWS_AT_ONCE
        return parameters * (self.normal * (1 + redraws) + self.operation * float(row["flops"]))


@cache
def step_pace() -> StepPace:
    """Return the pace of a step on this machine."""
    draw = np.random.Generator(np.random.SFC64(0))
    kept, made = np.ones(WIDTH, np.float32), np.empty(WIDTH)

    def normals() -> None:
        made[:] = draw.standard_normal(WIDTH, dtype=np.float32)

    def operations() -> None:
        np.multiply(kept, 0.5, out=made)
        np.add(kept, made, out=made)

    return StepPace(_least(normals) / WIDTH, _least(operations) / WIDTH / 2)


def _least(work: Callable[[], None]) -> float:
    """Return the least processor seconds of three runs."""
    times = []
    for _ in range(3):
        began = time.process_time()
        work()
        times.append(time.process_time() - began)
    return min(times)

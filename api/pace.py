"""The pace of this machine: from the estimate of a solve to seconds until its result is proved and stored.

The estimate of a solver (solvers/budget.py) counts multiplications; a user waits for processes, proofs, the disk and
what stands around the products too. How fast these are here is said by two short measurements, of a float64 matrix
product and of the interpreter, which are made once in a process, in some hundredths of a processor's second.

Seconds of a step's noise are a model of one processor core: what drawing a normal and what an operation on large arrays
took here, times how many of both a step has for each parameter. They are measured likewise.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from factorize.api.local import Estimate
from factorize.api.workers.pool import SMALL_SECONDS, machine_processors
from factorize.numbers.blas_threads import one_blas_thread
from factorize.spec import Spec

PROOF_PRODUCTS = 2.0
"""Products of side n, at the pace of small ones, that the whole proof of a dense result takes as long as."""
STRUCTURED_PRODUCTS = 3.0  # the same of a structured result
EPOCHS_PRODUCTS = 4.0  # more of them under fixed epochs, whose evidence has blocks
APART_PRODUCTS = 12.0  # more of them under min_sep: a polar factor is guessed, and two bounds are proved
PROOF_SQUARES = 8192.0  # multiplications per n^2 in the proof of a large structured one
LARGEST_DENSE_PROOF = 1024
STORED_DENSE = ("dense", "semidefinite")
ROWS_OF_TINY, MOST_ROWS = 800.0, 1024
"""Rows of which certificate and proof take as long as a tiny spec, row by row in Python; up to so many, they do."""
SEARCHES = {"blt": 0.5, "buffered_linear": 0.5}
"""Searches whose steps are short, so that what stands around their products outweighs these: in tiny specs."""
WIDTH = 1 << 20
"""Entries of the arrays that are timed: beyond the caches."""
KEPT_BYTES = 256 << 20
"""Of Z, where C has no recurrence; above, earlier rows are drawn again, for `ROWS_AT_ONCE` steps at a time."""
ROWS_AT_ONCE = 16
_SIDE = 512
_SQUARES, _SQUARES_SECONDS = 100_000, 0.0027
"""Numbers that are squared in a loop, and how long that takes on the machine whose pace `Pace()` is."""


@dataclass(frozen=True)
class Pace:
    """How fast a machine is; by default the reference machine.

    Attributes:
        multiplications: a second, of float64 matrix products on all cores.
        tiny: seconds from a tiny spec to its proved and stored answer, where nothing has to be imported.
        start: seconds of a Python that imports what it needs.
    """

    multiplications: float = 3e10
    tiny: float = 0.05
    start: float = 0.6

    def service(self, spec: Spec, needed: Estimate) -> float:
        """Return seconds until a posted spec, or one of a batch, is done; what is long gets workers of its own.

        Args:
            spec: canonical, its mechanism named.
            needed: what its solver estimates.
        """
        return self.tiny + (self.start if needed.seconds >= SMALL_SECONDS else 0.0) + self.work(spec, needed)

    def command(self, spec: Spec, needed: Estimate) -> float:
        """Return seconds until `factorize solve` has ended; the proof's Python starts meanwhile."""
        return self.tiny + self.start + self.work(spec, needed)

    def work(self, spec: Spec, needed: Estimate) -> float:
        """Return seconds of solver and proof beyond those of a tiny spec; arguments as for `service`."""
        products = needed.multiplications + proof_multiplications(spec)
        rows = 0 if spec.workload.endless else min(spec.workload.n, MOST_ROWS)
        beside = rows / ROWS_OF_TINY + SEARCHES.get(spec.mechanism.kind, 0.0)  # the products, in tiny specs
        return self.tiny * beside + products / self.multiplications


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


@cache
def machine_pace() -> Pace:
    """Return the pace of this machine."""
    square = np.random.default_rng(0).standard_normal((_SIDE, _SIDE))
    with one_blas_thread(1):
        product = _least(lambda: square @ square)
    slower = _least(lambda: sum(number * number for number in range(_SQUARES))) / _SQUARES_SECONDS
    usual = Pace()
    return Pace(machine_processors() * _SIDE**3 / product, slower * usual.tiny, slower * usual.start)


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


def _least(work: Callable[[], object]) -> float:
    """Return the least processor seconds of three runs."""
    times = []
    for _ in range(3):
        began = time.process_time()
        work()
        times.append(time.process_time() - began)
    return min(times)

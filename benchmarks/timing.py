"""Our side of a comparison: the solver that a spec reaches, timed, and the certificate, timed apart."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from benchmarks.report import duration
from factorize.factors.certificate import Certificate, certify
from factorize.factors.solution import Progress, Solution
from factorize.numbers.blas_threads import one_blas_thread
from factorize.solvers import choose
from factorize.solvers.evidence_search import with_evidence
from factorize.solvers.problem import Problem, Reporter
from factorize.solvers.register import entry_for
from factorize.spec import Spec, parse_spec

Result = TypeVar("Result")


@dataclass(frozen=True)
class Timed(Generic[Result]):
    """A call that was repeated.

    Attributes:
        result: result of the last call.
        first: seconds of the first call, with what it imports and compiles.
        times: seconds of the others, or of the first where there was time for no other.
        cpu_seconds: processor seconds of all cores in one of these, on average.
    """

    result: Result
    first: float
    times: tuple[float, ...]
    cpu_seconds: float

    @property
    def seconds(self) -> float:
        """Return the median."""
        return statistics.median(self.times)

    @property
    def best(self) -> float:
        """Return the smallest time: what the code takes while nothing else runs."""
        return min(self.times)

    @property
    def text(self) -> str:
        """Return what to read beside the median on a busy machine."""
        return f"best {duration(self.best)}, CPU {duration(self.cpu_seconds)}"


@dataclass(frozen=True)
class Solved:
    """One of our results: the timed claim of the solver, and its certificate.

    Attributes:
        claim: the timed way from the spec to C and the dual evidence.
        certifying: seconds of the certificate.
        certificate: what it says.
    """

    claim: Timed[Solution]
    certifying: float
    certificate: Certificate

    @property
    def lower_bound(self) -> float:
        """Return the certified bound over all matrices; over the class where the mechanism has a bound of its own."""
        bound = self.certificate.class_lower_bound or self.certificate.lower_bound
        return float("nan") if bound is None else bound.objective

    @property
    def gap(self) -> float:
        """Return the relative distance of the loss to that bound."""
        return self.certificate.loss.objective / self.lower_bound - 1


def solved(
    document: dict[str, Any],
    *,
    solve: Callable[[Spec], Solution] | None = None,
    repeats: int = 7,
    max_seconds: float = 5.0,
) -> Solved:
    """Solve a spec a few times and certify the last result.

    Args:
        document: the spec.
        solve: what is timed; `claimed` if None.
        repeats: as in `timed`.
        max_seconds: as in `timed`.
    """
    spec = choose(parse_spec(document))
    claim = timed(lambda: (solve or claimed)(spec), repeats, max_seconds)
    began = time.perf_counter()
    certificate = certify(spec, claim.result.strategy, claim.result.dual, outcome=claim.result.outcome)
    return Solved(claim, time.perf_counter() - began, certificate)


def claimed(spec: Spec) -> Solution:
    """Return what the solver of a canonical spec claims, with evidence for a lower bound."""
    problem = Problem(spec)
    return with_evidence(problem, entry_for(spec).solve(problem, _ignore), Reporter(_ignore))


def _ignore(_progress: Progress) -> None:
    """Take a step's report and do nothing with it."""


def timed(call: Callable[[], Result], repeats: int = 7, max_seconds: float = 5.0) -> Timed[Result]:
    """Call something a few times.

    Args:
        call: what is timed.
        repeats: calls after the first.
        max_seconds: no further call is begun after as many seconds.
    """
    result, first, cpu = _once(call)
    calls: list[tuple[float, float]] = []
    while len(calls) < repeats and first + sum(seconds for seconds, _ in calls) < max_seconds:
        result, *spent = _once(call)
        calls.append((spent[0], spent[1]))
    calls = calls or [(first, cpu)]
    return Timed(result, first, tuple(wall for wall, _ in calls), sum(used for _, used in calls) / len(calls))


def _once(call: Callable[[], Result]) -> tuple[Result, float, float]:
    with one_blas_thread(0):  # solves run in the same way
        began, used = time.perf_counter(), time.process_time()
        result = call()
    return result, time.perf_counter() - began, time.process_time() - used

"""Every mechanism that fits a spec side by side: losses, distance to the certified bound, memory, time, sensitivity.

Each row is a whole solve with its own certificate; as many run at a time as there are processors. The lower bound holds
over all matrices, whichever proved it, so all rows are measured against the largest one that was certified. What does
not fit is listed with the reason.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from factorize.certificate.lower_bounds.bounds import LowerBound
from factorize.errors import Cancelled, FactorizeError, InvalidParameter, TooLarge
from factorize.factorization import Factorization
from factorize.privacy import PrivacyTarget
from factorize.solution import Progress
from factorize.solvers.budget import Estimate, machine_memory
from factorize.solvers.comparing.candidates import left_out, mechanisms, tolerance
from factorize.solvers.comparing.comparison import (
    CompareProgress,
    Comparison,
    Refused,
    Row,
    Sampling,
    ranked,
    recommend,
)
from factorize.solvers.comparing.side_by_side import Tell, run_all
from factorize.solvers.comparing.table_rows import STORED_BYTES, TableRows, measured, named
from factorize.solvers.evidence import bound_of, without_evidence
from factorize.solvers.methods.threads import CORES
from factorize.solvers.problem import Reporter
from factorize.solvers.solving import estimate, solve
from factorize.spec import Spec, parse_spec

__all__ = ["CompareCallback", "CompareProgress", "Sampling", "compare"]

_SCALED_NU = {"kind": "nu_toeplitz", "nu": "tune", "normalization": "columns"}
_LEAST_SECONDS, _STEPS_A_SECOND, _LARGEST_SECONDS = 8.0, 5000, 200.0
_FIRST_SECONDS = 60.0  # more for the bound and the first mechanisms, which compile code
_LATE = 2.0  # times the limit, after which a mechanism whose estimate was too low is stopped
_MEMORY_SHARE = 0.5  # of the machine, for what runs at a time

CompareCallback = Callable[[CompareProgress], None]
"""Called before each mechanism, between the steps of its solver and after it, in the caller's thread; may raise
`Cancelled`."""


def compare(
    spec: Spec,
    *,
    buffers: int | None = None,
    bytes_per_parameter: float | None = None,
    privacy: PrivacyTarget | None = None,
    sampling: Sampling | None = None,
    progress: CompareCallback | None = None,
    most_seconds: float | None = None,
) -> Comparison:
    """Solve a spec with every mechanism that fits it.

    Args:
        spec: its mechanism is one row among the others; `auto` adds none.
        buffers: vectors of noise state that may be kept for each parameter; mechanisms with a size take this one.
        bytes_per_parameter: the same budget in bytes, at 4 bytes a number.
        privacy: adds the noise at this privacy to each row, without amplification.
        sampling: adds rows amplified by Poisson sampling, for mechanisms with few bands (one band: DP-SGD); needs an
            epsilon and delta in `privacy`.
        progress: told before each mechanism and between its steps.
        most_seconds: mechanisms whose estimate is longer are refused, and those that take twice as long after all
            are stopped, by the processor's clock; 8 s by default, n / 5000 s above n = 40000, 200 s at most.

    Raises:
        InvalidSpec: the parts of the spec do not fit each other.
        InvalidParameter: a budget is negative.
        Cancelled: raised by `progress`.
    """
    if sampling is not None and (privacy is None or privacy.epsilon is None or privacy.delta is None):
        raise InvalidParameter(
            "dataset_size and batch_size amplify an (epsilon, delta) guarantee; give both", field="epsilon"
        )
    spec = spec.canonical()
    budget = _budget(buffers, bytes_per_parameter)
    if most_seconds is None:
        most_seconds = min(max(_LEAST_SECONDS, spec.workload.n / _STEPS_A_SECOND), _LARGEST_SECONDS)
    return _Run(spec, budget, TableRows(privacy, sampling), progress, most_seconds).compare()


def _budget(buffers: int | None, bytes_per_parameter: float | None) -> int | None:
    for name, value in (("buffers", buffers), ("bytes_per_parameter", bytes_per_parameter)):
        if value is not None and not value >= 0:
            raise InvalidParameter(f"{name}={value!r} is negative; give the memory for noise state", field=name)
    given = [buffers] if buffers is not None else []
    given += [int(bytes_per_parameter // STORED_BYTES)] if bytes_per_parameter is not None else []
    return min(given, default=None)


class _OutOfTime(Cancelled):
    """A mechanism took much longer than its estimate."""


class _News(NamedTuple):
    """What a running mechanism says.

    Attributes:
        kind: of the mechanism.
        ended: how many have ended, 0 or 1.
    """

    kind: str
    ended: int


@dataclass(eq=False)
class _Plan:
    """A mechanism to try, and what came of it.

    Attributes:
        mechanism: as plain data.
        spec: of the whole solve; None where it is refused.
        needed: its cost.
        found: rows, and why there are none.
        bound: that its certificate holds.
    """

    mechanism: dict[str, Any]
    spec: Spec | None = None
    needed: Estimate = field(default_factory=lambda: Estimate(0.0, 0))
    found: list[Row | Refused] = field(default_factory=list)
    bound: LowerBound | None = None

    def refuse(self, reason: str) -> None:
        self.spec = None
        self.found.append(Refused(*named(self.mechanism), reason))


class _Run:
    """One comparison: what all its solves share."""

    def __init__(
        self, spec: Spec, budget: int | None, rows: TableRows, progress: CompareCallback | None, most_seconds: float
    ) -> None:
        self.spec, self.budget, self.rows = spec, budget, rows
        self.progress, self.most_seconds = progress, most_seconds
        self.began = time.monotonic()
        self.done = self.total = 0

    def compare(self) -> Comparison:
        plans = [self._plan(mechanism) for mechanism in _distinct(mechanisms(self.spec, self.budget))]
        common, self.total = _Plan({"kind": "lower_bound"}), len(plans)
        workers = _workers([plan.needed.bytes for plan in plans])
        tasks = [partial(self._bound, common)]
        for place, group in enumerate(_groups(plans)):
            tasks.append(partial(self._try, group, _FIRST_SECONDS if place < workers else 0.0))
        with without_evidence():
            run_all(tasks, self._hear, workers=workers)
        return self._table([*plans, common])

    def _table(self, plans: list[_Plan]) -> Comparison:
        """Put together what was found, in the order of the plans, whichever ended first."""
        bounds = [plan.bound for plan in plans if plan.bound is not None]
        bound = max(bounds, key=lambda found: found.objective, default=None)
        found = [entry for plan in plans for entry in plan.found]
        rows = ranked([measured(entry, bound) for entry in found if isinstance(entry, Row)])
        refused = [entry for entry in found if isinstance(entry, Refused)]
        refused += [Refused(kind, {}, None, reason) for kind, reason in left_out(self.spec)]
        document = self.spec.document()
        del document["mechanism"]
        return Comparison(
            spec=document,
            objective=self.spec.objective.kind,
            lower_bound=bound,
            budget=self.budget,
            rows=tuple(rows),
            refused=tuple(refused),
            recommendation=recommend(rows, self.budget),
            seconds=time.monotonic() - self.began,
        )

    def _plan(self, mechanism: dict[str, Any]) -> _Plan:
        plan = _Plan(mechanism)
        try:
            plan.spec = self._with(mechanism)
            given = {**mechanism, "nu": 0.0} if self._takes_over(mechanism) else mechanism
            plan.needed = estimate(self._with(given))
            if plan.needed.seconds > self.most_seconds:
                raise TooLarge(
                    f"would take about {plan.needed.seconds:.3g} s, above most_seconds={self.most_seconds:g}; raise it "
                    "(--max-seconds), or solve this mechanism by its own spec"
                )
        except FactorizeError as error:
            plan.refuse(str(error))
            plan.needed = Estimate(0.0, 0)
        return plan

    def _takes_over(self, mechanism: dict[str, Any]) -> bool:
        """Return whether nu is the one tuned without scaled columns: for them each trial takes a whole certificate."""
        return mechanism == _SCALED_NU and self.spec.mechanism.kind != "nu_toeplitz"

    def _with(self, mechanism: dict[str, Any]) -> Spec:
        """Return the spec with another mechanism; the numbers of a user's matrix stay with it."""
        parsed = parse_spec({**self.spec.document(), "mechanism": mechanism})
        changes = {"mechanism": parsed.mechanism, "tolerance": tolerance(self.spec, mechanism)}
        return self.spec.model_copy(update=changes).canonical()

    def _hear(self, news: _News) -> None:
        self.done += news.ended
        if self.progress is not None and self.done < self.total:
            self.progress(CompareProgress(self.done, self.total, news.kind, time.monotonic() - self.began))

    def _bound(self, plan: _Plan, tell: Tell[_News]) -> None:
        """Find the bound that rows without evidence of their own are measured against."""

        def find(step: Callable[[Progress], None]) -> None:
            plan.bound = bound_of(self._with({"kind": "identity"}), Reporter(step))

        self._watched(plan, tell, find, _FIRST_SECONDS)

    def _try(self, group: list[_Plan], more: float, tell: Tell[_News]) -> None:
        nu: float | None = None
        for plan in group:
            tell(_News(plan.mechanism["kind"], 0))
            if plan.spec is not None and self._takes_over(plan.mechanism):
                if nu is None:
                    plan.refuse("takes the nu tuned without scaled columns, which was not found")
                else:
                    plan.mechanism = {**plan.mechanism, "nu": nu}
                    plan.spec = self._with(plan.mechanism)
            if plan.spec is not None:
                found = self._watched(plan, tell, partial(self._solve, plan), more)
                nu = _nu(found) if found is not None and plan.mechanism.get("nu") == "tune" else nu
            tell(_News(plan.mechanism["kind"], 1))

    def _watched(
        self, plan: _Plan, tell: Tell[_News], run: Callable[[Callable[[Progress], None]], Any], more: float
    ) -> Any:
        """Return what `run` does, or None where it is refused or out of time."""
        # Processor time of this thread: what else the machine does decides nothing.
        began, last = time.thread_time(), _LATE * self.most_seconds + more

        def step(_progress: Progress) -> None:
            tell(_News(plan.mechanism["kind"], 0))
            passed = time.thread_time() - began
            if passed > last:
                raise _OutOfTime(f"was stopped after {passed:.3g} s of processor time; raise --max-seconds")

        try:
            return run(step)
        except _OutOfTime as error:
            plan.refuse(str(error))
        except Cancelled:
            raise
        except FactorizeError as error:
            plan.refuse(str(error))
        return None

    def _solve(self, plan: _Plan, step: Callable[[Progress], None]) -> Factorization:
        assert plan.spec is not None
        began = time.monotonic()
        found = solve(plan.spec, progress=step)
        plan.found += self.rows.of(found, plan.mechanism, time.monotonic() - began)
        plan.bound = found.certificate.lower_bound
        return found


def _distinct(found: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    seen = []
    for mechanism in found:
        plain = {key: value for key, value in mechanism.items() if (key, value) != ("normalization", "none")}
        if plain not in seen:
            seen.append(plain)
            yield mechanism


def _groups(plans: list[_Plan]) -> list[list[_Plan]]:
    """Return what runs one after the other, long ones first; nu is tuned once, for scaled columns too."""
    tuned = [plan for plan in plans if plan.mechanism.get("nu") == "tune"]
    groups = [[plan] for plan in plans if plan not in tuned] + ([tuned] if tuned else [])
    return sorted(groups, key=lambda group: -sum(plan.needed.seconds for plan in group))


def _workers(needed: list[int]) -> int:
    """Return how many solves may run at a time: what the processors and the memory allow."""
    largest = sorted(needed, reverse=True)
    workers = CORES
    while workers > 1 and sum(largest[:workers]) > _MEMORY_SHARE * machine_memory():
        workers -= 1
    return workers


def _nu(found: Factorization) -> float | None:
    """Return the nu that was tuned: the second coefficient of (1 - (1 - nu) x)^(-1/2) is (1 - nu) / 2."""
    column = found.matrix.coefficients()
    if column is None or len(column) < 2:
        return None
    return max(0.0, 1.0 - 2.0 * float(column[1] / column[0]))

"""Every mechanism that fits a spec side by side: losses, distance to the certified bound, memory, time, sensitivity.

Each row is a whole solve with its own certificate; as many run at a time as there are processors. The lower bound holds
over all matrices, whichever proved it, so all rows are measured against the largest one that was certified. What does
not fit is listed with the reason.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from factorize.client.download import Held
from factorize.client.service import Origin
from factorize.errors import Cancelled, FactorizeError, InvalidParameter
from factorize.factors.factor_file import load
from factorize.factors.factorization import Factorization
from factorize.factors.solution import Outcome, Progress, Solution
from factorize.numbers.blas_threads import one_blas_thread
from factorize.numbers.processor_time import stop_clock
from factorize.privacy import PrivacyTarget
from factorize.privacy.question import SamplingOptions
from factorize.solvers.comparing.attempts import Attempt, OutOfTime, groups, worker_count
from factorize.solvers.comparing.candidates import left_out
from factorize.solvers.comparing.comparison_table import CompareProgress, Comparison, Refused, Row, ranked, recommend
from factorize.solvers.comparing.plan import ComparisonPlan
from factorize.solvers.comparing.sampled_rows import (
    Solved,
    calibrate_rows,
    chosen_samplings,
    described,
    sampled_bounds,
    with_claims,
    with_many_bins,
)
from factorize.solvers.comparing.side_by_side import Tell, run_all
from factorize.solvers.comparing.table_rows import STORED_BYTES, TableRows, measured
from factorize.solvers.evidence_search import bound_with_dual
from factorize.solvers.problem import Reporter
from factorize.solvers.solving import solve
from factorize.spec import Spec, SpecSource, parse_spec

__all__ = ["CompareCallback", "CompareProgress", "compare"]

CompareCallback = Callable[[CompareProgress], None]
"""Called before each mechanism, between the steps of its solver and after it, in the caller's thread; may raise
`Cancelled`."""


def compare(
    spec: SpecSource,
    *,
    buffers: int | None = None,
    bytes_per_parameter: float | None = None,
    privacy: PrivacyTarget | None = None,
    sampling: SamplingOptions | None = None,
    samplings: Sequence[str] | None = None,
    progress: CompareCallback | None = None,
    max_seconds: float | None = None,
    budgets: Sequence[int] | None = None,
    seconds: float | None = None,
    fitting: bool = False,
    look: Callable[[Spec], Held | None] | None = None,
) -> Comparison:
    """Solve a spec with every mechanism that fits it.

    Args:
        spec: its mechanism is one row among the others; `auto` adds none.
        buffers: vectors of noise state that may be kept for each parameter; mechanisms with a size take this one.
        bytes_per_parameter: the same budget in bytes, at 4 bytes a number.
        privacy: adds the noise at this privacy to each row; by default that of the spec's sampling, if it has one.
        sampling: `dataset_size` and `batch_size`, for the Poisson schemes; they need an epsilon and delta in `privacy`.
        samplings: names of schemes (`factorize.samplings`) that rows may count on, beside a fixed order; by
            default all where sizes are given, and the spec's own. Under balls in bins and b-min-sep,
            mechanisms that are optimised for them join.
        progress: told before each mechanism and between its steps.
        max_seconds: mechanisms whose estimate is longer are refused, and those that take twice as long after all
            are stopped, by the processor's clock; by default `seconds`, and without it 8 s, n / 5000 s above
            n = 40000, 200 s at most; 200 s for those that are optimised for a sampling.
        budgets: several memory budgets in place of `buffers`; mechanisms with a size take each, and there is a
            recommendation for each.
        seconds: processor seconds for all (see `Deadline`): what promises most is tried first, what cannot end in
            time by its estimate is refused, and a search that runs late is stopped. The leads of a public order and of
            bins, independent noise, and the claim of the row that is recommended come to their end. By default no
            limit.
        fitting: leave out mechanisms that keep more than the largest budget, which no recommendation names.
        look: returns what is solved already, or None.

    Raises:
        InvalidSpec: the parts of the spec do not fit each other.
        InvalidParameter: a budget is negative, or `sampling` has options beside the sizes.
        Cancelled: raised by `progress`.
    """
    spec = parse_spec(spec)
    if privacy is None and spec.sampling is not None:
        privacy = PrivacyTarget(epsilon=spec.sampling.epsilon, delta=spec.sampling.delta)
    sizes = sampling or SamplingOptions()
    if replace(sizes, dataset_size=None, batch_size=None) != SamplingOptions():
        raise InvalidParameter(
            "sampling of a comparison has other options than dataset_size and batch_size, and rows are for sums, clip "
            "norm 1 and zero_out alone; leave them out, and give them to the calibration",
            field="sampling",
        )
    rows = TableRows(privacy, sizes, chosen_samplings(spec, privacy, sizes, samplings))
    allowed = _budgets(budgets, _budget(buffers, bytes_per_parameter))
    plan = ComparisonPlan(spec, allowed, rows, max_seconds=max_seconds, seconds=seconds, fitting=fitting, look=look)
    return _Run(plan, progress).compare()


def _budgets(several: Sequence[int] | None, one: int | None) -> tuple[int | None, ...]:
    """Return the memory budgets, ascending, at least one of them; None for any memory."""
    if several is None:
        return (one,)
    if one is not None or not several or min(several) < 0:
        raise InvalidParameter(
            f"budgets={list(several)!r} must be numbers of at least 0, without buffers and bytes_per_parameter; give "
            "one or the other",
            field="budgets",
        )
    return tuple(sorted(set(several)))


def _budget(buffers: int | None, bytes_per_parameter: float | None) -> int | None:
    for name, value in (("buffers", buffers), ("bytes_per_parameter", bytes_per_parameter)):
        if value is not None and not value >= 0:
            raise InvalidParameter(f"{name}={value!r} is negative; give the memory for noise state", field=name)
    counts = [buffers] if buffers is not None else []
    counts += [int(bytes_per_parameter // STORED_BYTES)] if bytes_per_parameter is not None else []
    return min(counts, default=None)


class _News(NamedTuple):
    """The news of a running mechanism.

    Attributes:
        kind: kind of the mechanism, or name of a sampling.
        ended: the number that have ended, 0 or 1.
    """

    kind: str
    ended: int


class _Run:
    """The run of a plan: what all its solves share."""

    def __init__(self, plan: ComparisonPlan, progress: CompareCallback | None) -> None:
        self.plan, self.progress = plan, progress
        self.spec, self.budgets, self.rows, self.schedule = plan.spec, plan.budgets, plan.rows, plan.schedule
        self.held = set[str]()  # digests of what was found
        self.began = time.monotonic()
        self.done = self.total = 0
        self.dual: Mapping[str, np.ndarray] = {}

    def compare(self) -> Comparison:
        if self.schedule.seconds is None:
            return self._compare(hurried=False)
        with stop_clock():
            import numba  # noqa: F401  # half a second, and scipy as long
            import scipy.linalg  # noqa: F401

        with one_blas_thread(0):  # threads that wait in loops use up the processors' time
            return self._compare(hurried=True)

    def _compare(self, *, hurried: bool) -> Comparison:
        plans = self.plan.attempts(hurried=hurried)
        common, self.total = Attempt({"kind": "lower_bound"}), len(plans)
        workers = worker_count([plan.needed.bytes for plan in plans])
        in_turn = groups(plans, hurried=hurried)
        bounded = hurried and self.plan.is_bounded(plans)
        if bounded:  # What follows the lead may be left out once it is near its own bound.
            in_turn = [in_turn[0] + sum(in_turn[2:], []), in_turn[1]]
        tasks = [partial(self._try, group) for group in in_turn]
        # The rows come first in a hurry: what they are measured against chooses none.
        if not bounded:
            tasks.insert(sum(plan.always for plan in plans) if hurried else 0, partial(self._bound, common))
        run_all(tasks, self._hear, workers=workers)
        solved = [plan for plan in plans if plan.solved is not None]
        leads = [plan for plan in plans if plan.lead]
        for plan in solved:
            if plan.solved is not None and any(lead.stands_for(plan) for lead in leads):
                plan.solved = plan.solved._replace(lead=True)  # its claim, like theirs, is tested in any case
        better = [lead for lead in leads if any(lead.stands_for(one) for one in solved if one != lead)]
        return self._table([*(plan for plan in plans if plan not in better), common], workers)

    def _table(self, plans: list[Attempt], workers: int) -> Comparison:
        """Put together what was found, in the order of the plans, whichever ended first."""
        bounds = [plan.bound for plan in plans if plan.bound is not None]
        bound = max(bounds, key=lambda bound: bound.objective, default=None)
        entries = [entry for plan in plans for entry in plan.entries]
        solved = [plan.solved for plan in plans if plan.solved is not None]
        entries += with_many_bins(self.rows, solved, self._calibrating, self.schedule, workers=workers)
        rows = [entry for entry in entries if isinstance(entry, Row)]
        rows, unproved = with_claims(self.rows, rows, solved, self.budgets, self._calibrating, self.schedule)
        entries += unproved
        sampled = sampled_bounds(self.rows, self.spec, self.dual, self.schedule)
        rows = ranked([measured(row, bound, sampled) for row in rows])
        refused = [entry for entry in entries if isinstance(entry, Refused)]
        late = any(entry.out_of_time for entry in refused)
        chosen = recommend(rows, self.budgets[-1], late=late)
        taken = None if chosen is None else rows[chosen.row].spec_digest
        kept = next((one.factorization for one in solved if one.factorization.spec_digest == taken), None)
        tried = {plan.mechanism["kind"] for plan in plans}
        refused += [Refused(kind, {}, None, reason) for kind, reason in left_out(self.spec) if kind not in tried]
        document = self.spec.document()
        del document["mechanism"]
        return Comparison(
            spec=document,
            objective=self.spec.objective.kind,
            lower_bound=bound,
            budget=self.budgets[-1],
            rows=tuple(rows),
            refused=tuple(refused),
            recommendation=chosen,
            solved=None if kept is None else self._with_bound(kept),
            recommendations=tuple((budget, recommend(rows, budget, late=late)) for budget in self.budgets),
            samplings=tuple(described(self.rows, rows, solved)) if self.rows.samplings else (),
            sampled_bounds=sampled,
            seconds=time.monotonic() - self.began,
        )

    def _with_bound(self, factorization: Factorization) -> Factorization:
        """Return a result with the comparison's evidence for a bound, where it has none."""
        if factorization.digest in self.held or not self.dual:
            return factorization
        if factorization.dual and factorization.spec.optimize_for is None:
            return factorization
        if not self.schedule.lasts_for_certificate(self.spec, factorization.matrix):
            return factorization
        solver = factorization.manifest.solver
        solution = Solution(factorization.strategy, Outcome[solver["outcome"].upper()], solver["iterations"], self.dual)
        return Factorization.from_solution(factorization.spec, solution, solver=solver)

    def _calibrating(self, scheme: str) -> None:
        if self.progress is not None:
            self.progress(CompareProgress(self.total - 1, self.total, scheme, time.monotonic() - self.began))

    def _hear(self, news: _News) -> None:
        self.done += news.ended
        if self.progress is not None and self.done < self.total:
            self.progress(CompareProgress(self.done, self.total, news.kind, time.monotonic() - self.began))

    def _bound(self, plan: Attempt, tell: Tell[_News]) -> None:
        """Find the bound that rows without evidence of their own are measured against."""

        def find(step: Callable[[Progress], None]) -> None:
            self.schedule.check_bound()
            plan.bound, self.dual = bound_with_dual(self.plan.spec_with({"kind": "identity"}), Reporter(step))

        self._watch(plan, tell, find, bound=True)

    def _try(self, group: list[Attempt], tell: Tell[_News]) -> None:
        nu: float | None = None
        for plan in group:
            tell(_News(plan.mechanism["kind"], 0))
            if plan.spec is not None:
                factorization = self._watch(plan, tell, partial(self._solve, plan, group[0], nu))
                nu = _nu(factorization) if factorization is not None and plan.mechanism.get("nu") == "tune" else nu
            if plan.solved is not None:
                plan.entries += calibrate_rows(self.rows, plan.solved, lambda name: tell(_News(name, 0)), self.schedule)
            tell(_News(plan.mechanism["kind"], 1))

    def _watch(
        self, plan: Attempt, tell: Tell[_News], run: Callable[[Callable[[Progress], None]], Any], *, bound: bool = False
    ) -> Any:
        """Return what `run` does, or None where it is refused or out of time."""
        check = self.schedule.start_clock(plan, bound=bound)

        def step(_progress: Progress) -> None:
            tell(_News(plan.mechanism["kind"], 0))
            check()

        try:
            return run(step)
        except OutOfTime as error:
            plan.refuse(str(error), out_of_time=self.schedule.seconds is not None)
        except Cancelled:
            raise
        except FactorizeError as error:
            plan.refuse(str(error))
        return None

    def _solve(
        self, plan: Attempt, first: Attempt, nu: float | None, step: Callable[[Progress], None]
    ) -> Factorization:
        self.schedule.check_time_left(plan, first)
        if self.plan.takes_over(plan.mechanism):
            if nu is None:
                raise FactorizeError("needs the nu tuned without scaled columns, which was not found")
            plan.mechanism = {**plan.mechanism, "nu": nu}
            plan.spec = self.plan.spec_with(plan.mechanism)
        assert plan.spec is not None
        began = time.monotonic()
        if plan.held is not None:
            factorization = load(plan.held.path)
            self.held.add(factorization.digest)
        else:
            factorization = solve(plan.spec, progress=step, evidence=False)
        origin = Origin("solved") if plan.held is None else plan.held.origin
        row = self.rows.of(factorization, plan.mechanism, time.monotonic() - began, origin)
        plan.entries.append(row)
        plan.bound = factorization.certificate.lower_bound
        kept = self.budgets[-1] is not None and row.noise_vectors <= self.budgets[-1]
        plan.solved = Solved(factorization, row, plan.lead) if self.rows.samplings or kept else None
        return factorization


def _nu(factorization: Factorization) -> float | None:
    """Return the nu that was tuned: the second coefficient of (1 - (1 - nu) x)^(-1/2) is (1 - nu) / 2."""
    column = factorization.matrix.coefficients()
    if column is None or len(column) < 2:
        return None
    return max(0.0, 1.0 - 2.0 * float(column[1] / column[0]))

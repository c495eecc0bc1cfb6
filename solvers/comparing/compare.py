"""Every mechanism that fits a spec side by side: losses, distance to the certified bound, memory, time, sensitivity.

Each row is a whole solve with its own certificate; as many run at a time as there are processors. The lower bound holds
over all matrices, whichever proved it, so all rows are measured against the largest one that was certified. What does
not fit is listed with the reason.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import starmap
from typing import Any, NamedTuple

import numpy as np

from factorize.client.download import Held
from factorize.client.service import Origin
from factorize.errors import Cancelled, FactorizeError, InvalidParameter
from factorize.factor_file import load
from factorize.factorization import Factorization
from factorize.mechanisms import Auto
from factorize.numbers.blas_threads import one_blas_thread
from factorize.numbers.processor_time import stop_clock, thread_seconds
from factorize.privacy import PrivacyTarget
from factorize.privacy_question import SamplingOptions
from factorize.solution import Outcome, Progress, Solution
from factorize.solvers.comparing.attempts import Attempt, distinct, groups, worker_count
from factorize.solvers.comparing.candidates import (
    fewer_bands,
    leads,
    left_out,
    mechanisms,
    optimised,
    tolerance,
    within,
)
from factorize.solvers.comparing.comparison_table import (
    CompareProgress,
    Comparison,
    Refused,
    Row,
    ranked,
    recommend,
)
from factorize.solvers.comparing.sampled_rows import (
    Solved,
    calibrate_rows,
    chosen_samplings,
    claim_seconds,
    described,
    sampled_bounds,
    with_claims,
    with_many_bins,
)
from factorize.solvers.comparing.side_by_side import SOLVES, Deadline, Tell, run_all
from factorize.solvers.comparing.table_rows import STORED_BYTES, TableRows, measured
from factorize.solvers.evidence_search import bound_with_dual
from factorize.solvers.problem import Estimate, Reporter
from factorize.solvers.register import ANSWERED, choose
from factorize.solvers.solving import estimate, solve
from factorize.spec import Spec, SpecSource, parse_spec

__all__ = ["CompareCallback", "CompareProgress", "compare"]

_SCALED_NU = {"kind": "nu_toeplitz", "nu": "tune", "normalization": "columns"}
_LEAST_SECONDS, _STEPS_A_SECOND, _LARGEST_SECONDS = 8.0, 5000, 200.0
_OPTIMISED_SECONDS = 200.0  # for what is optimised for a sampling
_BOUND_SECONDS = 60.0  # more for the bound, which all rows are measured against
_LEAD, _LEAST_LEAD = 3.0, 3.0  # times the time for all, that a lead may take by its estimate, and at least so long
_SECOND_LEAD = 0.5  # the same of a public order's, beside one of bins
_MORE_FOR_LEADS = 60.0  # seconds more that a lead may take: a busy machine's caches are shared, and nothing stands in
_LATE = 2.0  # times the limit, after which a mechanism whose estimate was too low is stopped

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
    most_seconds: float | None = None,
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
            default all where sizes are given, and the spec's own. Under balls in bins, mechanisms that
            are optimised for it join.
        progress: told before each mechanism and between its steps.
        most_seconds: mechanisms whose estimate is longer are refused, and those that take twice as long after all
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
        InvalidParameter: a budget is negative.
        Cancelled: raised by `progress`.
    """
    spec = parse_spec(spec)
    if privacy is None and spec.sampling is not None:
        privacy = PrivacyTarget(epsilon=spec.sampling.epsilon, delta=spec.sampling.delta)
    sizes = sampling or SamplingOptions()
    rows = TableRows(privacy, sizes, chosen_samplings(spec, privacy, sizes, samplings))
    allowed = _budgets(budgets, _budget(buffers, bytes_per_parameter))
    most_seconds = seconds if most_seconds is None else most_seconds
    least = max(_LEAST_SECONDS, spec.workload.n / _STEPS_A_SECOND)
    limits = (min(least, _LARGEST_SECONDS), _OPTIMISED_SECONDS) if most_seconds is None else (most_seconds,) * 2
    return _Run(spec, allowed, rows, progress, limits, seconds, fitting=fitting, look=look).compare()


def _budgets(several: Sequence[int] | None, one: int | None) -> tuple[int | None, ...]:
    """Return the memory budgets, ascending, at least one of them; None for any memory."""
    if several is None:
        return (one,)
    if one is not None or not several or min(several) < 0:
        raise InvalidParameter(
            f"budgets={list(several)!r} are numbers of 0 or more, in place of buffers and bytes_per_parameter; give "
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


class _OutOfTime(Cancelled):
    """A mechanism would take too long, or took much longer than its estimate."""


class _News(NamedTuple):
    """What a running mechanism says.

    Attributes:
        kind: of the mechanism, or name of a sampling.
        ended: how many have ended, 0 or 1.
    """

    kind: str
    ended: int


class _Run:
    """One comparison: what all its solves share."""

    def __init__(
        self,
        spec: Spec,
        budgets: tuple[int | None, ...],
        rows: TableRows,
        progress: CompareCallback | None,
        limits: tuple[float, float],
        seconds: float | None,
        *,
        fitting: bool,
        look: Callable[[Spec], Held | None] | None,
    ) -> None:
        self.look, self.held = look, set[str]()  # digests of what was found
        self.largest = budgets[-1] if fitting else None
        self.own, self.budgets, self.rows = spec, budgets, rows
        # What other mechanisms are solved for.
        alone = {"sampling": None, "mechanism": Auto()} if spec.sampling is not None else {}
        self.spec = spec.model_copy(update=alone)
        self.progress = progress
        self.most_seconds, self.most_optimised = limits
        self.began, self.deadline = time.monotonic(), Deadline(seconds)
        bins = spec.participation.epoch(spec.workload.n) if "balls_in_bins" in rows.samplings else None
        self.claims = 0.0 if bins is None else claim_seconds(bins)  # that the last of the time is kept for
        self.done = self.total = 0
        self.dual: Mapping[str, np.ndarray] = {}

    def compare(self) -> Comparison:
        if self.deadline.seconds is None:
            return self._compare(hurried=False)
        with stop_clock():
            import numba  # noqa: F401  # half a second, and scipy as long
            import scipy.linalg  # noqa: F401

        with one_blas_thread(0):  # threads that wait in loops use up the processors' time
            return self._compare(hurried=True)

    def _compare(self, *, hurried: bool) -> Comparison:
        attempts = distinct([*self._candidates(), *self._optimised()])
        plans = self._plan_all([one for one in attempts if within(one.mechanism, self.spec, self.largest)])
        plans = [*(self._leads() if hurried else []), *plans]
        common, self.total = Attempt({"kind": "lower_bound"}), len(plans)
        workers = worker_count([plan.needed.bytes for plan in plans])
        tasks = [partial(self._try, group) for group in groups(plans, hurried=hurried)]
        # In a hurry the rows come first: what they are measured against chooses none.
        tasks.insert(sum(plan.always for plan in plans) if hurried else 0, partial(self._bound, common))
        run_all(tasks, self._hear, workers=workers)
        solved = [plan for plan in plans if plan.solved is not None]
        leads = [plan for plan in plans if plan.lead]
        for plan in solved:
            if plan.solved is not None and any(lead.stands_for(plan) for lead in leads):
                plan.solved = plan.solved._replace(lead=True)  # its claim, like theirs, is tested in any case
        better = [lead for lead in leads if any(lead.stands_for(one) for one in solved if one != lead)]
        return self._table([*(plan for plan in plans if plan not in better), common], workers)

    def _leads(self) -> list[Attempt]:
        """Return the leads that can be had in about the time, planned; of a public order alone the first."""
        privacy = self.rows.privacy if "balls_in_bins" in self.rows.samplings else None
        chosen: list[Attempt] = []
        for budget in self.budgets:
            tried = [self._plan(Attempt(*lead, lead=True)) for lead in leads(self.spec, budget, privacy)]
            had = [plan for plan in tried if plan.spec is not None]
            fixed = [plan for plan in had if plan.sampling is None]
            # In bins over several epochs the second one may lead: at a large epsilon by 4 %.
            chosen += fixed if privacy is not None and not self.spec.participation.single else fixed[:1]
            chosen += [plan for plan in had if plan.sampling]
        return distinct(chosen)

    def _plan_all(self, attempts: list[Attempt]) -> list[Attempt]:
        """Plan all; where so many buffers cannot be had, or not in time, the most that can join them."""
        plans = [self._plan(attempt) for attempt in attempts]
        for refused in [plan for plan in plans if plan.spec is None]:
            tried = (self._plan(smaller) for smaller in refused.smaller())
            fits = next((plan for plan in tried if plan.spec is not None), None)
            if fits is not None and not any(fits.repeats(plan) for plan in plans):
                plans.append(fits)
        return plans

    def _candidates(self) -> Iterator[Attempt]:
        """Yield what is optimised for no sampling."""
        for budget in self.budgets:
            yield from map(Attempt, mechanisms(self.spec, budget))
        if {"cyclic_poisson", "b_min_sep"} & set(self.rows.samplings):
            yield from map(Attempt, fewer_bands(self.spec, self.budgets[-1]))

    def _optimised(self) -> Iterator[Attempt]:
        """Yield what is optimised for a sampling: the spec's own, and the usual ones at the privacy."""
        if self.own.sampling is not None and self.own.mechanism.kind != "auto":
            yield Attempt(self.own.mechanism.model_dump(exclude_none=True), self.own.sampling.document())
        if "balls_in_bins" in self.rows.samplings:
            for budget in self.budgets:
                yield from starmap(Attempt, optimised(self.spec, budget, self.rows.privacy))

    def _table(self, plans: list[Attempt], workers: int) -> Comparison:
        """Put together what was found, in the order of the plans, whichever ended first."""
        bounds = [plan.bound for plan in plans if plan.bound is not None]
        bound = max(bounds, key=lambda bound: bound.objective, default=None)
        entries = [entry for plan in plans for entry in plan.entries]
        solved = [plan.solved for plan in plans if plan.solved is not None]
        entries += with_many_bins(self.rows, solved, self._calibrating, self.deadline, workers=workers)
        rows = [entry for entry in entries if isinstance(entry, Row)]
        rows, unproved = with_claims(self.rows, rows, solved, self.budgets, self._calibrating, self.deadline)
        entries += unproved
        sampled = sampled_bounds(self.rows, self.spec, self.dual)
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
        solver = factorization.manifest.solver
        solution = Solution(factorization.strategy, Outcome[solver["outcome"].upper()], solver["iterations"], self.dual)
        return Factorization.from_solution(factorization.spec, solution, solver=solver)

    def _calibrating(self, scheme: str) -> None:
        if self.progress is not None:
            self.progress(CompareProgress(self.total - 1, self.total, scheme, time.monotonic() - self.began))

    def _plan(self, plan: Attempt) -> Attempt:
        most = self._limit(plan)
        try:
            plan.spec = self._with(plan.mechanism, plan.sampling, lead=plan.lead)
            takes_over = self._takes_over(plan.mechanism)
            if self.look is not None and not (takes_over or plan.spec.user_matrices()):
                plan.held = self.look(choose(plan.spec))
            if plan.held is not None:
                return plan
            mechanism = {**plan.mechanism, "nu": 0.0} if takes_over else plan.mechanism
            plan.needed = estimate(self._with(mechanism, plan.sampling, lead=plan.lead), evidence=False)
            if plan.needed.seconds > most:
                raise _OutOfTime(
                    f"would take about {plan.needed.seconds:.3g} s, above most_seconds={most:g}; raise it "
                    "(--max-seconds, or --seconds for all), or solve this mechanism by its own spec"
                )
        except FactorizeError as error:
            late = isinstance(error, _OutOfTime) and self.deadline.seconds is not None
            plan.refuse(str(error).partition(ANSWERED)[0], out_of_time=late)
            plan.needed = Estimate(0.0, 0)
        return plan

    def _limit(self, plan: Attempt) -> float:
        most = self.most_seconds if plan.sampling is None else self.most_optimised
        if plan.lead and plan.sampling is None and self.claims:
            return _SECOND_LEAD * most
        if plan.lead:
            return max(_LEAD * most, _LEAST_LEAD)
        return math.inf if plan.always else most

    def _takes_over(self, mechanism: dict[str, Any]) -> bool:
        """Return whether nu is the one tuned without scaled columns: for them each trial takes a whole certificate."""
        return mechanism == _SCALED_NU and self.spec.mechanism.kind != "nu_toeplitz"

    def _with(self, mechanism: dict[str, Any], sampling: dict[str, Any] | None = None, *, lead: bool = False) -> Spec:
        """Return the spec with another mechanism; the numbers of a user's matrix stay with it."""
        sampled = {} if sampling is None else {"sampling": sampling}
        parsed = parse_spec({**self.spec.document(), "mechanism": mechanism, **sampled})
        changes = {"mechanism": parsed.mechanism, "tolerance": tolerance(self.spec, mechanism, lead=lead)}
        return self.spec.model_copy(update={**changes, "sampling": parsed.sampling}).canonical()

    def _hear(self, news: _News) -> None:
        self.done += news.ended
        if self.progress is not None and self.done < self.total:
            self.progress(CompareProgress(self.done, self.total, news.kind, time.monotonic() - self.began))

    def _bound(self, plan: Attempt, tell: Tell[_News]) -> None:
        """Find the bound that rows without evidence of their own are measured against."""

        def find(step: Callable[[Progress], None]) -> None:
            plan.bound, self.dual = bound_with_dual(self._with({"kind": "identity"}), Reporter(step))

        self._watch(plan, tell, find, more=_BOUND_SECONDS)

    def _try(self, group: list[Attempt], tell: Tell[_News]) -> None:
        nu: float | None = None
        for plan in group:
            tell(_News(plan.mechanism["kind"], 0))
            if (
                plan.spec is not None
                and not plan.always
                and self.deadline.over(SOLVES, plan.needed.seconds + self.claims)
            ):
                plan.refuse(self.deadline.told("was not tried"), out_of_time=True)
            if plan.spec is not None and self._takes_over(plan.mechanism):
                if nu is None:
                    plan.refuse("takes the nu tuned without scaled columns, which was not found")
                else:
                    plan.mechanism = {**plan.mechanism, "nu": nu}
                    plan.spec = self._with(plan.mechanism)
            if plan.spec is not None:
                more = _MORE_FOR_LEADS if plan.lead else 0.0
                factorization = self._watch(plan, tell, partial(self._solve, plan), more)
                nu = _nu(factorization) if factorization is not None and plan.mechanism.get("nu") == "tune" else nu
            if plan.solved is not None:
                plan.entries += calibrate_rows(self.rows, plan.solved, lambda name: tell(_News(name, 0)), self.deadline)
            tell(_News(plan.mechanism["kind"], 1))

    def _watch(
        self, plan: Attempt, tell: Tell[_News], run: Callable[[Callable[[Progress], None]], Any], more: float = 0.0
    ) -> Any:
        """Return what `run` does, or None where it is refused or out of time."""
        # Processor time of this thread: what else the machine does decides nothing.
        began, last = thread_seconds(), _LATE * self._limit(plan) + more

        def step(_progress: Progress) -> None:
            tell(_News(plan.mechanism["kind"], 0))
            passed = thread_seconds() - began
            if passed > last:
                raise _OutOfTime(f"was stopped after {passed:.3g} s of processor time; raise --max-seconds")
            if not plan.always and self.deadline.over(SOLVES, self.claims):
                raise _OutOfTime(self.deadline.told(f"was stopped after {passed:.3g} s of processor time"))

        try:
            return run(step)
        except _OutOfTime as error:
            plan.refuse(str(error), out_of_time=self.deadline.seconds is not None)
        except Cancelled:
            raise
        except FactorizeError as error:
            plan.refuse(str(error))
        return None

    def _solve(self, plan: Attempt, step: Callable[[Progress], None]) -> Factorization:
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

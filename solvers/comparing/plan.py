"""The plan of a comparison: the mechanisms to try, each with its spec, what it costs and how long it may take."""

import math
from collections.abc import Callable, Iterator

from factorize.client.download import Held
from factorize.encoding import JsonObject
from factorize.errors import FactorizeError, TooLarge
from factorize.solvers.comparing.attempts import Attempt, OutOfTime, distinct
from factorize.solvers.comparing.candidates import fewer_bands, leads, mechanisms, optimised, tolerance, within
from factorize.solvers.comparing.comparison_schedule import ComparisonSchedule
from factorize.solvers.comparing.sampled_rows import claim_seconds
from factorize.solvers.comparing.table_rows import TableRows
from factorize.solvers.problem import Estimate
from factorize.solvers.register import choose, entry_for
from factorize.solvers.solving import estimate
from factorize.spec import LARGEST_BINS, Spec, parse_spec
from factorize.spec.mechanisms import Auto

_SCALED_NU = {"kind": "nu_toeplitz", "nu": "tune", "normalization": "columns"}
_MAX_SHORT_STEPS = 2**15
"""The most steps of a run that is not long. In a long one a bound takes seconds, so a lead proves it alone; where no
lead fits the time, nothing is advised."""


class ComparisonPlan:
    """The plan of one comparison: what it tries, within which memory and time.

    Args:
        spec: the spec as it was asked.
        budgets: memory budgets, ascending; None for any memory.
        rows: makes the rows of the table.
        max_seconds: seconds that a mechanism may take by its estimate; see `compare`.
        seconds: processor seconds for all, or None.
        fitting: whether what keeps more than the largest budget is left out.
        look: returns what is solved already, or None.

    Attributes:
        spec: what other mechanisms than its own are solved for.
        steps: the steps of the spec, 0 without end.
        schedule: the times of all.
    """

    def __init__(
        self,
        spec: Spec,
        budgets: tuple[int | None, ...],
        rows: TableRows,
        *,
        max_seconds: float | None,
        seconds: float | None,
        fitting: bool,
        look: Callable[[Spec], Held | None] | None,
    ) -> None:
        self.look = look
        self.largest = budgets[-1] if fitting else None
        self.own, self.budgets, self.rows = spec, budgets, rows
        self.steps = 0 if spec.workload.endless else spec.workload.n
        alone = {"sampling": None, "mechanism": Auto()} if spec.sampling is not None else {}
        self.spec = spec.model_copy(update=alone)
        bins = spec.participation.epoch(spec.workload.n) if "balls_in_bins" in rows.samplings else None
        claims = 0.0 if bins is None or bins > LARGEST_BINS else claim_seconds(bins)  # more bins: no claim
        self.schedule = ComparisonSchedule(self.steps, seconds, max_seconds=max_seconds, claims=claims)

    def attempts(self, *, hurried: bool) -> list[Attempt]:
        """Return all that is tried or refused; leads first, where there is little time."""
        leads = self._leads() if hurried else []  # first, since a run too long for them is refused
        attempts = distinct([*self._candidates(), *self._optimised()])
        plans = self._plan_all([one for one in attempts if within(one.mechanism, self.spec, self.largest)])
        return [*leads, *plans]

    def is_bounded(self, plans: list[Attempt]) -> bool:
        """Return whether a lead of a long run proves the bound, which takes seconds once more beside it."""
        if self.steps <= _MAX_SHORT_STEPS:
            return False
        solved = (choose(plan.spec) for plan in plans if plan.lead and plan.spec is not None and plan.held is None)
        return any(entry_for(spec).dual and spec.optimize_for is None for spec in solved)

    def takes_over(self, mechanism: JsonObject) -> bool:
        """Return whether nu is the one tuned without scaled columns: for them each trial takes a whole certificate."""
        return mechanism == _SCALED_NU and self.spec.mechanism.kind != "nu_toeplitz"

    def spec_with(self, mechanism: JsonObject, sampling: JsonObject | None = None, *, lead: bool = False) -> Spec:
        """Return the spec with another mechanism; the numbers of a user's matrix stay with it."""
        sampled = {} if sampling is None else {"sampling": sampling}
        parsed = parse_spec({**self.spec.document(), "mechanism": mechanism, **sampled})
        changes = {"mechanism": parsed.mechanism, "tolerance": tolerance(self.spec, mechanism, lead=lead)}
        return self.spec.model_copy(update={**changes, "sampling": parsed.sampling}).canonical()

    def _leads(self) -> list[Attempt]:
        """Return the leads that can be had in about the time, planned; of a public order alone the first."""
        privacy = self.rows.privacy if "balls_in_bins" in self.rows.samplings else None
        chosen: list[Attempt] = []
        for budget in self.budgets:
            tried = [self._plan(Attempt(*lead, lead=True)) for lead in leads(self.spec, budget, privacy)]
            had = [plan for plan in tried if plan.spec is not None]
            fixed = list({plan.mechanism["kind"]: plan for plan in had[::-1] if plan.sampling is None}.values())[::-1]
            # The second one may lead in bins over several epochs: at a large epsilon by 4 %.
            chosen += fixed if privacy is not None and not self.spec.participation.single else fixed[:1]
            chosen += [plan for plan in had if plan.sampling]
            if not had and self.steps > _MAX_SHORT_STEPS:
                self._refuse_late(tried)
        return distinct(chosen)

    def _refuse_late(self, leads: list[Attempt]) -> None:
        """Refuse to choose among what is left where no lead fits the time: it would be independent noise.

        Raises:
            TooLarge: with the estimate, the limit and the ways out.
        """
        late = [plan for plan in leads if plan.late]
        costs = [estimate(self.spec_with(plan.mechanism, lead=True), evidence=False).seconds for plan in late]
        if costs:
            seconds, plan = min(zip(costs, late, strict=True), key=lambda pair: pair[0])
            raise TooLarge(
                f"n={self.steps} is too large for advice in {self.schedule.seconds:g} processor seconds: "
                f"{plan.mechanism['kind']} would take about {seconds:.3g} s, above {self.schedule.limit(plan):.3g} s, "
                "and what takes less is hardly better than independent noise; give more time (--seconds "
                f"{math.ceil(seconds)}), or use fewer steps (larger batches)"
            )

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
        for budget in self.budgets:
            for mechanism, sampling in optimised(self.spec, budget, self.rows.privacy):
                if sampling["kind"] in self.rows.samplings:
                    yield Attempt(mechanism, sampling)

    def _plan(self, plan: Attempt) -> Attempt:
        try:
            plan.spec = self.spec_with(plan.mechanism, plan.sampling, lead=plan.lead)
            takes_over = self.takes_over(plan.mechanism)
            if self.look is not None and not (takes_over or plan.spec.user_matrices()):
                plan.held = self.look(choose(plan.spec, way_out=False))
            if plan.held is not None:
                return plan
            mechanism = {**plan.mechanism, "nu": 0.0} if takes_over else plan.mechanism
            own = plan.spec if mechanism is plan.mechanism else self.spec_with(mechanism, plan.sampling, lead=plan.lead)
            plan.needed = estimate(own, evidence=False, way_out=False)
            self.schedule.check_estimate(plan)
        except FactorizeError as error:
            late = isinstance(error, OutOfTime) and self.schedule.seconds is not None
            plan.refuse(str(error), out_of_time=late)
            plan.needed = Estimate(0.0, 0)
        return plan

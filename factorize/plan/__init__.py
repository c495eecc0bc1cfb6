"""Plans, from a data set and a privacy target to all that a run needs: steps, batch, noise, step sizes, the spec.

A request is plain data with a `system`, one of the papers' training systems. The plan rounds the counts first and
computes the noise for the counts that will be run: rounding them afterwards would be a privacy failure. Its noise is
for sens(C) = 1, which dense, banded and buffered mechanisms have; for any other, `factorize calibrate` gives sigma
from the certified sensitivity.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Annotated, Any

from pydantic import Field, TypeAdapter

from factorize.errors import InvalidParameter
from factorize.numbers.scalars import refuse_infinite, within_doubles
from factorize.plain_data import read_union
from factorize.plan.descent_plans import AcceleratedPlan, DpFtrlPlan, DpSrgPlan
from factorize.plan.recipes import Mu2Plan, SkgdPlan
from factorize.plan.request import Plan, PlanRequest

SYSTEMS: dict[str, type[PlanRequest]] = {
    "dp_ftrl": DpFtrlPlan,
    "dp_srg": DpSrgPlan,
    "accelerated_srgd": AcceleratedPlan,
    "dp_skgd": SkgdPlan,
    "mu2": Mu2Plan,
}
"""The one list: system to request."""

AnyPlan = Annotated[DpFtrlPlan | DpSrgPlan | AcceleratedPlan | SkgdPlan | Mu2Plan, Field(discriminator="system")]
ADAPTER: TypeAdapter[PlanRequest] = TypeAdapter(AnyPlan)


def plan(request: PlanRequest | Mapping[str, Any] | None = None, /, **fields: Any) -> Plan:
    """Return the full parameter set for a request; `factorize.plan(...)` calls it.

    Args:
        request: one of `SYSTEMS`, or its JSON form.
        **fields: those of the JSON form, in its place: `system="dp_ftrl", ...` (docs/predict.md).

    Raises:
        InvalidSpec: not a request; one violation per problem, each with a pointer to its field.
        ConditionNotMet: no run with these numbers is covered.
        InvalidParameter: a value is outside its range.
    """
    if request is not None and fields:
        told = f"{', '.join(fields)} beside a whole request: put them into it, or give keywords alone"
        raise InvalidParameter(told, field=next(iter(fields)))
    given = fields if request is None else request
    asked = given if isinstance(given, PlanRequest) else read_union(ADAPTER, given, AnyPlan)
    with within_doubles("the plan"):
        found = asked.plan()
        refuse_infinite("the plan", found.document())
    return found


__all__ = ["SYSTEMS", "AnyPlan", "Plan", "PlanRequest", "plan"]


class _CallableModule(ModuleType):
    """This module, called as the function that it is named after: `factorize.plan(...)`."""

    def __call__(self, request: PlanRequest | Mapping[str, Any] | None = None, /, **fields: Any) -> Plan:
        """See `plan`."""
        return plan(request, **fields)


sys.modules[__name__].__class__ = _CallableModule

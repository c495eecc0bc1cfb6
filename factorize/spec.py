"""The spec: what is asked for, as frozen data with one canonical form and one digest.

The same JSON goes over HTTP, into files and under the digest. Meanings never change; fields that are added later are
optional and absent from the canonical form unless given, so that the digest of an old spec stays what it is.
"""

from __future__ import annotations

from functools import cached_property
from typing import Annotated, Any

from pydantic import Field, ValidationError

from factorize.encoding import json_digest, read_json
from factorize.errors import InvalidParameter, InvalidSpec, UnsupportedProblem, Violation
from factorize.mechanisms import AnyMechanism, Auto
from factorize.model import Frozen
from factorize.objective import AnyObjective, Mean
from factorize.participation import AnyParticipation, Single
from factorize.workloads import AnyWorkload

DEFAULT_TOLERANCE = 1e-9
MAX_VIOLATIONS = 20


class Spec(Frozen):
    """Workload, participation, objective, mechanism and tolerance.

    Attributes:
        workload: the matrix A to factor.
        participation: which steps one example may touch; the sensitivity is taken over these.
        objective: the variance to minimise.
        mechanism: the family of strategy matrices, or `auto`.
        tolerance: relative gap asked for within the mechanism's own class.
        optimize_for: a workload to optimise C for, if it is not the one to evaluate on.
    """

    workload: AnyWorkload
    participation: AnyParticipation = Single()
    objective: AnyObjective = Mean()
    mechanism: AnyMechanism = Auto()
    tolerance: Annotated[float, Field(gt=0, lt=1, allow_inf_nan=False)] = DEFAULT_TOLERANCE
    optimize_for: AnyWorkload | None = None

    def canonical(self) -> Spec:
        """Return the spec with defaults, schedules, participations and inline matrices in their canonical form.

        `auto` stays `auto`: which mechanism it stands for is decided by the solvers.

        Raises:
            InvalidSpec: the parts do not fit each other.
        """
        violations: list[Violation] = []
        participation = _part(violations, "/participation", lambda: self.participation.canonical(self.workload.n))
        _part(violations, "/objective", lambda: self.objective.check(self.workload.m))
        if self.optimize_for is not None and self.optimize_for.n != self.workload.n:
            message = f"optimize_for has n={self.optimize_for.n} and workload n={self.workload.n}; both must agree"
            violations.append(Violation("/optimize_for", message))
        if violations:
            raise InvalidSpec(violations)
        changes = {
            "workload": self.workload.canonical(),
            "participation": participation,
            "optimize_for": self.optimize_for and self.optimize_for.canonical(),
        }
        return self.model_copy(update=changes)

    @cached_property
    def digest(self) -> str:
        """sha256 of the canonical JSON: names what was asked, not which bytes answer it.

        Raises:
            UnsupportedProblem: the mechanism is still `auto`, which `solvers.choose` replaces.
        """
        if isinstance(self.mechanism, Auto):
            raise UnsupportedProblem("a spec with mechanism 'auto' has no digest; pass it through solvers.choose first")
        return json_digest(self.canonical().document())


def parse_spec(source: bytes | str | dict[str, Any]) -> Spec:
    """Read a spec from JSON text or from plain data that came through the strict reader, in canonical form.

    Raises:
        MalformedJson: the text is not JSON by the strict rules.
        InvalidSpec: it is JSON and not a spec; one violation per problem (the first 20), each with a pointer to its
            field.
    """
    data = source if isinstance(source, dict) else read_json(source)
    if not isinstance(data, dict):
        raise InvalidSpec([Violation("", f"a spec is a JSON object; got {_type_name(data)}")])
    try:
        return Spec.model_validate(data).canonical()
    except ValidationError as error:
        entries = error.errors(include_url=False)[:MAX_VIOLATIONS]
        raise InvalidSpec([_violation(data, entry) for entry in entries]) from None
    except InvalidSpec:
        raise
    except InvalidParameter as error:
        raise InvalidSpec([Violation(error.field or "", str(error))]) from None


def _part(violations: list[Violation], pointer: str, step: Any) -> Any:
    try:
        return step()
    except InvalidParameter as error:
        violations.append(Violation(error.field or pointer, str(error)))
    return None


def _violation(data: Any, entry: Any) -> Violation:
    message = entry["msg"].removeprefix("Value error, ")
    given = entry.get("input")
    if entry["type"] == "extra_forbidden":
        message = "unknown field; the contract's fields are listed in docs/spec.md"
    elif given == "unbounded":
        message = "'unbounded' is not in this release; give the number of steps, and stop earlier if need be"
    elif entry["type"] != "value_error" and isinstance(given, (str, int, float, bool)):
        message = f"{message}; got {str(given)[:40]!r}"
    return Violation(_pointer(data, entry["loc"]), message)


def _pointer(data: Any, location: tuple[int | str, ...]) -> str:
    """Drop the union tags that pydantic puts into a location, which are no fields of the document."""
    pointer = ""
    last = len(location) - 1
    for position, part in enumerate(location):
        if isinstance(data, dict) and part in data:
            data = data[part]
        elif isinstance(data, list) and isinstance(part, int) and part < len(data):
            data = data[part]
        elif position != last or not isinstance(data, dict) or part == data.get("kind") or "[" in str(part):
            continue
        pointer += f"/{str(part).replace('~', '~0').replace('/', '~1')}"
    return pointer


def _type_name(value: Any) -> str:
    names = {list: "an array", str: "a string", int: "a number", float: "a number", bool: "a boolean"}
    return names.get(type(value), "null")


__all__ = ["DEFAULT_TOLERANCE", "Spec", "parse_spec"]

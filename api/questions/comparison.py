"""A comparison: its request as plain data, the table with the use of each row in a training job, and the table as text.

Nothing is stored.
"""

from collections.abc import Callable, Mapping
from typing import Annotated, Self

from pydantic import Field, model_validator

from factorize.api.questions.step_pace import step_pace
from factorize.client.connection import Event
from factorize.client.download import Held
from factorize.client.service import Origin, Service
from factorize.encoding import JsonObject
from factorize.errors import InvalidSpec
from factorize.factors.factorization import Factorization
from factorize.format.quantities import at_least, at_most
from factorize.plain_data import Examples, Frozen, NonNegative, OpenUnit, Positive, read_union
from factorize.privacy import PrivacyTarget
from factorize.privacy.question import SamplingOptions
from factorize.samplings import SAMPLINGS
from factorize.spec import Spec, parse_spec
from factorize.storage.store import Store

_OPEN_MARK = "~"
_LIMITS = {"buffers", "budgets", "bytes_per_parameter", "samplings", "seconds", "max_seconds"}
"""The fields of a request that a comparison takes as they are."""
Report = Callable[[int, int, str], None]
"""A function that is told mechanisms done, their total, and the one that runs."""

Vectors = Annotated[int, Field(ge=0, le=10**6)]
"""Vectors of noise state that may be kept for each parameter."""
Budgets = Annotated[list[Vectors], Field(min_length=1, max_length=8)]
Parameters = Annotated[int, Field(ge=1, le=10**13)]
SamplingNames = Annotated[
    list[Annotated[str, Field(max_length=40, json_schema_extra={"enum": list(SAMPLINGS)})]],
    Field(max_length=8),
]
"""Schemes that rows may count on: what the loader can do. A fixed order always counts."""
ALL_SAMPLINGS: JsonObject = {"x-default": list(SAMPLINGS)}


class CompareRequest(Frozen, use_attribute_docstrings=True):
    """A spec, a memory budget and a privacy target."""

    spec: Spec
    """Its mechanism is one row among the others; `auto` adds none."""
    buffers: Vectors | None = None
    """Vectors of noise state that may be kept for each parameter."""
    budgets: Budgets | None = None
    """Several numbers of vectors in one run, in place of `buffers`."""
    bytes_per_parameter: NonNegative | None = None
    """The same budget in bytes, at 4 for a number."""
    epsilon: Positive | None = None
    """The epsilon, with `delta`, of the privacy at which noise is stated too."""
    delta: OpenUnit | None = None
    """The delta that goes with `epsilon`."""
    dataset_size: Examples | None = None
    """Examples in the data set; with `batch_size` it adds rows under sampling."""
    batch_size: Examples | None = None
    """Expected examples per step."""
    samplings: SamplingNames | None = Field(default=None, json_schema_extra=ALL_SAMPLINGS)
    """What rows may count on, beside a fixed order; by default all where sizes are given, and the spec's own."""
    max_seconds: Positive | None = None
    """Mechanisms that would take longer are listed as refused."""
    seconds: Positive | None = None
    """Processor seconds for all: what promises most is tried first, and the rest is listed as refused."""
    parameters: Parameters | None = None
    """Parameters of the model, which add the seconds of a step's noise."""

    @model_validator(mode="after")
    def _pairs(self) -> Self:
        if (self.epsilon is None) != (self.delta is None):
            raise ValueError("epsilon and delta come together; give both or neither")
        if (self.dataset_size is None) != (self.batch_size is None):
            raise ValueError("dataset_size and batch_size come together; give both or neither")
        if self.budgets is not None and (self.buffers, self.bytes_per_parameter) != (None, None):
            raise ValueError("budgets replaces buffers and bytes_per_parameter; give only one")
        private = self.epsilon is not None or self.spec.sampling is not None
        if (self.dataset_size is not None or self.samplings) and not private:
            raise ValueError("sampling amplifies an (epsilon, delta) guarantee; give epsilon and delta too")
        return self


def read_request(document: Mapping[str, object]) -> CompareRequest:
    """Read a request from plain data.

    Raises:
        InvalidSpec: it is none, or its spec is none; pointers to the fields.
    """
    request: CompareRequest = read_union(document, CompareRequest)
    try:
        spec = parse_spec(request.spec)
    except InvalidSpec as error:
        raise error.within("/spec") from None
    return request.model_copy(update={"spec": spec})


def request_for(spec: Spec, **options: object) -> CompareRequest:
    """Return the request about a spec in memory, with the numbers of its matrices; an option of None is left out.

    Raises:
        InvalidSpec: see `read_request`.
    """
    fields = {name: value for name, value in options.items() if value is not None}
    return read_request({"spec": spec.document(), **fields}).model_copy(update={"spec": spec})


def comparison(
    request: CompareRequest,
    store: Store | None,
    report: Report,
    service: str | None = None,
    keep: Callable[[Factorization], object] | None = None,
    *,
    fitting: bool = False,
    look: Callable[[Spec], Held | None] | None = None,
) -> JsonObject:
    """Return the table as plain data.

    Args:
        request: what is asked.
        store: the store that has a user's matrices, if there is one.
        report: see `Report`; what it raises ends the comparison.
        service: URL of a service that compares, in place of this process.
        keep: given the factorization that is recommended, where this process has solved it.
        fitting: leave out what no recommendation within the budgets names; a service compares all.
        look: finds what is solved already, as `factorize.client.held_factors.look_first` does.

    Raises:
        FactorizeError: from `solvers.compare`, or of the service.
    """
    if service is not None:

        def hear(event: Event) -> None:
            report(event.data["done"], event.data["total"], event.data["mechanism"])

        answering = Service(service)
        answering.send_matrices(request.spec)
        return answering.compare(request.document() | {"spec": request.spec.document()}, progress=hear)
    from factorize.solvers.comparing.compare import compare

    privacy = None if request.epsilon is None else PrivacyTarget(epsilon=request.epsilon, delta=request.delta)
    table = compare(
        request.spec if store is None else store.matrices.bind(request.spec),
        privacy=privacy,
        sampling=SamplingOptions(dataset_size=request.dataset_size, batch_size=request.batch_size),
        progress=lambda step: report(step.done, step.total, step.mechanism),
        fitting=fitting,
        look=look,
        **request.model_dump(include=_LIMITS),
    )
    if keep is not None and table.solved is not None:
        keep(table.solved)
    return with_use(table.to_dict(), request.parameters)


def with_use(table: JsonObject, parameters: int | None) -> dict[str, object]:
    """Return the table with `loader` in each row, and with `seconds_per_step` where the model's size is known.

    Args:
        table: the table as plain data.
        parameters: the number of the model's parameters, or None.
    """
    steps = table["spec"]["workload"].get("n")
    pace = None if parameters is None else step_pace()
    known = steps if isinstance(steps, int) else None
    for row in table["rows"]:
        row["loader"] = SAMPLINGS[row["sampling"] or "fixed"].loader
        row["seconds_per_step"] = None if pace is None else pace.seconds(row, parameters or 0, known)
    basis = "a model of one core: measured seconds for each normal and each operation, times their number"
    step = None if pace is None else {"parameters": parameters, **pace._asdict(), "basis": basis}
    return {**table, "step_pace": step}


def text(table: JsonObject) -> str:
    """Return the table for people."""
    sampled, timed = bool(table["samplings"]), bool(table.get("step_pace"))
    rows = table["rows"]
    private = any(row["rmse_at_privacy"] is not None for row in rows)
    width = 2 + max([len("mechanism"), *(len(name_of(row)) for row in rows)])
    head = _SAMPLED_HEAD if sampled else _HEAD.format("  at privacy" if private else "")
    head += f"{'s/step':>10}" if timed else ""
    lines = [f"{' mechanism':<{width}}{head}"]
    marked = {one["row"] for one in chosen_of(table)}
    for number, row in enumerate(rows):
        mark = "*" if number in marked else " "
        line = f"{mark}{name_of(row):<{width - 1}}" + (_sampled(row) if sampled else _row(row, private))
        lines.append(line + (f"{row['seconds_per_step']:>10.3g}" if timed else ""))
    if not all(row["converged"] for row in rows):
        lines.append(
            f"{_OPEN_MARK} stopped before its tolerance, or at a local optimum; its numbers hold for what was found"
        )
    origins = [Origin(**row["origin"]) for row in rows]
    for origin in dict.fromkeys(one for one in origins if one.place != "solved"):
        names = dict.fromkeys(name_of(row) for row, one in zip(rows, origins, strict=True) if one == origin)
        lines.append(f"{origin}: {', '.join(names)}")
    lines += _bounds(table) + _choose(table, sampled)
    for one in table["samplings"]:
        why = f" No row: it {one['misfit']}." if one["misfit"] else ""
        lines.append(f"{one['sampling']} ({one['title']}): {one['loader']} Secret: {one['secret']}.{why}")
    lines += [f"left out: {name_of(refused)}: {refused['reason']}" for refused in table["refused"]]
    return "\n".join(lines)


_HEAD = (
    f"{'objective':>13}{'gap %':>9}{'rmse':>10}{'max error':>11}{{}}"
    f"{'sens.':>9}{'kind':>7}{'vectors':>9}{'redraws':>9}{'flops':>9}{'s':>7}"
)


def _row(row: JsonObject, private: bool) -> str:
    loss, kind = row["loss"], row["sensitivity"]["kind"]
    line = f"{loss['objective']:>13.7g}{_gap(row)}{loss['rmse']:>10.5g}{loss['max_error']:>11.5g}"
    line += f"{row['rmse_at_privacy']:>12.5g}" if private else ""
    line += f"{at_most(row['sensitivity']['value'], 4):>9}{'exact' if kind == 'exact' else 'bound':>7}"
    return line + f"{row['noise_vectors']:>9}{row['redraws']:>9.3g}{row['flops']:>9.4g}{row['seconds']:>7.2f}"


_SAMPLED_HEAD = (
    f"{'sampling':<16}{'rmse':>10}{'gap %':>9}{'sigma of sums':>15}  {'rests on':<14}{'not secret':>11}"
    f"{'vectors':>9}{'s':>8}"
)


def _sampled(row: JsonObject) -> str:
    """Return the numbers at the privacy."""
    sigma = at_most(row["sigma_of_sums"], 5)
    line = f"{row['sampling'] or 'fixed':<16}{row['rmse_at_privacy']:>10.5g}{_gap(row)}{sigma:>15}"
    line += f"  {row['method']:<14}{row['rmse_without_secrecy']:>11.5g}"
    return line + f"{row['noise_vectors']:>9}{row['seconds']:>8.2f}"


def _gap(row: JsonObject) -> str:
    gap = row["relative_gap"]
    return f"{'-':>9}" if gap is None else f"{100 * gap:>9.3g}"


def _bounds(table: JsonObject) -> list[str]:
    bound = table["lower_bound"]
    known = "" if bound is None else f"lower bound {at_least(bound['objective'], 9)} ({bound['rule']})"
    lines = [known or "no lower bound is known"]
    for name, one in table["sampled_bounds"].items():
        rmse = f", rmse {at_least(one['objective'] ** 0.5, 5)}" if table["objective"] == "mean" else ""
        lines.append(f"lower bound under {name}: {at_least(one['objective'], 9)} at this privacy{rmse} ({one['rule']})")
    return lines


def _choose(table: JsonObject, sampled: bool) -> list[str]:
    """Return what to take for each budget, how to get it, and what dense noise costs."""
    chosen = chosen_of(table)
    several = len(chosen) > 1
    lines = []
    for one in chosen:
        lines.append(f"* {one['reason']}")
        if sampled or several:
            within = f", within {one['budget']}" if several else ""
            lines.append(f"next{within}: {table['rows'][one['row']]['next_command']}")
    if table.get("step_pace"):
        pace = table["step_pace"]
        lines.append(f"s/step: noise of a step for {pace['parameters']} parameters, by {pace['basis']}")
    if not sampled or not chosen:
        return lines
    units = "sigma of sums is the standard deviation per entry of Z, for sums of contributions of norm 1"
    gap = "gap % is of the squared error, above the bound for the row's own sampling"
    return [*lines, f"{units}; {gap}"]


def chosen_of(table: JsonObject) -> list[dict[str, object]]:
    """Return the recommendations of a table, one for each memory budget that a row fits."""
    return [one for one in table["recommendations"] if one["row"] is not None]


def name_of(row: JsonObject) -> str:
    """Return mechanism and parameters, whether columns are normalised, what it is optimised for, and if it finished."""
    brief = {name: f"{value:.4g}" if isinstance(value, float) else value for name, value in row["parameters"].items()}
    parameters = [f"{name}={value}" for name, value in brief.items()]
    parameters += [row["normalization"]] if row["normalization"] not in (None, "none") else []
    parameters += [f"for the {row['optimized_for']}"] if row.get("optimized_for") else []
    parameters += [f"for {row['optimized_under']}"] if row.get("optimized_under") else []
    name = f"{row['mechanism']}({', '.join(parameters)})" if parameters else str(row["mechanism"])
    return name if row.get("converged", True) else name + _OPEN_MARK

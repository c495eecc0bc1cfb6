"""Advice for a training job: its steps and the comparison's best row, with all that a job needs to use it."""

import shlex
import textwrap
from collections.abc import Callable, Mapping
from operator import itemgetter
from typing import Any

from factorize.api.questions.comparison import CompareRequest, Report, chosen_of, comparison, name_of, read_request
from factorize.api.questions.job_code import MAX_SPEC_CHARACTERS, SPEC_FILE, TITLES, codes
from factorize.api.questions.rate import Rates
from factorize.api.questions.training_job import Job
from factorize.client.held_factors import look_first
from factorize.client.service import Origin
from factorize.encoding import canonical_json
from factorize.errors import ConditionNotMet
from factorize.factors.factorization import Factorization
from factorize.format.quantities import at_most
from factorize.samplings import SAMPLINGS
from factorize.training.learning_rate import STUDY


def advise(
    job: Job,
    report: Report,
    service: str | None = None,
    keep: Callable[[Factorization], object] | None = None,
) -> dict[str, Any]:
    """Return the advice as plain data (docs/cli.md has its fields).

    Args:
        job: the training job.
        report: told how far the comparison is; what it raises ends it.
        service: URL of a service that compares, in place of this process.
        keep: given the factorization that is recommended, where this process has solved it.

    Raises:
        ConditionNotMet: no run with these numbers is covered, or no mechanism fits the memory.
        InvalidSpec: a workload or an objective that is none.
        FactorizeError: from the comparison.
    """
    return advice_of(job, comparison(request_of(job), None, report, service, keep, fitting=True, look=look_first()))


def request_of(job: Job) -> CompareRequest:
    """Return the comparison that answers the question; see `advise`."""
    spec: dict[str, object] = {
        "workload": {**job.sums, "n": job.run.steps},
        "participation": job.run.participation,
    }
    if objective := job.objective or job.run.objective:
        spec["objective"] = objective
    more = {name: getattr(job, name) for name in ("epsilon", "delta", "seconds", "parameters")} | {**job.run.sampled}
    options = {name: value for name, value in more.items() if value is not None}
    return read_request({"spec": spec, "budgets": job.memory, **options})


def advice_of(job: Job, table: Mapping[str, Any]) -> dict[str, Any]:
    """Return the advice that follows from a table; see `advise`."""
    chosen = table["recommendation"]
    if chosen is None:
        message = f"no mechanism keeps {job.memory[-1]} vectors or fewer; allow more memory"
        raise ConditionNotMet(message, field="memory")
    row = table["rows"][chosen["row"]]
    sampling = row["sampling"] or "fixed"
    named = (one for one in table["samplings"] if one["sampling"] == sampling)
    scheme = {**next(named, SAMPLINGS[sampling].document()), **job.run.loader}
    # The spec is shown as one would ask for it: a schedule by its name, and no `optimize_for`, which follows.
    spec = {name: part for name, part in row["spec"].items() if name != "optimize_for"}
    spec["workload"] = {**job.sums, "n": job.run.steps}
    numbers = ("epsilon", "delta", "memory", "parameters")
    rates = Rates(job, row)
    return {
        "job": {
            **job.run.numbers,
            "steps": job.run.steps,
            **{name: getattr(job, name) for name in numbers},
            "adjacency": "zero_out",
            "workload": table["spec"]["workload"]["kind"],
        },
        "mechanism": name_of(row),
        "why": chosen["reason"],
        "compared": _compared(job, table, row),
        "budgets": [_within(table, one) for one in chosen_of(dict(table))],
        "seconds_per_step": row["seconds_per_step"],
        "sampling": sampling,
        **{name: scheme[name] for name in ("loader", "secret")},
        "sigma": {
            "sums": row["sigma_of_sums"],
            "means": row["sigma_of_sums"] / job.run.divisor,
            "clip_norm": 1.0,
            "divisor": job.run.divisor,
            "rests_on": row["method"],
        },
        **{name: row[name] for name in ("rmse_at_privacy", "rmse_without_secrecy", "noise_vectors", "converged")},
        "spec": spec,
        **{name: row[name] for name in ("spec_digest", "origin")},
        "next_command": _command(spec, row["next_command"]),
        "rate": rates.document(),
        "ranked_by": STUDY["ranked_by"],
        "code": codes(job, spec, sampling, rates.of),
        "notes": [*job.notes(), *rates.notes(), *_notes(job, table, row)],
        "row": dict(row),
    }


def _command(spec: Mapping[str, object], command: str) -> str:
    """Return a row's command with the spec as it was asked for, or in a file if it is long."""
    text = canonical_json(spec).decode()
    source = shlex.quote(text) if len(text) <= MAX_SPEC_CHARACTERS else SPEC_FILE
    return f"factorize solve {source} --to {command.partition(' --to ')[2]}"


def _compared(job: Job, table: Mapping[str, Any], row: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return what the mechanism is compared with: the best in a fixed order, and independent noise."""
    rows = table["rows"]
    late = any(one["out_of_time"] for one in table["refused"])
    wanted = {
        "without sampling, within the memory": lambda one: (
            # The absence of any correlated noise names no best where the time did not last for one.
            one["sampling"] is None
            and one["noise_vectors"] <= table["budget"]
            and (not late or one["mechanism"] != "identity")
        ),
        job.run.independent: lambda one: one["mechanism"] == "identity",
    }
    objective = itemgetter("objective_at_privacy")
    best = {name: min(filter(fits, rows), key=objective, default=None) for name, fits in wanted.items()}
    names = ("sampling", "rmse_at_privacy", "noise_vectors")
    return [
        {
            "what": what,
            "mechanism": name_of(one),
            **{name: one[name] for name in names},
            "ratio": (objective(one) / objective(row)) ** 0.5,
        }
        for what, one in best.items()
        if one is not None and one is not row
    ]


def _within(table: Mapping[str, Any], one: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row of a memory budget in short."""
    row = table["rows"][one["row"]]
    numbers = ("rmse_at_privacy", "sigma_of_sums", "noise_vectors", "seconds_per_step")
    return {
        "memory": one["budget"],
        "mechanism": name_of(row),
        **{name: row[name] for name in ("sampling", *numbers, "loader", "spec_digest", "spec", "next_command")},
    }


def _notes(job: Job, table: Mapping[str, Any], row: Mapping[str, Any]) -> list[str]:
    """Return notes on what the time did not suffice for, and on the row."""
    late, notes = [one["mechanism"] for one in table["refused"] if one["out_of_time"]], []
    if late:
        names = ", ".join(dict.fromkeys(late))
        notes.append(
            f"{len(late)} tries ({names}) did not fit into {job.seconds:g} processor seconds and may do better; give "
            f"more: --seconds {6 * job.seconds:g}"
        )
    if not row["converged"]:
        notes.append(
            "the search stopped before its tolerance, or at a local optimum; the numbers hold for what it found"
        )
    if row["sampling"] in ("balls_in_bins", "random_allocation"):
        notes.append(
            "the code for torch and JAX charges up to 1/1024 of delta for batches that do not fit into its parts, so "
            "that its sigma is a little larger"
        )
    return notes


_WIDTH = 110


def headline(job: Job) -> str:
    """Return the job in one line."""
    kind = job.sums["kind"] if job.optimizer is None else job.optimizer.kind
    return f"{job.run.title}: {job.run.steps} steps of {kind}, at ({job.epsilon:g}, {job.delta:g})"


def advice_text(advice: Mapping[str, Any], code: tuple[str, ...], kept: str = "") -> str:
    """Return advice for people.

    Args:
        advice: the advice that `advise` returns.
        code: frameworks whose lines are shown.
        kept: the place of the factorization, as a line of its own; empty where it is kept nowhere.
    """
    job, sigma = advice["job"], advice["sigma"]
    lines = [
        f"mechanism   {advice['mechanism']}",
        *([f"batches     {advice['sampling']}"] if "batch_size" in job else []),
        *_wrapped("loader" if "batch_size" in job else "clients", f"{advice['loader']} Secret: {advice['secret']}."),
        *_wrapped("why", advice["why"]),
        *_wrapped(
            "error",
            f"rmse {advice['rmse_at_privacy']:.4g}. Every rmse here is the error from noise of one coordinate of the "
            f"optimizer's sums, over all {job['steps']} steps, with contributions of norm 1 and a largest learning "
            "rate of 1",
        ),
        *_wrapped("rate", f"{advice['rate']['value'] or ''} {advice['rate']['basis']}".strip()),
        *_wrapped("ranked by", advice["ranked_by"]),
        f"memory      {_vectors(advice['noise_vectors'])} of noise state",
        f"sigma       {at_most(sigma['sums'])} for sums of contributions of norm {sigma['clip_norm']:g}; "
        f"{at_most(sigma['means'])} for means with the divisor {sigma['divisor']} ({sigma['rests_on']})",
    ]
    if advice["seconds_per_step"] is not None:
        cost = f"{advice['seconds_per_step']:.3g} s a step for {job['parameters']} parameters, on one core by a model"
        lines.append(f"noise       {cost}")
    lines += _others(advice["compared"]) + _budgets(advice["budgets"])
    spec = canonical_json(advice["spec"]).decode()
    lines += [
        f"spec        {spec}",
        f"spec digest {advice['spec_digest']}{kept}",
        f"origin      {Origin(**advice['origin'])}",
        f"next        {advice['next_command']}",
    ]
    lines += [line for note in advice["notes"] for line in _wrapped("note", note)]
    for framework, text in advice["code"].items():
        if framework in code:
            lines += ["", f"--- {TITLES[framework]} ---", text]
    return "\n".join(lines)


def _wrapped(name: str, text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent=f"{name:<12}", subsequent_indent=" " * 12, break_on_hyphens=False)


def _others(others: list[dict[str, Any]]) -> list[str]:
    return [
        f"{'beside' if not place else '':<12}{one['what']}: {one['mechanism']}, {one['sampling'] or 'fixed'}: "
        f"rmse {one['rmse_at_privacy']:.4g}, ranking error {one['ratio']:.3g} times as large; "
        f"{_vectors(one['noise_vectors'])}"
        for place, one in enumerate(others)
    ]


def _budgets(rows: list[dict[str, Any]]) -> list[str]:
    """Return a line for each memory budget, where there are several."""
    if len(rows) < 2:
        return []
    return [
        f"{'memory ' + str(one['memory']):<12}{one['mechanism']}, {one['sampling'] or 'fixed'}: rmse "
        f"{one['rmse_at_privacy']:.4g}, sigma {at_most(one['sigma_of_sums'], 4)} for sums; "
        + _vectors(one["noise_vectors"])
        + ("" if one["seconds_per_step"] is None else f", {one['seconds_per_step']:.3g} s a step")
        for one in rows
    ]


def _vectors(count: int) -> str:
    return f"{count} vector{'' if count == 1 else 's'}"

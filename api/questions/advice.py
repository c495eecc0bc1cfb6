"""Advice for a training job: its steps and the comparison's best row, with all that a job needs to use it."""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from factorize.api.questions.comparison import chosen_of, name_of
from factorize.api.questions.job_code import LONGEST_SPEC, SPEC_FILE, TITLES, codes
from factorize.api.questions.training_job import Job
from factorize.encoding import canonical_json
from factorize.errors import ConditionNotMet

if TYPE_CHECKING:
    from factorize.api.questions.comparison import CompareRequest, Report
    from factorize.factorization import Factorization


def advise(
    asked: Job,
    report: Report,
    service: str | None = None,
    keep: Callable[[Factorization], object] | None = None,
) -> dict[str, Any]:
    """Return the advice as plain data (docs/cli.md has its fields).

    Args:
        asked: the job.
        report: told how far the comparison is; what it raises ends it.
        service: URL of a service that compares, in place of this process.
        keep: given the factorization that is recommended, where this process has solved it.

    Raises:
        ConditionNotMet: no run with these numbers is covered, or no mechanism fits the memory.
        InvalidSpec: a workload or an objective that is none.
        FactorizeError: from the comparison.
    """
    from factorize.api.questions.comparison import comparison

    return advice_of(asked, comparison(request_of(asked), None, report, service, keep, fitting=True))


def request_of(asked: Job) -> CompareRequest:
    """Return the comparison that answers the question; see `advise`."""
    from factorize.api.questions.comparison import read_request

    spec: dict[str, Any] = {
        "workload": {**(asked.workload or {"kind": "prefix"}), "n": asked.steps},
        "participation": asked.participation,
    }
    if asked.objective:
        spec["objective"] = asked.objective
    more = {name: getattr(asked, name) for name in ("epsilon", "delta", "seconds", "parameters")} | asked.sampled
    more |= {"budgets": asked.memory} if len(asked.memory) > 1 else {"buffers": asked.memory[0]}
    given = {name: value for name, value in more.items() if value is not None}
    return read_request({"spec": spec, **given})


def advice_of(asked: Job, table: Mapping[str, Any]) -> dict[str, Any]:
    """Return the advice that follows from a table; see `advise`."""
    chosen = table["recommendation"]
    if chosen is None:
        told = f"no mechanism keeps {asked.memory[-1]} vectors or fewer; allow more memory"
        raise ConditionNotMet(told, field="memory")
    row = table["rows"][chosen["row"]]
    sampling = row["sampling"] or "fixed"
    scheme = {**_scheme(table, sampling), **asked.loader}
    spec = _as_asked(asked, row)
    return {
        "job": _job(asked, table["spec"]),
        "mechanism": name_of(row),
        "why": chosen["reason"],
        "compared": _compared(asked, table, row),
        "budgets": [_within(table, one) for one in chosen_of(dict(table))],
        "seconds_per_step": row["seconds_per_step"],
        "sampling": sampling,
        **{name: scheme[name] for name in ("loader", "secret")},
        "sigma": {
            "sums": row["sigma_of_sums"],
            "means": row["sigma_of_sums"] / asked.divisor,
            "clip_norm": 1.0,
            "divisor": asked.divisor,
            "rests_on": row["method"],
        },
        **{name: row[name] for name in ("rmse_at_privacy", "rmse_without_secrecy", "noise_vectors", "converged")},
        "spec": spec,
        "spec_digest": row["spec_digest"],
        "next_command": _command(spec, row["next_command"]),
        "code": codes(asked, spec, sampling),
        "notes": [*asked.notes(), *_untried(asked, table), *_notes(row, sampling)],
        "row": dict(row),
    }


def _as_asked(asked: Job, row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row's spec as one would ask for it: a schedule by its name, and no `optimize_for`, which follows."""
    spec = {name: part for name, part in row["spec"].items() if name != "optimize_for"}
    return spec | {"workload": {**(asked.workload or {"kind": "prefix"}), "n": asked.steps}}


def _command(spec: Mapping[str, Any], command: str) -> str:
    """Return a row's command with the spec as it was asked for, or in a file if it is long."""
    text = canonical_json(spec).decode()
    source = shlex.quote(text) if len(text) <= LONGEST_SPEC else SPEC_FILE
    return f"factorize solve {source} --to {command.partition(' --to ')[2]}"


def _job(asked: Job, spec: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **asked.numbers(),
        **{name: getattr(asked, name) for name in ("steps", "epsilon", "delta", "memory", "parameters")},
        "adjacency": "zero_out",
        "workload": spec["workload"]["kind"],
    }


def _scheme(table: Mapping[str, Any], sampling: str) -> Mapping[str, Any]:
    from factorize.accounting.schemes import SCHEMES

    named = (one for one in table["samplings"] if one["sampling"] == sampling)
    return next(named, SCHEMES[sampling].document())


def _compared(asked: Job, table: Mapping[str, Any], row: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return what the mechanism is compared with: the best in a fixed order, and independent noise."""
    rows = table["rows"]
    wanted = {
        "without sampling, within the memory": lambda one: (
            one["sampling"] is None and one["noise_vectors"] <= table["budget"]
        ),
        asked.independent: lambda one: one["mechanism"] == "identity",
    }
    best = {name: min(filter(fits, rows), key=_error, default=None) for name, fits in wanted.items()}
    names = ("mechanism", "sampling", "rmse_at_privacy", "noise_vectors")
    return [
        {"what": what, **{name: one[name] for name in names}, "mechanism": name_of(one), "ratio": _ratio(one, row)}
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


def _error(row: Mapping[str, Any]) -> float:
    return float(row["rmse_at_privacy"])


def _ratio(one: Mapping[str, Any], row: Mapping[str, Any]) -> float:
    return _error(one) / _error(row)


def _untried(asked: Job, table: Mapping[str, Any]) -> list[str]:
    """Return what the time did not last for, and the way out."""
    late = [one["mechanism"] for one in table["refused"] if one["out_of_time"]]
    if not late:
        return []
    names = ", ".join(dict.fromkeys(late))
    return [
        f"the time, {asked.seconds:g} s, did not last for {len(late)} tries ({names}), which may do better; give more: "
        f"--seconds {6 * asked.seconds:g}"
    ]


def _notes(row: Mapping[str, Any], sampling: str) -> list[str]:
    notes = []
    if not row["converged"]:
        notes.append(
            "the search stopped before its tolerance, or at a local optimum; the numbers hold for what it found"
        )
    if sampling in ("balls_in_bins", "random_allocation"):
        notes.append(
            "the code for torch and JAX charges up to 1/1024 of delta for batches that do not fit into its parts, so "
            "that its sigma is a little larger"
        )
    return notes


_WIDTH = 110


def headline(job: Job) -> str:
    """Return the job in one line."""
    kind = (job.workload or {"kind": "prefix"})["kind"]
    return f"{job.title}: {job.steps} steps of {kind}, at ({job.epsilon:g}, {job.delta:g})"


def advice_text(found: Mapping[str, Any], code: tuple[str, ...], kept: str = "") -> str:
    """Return advice for people.

    Args:
        found: from `advice.advise`.
        code: frameworks whose lines are shown.
        kept: where the factorization is, as a line of its own; empty where it is kept nowhere.
    """
    job, sigma = found["job"], found["sigma"]
    lines = [
        f"mechanism   {found['mechanism']}",
        *([f"batches     {found['sampling']}"] if "batch_size" in job else []),
        *_wrapped("loader" if "batch_size" in job else "clients", f"{found['loader']} Secret: {found['secret']}."),
        *_wrapped("why", found["why"]),
        *_wrapped(
            "error",
            f"rmse {found['rmse_at_privacy']:.4g}. Every rmse here is that of the noise in one coordinate of what the "
            f"optimizer has summed, over all {job['steps']} steps, for sums of contributions of norm 1 and a largest "
            "learning rate of 1",
        ),
        f"memory      {_vectors(found['noise_vectors'])} of noise state",
        f"sigma       {sigma['sums']:.6g} for sums of contributions of norm {sigma['clip_norm']:g}; "
        f"{sigma['means']:.6g} for means with the divisor {sigma['divisor']} ({sigma['rests_on']})",
    ]
    if found["seconds_per_step"] is not None:
        told = f"{found['seconds_per_step']:.3g} s a step for {job['parameters']} parameters, on one core by a model"
        lines.append(f"noise       {told}")
    lines += _others(found["compared"]) + _budgets(found["budgets"])
    spec = canonical_json(found["spec"]).decode()
    lines += [
        f"spec        {spec}",
        f"digest      {found['spec_digest']}{kept}",
        f"next        {found['next_command']}",
    ]
    lines += [line for note in found["notes"] for line in _wrapped("note", note)]
    for framework, text in found["code"].items():
        if framework in code:
            lines += ["", f"--- {TITLES[framework]} ---", text]
    return "\n".join(lines)


def _wrapped(name: str, text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent=f"{name:<12}", subsequent_indent=" " * 12, break_on_hyphens=False)


def _others(others: list[dict[str, Any]]) -> list[str]:
    return [
        f"{'beside' if not place else '':<12}{one['what']}: {one['mechanism']}, {one['sampling'] or 'fixed'}: rmse "
        f"{one['rmse_at_privacy']:.4g}, {one['ratio']:.3g} times as much; {_vectors(one['noise_vectors'])}"
        for place, one in enumerate(others)
    ]


def _budgets(rows: list[dict[str, Any]]) -> list[str]:
    """Return a line for each memory budget, where there are several."""
    if len(rows) < 2:
        return []
    return [
        f"{'memory ' + str(one['memory']):<12}{one['mechanism']}, {one['sampling'] or 'fixed'}: rmse "
        f"{one['rmse_at_privacy']:.4g}, sigma {one['sigma_of_sums']:.4g} for sums; {_vectors(one['noise_vectors'])}"
        + ("" if one["seconds_per_step"] is None else f", {one['seconds_per_step']:.3g} s a step")
        for one in rows
    ]


def _vectors(count: int) -> str:
    return f"{count} vector{'' if count == 1 else 's'}"

"""Advice as text: one mechanism, why, its noise, what the loader does, the spec, the next command, and code."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Any

from factorize.api.recommending.recommend_request import RecommendRequest
from factorize.encoding import canonical_json

_WIDTH = 110
_TITLES = {"torch": "torch", "jax": "JAX", "numpy": "numpy"}


def headline(job: RecommendRequest) -> str:
    """Return the job in one line."""
    return (
        f"{job.examples} examples in batches of {job.batch_size}, {job.epochs} epoch{'s' if job.epochs > 1 else ''}: "
        f"{job.steps} steps of {(job.workload or {'kind': 'prefix'})['kind']}, at ({job.epsilon:g}, {job.delta:g})"
    )


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
        f"batches     {found['sampling']}",
        *_wrapped("loader", f"{found['loader']} Secret: {found['secret']}."),
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
    lines += _compared(found["compared"]) + _budgets(found["budgets"])
    spec = canonical_json(found["spec"]).decode()
    lines += [
        f"spec        {spec}",
        f"digest      {found['spec_digest']}{kept}",
        f"next        {found['next_command']}",
    ]
    lines += [line for note in found["notes"] for line in _wrapped("note", note)]
    for framework in code:
        lines += ["", f"--- {_TITLES[framework]} ---", found["code"][framework]]
    return "\n".join(lines)


def _wrapped(name: str, text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent=f"{name:<12}", subsequent_indent=" " * 12, break_on_hyphens=False)


def _compared(others: list[dict[str, Any]]) -> list[str]:
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

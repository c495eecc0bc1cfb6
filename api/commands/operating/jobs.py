"""`factorize jobs`: what a service, or a ledger, has to solve: list, show, cancel, retry, watch."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from factorize.api.commands.operating.job_sources import Job, open_jobs
from factorize.api.terminal.options import Database, Output, ServiceUrl, StoreUrl
from factorize.api.terminal.output import OutputForm, display, emit, progress_of
from factorize.errors import Cancelled, SolveFailed

jobs = typer.Typer(name="jobs", no_args_is_help=True, help="Look after the jobs of a service or of a ledger.")
Digest = Annotated[str, typer.Argument(metavar="SPEC_DIGEST", help="Names the job.", show_default=False)]
State = Annotated[
    str | None,
    typer.Option("--state", metavar="STATE", help="queued, running, done, failed or cancelled.", show_default=False),
]
Workload = Annotated[
    str | None, typer.Option("--workload", metavar="KIND", help="Only this kind of workload.", show_default=False)
]
Limit = Annotated[int, typer.Option("--limit", min=1, max=1000, help="Jobs to list at most.")]


@jobs.command("list")
def list_jobs(
    state: State = None,
    workload: Workload = None,
    limit: Limit = 50,
    service: ServiceUrl = None,
    database: Database = None,
    store: StoreUrl = None,
    output: Output = OutputForm.TEXT,
) -> None:
    """List jobs, newest first."""
    with open_jobs(service, database, store) as source:
        found = source.page(state, workload, limit)
    emit(output, {"items": found}, "\n".join(_line(job) for job in found) or "no jobs")


@jobs.command()
def show(
    digest: Digest,
    service: ServiceUrl = None,
    database: Database = None,
    store: StoreUrl = None,
    output: Output = OutputForm.TEXT,
) -> None:
    """Show one job: state, progress, and why it failed."""
    with open_jobs(service, database, store) as source:
        job = source.get(digest)
    emit(output, job, _text(job))


@jobs.command()
def cancel(
    digest: Digest,
    service: ServiceUrl = None,
    database: Database = None,
    store: StoreUrl = None,
    output: Output = OutputForm.TEXT,
) -> None:
    """End a queued or running job; its processes are killed within seconds."""
    with open_jobs(service, database, store) as source:
        job = source.cancel(digest)
    emit(output, job, _text(job))


@jobs.command()
def retry(
    digest: Digest,
    service: ServiceUrl = None,
    database: Database = None,
    store: StoreUrl = None,
    output: Output = OutputForm.TEXT,
) -> None:
    """Queue a failed or cancelled job again."""
    with open_jobs(service, database, store) as source:
        job = source.retry(digest)
    emit(output, job, _text(job))


@jobs.command()
def watch(
    digest: Digest,
    service: ServiceUrl = None,
    database: Database = None,
    store: StoreUrl = None,
    output: Output = OutputForm.TEXT,
) -> None:
    """Follow a job to its end. The exit code is 3 where it failed or was cancelled."""
    with open_jobs(service, database, store) as source, display() as shown:
        shown.start(digest[:12])
        for job in source.follow(digest):
            shown.report(progress_of(job.get("progress") or {}))
        shown.finish("")
    if job["state"] == "failed":
        raise SolveFailed((job.get("error") or {}).get("message") or "the job failed")
    if job["state"] == "cancelled":
        raise Cancelled("the job was cancelled; `factorize jobs retry` queues it again")
    emit(output, job, _text(job))


def _line(job: Job) -> str:
    return f"{job['spec_digest']}  {job['state']:<9}  {job.get('workload') or '':<10}  {job['submitted']}"


def _text(job: dict[str, Any]) -> str:
    lines = [f"spec          {job['spec_digest']}", f"state         {job['state']}"]
    for name in ("workload", "attempts", "deaths", "priority", "submitted", "updated"):
        if job.get(name) is not None:
            lines.append(f"{name:<14}{job[name]}")
    if job.get("progress"):
        lines.append("progress      " + ", ".join(f"{k} {v}" for k, v in job["progress"].items() if v is not None))
    if job.get("error"):
        lines.append(f"error         {job['error']['type']}: {job['error']['message']}")
    return "\n".join(lines)

"""`factorize jobs`: what a service has to solve: list, show, cancel, retry, watch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from factorize.api.terminal.output import Output, OutputForm, ServiceUrl, StoreUrl, argument, emit, option
from factorize.api.terminal.progress import display, show_event
from factorize.api.terminal.sources import service_url
from factorize.errors import InvalidParameter

if TYPE_CHECKING:
    from factorize.client.service import Service


jobs = typer.Typer(name="jobs", no_args_is_help=True, help="Look after the jobs of a service.")
Digest = Annotated[str, argument(metavar="SPEC_DIGEST", help="Names the job.")]
State = Annotated[str | None, option("--state", metavar="STATE", help="queued, running, done, failed or cancelled.")]
Workload = Annotated[str | None, option("--workload", metavar="KIND", help="Only this kind of workload.")]
Limit = Annotated[int, typer.Option("--limit", min=1, max=1000, help="Jobs to list at most.")]


@jobs.command("list")
def list_jobs(
    state: State = None,
    workload: Workload = None,
    limit: Limit = 50,
    service: ServiceUrl = None,
    store: StoreUrl = None,
    output: Output = OutputForm.TEXT,
) -> None:
    """List jobs, newest first; results that no job has made come last."""
    found = _service(service, store).jobs(state=state, workload=workload, limit=limit)
    emit(output, {"items": found}, "\n".join(_line(job) for job in found) or "no jobs")


@jobs.command()
def show(digest: Digest, service: ServiceUrl = None, store: StoreUrl = None, output: Output = OutputForm.TEXT) -> None:
    """Show one job: state, progress, and why it failed."""
    _show(output, _service(service, store).status(digest))


@jobs.command()
def cancel(
    digest: Digest, service: ServiceUrl = None, store: StoreUrl = None, output: Output = OutputForm.TEXT
) -> None:
    """End a queued or running job; its processes are killed within seconds."""
    _show(output, _service(service, store).cancel(digest))


@jobs.command()
def retry(digest: Digest, service: ServiceUrl = None, store: StoreUrl = None, output: Output = OutputForm.TEXT) -> None:
    """Queue a failed or cancelled job again."""
    _show(output, _service(service, store).retry(digest))


@jobs.command()
def watch(digest: Digest, service: ServiceUrl = None, store: StoreUrl = None, output: Output = OutputForm.TEXT) -> None:
    """Follow a job to its end. The exit code is 3 where it failed or was cancelled."""
    source = _service(service, store)
    with display() as shown:
        shown.start(digest[:12])
        document = source.wait(digest, progress=lambda event: show_event(shown, event))
        shown.finish("")
    _show(output, document)


def _service(url: str | None, store: str | None) -> Service:
    """Return the service that is asked.

    Raises:
        InvalidParameter: none is named, or a store is.
    """
    from factorize.client.service import Service

    if url is None:
        message = "jobs are those of a running service; name it with --service URL or FACTORIZE_SERVICE"
        raise InvalidParameter(message, field="service")
    return Service(service_url(url, store))


def _show(output: OutputForm, document: dict[str, Any]) -> None:
    job = _as_job(document)
    emit(output, job, _text(job))


def _as_job(document: dict[str, Any]) -> dict[str, Any]:
    """Return a job's document as it is, and that of a job that is done in place of a manifest."""
    if "certificate" not in document:
        return document
    names = {"spec_digest": document["spec_digest"], "digest": document["digest"], "state": "done", "error": None}
    times = {"progress": None, "submitted": document.get("created"), "updated": document.get("created")}
    return {**names, **times, "workload": document["spec"]["workload"]["kind"]}


def _line(job: dict[str, Any]) -> str:
    return f"{job['spec_digest']}  {job['state']:<9}  {job.get('workload') or '':<10}  {job['submitted']}"


def _text(job: dict[str, Any]) -> str:
    lines = [f"spec          {job['spec_digest']}", f"state         {job['state']}"]
    for name in ("workload", "submitted", "updated"):
        if job.get(name) is not None:
            lines.append(f"{name:<14}{job[name]}")
    if job.get("progress"):
        lines.append("progress      " + ", ".join(f"{k} {v}" for k, v in job["progress"].items() if v is not None))
    if job.get("error"):
        lines.append(f"error         {job['error']['type']}: {job['error']['message']}")
    return "\n".join(lines)

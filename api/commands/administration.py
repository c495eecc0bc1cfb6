"""`factorize jobs` and `factorize keys`: what an operator looks after, the solves of a service and who may ask it.

Jobs are asked of a running service. Keys are in its ledger; services on it know of a change within a second. A token is
shown when it is made, and never again.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from factorize.api.terminal.output import Commands, Shown, argument, option, remark
from factorize.api.terminal.progress import display, show_event
from factorize.client.service import Service
from factorize.errors import InvalidParameter
from factorize.plain_data import read_union

if TYPE_CHECKING:
    from factorize.api.access.caller import AccessKey
    from factorize.api.access.key_register import KeyRegister


jobs = Commands(name="jobs", no_args_is_help=True, help="Look after the jobs of a service.")
Digest = Annotated[str, argument(metavar="SPEC_DIGEST", help="Names the job.")]


@jobs.command("list")
def list_jobs(
    state: Annotated[str | None, option(metavar="STATE", help="queued, running, done, failed or cancelled.")] = None,
    workload: Annotated[str | None, option(metavar="KIND", help="Only this kind of workload.")] = None,
    search: Annotated[
        str | None, option(metavar="WORDS", help="Of specs, such as n=64, or beginnings of digests.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Jobs to list at most.")] = 50,
    service: str | None = None,
) -> Shown:
    """List jobs, newest first; results that no job has made come last."""
    items = _service(service).jobs(state=state, workload=workload, search=search, limit=limit)
    lines = [
        f"{job['spec_digest']}  {job['state']:<9}  {job.get('workload') or '':<10}  {job['submitted']}" for job in items
    ]
    return {"items": items}, "\n".join(lines) or "no jobs"


@jobs.command("show")
def show_job(digest: Digest, service: str | None = None) -> Shown:
    """Show one job: state, progress, and why it failed."""
    return _shown_job(_service(service).status(digest))


@jobs.command()
def cancel(digest: Digest, service: str | None = None) -> Shown:
    """End a queued or running job; its processes are killed within seconds."""
    return _shown_job(_service(service).cancel(digest))


@jobs.command()
def retry(digest: Digest, service: str | None = None) -> Shown:
    """Queue a failed or cancelled job again."""
    return _shown_job(_service(service).retry(digest))


@jobs.command()
def watch(digest: Digest, service: str | None = None) -> Shown:
    """Follow a job to its end. The exit code is 3 where it failed or was cancelled."""
    source = _service(service)
    with display(digest[:12]) as shown:
        document = source.manifest(digest, progress=lambda event: show_event(shown, event))
    return _shown_job(document)


def _service(url: str | None) -> Service:
    """Return the service that is asked.

    Raises:
        InvalidParameter: none is named.
    """
    if url is None:
        message = "only a running service has jobs; give its address with --service URL or FACTORIZE_SERVICE"
        raise InvalidParameter(message, field="service")
    return Service(url)


def _shown_job(job: dict[str, Any]) -> Shown:
    """Return a job's document as it is, and that of a job that is done in place of a manifest."""
    if "certificate" in job:
        names = {"spec_digest": job["spec_digest"], "digest": job["digest"], "state": "done", "error": None}
        times = {"progress": None, "submitted": job.get("created"), "updated": job.get("created")}
        job = {**names, **times, "workload": job["spec"]["workload"]["kind"]}
    progress, error = job.get("progress") or {}, job.get("error")
    shown = {
        "spec": job["spec_digest"],
        **{name: job.get(name) for name in ("state", "workload", "submitted", "updated")},
        "progress": ", ".join(f"{name} {value}" for name, value in progress.items() if value is not None),
        "notes": "; ".join(job.get("notes", [])),
        "error": f"{error['type']}: {error['message']}" if error else None,
    }
    return job, "\n".join(f"{name:<14}{value}" for name, value in shown.items() if value)


keys = Commands(name="keys", no_args_is_help=True, help="Look after the keys of a service, in its ledger.")
Id = Annotated[str, typer.Argument(metavar="ID", help="Names the key; no secret.", show_default=False)]
_LIMIT = "Quota. Default: the setting of this name."


@keys.command()
def create(
    name: Annotated[str, option(help="Whose it is.")],
    scopes: Annotated[
        str, typer.Option(metavar="LIST", help="Of read, submit, upload, monitor, admin, with commas.")
    ] = "read",
    days: Annotated[float, typer.Option(help="Until the key ends, up to 3660.")] = 90.0,
    open_jobs: Annotated[int | None, option(help=_LIMIT)] = None,
    core_seconds_per_day: Annotated[int | None, option(help=_LIMIT)] = None,
    kept_bytes: Annotated[int | None, option(help=_LIMIT)] = None,
    to: Annotated[Path | None, option(metavar="FILE", help="Write the token into a new file of your own.")] = None,
    database: str | None = None,
    store: str | None = None,
) -> Shown:
    """Make a key and show its token, this once; with --to it goes into a file that its owner alone reads.

    Jobs, uploads and quotas belong to the name: make another key of a name to replace one, then revoke the first.
    """
    from factorize.api.access.key_register import KeyRequest

    quotas = {"open_jobs": open_jobs, "core_seconds_per_day": core_seconds_per_day, "kept_bytes": kept_bytes}
    request = read_union({"name": name, "scopes": scopes.split(","), "days": days, "quotas": quotas}, KeyRequest)
    with _register(database, store) as register, _new_file(to):  # before the key, lest its token be lost
        key, token = register.create(request)
        if to is not None:
            to.write_text(f"{token.text}\n", encoding="ascii")
    document, text = _shown_key(key)
    if to is not None:
        return {**document, "file": str(to)}, f"{text}\nfile          {to}"
    remark(f"key {key.id}, {' '.join(document['scopes'])}, until {document['expires']}; the token is not shown again")
    return {**document, "token": token.text}, token.text


@keys.command("list")
def list_keys(database: str | None = None, store: str | None = None) -> Shown:
    """List all keys, the newest first; no secrets."""
    with _register(database, store) as register:
        items = [key.document(time.time()) for key in register.keys()]
    lines = [
        f"{key['id']}  {key['state']:<8}  {key['expires']}  {','.join(key['scopes']):<28}  {key['name']}"
        for key in items
    ]
    return {"items": items}, "\n".join(lines) or "no keys"


@keys.command("show")
def show_key(key_id: Id, database: str | None = None, store: str | None = None) -> Shown:
    """Show one key: scopes, end and quotas; no secret."""
    with _register(database, store) as register:
        return _shown_key(register.get(key_id))


@keys.command()
def revoke(key_id: Id, database: str | None = None, store: str | None = None) -> Shown:
    """Take a key back for ever; services refuse it within a second."""
    with _register(database, store) as register:
        return _shown_key(register.revoke(key_id))


def _register(database: str | None, store: str | None) -> AbstractContextManager[KeyRegister]:
    """Open the register of a ledger; only keys need a database, and jobs do without."""
    from factorize.api.access.key_register import open_register

    return open_register(database, store)


@contextmanager
def _new_file(path: Path | None) -> Iterator[None]:
    """Make a file that its owner alone reads, and remove it if the block fails."""
    if path is None:
        yield
        return
    try:
        path.touch(0o600, exist_ok=False)
    except FileExistsError:
        raise InvalidParameter(f"{path} exists already; name a new file for the token", field="to") from None
    try:
        yield
    except BaseException as error:
        path.unlink()
        if isinstance(error, OSError):  # a full disk names no file
            error.filename = error.filename or str(path)
        raise


def _shown_key(key: AccessKey) -> tuple[dict[str, Any], str]:
    document = key.document(time.time())
    lines = [
        f"key           {key.id}  ({key.name})",
        f"state         {document['state']}",
        f"scopes        {', '.join(document['scopes'])}",
        f"created       {document['created']}",
        f"ends          {document['expires']}",
    ]
    limits = {name: value for name, value in document["quotas"].items() if value is not None}
    lines += [f"quota         {name.replace('_', ' ')}: {value}" for name, value in limits.items()]
    return document, "\n".join(lines)

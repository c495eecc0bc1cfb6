"""`factorize jobs` and `factorize keys`: what an operator looks after, the solves of a service and who may ask it.

Jobs are asked of a running service. Keys are in its ledger; services on it know of a change within a second. A token is
shown when it is made, and never again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from factorize.api.terminal.output import Commands, Shown, argument, option, remark
from factorize.api.terminal.progress import display, show_event
from factorize.errors import InvalidParameter

if TYPE_CHECKING:
    from factorize.api.access.caller import AccessKey, Token
    from factorize.api.access.key_register import KeyRegister
    from factorize.client.service import Service


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
    found = _service(service).jobs(state=state, workload=workload, search=search, limit=limit)
    return {"items": found}, "\n".join(_job_line(job) for job in found) or "no jobs"


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
    from factorize.client.service import Service

    if url is None:
        message = "jobs are those of a running service; name it with --service URL or FACTORIZE_SERVICE"
        raise InvalidParameter(message, field="service")
    return Service(url)


def _shown_job(document: dict[str, Any]) -> Shown:
    job = _as_job(document)
    return job, _job_text(job)


def _as_job(document: dict[str, Any]) -> dict[str, Any]:
    """Return a job's document as it is, and that of a job that is done in place of a manifest."""
    if "certificate" not in document:
        return document
    names = {"spec_digest": document["spec_digest"], "digest": document["digest"], "state": "done", "error": None}
    times = {"progress": None, "submitted": document.get("created"), "updated": document.get("created")}
    return {**names, **times, "workload": document["spec"]["workload"]["kind"]}


def _job_line(job: dict[str, Any]) -> str:
    return f"{job['spec_digest']}  {job['state']:<9}  {job.get('workload') or '':<10}  {job['submitted']}"


def _job_text(job: dict[str, Any]) -> str:
    lines = [f"spec          {job['spec_digest']}", f"state         {job['state']}"]
    for name in ("workload", "submitted", "updated"):
        if job.get(name) is not None:
            lines.append(f"{name:<14}{job[name]}")
    if job.get("progress"):
        lines.append("progress      " + ", ".join(f"{k} {v}" for k, v in job["progress"].items() if v is not None))
    if job.get("error"):
        lines.append(f"error         {job['error']['type']}: {job['error']['message']}")
    return "\n".join(lines)


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
    to: Annotated[
        Path | None,
        option(metavar="FILE", help="Write the token into a new file of your own."),
    ] = None,
    database: str | None = None,
    store: str | None = None,
) -> Shown:
    """Make a key and show its token, this once; with --to it goes into a file that its owner alone reads.

    Jobs, uploads and quotas belong to the name: make another key of a name to replace one, then revoke the first.
    """
    from factorize.api.access.key_register import read_key_request

    quotas = {"open_jobs": open_jobs, "core_seconds_per_day": core_seconds_per_day, "kept_bytes": kept_bytes}
    asked = read_key_request({"name": name, "scopes": scopes.split(","), "days": days, "quotas": quotas})
    with _register(database, store) as register, _written(to) as write:
        key, token = register.create(asked)
        write(token)
    return _shown_token(key, token, to)


@keys.command("list")
def list_keys(database: str | None = None, store: str | None = None) -> Shown:
    """List all keys, the oldest first; no secrets."""
    with _register(database, store) as register:
        found = [key.document(time.time()) for key in register.all()]
    return {"items": found}, "\n".join(_key_line(key) for key in found) or "no keys"


@keys.command("show")
def show_key(key_id: Id, database: str | None = None, store: str | None = None) -> Shown:
    """Show one key: scopes, end and quotas; no secret."""
    with _register(database, store) as register:
        found = register.get(key_id)
    return _shown_key(found)


@keys.command()
def revoke(key_id: Id, database: str | None = None, store: str | None = None) -> Shown:
    """Take a key back for ever; services refuse it within a second."""
    with _register(database, store) as register:
        found = register.revoke(key_id)
    return _shown_key(found)


@contextmanager
def _register(database: str | None, store: str | None) -> Iterator[KeyRegister]:
    """Open the ledger, which is made where there is none: keys come before the first start."""
    from factorize.api.access.key_register import KeyRegister
    from factorize.api.jobs.audit_log import operator
    from factorize.api.jobs.ledger import Ledger
    from factorize.api.settings import ledger_url, load_settings
    from factorize.storage.store import open_store

    with Ledger(ledger_url(load_settings(database=database, store=store))) as ledger:
        yield KeyRegister(ledger.engine, operator(), lambda: open_store(load_settings(store=store).store).objects)


@contextmanager
def _written(to: Path | None) -> Iterator[Any]:
    """Give what writes a token. The file is made before the key, so that no key is made whose token is lost."""
    if to is None:
        yield lambda token: None
        return
    with open(os.open(to, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w", encoding="ascii") as file:
        try:
            yield lambda token: file.write(f"{token.text}\n")
        except BaseException:
            to.unlink()
            raise


def _shown_token(key: AccessKey, token: Token, to: Path | None) -> Shown:
    document = key.document(time.time())
    if to is not None:
        return {**document, "file": str(to)}, f"{_key_text(document)}\nfile          {to}"
    remark(f"key {key.id}, {' '.join(document['scopes'])}, until {document['expires']}; the token is not shown again")
    return {**document, "token": token.text}, token.text


def _shown_key(key: AccessKey) -> Shown:
    document = key.document(time.time())
    return document, _key_text(document)


def _key_line(key: dict[str, Any]) -> str:
    return f"{key['id']}  {key['state']:<8}  {key['expires']}  {','.join(key['scopes']):<28}  {key['name']}"


def _key_text(key: dict[str, Any]) -> str:
    lines = [
        f"key           {key['id']}  ({key['name']})",
        f"state         {key['state']}",
        f"scopes        {', '.join(key['scopes'])}",
        f"created       {key['created']}",
        f"ends          {key['expires']}",
    ]
    limits = {name: value for name, value in key["quotas"].items() if value is not None}
    lines += [f"quota         {name.replace('_', ' ')}: {value}" for name, value in limits.items()]
    return "\n".join(lines)

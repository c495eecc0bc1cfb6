"""The commands of an operator: `factorize serve`, `worker`, `fsck`, `gc`, `revoke` and `audit verify`."""

from __future__ import annotations

import csv
import io
from collections import Counter
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import unquote

import typer

from factorize.api.jobs.cluster_worker import run_worker, secure
from factorize.api.settings import Settings, audit_url, load_settings
from factorize.api.telemetry import log_to_stderr
from factorize.api.terminal.output import Commands, ExitCode, OutputForm, Shown, argument, emit, option, remark
from factorize.api.terminal.progress import display
from factorize.api.terminal.sources import open_results
from factorize.api.terminal.spec_command import options_of
from factorize.errors import CorruptObject, InvalidParameter, NotFound, StoreUnavailable
from factorize.format.container import read_whole
from factorize.format.quantities import at_least, at_most
from factorize.storage.fsck import StoreReport
from factorize.storage.fsck import fsck as check_store
from factorize.storage.gc import GRACE_SECONDS, Removed
from factorize.storage.gc import gc as collect
from factorize.training.one_run import audit_scores

if TYPE_CHECKING:
    from factorize.api.http.server import Server


@options_of(
    Settings,
    names=["host", "port", "root_path", "https_certificate", "https_key", "database", "scheduler", "log_format"],
    flags={"https_certificate": "--tls-certificate", "https_key": "--tls-key"},
)
def serve(store: str | None = None, output: OutputForm = OutputForm.TEXT, *, fields: dict[str, object]) -> None:
    """Run the service until it is interrupted; its address is the first line on stdout.

    Where callers need keys and there is none yet, the command that makes one is shown.
    """
    remark("starting")  # before the imports, which take seconds on a busy machine
    from factorize.api.http.server import address, listen

    settings = load_settings(store=store, **fields)
    log_to_stderr(settings.log_format)
    try:
        listener = listen(settings.host, settings.port)
    except OSError as error:
        raise InvalidParameter(
            f"cannot listen on {settings.host}, port {settings.port}: {error.strerror}; choose another --port",
            field="port",
        ) from None
    with listener:
        url = address(listener, "http" if settings.https_certificate is None else "https")
        running, lacks_keys = open_server(settings)
        listener.listen()  # whoever reads the address may connect at once, and waits until the service has started
        if lacks_keys:  # its token would stand in a log, were it made here
            remark("there is no key yet; run here: factorize keys create --name admin --scopes admin --to admin.key")
        emit(output, {"url": url, "store": settings.store}, f"serving {url}")
        if settings.log_format == "text":
            remark(f"results in {settings.store}; Ctrl-C ends")
        running.run(sockets=[listener])


def open_server(settings: Settings) -> tuple[Server, bool]:
    """Return the server, and whether callers need a key and there is none."""
    from factorize.api.http.server import server

    try:
        running = server(settings)
        needs_keys = settings.asks_for_keys and not settings.issuers
        return running, needs_keys and not running.service.register.keys(limit=1)
    except StoreUnavailable as error:
        raise InvalidParameter(f"cannot open the store or the database: {error}", field="store") from None


@options_of(
    Settings,
    names=["capacity_mb", "processors", "tls_ca", "tls_cert", "tls_key", "log_format"],
    flags={"capacity_mb": "--memory-mb"},
)
def worker(
    scheduler: Annotated[str, option(metavar="ADDRESS", help="dask scheduler, tls://HOST:PORT or tcp://HOST:PORT.")],
    store: str | None = None,
    output: OutputForm = OutputForm.TEXT,
    *,
    fields: dict[str, object],
) -> None:
    """Solve what the scheduler gives out until interrupted; the worker's address is the first line on stdout.

    It needs the scheduler and the store, and no database. What no option says, it reads from variables and the file of
    settings, as `serve` does. Where the scheduler goes away it ends with exit code 5: have it started again.
    """
    settings = load_settings(**fields)
    log_to_stderr(settings.log_format)
    secure(scheduler, settings)
    results = open_results(store, create=True)
    results.objects.probe()

    def ready(address: str) -> None:
        emit(output, {"worker": address, "scheduler": scheduler, "store": results.url}, f"working {address}")
        if settings.log_format == "text":
            remark(f"results in {results.url}; Ctrl-C ends")

    room = {"memory_mb": settings.capacity_mb, "processors": settings.processors}
    run_worker(scheduler, store=results.url, **room, ready=ready)


MAX_LINES = 200
MAX_DAYS = 36_500
"""The largest age of results in days, a century: the calendar of Python has no dates before the year 1."""


def fsck(
    repair: Annotated[
        bool, typer.Option("--repair", help="Move damaged objects to quarantine and write missing entries anew.")
    ] = False,
    store: str | None = None,
) -> Shown:
    """Read every object of the store and compare it with its digest.

    Exits with 4 where something is damaged and was not repaired.
    """
    results = open_results(store, create=False)
    with display("fsck") as shown:
        report = check_store(
            results, repair=repair, progress=lambda done, total: shown.note(f"{done / 1e6:.1f} of {total / 1e6:.1f} MB")
        )
    code = ExitCode.OK if report.clean else ExitCode.VERIFICATION_FAILED
    return {"store": results.url, **report.document()}, _report_text(report, results.url), code


def _report_text(report: StoreReport, url: str) -> str:
    lines = []
    for finding in report.findings[:MAX_LINES]:
        action = f" [{finding.action}]" if finding.action else ""
        lines.append(
            f"{'error' if finding.error else 'note ':<6}{finding.kind:<18}{finding.key}{action}: {finding.message}"
        )
    if len(report.findings) > MAX_LINES:
        kinds = Counter(finding.kind for finding in report.findings)
        lines.append(f"{len(report.findings)} findings: {', '.join(f'{n} {kind}' for kind, n in kinds.items())}")
    state = "clean" if report.clean else "DAMAGED; run fsck --repair"
    lines.append(f"{url}: {report.objects} objects, {report.bytes} bytes in {report.seconds:.2f} s: {state}")
    return "\n".join(lines)


def gc(
    grace: Annotated[float | None, option(metavar="SECONDS", min=0, help="Spare what is younger (7 days).")] = None,
    delete: Annotated[
        list[str] | None, option(metavar="DIGEST", help="Delete this result; may be given again.")
    ] = None,
    retention: Annotated[
        float | None, option(metavar="DAYS", min=0, max=MAX_DAYS, help="Delete results older than that.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would go, and remove nothing.")] = False,
    store: str | None = None,
) -> Shown:
    """Remove what nothing names: old temporary files and blobs; and the results that --delete and --retention name.

    Nothing else that a result needs is ever removed. Others may go on using the store meanwhile.
    """
    before = None if retention is None else datetime.now(UTC) - timedelta(days=retention)
    results = open_results(store, create=False)
    spared = GRACE_SECONDS if grace is None else grace
    removed = collect(results, grace_seconds=spared, delete=delete or (), created_before=before, dry_run=dry_run)
    for digest in [] if dry_run else removed.deleted:
        _read_audit("deletion", digest, store=store)
    return {"store": results.url, **removed.document()}, _text_of_removed(removed, results.url)


def revoke(
    digest: Annotated[str, argument(metavar="DIGEST", help="Of the result, not of its spec.")],
    reason: Annotated[str, option(metavar="TEXT", help="One line for everyone who asks for it.")],
    store: str | None = None,
) -> Shown:
    """Take a result back: from now on everyone who asks for it is told why, and its spec is solved anew.

    Results that store further matrices beside the same C are taken back with it. Nothing is deleted.
    """
    results = open_results(store, create=False)
    revocations = results.revoke(
        digest, reason, on_each=lambda each: _read_audit("revocation", each.digest, store=store, reason=each.reason)
    )
    names = [revocation.digest for revocation in revocations]
    reason = revocations[0].reason
    text = "\n".join([*(f"revoked       {name}" for name in names), f"reason        {reason}"])
    return {"store": results.url, "revoked": names, "reason": reason}, text


def _read_audit(event: str, subject: str, *, store: str | None, **detail: object) -> None:
    """Write down what a command has done to a store, in the audit log of its services."""
    from factorize.api.jobs.audit_log import AuditLog, operator
    from factorize.api.jobs.ledger import Ledger

    with Ledger(audit_url(load_settings(store=store))) as ledger:
        AuditLog(ledger.engine).add(event, actor=operator(), subject=subject, detail=detail)


def _text_of_removed(removed: Removed, url: str) -> str:
    lines = [f"{removal.kind:<14}{removal.key}: {removal.bytes} bytes" for removal in removed.removals[:MAX_LINES]]
    if len(removed.removals) > MAX_LINES:
        lines.append(f"and {len(removed.removals) - MAX_LINES} more")
    if removed.damaged:
        damaged = f"{len(removed.damaged)} manifests are damaged and may name them"
        lines.append(f"unnamed blobs were spared: {damaged}; run fsck --repair")
    verb = "would be removed" if removed.dry_run else "removed"
    lines.append(f"{url}: {len(removed.removals)} objects, {removed.bytes} bytes {verb}")
    return "\n".join(lines)


audit = Commands(name="audit", no_args_is_help=True, help="Check the audit log; or attack a claim of privacy.")


@audit.command()
def scores(
    path: Annotated[Path, argument(metavar="SCORES.csv", help="With the columns score and member (1 or 0).")],
    epsilon: Annotated[float, option("--epsilon", help="Claimed.")],
    delta: Annotated[float, option("--delta", help="Claimed; default 0.")] = 0.0,
    confidence: Annotated[float, option("--confidence", help="Of the answer; default 0.95.")] = 0.95,
) -> Shown:
    """Say whether an attack's scores on one trained job, anybody's, refute the privacy that is claimed for it.

    A fair coin for each example has to have decided whether it was trained on. Exits with 4 where the claim is refuted.
    """
    attack, coins = _read_scores(path)
    report = audit_scores(attack, coins, epsilon=epsilon, delta=delta, confidence=confidence)
    document = {**asdict(report), "refuted": report.refutes}
    outcome = "refuted" if report.refutes else "not refuted"
    lines = [
        f"{outcome}: ({at_most(report.claimed_epsilon)}, {at_most(report.delta)})",
        f"guesses       {report.correct} of {report.guesses} correct, of {report.examples} examples",
        f"probability   at most {at_most(report.p_value, 3)} of so many, if the claim is true",
        f"epsilon       at least {at_least(report.epsilon, 4)} at this delta, with confidence {report.confidence:g}",
    ]
    return document, "\n".join(lines), ExitCode.VERIFICATION_FAILED if report.refutes else ExitCode.OK


_TRUTHS = {"true": 1, "false": 0}
"""The members of a table that was written from truth values."""


def _read_scores(path: Path) -> tuple[list[float], list[float]]:
    """Return the scores and the coins of a table; spreadsheets begin it with a byte-order mark."""
    table = read_whole(path)
    try:
        reader = csv.DictReader(io.StringIO(table.decode("utf-8-sig"), newline=""), restval="")
        named, rows = reader.fieldnames or (), list(reader)
        if {"score", "member"} <= set(named):
            coins = [float(_TRUTHS.get(row["member"].lower(), row["member"])) for row in rows]
            return [float(row["score"]) for row in rows], coins
    except (ValueError, csv.Error) as error:
        raise InvalidParameter(f"{path} is not a table of numbers in UTF-8: {error}", field="path") from None
    raise InvalidParameter(f"{path} has no columns score and member; name them in line 1", field="path")


@audit.command()
def verify(
    expect: Annotated[
        str | None,
        option(
            metavar="SEQ:HASH", help="A head that an earlier check printed: exit code 4 unless the log still holds it."
        ),
    ] = None,
    database: str | None = None,
    store: str | None = None,
) -> Shown:
    """Check that no row was changed, moved or taken out since it was written.

    Rows cut off from the end leave a whole log: write the head down elsewhere now and then, and give it with
    --expect. Services may go on writing meanwhile.
    """
    from factorize.api.jobs.audit_log import read_head, verify_log
    from factorize.api.jobs.ledger import Ledger

    head = None if expect is None else read_head(expect)
    url = audit_url(load_settings(database=database, store=store))
    name = url if isinstance(url, Path) else unquote(url.partition("sqlite:///")[2].partition("?")[0])
    if name and not Path(name).is_file():
        raise NotFound(f"there is no ledger at {url}, so no audit log; name another with --database")
    with Ledger(url) as ledger:
        log = verify_log(ledger.engine, head)
    if log.expected is False:
        raise CorruptObject(f"the audit log does not contain {expect}: rows were cut off, or it is another log")
    document = {"rows": log.rows, "since": log.since, "head": str(log.head)}
    return document, f"rows          {log.rows}, since {log.since or 'now'}\nhead          {log.head}"

"""What an operator does to a store and its log: `factorize fsck`, `gc`, `revoke` and `audit verify`."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from factorize.api.terminal.options import Database, Output, StoreUrl, argument, option
from factorize.api.terminal.output import ExitCode, OutputForm, VerificationFailed, emit
from factorize.api.terminal.progress import display
from factorize.api.terminal.sources import open_results
from factorize.errors import CorruptObject, NotFound

if TYPE_CHECKING:
    from factorize.storage.findings import StoreReport
    from factorize.storage.gc import Removed


Repair = Annotated[
    bool, typer.Option("--repair", help="Move damaged objects to quarantine and write missing entries anew.")
]
MAX_LINES = 200


def fsck(repair: Repair = False, store: StoreUrl = None, output: Output = OutputForm.TEXT) -> int:
    """Read every object of the store and compare it with its digest.

    Exits with 4 where something is damaged and was not repaired.
    """
    from factorize.storage.fsck import fsck as check

    results = open_results(store, create=False)
    with display() as shown:
        shown.start("fsck")
        report = check(
            results, repair=repair, progress=lambda done, total: shown.note(f"{done / 1e6:.1f} of {total / 1e6:.1f} MB")
        )
        shown.finish("")
    emit(output, {"store": results.url, **report.document()}, _report_text(report, results.url))
    return ExitCode.OK if report.clean else ExitCode.VERIFICATION_FAILED


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


Grace = Annotated[float | None, option("--grace", metavar="SECONDS", min=0, help="Spare what is younger (7 days).")]
Delete = Annotated[
    list[str] | None, option("--delete", metavar="DIGEST", help="Delete this result; may be given again.")
]
Retention = Annotated[
    float | None, option("--retention", metavar="DAYS", min=0, help="Delete results older than that.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would go, and remove nothing.")]
Digest = Annotated[str, argument(metavar="DIGEST", help="Of the result, not of its spec.")]
Reason = Annotated[str, option("--reason", metavar="TEXT", help="One line for everyone who asks for it.")]


def gc(
    grace: Grace = None,
    delete: Delete = None,
    retention: Retention = None,
    dry_run: DryRun = False,
    store: StoreUrl = None,
    output: Output = OutputForm.TEXT,
) -> None:
    """Remove what nothing names: old temporary files and blobs; and the results that --delete and --retention name.

    Nothing else that a result needs is ever removed. Others may go on using the store meanwhile.
    """
    from factorize.storage.gc import GRACE_SECONDS
    from factorize.storage.gc import gc as collect

    before = None if retention is None else datetime.now(UTC) - timedelta(days=retention)
    results = open_results(store, create=False)
    found = collect(
        results,
        grace_seconds=GRACE_SECONDS if grace is None else grace,
        delete=delete or (),
        created_before=before,
        dry_run=dry_run,
    )
    for digest in [] if dry_run else found.deleted:
        _audited("deletion", digest, store=store)
    emit(output, {"store": results.url, **found.document()}, _removed_text(found, results.url))


def revoke(digest: Digest, reason: Reason, store: StoreUrl = None, output: Output = OutputForm.TEXT) -> None:
    """Take a result back: from now on everyone who asks for it is told why, and its spec is solved anew.

    Results that store further matrices beside the same C are taken back with it. Nothing is deleted.
    """
    results = open_results(store, create=False)
    revocations = results.revoke(
        digest, reason, on_each=lambda each: _audited("revocation", each.digest, store=store, reason=each.reason)
    )
    names = [revocation.digest for revocation in revocations]
    reason = revocations[0].reason
    text = "\n".join([*(f"revoked       {name}" for name in names), f"reason        {reason}"])
    emit(output, {"store": results.url, "revoked": names, "reason": reason}, text)


def _audited(event: str, subject: str, *, store: str | None, **detail: Any) -> None:
    """Write down what a command has done to a store, in the audit log of its services."""
    from factorize.api.jobs.audit_log import AuditLog, operator
    from factorize.api.jobs.ledger import Ledger
    from factorize.api.settings import audit_url, load_settings

    with Ledger(audit_url(load_settings(store=store))) as ledger:
        AuditLog(ledger.engine).add(event, actor=operator(), subject=subject, detail=detail)


def _removed_text(found: Removed, url: str) -> str:
    lines = [f"{removal.kind:<14}{removal.key}: {removal.bytes} bytes" for removal in found.removals[:MAX_LINES]]
    if len(found.removals) > MAX_LINES:
        lines.append(f"and {len(found.removals) - MAX_LINES} more")
    if found.damaged:
        damaged = f"{len(found.damaged)} manifests are damaged and may name them"
        lines.append(f"unnamed blobs were spared: {damaged}; run fsck --repair")
    verb = "would be removed" if found.dry_run else "removed"
    lines.append(f"{url}: {len(found.removals)} objects, {found.bytes} bytes {verb}")
    return "\n".join(lines)


audit = typer.Typer(name="audit", no_args_is_help=True, help="Check the audit log.")
Expect = Annotated[
    str | None,
    typer.Option(
        "--expect",
        metavar="SEQ:HASH",
        help="A head that an earlier check printed: exit code 4 unless the log still holds it.",
        show_default=False,
    ),
]


@audit.command()
def verify(
    expect: Expect = None, database: Database = None, store: StoreUrl = None, output: Output = OutputForm.TEXT
) -> None:
    """Check that no row was changed, moved or taken out since it was written.

    Rows cut off from the end leave a whole log: write the head down elsewhere now and then, and give it with
    --expect. Services may go on writing meanwhile.
    """
    from factorize.api.jobs.audit_log import read_head, verify_log
    from factorize.api.jobs.ledger import Ledger
    from factorize.api.settings import audit_url, load_settings

    head = None if expect is None else read_head(expect)
    url = audit_url(load_settings(database=database, store=store))
    if url.startswith("sqlite:///") and not Path(url.removeprefix("sqlite:///").partition("?")[0]).is_file():
        raise NotFound(f"there is no ledger {url}, so no audit log; name another with --database")
    with Ledger(url) as ledger:
        found = verify_log(ledger.engine, head)
    if found.expected is False:
        message = f"the audit log does not hold {expect}: rows were cut off, or it is another log"
        raise VerificationFailed(CorruptObject(message))
    document = {"rows": found.rows, "since": found.since, "head": str(found.head)}
    emit(output, document, f"rows          {found.rows}, since {found.since or 'now'}\nhead          {found.head}")

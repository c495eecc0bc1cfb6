"""`factorize gc` and `factorize revoke`: what the operator removes, and what the operator takes back."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from factorize.api.terminal.options import Output, StoreUrl, argument, option
from factorize.api.terminal.output import OutputForm, emit
from factorize.api.terminal.sources import open_results

if TYPE_CHECKING:
    from factorize.storage.gc import Removed

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
MAX_LINES = 200


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
    from factorize.api.auditing.operator_trail import audited
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
        audited("deletion", digest, store=store)
    emit(output, {"store": results.url, **found.document()}, _text(found, results.url))


def revoke(digest: Digest, reason: Reason, store: StoreUrl = None, output: Output = OutputForm.TEXT) -> None:
    """Take a result back: from now on everyone who asks for it is told why, and its spec is solved anew.

    Results that store further matrices beside the same C are taken back with it. Nothing is deleted.
    """
    from factorize.api.auditing.operator_trail import audited

    results = open_results(store, create=False)
    revocations = results.revoke(
        digest, reason, on_each=lambda each: audited("revocation", each.digest, store=store, reason=each.reason)
    )
    names = [revocation.digest for revocation in revocations]
    reason = revocations[0].reason
    text = "\n".join([*(f"revoked       {name}" for name in names), f"reason        {reason}"])
    emit(output, {"store": results.url, "revoked": names, "reason": reason}, text)


def _text(found: Removed, url: str) -> str:
    lines = [f"{removal.kind:<14}{removal.key}: {removal.bytes} bytes" for removal in found.removals[:MAX_LINES]]
    if len(found.removals) > MAX_LINES:
        lines.append(f"and {len(found.removals) - MAX_LINES} more")
    if found.damaged:
        damaged = f"{len(found.damaged)} manifests are damaged and may name them"
        lines.append(f"unnamed blobs were spared: {damaged}; run fsck --repair")
    verb = "would be removed" if found.dry_run else "removed"
    lines.append(f"{url}: {len(found.removals)} objects, {found.bytes} bytes {verb}")
    return "\n".join(lines)

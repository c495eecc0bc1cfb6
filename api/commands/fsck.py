"""`factorize fsck`: read the whole store and compare every byte with its digest."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Annotated

import typer

from factorize.api.terminal.exit_codes import ExitCode
from factorize.api.terminal.options import Output, StoreUrl
from factorize.api.terminal.output import OutputForm, emit
from factorize.api.terminal.progress import display
from factorize.api.terminal.sources import open_results

if TYPE_CHECKING:
    from factorize.storage.findings import StoreReport

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
    emit(output, {"store": results.url, **report.document()}, _text(report, results.url))
    return ExitCode.OK if report.clean else ExitCode.VERIFICATION_FAILED


def _text(report: StoreReport, url: str) -> str:
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

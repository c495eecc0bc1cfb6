"""`factorize ls`: the results in the store."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from factorize.api.terminal.options import Output, StoreUrl
from factorize.api.terminal.output import OutputForm, emit
from factorize.api.terminal.sources import open_results
from factorize.api.terminal.text import describe_gap, describe_part

Workload = Annotated[
    str | None, typer.Option("--workload", metavar="KIND", help="Only this kind of workload.", show_default=False)
]
Steps = Annotated[int | None, typer.Option("--n", help="Only those with so many steps.", show_default=False)]
Limit = Annotated[int, typer.Option("--limit", min=1, help="Results to list at most.")]
SHORT = 12


def ls(
    workload: Workload = None,
    n: Steps = None,
    limit: Limit = 50,
    store: StoreUrl = None,
    output: Output = OutputForm.TEXT,
) -> None:
    """List the results of the store, newest first; every command takes a digest by its first characters."""
    results = open_results(store, create=False)
    found = sorted(results.items(workload=workload, n=n), key=lambda one: str(one["created"]), reverse=True)
    items = [_item(manifest) for manifest in found[:limit]]
    lines = [f"{item['digest'][:SHORT]}  {item['created'][:16]}  {item['text']}" for item in items]
    if len(found) > limit:
        lines.append(f"and {len(found) - limit} more; --limit shows more")
    document = {"store": results.url, "count": len(found), "items": items}
    emit(output, document, "\n".join(lines) or f"the store {results.url} is empty")


def _item(manifest: dict[str, Any]) -> dict[str, Any]:
    spec, certificate = manifest["spec"], manifest["certificate"]
    parts = ", ".join(describe_part(spec[name]) for name in ("workload", "participation", "mechanism"))
    return {
        "digest": manifest["digest"],
        "spec_digest": manifest["spec_digest"],
        "created": manifest["created"],
        "bytes": sum(file["bytes"] for file in manifest["files"]),
        "spec": spec,
        "loss": certificate["loss"],
        "relative_gap": certificate["relative_gap"],
        "converged": certificate["converged"],
        "text": f"{parts}: {describe_gap(certificate)}",
    }

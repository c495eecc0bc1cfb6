"""`factorize show`: one result, as it was when it was solved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from factorize.api.terminal.options import Explain, Output, StoreUrl, Target
from factorize.api.terminal.output import OutputForm, emit
from factorize.api.terminal.sources import full_digest, is_name, open_results, open_target
from factorize.api.terminal.terms import explained
from factorize.api.terminal.text import describe_manifest


def show(target: Target, store: StoreUrl = None, explain: Explain = False, output: Output = OutputForm.TEXT) -> None:
    """Show a result: its spec, its digests, its certificate and what is stored of it."""
    manifest, size = _found(target, store)
    text = "\n".join([describe_manifest(manifest), *_about(manifest, size)])
    emit(output, manifest, explained(text) if explain else text)


def _found(target: str, store: str | None) -> tuple[dict[str, Any], int]:
    """Return a manifest and the bytes of what it tells of; the matrices of a stored one are not read."""
    if not is_name(target):
        return dict(open_target(target, store).manifest), Path(target).stat().st_size
    results = open_results(store, create=False)
    manifest = results.manifest(full_digest(target, results))
    return manifest, sum(file["bytes"] for file in manifest["files"])


def _about(manifest: dict[str, Any], size: int) -> list[str]:
    """When, by which release and in how many seconds it was solved, and what is stored of it."""
    solver = manifest["solver"]
    kept = ", ".join(f"{name} ({part['structure']}, {part['dtype']})" for name, part in manifest["matrices"].items())
    when = f" {manifest['created']}" if "created" in manifest else ""
    return [
        f"solved       {when} by factorize {solver['version']}, in {solver['seconds']:.3g} s",
        f"matrices      {kept}, {size} bytes",
    ]

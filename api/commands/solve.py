"""`factorize solve`: one spec, solved here and stored."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from factorize.api.terminal.interrupt import prompt_interrupt
from factorize.api.terminal.options import Dtype, Matrices, Output, SpecText, StoreUrl
from factorize.api.terminal.output import OutputForm, display, emit
from factorize.api.terminal.sources import copy_stored, open_results, parse_matrices, read_spec
from factorize.api.terminal.text import describe_manifest, describe_part

ToFile = Annotated[
    Path | None, typer.Option("--to", metavar="FILE", help="Also write the factor file there.", show_default=False)
]


def solve(
    spec: SpecText,
    to: ToFile = None,
    matrices: Matrices = None,
    dtype: Dtype = "float64",
    store: StoreUrl = None,
    output: Output = OutputForm.TEXT,
) -> None:
    """Solve a spec, certify the answer and store it; a spec that was solved before is answered from the store."""
    from factorize.api.local import obtain, plan

    names = parse_matrices(matrices)
    results = open_results(store, create=True)
    planned = plan(read_spec(spec), results)
    with prompt_interrupt(), display() as shown:
        shown.start(_label(planned.spec.document()))
        manifest = obtain(planned, results, progress=shown.report)
        shown.finish("")
    origin = "solved now" if planned.known is None else "known before"
    if names != ["C"] or dtype != "float64":
        from factorize.api.proof import prove
        from factorize.rounded import cast

        stored = cast(results.load(manifest["digest"]), dtype)
        changed = stored if names == ["C"] else stored.with_matrices(names)
        manifest = results.put(changed, check=partial(prove, store=results.url))
    if to is not None:
        copy_stored(results, manifest, to)
    where = f"\nfile          {to}" if to is not None else ""
    emit(output, manifest, f"{describe_manifest(manifest)}\nstore         {results.url} ({origin}){where}")


def _label(document: dict[str, Any]) -> str:
    return f"{describe_part(document['workload'])} by {document['mechanism']['kind']}"

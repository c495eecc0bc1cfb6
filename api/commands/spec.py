"""`factorize spec`: what a spec says and is called, and what may be in one; nothing is solved."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from factorize.api.terminal.options import Output, SpecText, StoreUrl, argument
from factorize.api.terminal.output import OutputForm, emit
from factorize.api.terminal.sources import read_spec
from factorize.api.terminal.spec_command import SpecCommand
from factorize.errors import InvalidParameter
from factorize.format.labels import describe_part

spec = typer.Typer(name="spec", no_args_is_help=True, help="Show, explain or name a spec; list what may be in one.")
Kind = Annotated[str | None, argument(metavar="KIND", help="A kind of workload, participation, ...; default: all.")]
PARTS = ("workload", "optimize_for", "participation", "objective", "mechanism", "sampling")


@spec.command(cls=SpecCommand)
def show(spec: SpecText, store: StoreUrl = None, output: Output = OutputForm.TEXT) -> None:
    """Show a spec in its canonical form: defaults written out, schedules as lists, `auto` by its name."""
    _ = store
    document = _chosen(spec).document()
    emit(output, document, json.dumps(document, indent=2))


@spec.command(cls=SpecCommand)
def digest(spec: SpecText, store: StoreUrl = None, output: Output = OutputForm.TEXT) -> None:
    """Print the digest of a spec, which names its answer in every store."""
    _ = store
    found = _chosen(spec).digest
    emit(output, {"spec_digest": found}, found)


@spec.command(cls=SpecCommand)
def explain(spec: SpecText, store: StoreUrl = None, output: Output = OutputForm.TEXT) -> None:
    """Say what a spec asks for, part by part, in words."""
    _ = store
    asked = read_spec(spec)
    chosen = _chosen(spec)
    parts = {name: getattr(chosen, name) for name in PARTS if getattr(chosen, name) is not None}
    told = [
        {"part": name, "is": describe_part(_document(part)), "meaning": _meaning(type(part))}
        for name, part in parts.items()
    ]
    told.append({"part": "tolerance", "is": f"{chosen.tolerance:g}", "meaning": "relative gap asked for"})
    document = {"spec": chosen.document(), "spec_digest": chosen.digest, "parts": told}
    lines = [f"{one['part']:<15}{one['is']}\n{'':15}{one['meaning']}" for one in told]
    if asked.mechanism.kind != chosen.mechanism.kind:
        lines.append(f"{asked.mechanism.kind:<15}stands for {chosen.mechanism.kind} here")
    emit(output, document, "\n".join([*lines, f"{'digest':<15}{chosen.digest}"]))


@spec.command()
def fields(kind: Kind = None, store: StoreUrl = None, output: Output = OutputForm.TEXT) -> None:
    """List the kinds of each part of a spec and what each takes, or the fields of one kind."""
    _ = store
    found = [one for one in _kinds() if kind in (None, one["kind"])]
    if not found:
        raise InvalidParameter(f"no part of a spec has the kind {kind!r}; leave KIND out to see all", field="KIND")
    text = "\n".join(f"{one['part']:<16}{one['takes']}\n{'':16}{one['about']}" for one in found)
    emit(output, {"kinds": found}, text)


def _kinds() -> list[dict[str, Any]]:
    """Describe the kinds of all parts of a spec, and of the parts of these, such as a schedule of learning rates."""
    from factorize.plain_data.fields import about, fields_of, kinds_in, taken_by
    from factorize.spec import Spec

    found: dict[tuple[str, str], dict[str, Any]] = {}
    owners: list[type] = [Spec]
    for owner in owners:
        for part, field in fields_of(owner).items():
            for name, of in {} if part == "optimize_for" else kinds_in(field.annotation).items():
                if (part, name) not in found:
                    takes = [one for one in fields_of(of) if one != "kind"]
                    found[part, name] = {"part": part, "kind": name, "fields": takes}
                    found[part, name] |= {"takes": taken_by(of), "about": about(of)}
                    owners.append(of)
    return list(found.values())


def _chosen(text: str) -> Any:
    """Return the canonical spec with a mechanism of a name."""
    from factorize.api.local import plan

    return plan(read_spec(text), None).spec


def _document(part: Any) -> dict[str, Any]:
    return dict(part.document())


def _meaning(owner: type) -> str:
    from factorize.plain_data.fields import about

    return about(owner)

"""`factorize spec`, `solve`, `estimate`, `add`: a spec explained, solved, priced, or answered by your own strategy."""

import json
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

from factorize.api.local import bind, certify_file, choose, in_form, keep, obtain, priced
from factorize.api.terminal.output import (
    Commands,
    Dtype,
    Explain,
    Holds,
    Matrices,
    Shown,
    SpecText,
    argument,
    describe_manifest,
    explained,
    option,
    remark,
)
from factorize.api.terminal.progress import describe_cost, display, prompt_interrupt, show_event
from factorize.api.terminal.sources import (
    copy_stored,
    existing_results,
    open_results,
    parse_matrices,
    read_spec,
    read_spec_text,
    results_to_fill,
)
from factorize.api.terminal.spec_command import SpecCommand
from factorize.api.terminal.targets import check_target
from factorize.client.download import download
from factorize.client.service import Origin, Service
from factorize.errors import InvalidParameter
from factorize.format.labels import describe_part
from factorize.format.manifest import Manifest
from factorize.plain_data.fields import about, fields_of, kinds_in, taken_by
from factorize.spec import Spec, notes_of_choice, parse_spec
from factorize.storage.store import open_store


def solve(
    spec: SpecText,
    to: Annotated[Path | None, option(metavar="FILE", help="Also write the factor file there.")] = None,
    matrices: Matrices = None,
    dtype: Dtype = "float64",
    store: str | None = None,
    service: str | None = None,
    explain: Explain = False,
) -> Shown:
    """Solve a spec, certify the answer and store it; a spec that was solved before is answered from the store.

    With --service a running service does that, in its own store: it is warm, so that a small spec takes no second.
    """
    names = parse_matrices(matrices)
    check_target(to)
    if service is not None:
        manifest = _by_service(service, spec, to, None if dtype == "float64" else dtype, names)
        _warn(read_spec(spec), parse_spec(manifest.spec))
        return _shown(manifest, Origin("service", service), f"service       {service}", to, explain)

    wanted = read_spec(spec)
    chosen = choose(wanted)
    kept = results_to_fill(store, chosen)
    with ExitStack() as passing:
        results = kept or open_store(passing.enter_context(TemporaryDirectory(prefix="factorize.")))
        with prompt_interrupt(), display(chosen.label) as shown:
            manifest, origin = obtain(chosen, results, progress=shown.report)
        _warn(wanted, chosen)
        if names != ["C"] or dtype != "float64":
            manifest = keep(in_form(results.load(manifest.digest), names, dtype), results)
        if to is not None:
            copy_stored(results, manifest, to)
    how = "known before" if origin.place == "store" else origin
    return _shown(manifest, origin, f"store         {kept.url if kept else 'none'} ({how})", to, explain)


def _shown(manifest: Manifest, origin: Origin, kept: str, to: Path | None, explain: bool) -> Shown:
    """Return a result, where it came from and is kept and, if asked for, what its terms mean."""
    text = f"{describe_manifest(manifest)}\n{kept}" + (f"\nfile          {to}" if to is not None else "")
    return {**manifest, "origin": vars(origin)}, explained(text) if explain else text


def _warn(wanted: Spec, solved: Spec) -> None:
    """Say what dense noise costs where `auto` has named it."""
    for note in notes_of_choice(wanted, solved, "`factorize recommend --memory 4`"):
        remark(f"warning: {note}")


def _by_service(url: str, source: str, to: Path | None, dtype: str | None, names: Sequence[str]) -> Manifest:
    """Have a service solve the spec, and download its file where one is wanted."""
    if list(names) != ["C"]:
        message = f"the service {url} sends only C; leave --matrices or --service out"
        raise InvalidParameter(message, field="matrices")
    answering = Service(url)
    with prompt_interrupt(), display(url) as shown:
        manifest = answering.manifest(read_spec_text(source), dtype=dtype, progress=partial(show_event, shown))
        if to is not None:
            download(answering, manifest, to, progress=partial(show_event, shown))
    return manifest


def estimate(spec: SpecText, store: str | None = None) -> Shown:
    """Say how long a spec takes on this machine and how much memory, and whether the store has it; solves nothing."""
    results = existing_results(store)
    chosen = choose(read_spec(spec))
    document = priced(chosen, known=results is not None and results.find(chosen) is not None)
    needed = document["estimate"]
    lines = [
        f"mechanism     {chosen.mechanism.kind}",
        f"time          {describe_cost(needed['seconds'])}",
        f"memory        {needed['bytes'] / 2**20:.0f} MiB",
        f"stored        {'yes: it is not solved again' if document['known'] else 'no'}",
    ]
    return document, "\n".join(lines)


def add(
    strategy: Annotated[Path, argument(metavar="FILE", help="C: .npy, .npz, .safetensors or TensorProto.")],
    spec: Annotated[str, option(metavar="SPEC", help="What it is for: a path, '-', or inline JSON.")],
    holds: Holds = None,
    store: str | None = None,
) -> Shown:
    """Certify a strategy of your own for a spec, check it exactly from the bytes, and store it.

    Its mechanism becomes `added`, named by the sha256 of its numbers, so it never answers for a solver.
    """
    wanted = read_spec(spec)
    results = open_results(store, create=True)
    certified = certify_file(strategy, bind(wanted, results), holds, remark=remark)
    manifest = keep(certified, results, strict=True)
    return manifest, f"{describe_manifest(manifest)}\nstore         {results.url} (added)"


spec = Commands(name="spec", no_args_is_help=True, help="Show, explain or name a spec; list what may be in one.")
PARTS = ("workload", "optimize_for", "participation", "objective", "mechanism", "sampling")


@spec.command(cls=SpecCommand)
def show(spec: SpecText) -> Shown:
    """Show a spec in its canonical form: defaults written out, schedules as lists, `auto` by its name."""
    document = _chosen(spec).document()
    return document, json.dumps(document, indent=2)


@spec.command(cls=SpecCommand)
def digest(spec: SpecText) -> Shown:
    """Print the digest of a spec, which names its answer in every store."""
    name = _chosen(spec).digest
    return {"spec_digest": name}, name


@spec.command(cls=SpecCommand)
def explain(spec: SpecText) -> Shown:
    """Say what a spec asks for, part by part, in words."""
    wanted, chosen = read_spec(spec), _chosen(spec)
    named = {name: getattr(chosen, name) for name in PARTS if getattr(chosen, name) is not None}
    parts = [
        {"part": name, "is": describe_part(part.document()), "meaning": about(type(part))}
        for name, part in named.items()
    ]
    parts.append({"part": "tolerance", "is": f"{chosen.tolerance:g}", "meaning": "relative gap asked for"})
    document = {"spec": chosen.document(), "spec_digest": chosen.digest, "parts": parts}
    lines = [f"{part['part']:<15}{part['is']}\n{'':15}{part['meaning']}" for part in parts]
    if not wanted.mechanism.named:
        lines.append(f"{wanted.mechanism.kind:<15}stands for {chosen.mechanism.kind} here")
    return document, "\n".join([*lines, f"{'digest':<15}{chosen.digest}"])


@spec.command()
def fields(
    kind: Annotated[
        str | None, argument(metavar="KIND", help="A kind of workload, participation, ...; default: all.")
    ] = None,
) -> Shown:
    """List the kinds of each part of a spec and what each takes, or the fields of one kind."""
    kinds = [one for one in _kinds() if kind in (None, one["kind"])]
    if not kinds:
        raise InvalidParameter(f"no part of a spec has the kind {kind!r}; leave KIND out to see all", field="KIND")
    text = "\n".join(f"{one['part']:<16}{one['takes']}\n{'':16}{one['about']}" for one in kinds)
    return {"kinds": kinds}, text


def _kinds() -> list[dict[str, object]]:
    """Describe the kinds of all parts of a spec, and of the parts of these, such as a schedule of learning rates."""
    kinds: dict[tuple[str, str], dict[str, object]] = {}
    owners: list[type] = [Spec]
    for owner in owners:
        for part, field in fields_of(owner).items():
            for name, of in {} if part == "optimize_for" else kinds_in(field.annotation).items():
                if (part, name) not in kinds:
                    takes = [one for one in fields_of(of) if one != "kind"]
                    kinds[part, name] = {"part": part, "kind": name, "fields": takes}
                    kinds[part, name] |= {"takes": taken_by(of, name), "about": about(of)}
                    owners.append(of)
    return list(kinds.values())


def _chosen(text: str) -> Any:
    """Return the canonical spec with a mechanism of a name."""
    return choose(read_spec(text))

"""`factorize batch`: many specs on all cores; what is stored already is not solved again."""

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from factorize.api.commands.batch_lists import each_spec
from factorize.api.commands.batch_report import GOOD_STATES, STATES, Item, check_path, write_report
from factorize.api.commands.batch_solving import LocalLanes, RemoteLanes, solve_all
from factorize.api.local import choose, estimate
from factorize.api.settings import load_settings
from factorize.api.terminal.output import ExitCode, OutputForm, Shown, argument, describe_gap, emit, option, remark
from factorize.api.terminal.progress import Display, describe_cost, display, prompt_interrupt
from factorize.api.terminal.sources import existing_results, open_results
from factorize.api.workers.pool import machine_processors
from factorize.client.service import Origin, Service
from factorize.errors import FactorizeError, ServiceUnreachable
from factorize.format.manifest import Manifest
from factorize.spec import Spec
from factorize.storage.store import Store

Open = Callable[[Display], LocalLanes | RemoteLanes]


def batch(
    specs: Annotated[Path, argument(metavar="GRID.toml|SPECS.jsonl", help="A grid, or one spec per line.")],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show what would be solved, and what it costs.")
    ] = False,
    report: Annotated[
        list[Path] | None,
        option(
            metavar="FILE.csv|FILE.json",
            help="Write a row per spec with the numbers of its certificate; may be given twice.",
        ),
    ] = None,
    service: str | None = None,
    store: str | None = None,
    output: OutputForm = OutputForm.TEXT,
) -> Shown:
    """Solve a grid or a list of specs.

    Specs that the store, or the service, knows are skipped, so an interrupted batch goes on where it was. Bad lines and
    failed solves are reported, the rest is done, and the command exits with 3.
    """
    reports = [check_path(path) for path in report or ()]
    stored: Callable[[str], Manifest] | None = None
    lanes: Open | None = None
    origin = Origin("solved")
    if service is not None:
        remote = Service(service)
        origin = remote.origin
        items, width, stored = _expand(specs, None), 1, remote.manifest
        lanes = partial(RemoteLanes, service)
        if dry_run:
            _price(items, remote)
    else:
        results = existing_results(store) if dry_run else open_results(store, create=True)
        processors = load_settings().processors
        items = _expand(specs, results)
        if not dry_run and results is not None and any(item.state == "to solve" for item in items):
            results.check_writable()
        width = min(processors or machine_processors(), max(1, sum(item.state == "to solve" for item in items)))
        if results is not None:
            stored = results.manifest
            lanes = partial(LocalLanes, results, processors=processors)
    cost = _cost(items, width)
    _show_expansion(items, cost if service is None or dry_run else None)
    end = None if dry_run or lanes is None else _run(items, lanes, origin)
    for path in reports:
        _write(path, items, stored)
    interrupted = isinstance(end, KeyboardInterrupt)
    counts = Counter(item.state for item in items)
    document = {
        "items": [item.document() for item in items],
        "counts": {state.replace(" ", "_"): counts[state] for state in STATES},
        "interrupted": interrupted,
        "estimate": cost,
    }
    shown = document, _summary(items)
    if isinstance(end, ServiceUnreachable):
        emit(output, *shown)
        raise end
    if interrupted:
        remark("interrupted; finished results are stored, and the same command continues from there")
        return *shown, ExitCode.INTERRUPTED
    return *shown, ExitCode.OK if all(item.state in GOOD_STATES for item in items) else ExitCode.SOLVE_FAILED


def _expand(path: Path, results: Store | None) -> list[Item]:
    """Name each spec's mechanism and look for its answer; a spec that was listed before is not done twice."""
    items, seen = [], set()
    for item in each_spec(path):
        items.append(item)
        if item.spec is not None:
            _look_up(item, item.spec, results)
        if item.spec_digest is not None:
            if item.spec_digest in seen:
                item.state, item.spec = "duplicate", None
            seen.add(item.spec_digest)
    return items


def _look_up(item: Item, listed: Spec, results: Store | None) -> None:
    """Note the mechanism and the stored answer of a spec, or its estimate if there is none."""
    item.spec = None
    try:
        spec = choose(listed)
        item.digest = None if results is None else results.find(spec)
    except FactorizeError as error:
        item.state, item.error = "bad", error
        return
    item.spec_digest = spec.digest
    if item.digest is not None and results is not None:
        item.state, item.origin = "cached", Origin("store", results.url)
        return
    item.spec = spec
    with suppress(FactorizeError):  # too large: the solve says so
        needed = estimate(spec)
        item.seconds, item.bytes = needed.seconds, needed.bytes


def _cost(items: list[Item], lanes: int) -> dict[str, float]:
    """Return the estimate of all specs to solve: seconds with all lanes, and the most bytes at a time."""
    waiting = [item for item in items if item.state == "to solve"]
    largest = sorted((item.bytes for item in waiting), reverse=True)[:lanes]
    return {"seconds": sum(item.seconds for item in waiting) / lanes, "bytes": sum(largest), "lanes": lanes}


def _show_expansion(items: list[Item], cost: dict[str, float] | None) -> None:
    """Say how many specs there are of each state; where the cost is known also which, and what the rest takes."""
    for item in items if cost else ():
        remark(item.line())
    remark(f"{len(items)} specs: {_counts(items)}")
    if cost and any(item.state == "to solve" for item in items):
        needed = f"{cost['bytes'] / 2**20:.0f} MiB, {cost['lanes']:g} at a time, {describe_cost(cost['seconds'])}"
        remark(f"estimate: {needed}")


def _run(items: list[Item], lanes: Open, origin: Origin) -> KeyboardInterrupt | ServiceUnreachable | None:
    """Solve the specs that have no answer yet; return what ended the run early."""
    waiting = [(item, item.spec) for item in items if item.spec is not None]
    try:
        with prompt_interrupt(), display(total=len(waiting)) as shown:
            solve_all(waiting, lanes(shown), lambda item, end, took: shown.finish(_ended(item, end, took, origin)))
    except (KeyboardInterrupt, ServiceUnreachable) as error:
        for item in items:
            if item.state == "to solve":
                item.state = "not reached"
        return error
    return None


def _ended(item: Item, outcome: Manifest | Exception, seconds: float, origin: Origin) -> str:
    """Note how a solve has ended, and return its line."""
    if isinstance(outcome, Exception):
        item.state, item.error = "failed", outcome
        return f"failed  {item.label}: {item.reason}"
    item.state, item.digest, item.origin = "solved" if seconds else "cached", outcome["digest"], origin
    if not seconds:  # the service knew it
        return ""
    return f"solved  {item.label}: {describe_gap(outcome['certificate'])}, {seconds:.2f} s"


def _write(path: Path, items: list[Item], stored: Callable[[str], Manifest] | None) -> None:
    """Write a report; results are read from the store or the service one at a time."""

    def manifest(item: Item) -> Manifest | None:
        digest = item.digest or (item.spec_digest if item.state == "duplicate" else None)
        if digest is not None and stored is not None:
            with suppress(FactorizeError):  # it was taken back or damaged meanwhile
                return stored(digest)
        return None

    write_report(path, ((item, manifest(item)) for item in items))


def _price(items: list[Item], service: Service) -> None:
    """Ask a service what it knows, and what the rest would cost it."""
    for item in items:
        if item.spec is not None:
            document = service.canonicalize(item.spec)
            item.state = "cached" if document["known"] else item.state
            item.seconds, item.bytes = document["estimate"]["seconds"], document["estimate"]["bytes"]


def _summary(items: list[Item]) -> str:
    """Return a line for each spec, then how many of each, then those that have no result with the reasons."""
    lines = [item.line() for item in items if item.state != "duplicate"]
    failed = [item.line() for item in items if item.state not in GOOD_STATES and item.error is not None]
    origins = Counter(str(item.origin) for item in items if item.origin is not None)
    lines += [_counts(items), *(f"{count} {origin}" for origin, count in origins.items())]
    return "\n".join([*lines, *(["without a result:", *failed] if failed else [])])


def _counts(items: list[Item]) -> str:
    counts = Counter(item.state for item in items)
    return ", ".join(f"{counts[state]} {state}" for state in STATES if counts[state])

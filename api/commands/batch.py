"""`factorize batch`: many specs, one after the other; what is stored already is not solved again."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from factorize.api.terminal.exit_codes import ExitCode, error_document, error_lines
from factorize.api.terminal.interrupt import prompt_interrupt
from factorize.api.terminal.options import Output, StoreUrl
from factorize.api.terminal.output import OutputForm, display, emit, remark
from factorize.api.terminal.sources import open_results
from factorize.api.terminal.text import describe_gap
from factorize.errors import FactorizeError

if TYPE_CHECKING:
    from factorize.api.local import PlannedSolve
    from factorize.api.terminal.output import Display
    from factorize.api.terminal.spec_lists import ListedSpec
    from factorize.storage.store import Store

List = Annotated[
    Path, typer.Argument(metavar="GRID.toml|SPECS.jsonl", help="A grid, or one spec per line.", show_default=False)
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only show what would be solved.")]

GOOD = ("solved", "cached", "to solve", "duplicate")
STATES = ("solved", "cached", "to solve", "duplicate", "failed", "bad", "not reached")


@dataclass
class Item:
    """One entry of the list and what became of it.

    Attributes:
        label: where it stands in the list.
        state: one of `STATES`.
        plan: what to solve; None for a bad one.
        digest: of the stored result.
        error: why it is bad or has failed.
    """

    label: str
    state: str
    plan: PlannedSolve | None = None
    digest: str | None = None
    error: Exception | None = None

    @property
    def spec_digest(self) -> str | None:
        """What was asked."""
        return self.plan.spec.digest if self.plan else None

    def document(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "label": self.label,
            "state": self.state.replace(" ", "_"),
            "spec_digest": self.spec_digest,
            "digest": self.digest,
            "error": error_document(self.error) if self.error else None,
        }

    def line(self) -> str:
        """Return the text form: state, digest, place in the list, and what is wrong with it."""
        head = f"{self.state:<11} {(self.spec_digest or '-' * 12)[:12]}  {self.label}"
        return "\n".join([head, *(f"            {line}" for line in error_lines(self.error))]) if self.error else head


def batch(specs: List, dry_run: DryRun = False, store: StoreUrl = None, output: Output = OutputForm.TEXT) -> int:
    """Solve a grid or a list of specs.

    Specs that the store knows are skipped, so an interrupted batch goes on where it was. Bad lines and failed solves
    are reported, the rest is done, and the command exits with 3.
    """
    from factorize.api.terminal.spec_lists import read_list

    entries = read_list(specs)
    results = open_results(store, create=not dry_run)
    items = _expand(entries, results)
    _show_expansion(items)
    interrupted = False
    if not dry_run:
        interrupted = _run(items, results)
    emit(output, _summary_document(items, interrupted), _summary(items))
    if interrupted:
        remark("interrupted; what is finished is stored, and the same command goes on from there")
        return ExitCode.INTERRUPTED
    return ExitCode.OK if all(item.state in GOOD for item in items) else ExitCode.SOLVE_FAILED


def _expand(entries: list[ListedSpec], results: Store) -> list[Item]:
    """Name each spec's mechanism and look for its answer; a spec that was listed before is not done twice."""
    items, seen = [], set()
    for entry in entries:
        item = _item(entry, results)
        if item.plan is not None:
            if item.spec_digest in seen:
                item.state = "duplicate"
            seen.add(item.spec_digest)
        items.append(item)
    return items


def _item(entry: ListedSpec, results: Store) -> Item:
    from factorize.api.local import plan

    if entry.spec is None:
        return Item(entry.label, "bad", error=entry.error)
    try:
        planned = plan(entry.spec, results)
    except FactorizeError as error:
        return Item(entry.label, "bad", error=error)
    return Item(entry.label, "cached" if planned.known else "to solve", planned, planned.known)


def _show_expansion(items: list[Item]) -> None:
    for item in items:
        remark(item.line())
    counts = Counter(item.state for item in items)
    remark(f"{len(items)} specs: {', '.join(f'{counts[state]} {state}' for state in STATES if counts[state])}")


def _run(items: list[Item], results: Store) -> bool:
    """Solve what is to be solved; return whether it was interrupted."""
    waiting = [item for item in items if item.state == "to solve"]
    try:
        with prompt_interrupt(), display(len(waiting)) as shown:
            for item in waiting:
                _solve(item, results, shown)
    except KeyboardInterrupt:
        for item in waiting:
            if item.state == "to solve":
                item.state = "not reached"
        return True
    return False


def _solve(item: Item, results: Store, shown: Display) -> None:
    from factorize.api.local import obtain

    assert item.plan is not None  # by its state
    shown.start(item.label)
    began = time.monotonic()
    try:
        manifest = obtain(item.plan, results, progress=shown.report)
    except (FactorizeError, OSError, MemoryError) as error:
        item.state, item.error = "failed", error
        shown.finish(f"failed  {item.label}: {'; '.join(error_lines(error))}")
        return
    item.state, item.digest = "solved", manifest["digest"]
    seconds = time.monotonic() - began
    shown.finish(f"solved  {item.label}: {describe_gap(manifest['certificate'])}, {seconds:.2f} s")


def _summary_document(items: list[Item], interrupted: bool) -> dict[str, Any]:
    counts = Counter(item.state for item in items)
    return {
        "items": [item.document() for item in items],
        "counts": {state.replace(" ", "_"): counts[state] for state in STATES},
        "interrupted": interrupted,
    }


def _summary(items: list[Item]) -> str:
    lines = [item.line() for item in items if item.state != "duplicate"]
    counts = Counter(item.state for item in items)
    return "\n".join([*lines, ", ".join(f"{counts[state]} {state}" for state in STATES if counts[state])])

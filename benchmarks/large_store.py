"""Lists of a store with very many results: processor seconds of a page, of a start and of the look for one digest.

    python -m benchmarks.large_store [--results N] [--jobs M] [--pages K] [--folder F]

With `--results 0`, what stands in the folder is measured. The results are made without a solve: one is solved, and its
manifest is written again for other rates of its workload, with digests that fit and with the entries that belong to it.
All name the one file. The jobs are rows of the ledger.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from factorize import solvers
from factorize.api.jobs.database import jobs, writing
from factorize.api.jobs.ledger import Ledger
from factorize.api.service import SolverService
from factorize.api.settings import Settings, ledger_url
from factorize.encoding import canonical_json, json_digest
from factorize.format.manifest import manifest_digest
from factorize.spec import parse_spec
from factorize.storage.records import SPECS, SpecEntry, manifest_key, name_in, seal
from factorize.storage.store import Store, open_store

KINDS = ("prefix", "decay", "window", "momentum")
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
PART = 5000


def main() -> None:
    """Fill a store and a ledger, then measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=int, default=100_000)
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--pages", type=int, default=40)
    parser.add_argument("--folder")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="factorize-large-") as folder:
        root = Path(given.folder or folder)
        settings = Settings(store=str(root / "store"))
        if given.results:
            fill(settings, given.results, given.jobs)
        measure(settings, given.pages)


def fill(settings: Settings, results: int, job_rows: int) -> None:
    """Write what is missing."""
    store = open_store(settings.store)
    began = time.perf_counter()
    write_results(store, results)
    with Ledger(ledger_url(settings)) as ledger, writing(ledger.engine) as connection:
        for part in parts(job_rows_of(job_rows)):
            connection.execute(jobs.insert().prefix_with("OR IGNORE"), part)
    print(f"{results} results and {job_rows} jobs are written in {time.perf_counter() - began:.0f} s", flush=True)


def write_results(store: Store, count: int) -> None:
    """Write manifests and entries."""
    asked = {"workload": {"kind": "decay", "n": 4, "rate": 0.5}, "mechanism": {"kind": "identity"}}
    manifest = store.put(solvers.solve(solvers.choose(parse_spec(asked))))
    root = Path(store.url.removeprefix("file://"))
    for number in range(1, count):
        manifest["spec"]["workload"]["rate"] = 0.25 + number / (4 * count)
        manifest["spec_digest"] = json_digest(manifest["spec"])
        manifest["created"] = (BEGIN + timedelta(seconds=number)).isoformat(timespec="seconds")
        manifest["digest"] = manifest_digest(manifest)
        entry = SpecEntry.of(manifest)
        for key, data in [
            (manifest_key(manifest["digest"]), seal(manifest)),
            *((k, entry.sealed()) for k in entry.keys),
        ]:
            write(root / key, data)


def write(path: Path, data: bytes) -> None:
    """Write a file, in a folder that may not be there yet."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o444)
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o444)
    os.write(descriptor, data)
    os.close(descriptor)


def job_rows_of(count: int) -> Iterator[dict[str, Any]]:
    """Yield the rows of jobs: most done, a few failed."""
    for number in range(count):
        kind = KINDS[number % len(KINDS)]
        spec = {"workload": {"kind": kind, "n": 8}, "participation": {"kind": "single"}, "number": number}
        text = canonical_json(spec | {"mechanism": {"kind": "identity"}, "objective": {"kind": "mean"}}).decode()
        digest = json_digest({"spec": text})
        time_ = (BEGIN + timedelta(seconds=number)).isoformat(timespec="microseconds").replace("+00:00", "Z")
        yield {
            "spec_digest": digest, "workload": kind, "spec": text, "memory_mb": 1, "seconds_limit": 1.0, "threads": 1,
            "priority": 0, "state": "failed" if number % 10_000 == 0 else "done", "attempts": 1, "seq": 3, "owner": "",
            "task": f"{digest}-1", "digest": digest, "submitted": time_, "updated": time_,
        }  # fmt: skip


def parts(rows: Iterator[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Cut rows into groups."""
    group: list[dict[str, Any]] = []
    for row in rows:
        group.append(row)
        if len(group) == PART:
            yield group
            group = []
    if group:
        yield group


def measure(settings: Settings, pages: int) -> None:
    """Print the median and the worst of each."""
    began = time.perf_counter()
    service = SolverService(settings)
    print(f"start: {1e3 * (time.perf_counter() - began):.0f} ms")
    began = time.perf_counter()
    service.catalog._upkeep.catch_up(whole=True)
    print(f"first look at the store: {time.perf_counter() - began:.1f} s", flush=True)
    store = service.store
    names = [name_in(key) for key in islice(store.objects.names(SPECS), 100)]
    timed("digest of a spec", [partial(store.digest_of, name) for name in names])
    others = {"cursor": "store:"}
    asked: dict[str, dict[str, Any]] = {
        "jobs first": {},
        "results after the jobs": others,
        "results, one kind": others | {"workload": "decay"},
        "results, a kind that is not there": others | {"workload": "srg"},
        "failed jobs": {"state": "failed"},
        "jobs of a kind": {"workload": "window"},
        "done jobs of a kind": {"workload": "window", "state": "done"},
    }
    for label, query in asked.items():
        timed(label, list(walk(service.listing.page, query, pages)))
    timed("all by age", list(walk(service.listing.newest, {}, pages)))
    timed("all by age, one kind", list(walk(service.listing.newest, {"workload": "decay"}, pages)))
    service.close()


def walk(listed: Callable[..., Any], query: dict[str, Any], pages: int) -> Iterator[Callable[[], object]]:
    """Yield questions for the pages of a list, one after the other."""
    state = {"state": None, "workload": None, "cursor": None, "limit": 50} | query

    def ask() -> None:
        _, following = listed(**state)
        state["cursor"] = following if following is not None else query.get("cursor")

    for _ in range(pages):
        yield ask


def timed(label: str, calls: list[Callable[[], object]]) -> None:
    """Time calls one by one, by the clock of the processor: other work on the machine does not count."""
    seconds = []
    for call in calls:
        began = time.process_time()
        call()
        seconds.append(1e3 * (time.process_time() - began))
    print(f"{label}: {statistics.median(seconds):.2f} ms, {max(seconds):.2f} ms at worst", flush=True)


if __name__ == "__main__":
    main()

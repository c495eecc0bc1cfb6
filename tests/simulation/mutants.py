"""`python -m tests.simulation.mutants [--seconds S] [NUMBER ...]`: does the simulation find faults that are planted?

Each mutant is one change of the product's text, made as its module is imported. For each, seeds run until one fails or the
time is up; the table says what found it. What it takes is to be far below ten minutes.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import json
import logging
import multiprocessing
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tests.simulation.__main__ import one
from tests.simulation.hashes import fix_hashes

NOT_FOUND = "not found"


class Mutant(NamedTuple):
    what: str
    module: str
    old: str
    new: str


class Found(NamedTuple):
    what: str
    seeds: int
    seconds: int
    by: str


STORE, OBJECTS = "factorize.storage.store", "factorize.storage.objects"
FOLDER, BUCKET, BUCKET_LOCK = (f"factorize.storage.medium.{name}" for name in ("directory", "bucket", "bucket_lock"))
GC, INDEX, BLOBS, REVOCATION, FSCK = (
    f"factorize.storage.{name}" for name in ("gc", "index", "blobs", "revocation", "fsck")
)
LEDGER, ENGINE, AUDIT = (f"factorize.api.jobs.{name}" for name in ("ledger", "engine", "audit_log"))
HOLDINGS, KEYS, GATE = (f"factorize.api.access.{name}" for name in ("holdings", "key_register", "gate"))
CATALOG = "factorize.api.catalog"
_BLOB = "                self.objects.settle(blob_key(name), staged, lambda: self.blobs.sound(name))\n"
_OWN = "                mine = self.objects.settle(*own)\n"
_FALL = "                self.fall_with_others(manifest)\n"
_ENTRIES = "                for entry in entries:\n                    self.objects.settle(*entry)\n"

MUTANTS = (
    Mutant("the manifest is published before its file", STORE, _BLOB + _OWN, _OWN + _BLOB),
    Mutant("spec entries are published before the manifest", STORE, _OWN + _FALL + _ENTRIES, _ENTRIES + _OWN + _FALL),
    Mutant("the factor file is not synced", STORE, "beside=[staged])", "beside=[])"),
    Mutant(
        "manifest and entries are not synced", OBJECTS, "[*beside, *(file for _, file, _ in steps)]", "list(beside)"
    ),
    Mutant("no file is synced", FOLDER, "            self._files.sync(descriptor)\n", ""),
    Mutant(
        "a folder is not synced after a link",
        FOLDER,
        "            self._settle(target.parent)\n        return created",
        "        return created",
    ),
    Mutant("folders above are not synced", FOLDER, "sorted({folder, *(path.parent for path in new)})", "[folder]"),
    Mutant(
        "a deletion is not synced",
        FOLDER,
        "            self._files.unlink(path)\n            self._files.sync_directory(path.parent)",
        "            self._files.unlink(path)",
    ),
    Mutant(
        "a file replaces what has its name",
        FOLDER,
        "self._files.link(source, target)",
        "self._files.rename(source, target)",
    ),
    Mutant(
        "a name that is taken counts as won",
        FOLDER,
        "        except FileExistsError:\n            return False",
        "        except FileExistsError:\n            return True",
    ),
    Mutant(
        "the folder's lock is always shared",
        FOLDER,
        "self._files.lock(path, exclusive)",
        "self._files.lock(path, False)",
    ),
    Mutant(
        "what stands in the way counts as sound",
        OBJECTS,
        "            return True\n        if intact():\n            return False",
        "            return True\n        if True:\n            return False",
    ),
    Mutant(
        "who replaces what is damaged looks no second time",
        OBJECTS,
        "            if intact():\n                return False\n            confirm()",
        "            confirm()",
    ),
    Mutant(
        "what is damaged is moved away before it is replaced",
        OBJECTS,
        "            self.quarantine(key, staged)",
        "            self.quarantine(key)\n            self.put(key, staged)",
    ),
    Mutant(
        "a repair takes out what was mended meanwhile", FSCK, "            if not sound:\n", "            if True:\n"
    ),
    Mutant(
        "what was checked is not compared with what is published",
        STORE,
        'if (proof.pop("sha256"), proof.pop("digest")) != (file["sha256"], inner.digest):',
        'if (proof.pop("sha256"), proof.pop("digest")) == ():',
    ),
    Mutant(
        "a put takes no lock",
        STORE,
        "            raise revocation.error(_FOUND_AGAIN)\n        with self.objects.lock(MARKER, exclusive=False):\n            if factorization is None",
        "            raise revocation.error(_FOUND_AGAIN)\n        if True:\n            if factorization is None",
    ),
    Mutant("what was revoked meanwhile does not fall", STORE, _OWN + _FALL, _OWN),
    Mutant(
        "a revocation is told of before it stands",
        STORE,
        "            revocation = standing[manifest.digest] = self.revocations.add(manifest, reason)\n            on_each(revocation)",
        "            from types import SimpleNamespace\n            on_each(SimpleNamespace(digest=manifest.digest))\n            revocation = standing[manifest.digest] = self.revocations.add(manifest, reason)",
    ),
    Mutant("a bucket's exclusive lock does not wait for shared ones", BUCKET_LOCK, ' or self._others("")', " or []"),
    Mutant(
        "a bucket's shared lock does not look at the exclusive one",
        BUCKET_LOCK,
        "            return exclusive\n",
        "            return []\n",
    ),
    Mutant(
        "a bucket's object is overwritten",
        "factorize.storage.medium.bucket_calls",
        'mode="create", use',
        'mode="overwrite", use',
    ),
    Mutant("the hash of a blob is not compared", BLOBS, "if state.hexdigest() != sha256:", "if False:"),
    Mutant(
        "an entry of a revoked result counts",
        INDEX,
        '        self._revocations.check(entry.digest)\n        with _named(f"the manifest',
        '        with _named(f"the manifest',
    ),
    Mutant(
        "an entry whose file is damaged counts",
        INDEX,
        "if found.size != stated or self._blobs.damaged(manifest.file.sha256, found.version):",
        "if False:",
    ),
    Mutant(
        "a revocation is recorded under the digest alone",
        REVOCATION,
        "for key in revocation.keys))",
        "for key in revocation.keys[:1]))",
    ),
    Mutant(
        "a sweep takes no lock", GC, "with store.objects.lock(MARKER, exclusive=True) as sweep.confirm:", "if True:"
    ),
    Mutant(
        "a sweep does not look again under the lock",
        GC,
        "exclusive=True) as sweep.confirm:\n        sweep.read_manifests()",
        "exclusive=True) as sweep.confirm:",
    ),
    Mutant(
        "a sweep deletes manifests before entries",
        GC,
        "            for place in entry.keys:\n                self._remove_entry(place, entry.digest)",
        '            self._remove("manifest", key)\n            for place in entry.keys:\n                self._remove_entry(place, entry.digest)',
    ),
    Mutant(
        "a sweep knows no grace",
        GC,
        'entry.modified < self.oldest:\n                self._remove("unnamed',
        'True:\n                self._remove("unnamed',
    ),
    Mutant(
        "a job is taken without its claim",
        LEDGER,
        '        return self._change(job, "queued", *free, **values)',
        '        with writing(self.engine) as connection:\n            return _moved(connection, job.spec_digest, "queued", **values)',
    ),
    Mutant(
        "whoever has lost a job may still change it",
        LEDGER,
        "jobs.c.task == job.task, jobs.c.owner == job.owner",
        "(jobs.c.task == job.task,)",
    ),
    Mutant(
        "a job that has ended is changed",
        LEDGER,
        "where = jobs.c.spec_digest == spec_digest, jobs.c.state.in_(_OPEN), *claim",
        "where = jobs.c.spec_digest == spec_digest, *claim",
    ),
    Mutant("an open job is claimed again", LEDGER, "again.where(mine, ended)", "again.where(mine)"),
    Mutant("leases never run out", LEDGER, 'jobs.c.owner != "", self._lasts', 'jobs.c.owner != ""'),
    Mutant("leases are not asked for", ENGINE, "if not has_ended(owner)}", "if False}"),
    Mutant(
        "a done job whose result is gone stays done",
        ENGINE,
        "self._find(order.spec_digest) is None\n        with",
        "False\n        with",
    ),
    Mutant(
        "a job is done by what the solve says",
        ENGINE,
        "        stored = self._find(job.spec_digest)\n        if stored is not None:\n            self._ledger.finish(job.spec_digest, stored, outcome",
        "        stored = outcome.digest or self._find(job.spec_digest)\n        if stored is not None:\n            self._ledger.finish(job.spec_digest, stored, outcome",
    ),
    Mutant(
        "a solve that was only lost fails its job",
        ENGINE,
        "(Ending.CANCELLED, Ending.INTERRUPTED)",
        "(Ending.CANCELLED,)",
    ),
    Mutant(
        "an error ends the engine's thread",
        ENGINE,
        "            self._waits = self._refused = True\n",
        "            raise\n",
    ),
    Mutant(
        "what was sent is kept when the scheduler is lost",
        ENGINE,
        "                self._sent.clear()",
        "                pass",
    ),
    Mutant(
        "rows of the log are not chained", AUDIT, '"hash": _hash(row, before.hash)', '"hash": _hash(row, BEGINNING)'
    ),
    Mutant(
        "a submission is not written down",
        HOLDINGS,
        'add_row(connection, "submission",',
        '(lambda *_, **__: None)(connection, "submission",',
    ),
    Mutant(
        "open jobs are not counted", HOLDINGS, "            self._check_open(connection, caller, job.spec_digest)\n", ""
    ),
    Mutant(
        "the day's work is not counted",
        HOLDINGS,
        "            self._check_day(connection, caller, core_seconds)\n            self._add",
        "            self._add",
    ),
    Mutant(
        "the store does not learn of a key's end", KEYS, "if self._medium is not None:  # before", "if False:  # before"
    ),
    Mutant("a key that was found good is good for a minute", GATE, "FRESH_SECONDS = 0.5", "FRESH_SECONDS = 60.0"),
    Mutant("the list does not follow revocations", CATALOG, "for part in _parts(ended):", "for part in []:"),
    Mutant(
        "a time ahead is young",
        CATALOG,
        "abs(datetime.now(UTC) - datetime.fromisoformat(manifest.created))",
        "(datetime.now(UTC) - datetime.fromisoformat(manifest.created))",
    ),
    Mutant("the list keeps what was deleted", CATALOG, "for part in _parts(gone):", "for part in []:"),
)


def plant(mutant: Mutant) -> None:
    """Change a module that is imported: what stands in its functions becomes what stands in the changed ones."""
    module = importlib.import_module(mutant.module)
    fresh = {"__name__": mutant.module, "__package__": module.__package__, "__file__": module.__file__}
    exec(compile(mutated(mutant, Path(str(module.__file__))), str(module.__file__), "exec"), fresh)
    _change(vars(module), fresh, module)


def _change(old: Mapping[str, Any], new: Mapping[str, Any], module: Any) -> None:
    for name, value in new.items():
        known = old.get(name)
        if isinstance(known, property) and isinstance(value, property):
            known, value = known.fget, value.fget
        known, value = getattr(known, "__func__", known), getattr(value, "__func__", value)
        if inspect.isclass(known) and inspect.isclass(value) and known.__module__ == module.__name__:
            _change(vars(known), vars(value), module)
        elif inspect.isfunction(known) and inspect.isfunction(value):
            known, value = inspect.unwrap(known), inspect.unwrap(value)
            if known.__module__ == module.__name__:
                known.__code__ = value.__code__
        elif isinstance(value, float) and known != value:
            setattr(module, name, value)


def mutated(mutant: Mutant, path: Path) -> str:
    """Return the changed text of a module; the place is in it once."""
    text = path.read_text()
    assert text.count(mutant.old) == 1, f"{mutant.what}: {text.count(mutant.old)} places in {path}"
    return text.replace(mutant.old, mutant.new)


def hunt(number: int, first: int, seconds: float) -> Found:
    """Run seeds with one mutant until one fails, and say what was found."""
    plant(MUTANTS[number])
    began, seed = time.process_time(), first
    while True:
        broken = one(seed)[-1]
        seed, spent = seed + 1, time.process_time() - began
        if broken is not None or spent > seconds:
            by = NOT_FOUND if broken is None else broken.strip().splitlines()[-1].rpartition("Violation: ")[2][:110]
            return Found(MUTANTS[number].what, seed - first, round(spent), by)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.mutants", description=__doc__)
    parser.add_argument("numbers", type=int, nargs="*")
    parser.add_argument("--seconds", type=float, default=600.0, help="of processor time for each mutant")
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--record", type=Path, default=Path("build/mutants.jsonl"), help="what is found; a run goes on")
    asked = parser.parse_args()
    logging.disable(logging.CRITICAL)
    asked.record.parent.mkdir(exist_ok=True)
    lines = asked.record.read_text().splitlines() if asked.record.exists() else []
    found = {row.what: row for row in (Found(**json.loads(line)) for line in lines)}
    known = {what for what, row in found.items() if row.by != NOT_FOUND or row.seconds >= asked.seconds}
    one(asked.first)  # whatever is imported late and made once is there for all
    numbers = asked.numbers or [number for number, mutant in enumerate(MUTANTS) if mutant.what not in known]
    calls = [(number, asked.first, asked.seconds) for number in numbers]
    with (
        multiprocessing.get_context("fork").Pool(asked.processes, maxtasksperchild=1) as pool,
        asked.record.open("a") as record,
    ):
        for row in pool.imap_unordered(_hunt, calls, chunksize=1):
            found[row.what] = row
            print(json.dumps(row._asdict()), file=record, flush=True)
    print("| planted | seeds | processor time | found by |\n| --- | ---: | ---: | --- |")
    for row in sorted(found.values(), key=lambda row: [mutant.what for mutant in MUTANTS].index(row.what)):
        print(f"| {row.what} | {row.seeds} | {row.seconds} s | {row.by} |")
    return any(row.by == NOT_FOUND for row in found.values())


def _hunt(call: tuple[int, int, float]) -> Found:
    return hunt(*call)


if __name__ == "__main__":
    fix_hashes("tests.simulation.mutants")
    sys.exit(main())

"""`python -m benchmarks.mutants [MODULE ...] [--each K | --sample N] [--seed S]`: do tests notice when code is wrong?

Changes one thing of a function at a time (an operator, a constant, a condition, a statement left out, what it returns),
runs the tests in a forked process until one fails, and counts the changes that no test notices, each with its line.
Every test runs once beforehand, with a trace of the lines it comes by; a change meets only the tests that come by its
statement, quickest first, each under a limit of several times its own time. A test that fails in such a process without
any change (one that starts a service, say) is left out. Nothing is written to the source tree.
What cannot change any answer stands in equivalent_mutants.toml with its reason, and is counted apart.

MODULE is a package or module of `factorize`: exact, exact.sensitivity, encoding, storage.store (default: all of TESTS).
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import mmap
import os
import pkgutil
import random
import resource
import signal
import sys
import threading
import time
import tomllib
from collections import defaultdict
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest

from benchmarks.code_changes import Mutant, mutants

TESTS = {
    "exact": (
        *("test_exact*.py", "test_endless.py", "test_golden.py", "test_golden_claims.py", "test_certificates.py"),
        *("test_computed_toeplitz.py", "test_given_noise.py", "test_joint_moments.py", "test_random_allocation.py"),
        *("test_reader_mutations.py", "test_rounded.py", "test_wrapping.py"),
    ),
    "client.recurrences": (
        "test_client_law.py",
        "test_recurrences.py",
        "test_noise_structures.py",
        "test_redrawn_noise.py",
    ),
    "client.allowances": ("test_client_law.py", "test_recurrences.py"),
    "client.noise_source": ("test_client_law.py", "test_noise_structures.py", "test_recurrences.py"),
    "format": (
        *("test_certificates.py", "test_container.py", "test_description.py", "test_manifest.py"),
        *("test_participation_documents.py", "test_tensors.py", "test_reader_mutations.py", "test_factorization.py"),
    ),
    "encoding": ("test_encoding.py", "test_spec.py", "test_golden.py"),
    "manifest": ("test_factorization.py", "test_manifest.py"),
    "structures.layouts": ("test_layouts.py",),
    "storage": (
        *("test_blobs.py", "test_files.py", "test_fsck.py", "test_gc.py", "test_neighbours.py"),
        *("test_revocation.py", "test_store.py", "test_store_contract.py", "test_store_crash.py"),
    ),
}
"""Where a module's tests are; a key stands for the package or the module of that name and all that is in it."""
FOLDER = Path(__file__).parent
TESTS_FOLDER = FOLDER.parent / "tests"
EQUIVALENT = FOLDER / "equivalent_mutants.toml"
SPARE = 5  # times the processor seconds of the unchanged test, and SLACK more
SLACK = 2.0
MEMORY = 4 << 30  # bytes that a changed program may take beyond what it starts with
STUCK, PASSED = "the time limit", ""


class Timed(NamedTuple):
    """A test, its processor seconds, and the lines that it comes by, by file."""

    item: Any
    seconds: float
    lines: dict[str, set[int]]

    def comes_by(self, mutant: Mutant) -> bool:
        """Whether a line of the changed statement is run."""
        return not self.lines.get(mutant.target.__code__.co_filename, set()).isdisjoint(mutant.lines)


class Trace:
    """Marks lines of some files in memory that forked processes share."""

    def __init__(self, files: list[str]) -> None:
        self.starts: dict[str, int] = {}
        size = 0
        for file in files:
            self.starts[file] = size
            size += Path(file).read_text().count("\n") + 2
        self.marks = mmap.mmap(-1, size)

    def __call__(self, frame: Any, event: str, argument: Any) -> Any:
        """Mark a line, as `sys.settrace` asks."""
        start = self.starts.get(frame.f_code.co_filename)
        if start is None:
            return None
        self.marks[start + frame.f_lineno] = 1
        return self

    def taken(self) -> dict[str, set[int]]:
        """Return the lines marked since the last time, by file."""
        marked = self.marks[:]
        self.marks[:] = bytes(len(marked))
        ends = [*list(self.starts.values())[1:], len(marked)]
        parts = zip(self.starts.items(), ends, strict=True)
        return {file: {at for at, mark in enumerate(marked[start:end]) if mark} for (file, start), end in parts}


class Runner:
    """Runs the tests once with a trace, and what matters of them for every mutant, in a child each."""

    def __init__(self, chosen: list[Mutant]) -> None:
        self.chosen = chosen
        self.found: list[tuple[Mutant, str]] = []
        self.caches: list[Any] = []
        self.trusted: set[str] = set()
        self.killers: dict[str, set[str]] = defaultdict(set)

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self) -> None:
        """A failure is enough: hypothesis need not look for a shorter one."""
        from hypothesis import Phase, settings

        given = settings.get_profile("repeatable")
        settings.register_profile("mutants", parent=given, phases=[Phase.explicit, Phase.generate])
        settings.load_profile("mutants")

    def pytest_runtestloop(self, session: Any) -> bool:
        """Take over from pytest."""
        own = (str(TESTS_FOLDER), str(FOLDER.parent / "factorize"))
        modules = [m for m in list(sys.modules.values()) if str(getattr(m, "__file__", None)).startswith(own)]
        self.caches = [v for m in modules for v in vars(m).values() if callable(getattr(v, "cache_clear", None))]
        trace = Trace(sorted({m.target.__code__.co_filename for m in self.chosen}))
        timed = sorted((self._first(item, trace) for item in session.items), key=lambda test: test.seconds)
        gc.freeze()
        for number, mutant in enumerate(self.chosen, 1):
            name = self._killer(mutant, timed)
            self.found.append((mutant, name))
            words = f"killed by {name}" if name else "SURVIVED"
            print(f"{number}/{len(self.chosen)} {words} {mutant}", file=sys.stderr, flush=True)
        return True

    def _first(self, item: Any, trace: Trace) -> Timed:
        began = time.process_time()
        sys.settrace(trace)
        threading.settrace(trace)
        passed = self._passes(item)
        sys.settrace(None)
        threading.settrace(None)  # type: ignore[arg-type]  # None takes a trace away
        if not passed:
            raise SystemExit(f"{item.nodeid} fails without any change")
        return Timed(item, time.process_time() - began, trace.taken())

    def _killer(self, mutant: Mutant, timed: list[Timed]) -> str:
        """What notices a change, quickest tests first and those before all that noticed another one of the function."""
        before = self.killers[mutant.module + mutant.function]
        tests = [test for test in timed if test.comes_by(mutant)]
        tests.sort(key=lambda test: test.seconds / (10 if test.item.nodeid in before else 1))
        name = self._child(mutant, tests)
        if name in (PASSED, STUCK):
            return name
        killer = next(test for test in tests if test.item.nodeid == name)
        if name not in self.trusted and self._child(None, [killer]):
            print(f"left out: {name} fails in a child without any change", file=sys.stderr, flush=True)
            timed.remove(killer)
            return self._killer(mutant, timed)
        self.trusted.add(name)
        before.add(name)
        return name

    def _child(self, mutant: Mutant | None, tests: list[Timed]) -> str:
        """The name of the test that failed, `STUCK` or `PASSED`."""
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            try:
                os.setpgid(0, 0)
                os.write(writing, (self._outcome(mutant, tests) or "passed").encode())
            finally:
                os._exit(0)
        os.close(writing)
        with os.fdopen(reading, "rb") as answer:
            name = answer.read(1000).decode()
        os.waitpid(child, 0)
        try:
            os.killpg(child, signal.SIGKILL)  # what it has started
        except ProcessLookupError:
            pass
        return PASSED if name == "passed" else name or STUCK

    def _outcome(self, mutant: Mutant | None, tests: list[Timed]) -> str:
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        size = int(Path("/proc/self/statm").read_text().split()[0]) * mmap.PAGESIZE
        resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY, size + MEMORY))
        if mutant is not None:
            mutant.target.__code__ = mutant.code
        for test in tests:
            limit = SPARE * test.seconds + SLACK
            signal.setitimer(signal.ITIMER_PROF, limit)
            signal.setitimer(signal.ITIMER_REAL, 10 * limit + 60)
            if not self._passes(test.item):
                return str(test.item.nodeid)
        return PASSED

    def _passes(self, item: Any) -> bool:
        from _pytest.runner import runtestprotocol
        from _pytest.warnings import catch_warnings_for_item

        for cache in self.caches:
            cache.cache_clear()
        with catch_warnings_for_item(config=item.config, ihook=item.ihook, when="runtest", item=item):
            return all(report.passed for report in runtestprotocol(item, log=False, nextitem=None))


def modules_of(names: list[str]) -> list[ModuleType]:
    """Import the modules that are asked for, those in packages included."""
    found: dict[str, ModuleType] = {}
    for name in names:
        module = importlib.import_module(f"factorize.{name}")
        found[module.__name__] = module
        for inner in pkgutil.iter_modules(getattr(module, "__path__", ())):
            found |= {m.__name__: m for m in modules_of([f"{name}.{inner.name}"])}
    return list(found.values())


def tests_of(names: list[str]) -> list[str]:
    """Return the test files of the modules that are asked for."""
    keys = [key for key in TESTS if any(name == key or name.startswith(f"{key}.") for name in names)]
    return sorted({str(path) for key in keys for pattern in TESTS[key] for path in TESTS_FOLDER.rglob(pattern)})


def equivalents() -> dict[tuple[str, str, str], str]:
    """Reasons why some changes change no answer, by module, function and the changed statement."""
    entries = tomllib.loads(EQUIVALENT.read_text()).get("mutant", [])
    return {(f"factorize.{e['module']}", e["function"], text): e["reason"] for e in entries for text in e["changes"]}


def drawn(modules: list[ModuleType], each: int | None, sample: int | None, seed: int) -> tuple[list[Mutant], int]:
    """Draw the mutants to try, in the order of modules and lines; also count what is left out as equivalent."""
    known, unmet = equivalents(), set()
    chosen: list[Mutant] = []
    left_out, generator = 0, random.Random(seed)
    for module in modules:
        unmet |= {key for key in known if key[0] == module.__name__}
        every = list(mutants(module))
        unmet -= {(m.module, m.function, m.text) for m in every}
        real = [m for m in every if (m.module, m.function, m.text) not in known]
        left_out += len(every) - len(real)
        chosen += real if each is None else generator.sample(real, min(each, len(real)))
    if unmet:
        raise SystemExit(f"{EQUIVALENT.name} names changes that are none: {sorted(unmet)}")
    if sample is not None:
        chosen = generator.sample(chosen, min(sample, len(chosen)))
    order = [module.__name__ for module in modules]
    return sorted(chosen, key=lambda m: (order.index(m.module), m.line)), left_out


def summary(found: list[tuple[Mutant, str]], left_out: int) -> str:
    """The shares that were noticed, by module and in all, and what was not."""
    counts: dict[str, list[bool]] = defaultdict(list)
    for mutant, name in found:
        counts[mutant.module].append(bool(name))
    counts["all"] = [bool(name) for _, name in found]
    lines = [f"  survived: {mutant}" for mutant, name in found if not name]
    for module, killed in counts.items():
        share = 100 * sum(killed) / max(len(killed), 1)
        lines.append(f"{module}: {sum(killed)} of {len(killed)} changes are noticed, {share:.1f} %")
    return "\n".join([*lines, f"{left_out} that change no answer are listed in {EQUIVALENT.name} and were left out"])


def main() -> None:
    """Draw changes, run the tests over them, and print the shares that were noticed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mutants", description=__doc__.splitlines()[2])
    parser.add_argument("modules", nargs="*", default=list(TESTS), metavar="MODULE", help=", ".join(TESTS))
    parser.add_argument("--each", type=int, help="changes per module, drawn (all)")
    parser.add_argument("--sample", type=int, help="changes in all, drawn (all)")
    parser.add_argument("--seed", type=int, default=2026)
    parser.add_argument("--tests", nargs="+", help="instead of those of TESTS: whatever pytest takes")
    parser.add_argument("--json", type=Path, help="write survivors; if the file is there, try only those in it")
    asked = parser.parse_args()
    names = [name.removeprefix("factorize.") for name in asked.modules]
    chosen, left_out = drawn(modules_of(names), asked.each, asked.sample, asked.seed)
    if asked.json and asked.json.exists():
        again = {tuple(entry) for entry in json.loads(asked.json.read_text())}
        chosen = [m for m in chosen if (m.module, m.function, m.text) in again]
    runner = Runner(chosen)
    tests = asked.tests or tests_of(names)
    pytest.main(["-q", "-p", "no:cacheprovider", "-o", "timeout=0", *tests], plugins=[runner])
    if len(runner.found) < len(chosen):
        raise SystemExit("the tests fail without any change, see above")
    print(summary(runner.found, left_out))
    if asked.json:
        survivors = [(m.module, m.function, m.text) for m, name in runner.found if not name]
        asked.json.write_text(json.dumps(survivors, indent=1))


if __name__ == "__main__":
    main()

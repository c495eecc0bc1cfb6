"""`python -m benchmarks.soak [--minutes N] [--seed S] [PART ...]`: what takes too long for the tests, until time is up.

    power   every state that a power loss may leave while two writers put at any moments: some 400
    flips   100,000 random bits of larger files and every bit of a small result, on disk, while the service serves them
    kills   kill -9 of a real service, its workers included, in the middle of solves and of publications
    readers 50,000 changed factor files, each read by every reader: 0 that two of them read in two ways
    law     what the client makes of unit vectors, n = 4096 for every structure and 10^6 steps of endless strategies
    ranks   noise on 2, 3, 8 and 1 ranks has the bits of one process, also after a checkpoint of another number
            (skipped with a line where torch is missing: make .venv-frameworks/.installed)
    strace  each system call of a put fails or kills once, injected by strace (skipped with a line where it is missing)

Ends with status 1 at the first thing that must not happen; the seed that it prints repeats it.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from http.client import HTTPException
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from factorize.storage.fsck import fsck
from factorize.storage.store import Store, open_store

ROOT = Path(__file__).parents[1]
PARTS = ("power", "flips", "kills", "readers", "law", "ranks", "strace")
RANKS = "2,3,8,1"
CHANGED_FILES = 50_000
POSITIONS = 100_000
CALLS = ("openat", "write", "pwrite64", "fsync", "link", "unlink", "mkdir", "fchmod", "pread64", "flock", "close")
ERRORS = ("ENOSPC", "EIO", "EMFILE")
STORED_CODE, REFUSED_CODE = 10, 11
MARKER = "/factorize-soak-begins"
PUT = f"""
import os, sys
sys.path[:0] = {[str(ROOT), str(ROOT / "tests" / "support")]!r}
from store_cases import factorization
from factorize.errors import StoreError
from factorize.storage.store import open_store
put = factorization(4)
open_store(sys.argv[2]).put(put)  # whatever is imported late is imported now
try:
    os.access({MARKER!r}, os.F_OK)
    open_store(sys.argv[1]).put(put)
except StoreError:
    os._exit({REFUSED_CODE})
os._exit({STORED_CODE})
"""


class Soak:
    """One run: time, luck and a folder.

    Args:
        minutes: minutes for the parts that repeat.
        seed: seed of everything that is drawn.
        folder: empty.
    """

    def __init__(self, minutes: float, seed: int, folder: Path) -> None:
        self.end = time.monotonic() + 60 * minutes
        self.luck = random.Random(seed)
        self.folder = folder

    def demand(self, holds: bool, what: str) -> None:
        """End the run where something is not as it must be."""
        if not holds:
            raise SystemExit(f"FAILED: {what}; see {self.folder}")

    def sound(self, root: Path) -> Store:
        """Return the store in a folder after seeing that it is clean."""
        store = open_store(root)
        report = fsck(store)
        self.demand(report.clean, f"{root}: {[f for f in report.findings if f.error]}")
        return store

    # power

    def power(self) -> str:
        """Go through every state of two writers, for three pairs of results."""
        crash = import_module("test_store_crash")
        folder = self.folder / "power"
        folder.mkdir()
        count = 0
        for puts in itertools.combinations((crash.PUT, crash.ANSWER, crash.SECOND), 2):
            home, moments = crash.two_writers(folder, puts)
            for tree, _ in crash.distinct(moments):
                count += 1
                found = crash.unsound(home, tree, 0)
                self.demand(found is None, f"a power loss leaves {found}")
        return f"{count} states, 0 unsound"

    # flips

    def flips(self) -> str:
        """Flip bits under a service that serves."""
        servers, cases = import_module("servers"), import_module("store_cases")
        logging.disable(logging.ERROR)  # the service says each time what it found
        with servers.serving(self.folder / "flips", cache_bytes=1) as live:
            small = live.store.put(cases.factorization(2))
            large = live.store.put(cases.factorization(512, strategy=_dense(512)))
            whole = self._every_bit(live, small)
            drawn = self._random_bits(live, large)
        return f"{whole} bits of a small result and {drawn} of a larger one, 0 flipped bytes served"

    def _every_bit(self, live: Any, manifest: dict[str, Any]) -> int:
        path, address, data = _file(live, manifest)
        for bit in range(8 * len(data)):
            self._flipped(live, path, address, data, bit, {})
        return 8 * len(data)

    def _random_bits(self, live: Any, manifest: dict[str, Any]) -> int:
        path, address, data = _file(live, manifest)
        count = 0
        while count < POSITIONS and time.monotonic() < self.end:
            start, last = sorted(self.luck.choices(range(len(data)), k=2))
            part = {} if count % 50 == 0 else {"Range": f"bytes={start}-{min(last, start + 4095)}"}
            self._flipped(live, path, address, data, self.luck.randrange(8 * len(data)), part)
            count += 1
        return count

    def _flipped(self, live: Any, path: Path, address: str, data: bytes, bit: int, headers: dict[str, str]) -> None:
        """Flip a bit in place, as a disk does, ask, and put it back; the file's time is that of the write."""
        descriptor = os.open(path, os.O_RDWR)
        try:
            os.pwrite(descriptor, bytes([data[bit // 8] ^ 1 << bit % 8]), bit // 8)
            try:
                answer = live.get(address, headers)
            except (HTTPException, OSError):
                return  # it was cut off in the middle, which a client sees by the length
            start = int(headers["Range"][6:].split("-")[0]) if headers else 0
            right = answer.status in (200, 206) and data[start : start + len(answer.body)] == answer.body
            self.demand(right or answer.status == 503, f"bit {bit} of {path} was served: {answer.status}")
        finally:
            os.pwrite(descriptor, data[bit // 8 : bit // 8 + 1], bit // 8)
            os.close(descriptor)

    # kills

    def kills(self) -> str:
        """Kill a service again and again: what it has acknowledged is there, and the next start finishes the rest."""
        servers = import_module("servers")
        root, kills, results = self.folder / "kills", 0, {}
        while time.monotonic() < self.end:
            began = time.monotonic()
            with servers.serving_apart(root) as (client, process):
                for _ in range(3):
                    n = self.luck.randrange(16, 160)
                    spec = {"workload": {"kind": "decay", "n": n, "rate": self.luck.choice([0.5, 0.75, 0.9])}}
                    with suppress(OSError, HTTPException):
                        answer = client.post(spec, {"Prefer": f"wait={self.luck.choice([0, 0, 20])}"})
                        if answer.status == 200:
                            results[answer.json()["digest"]] = spec
                time.sleep(self.luck.random() * 2.5)
                _kill_all(process.pid)
                kills += 1
            store = self.sound(root)
            for digest in results:
                self.demand(store.load(digest).digest == digest, f"the acknowledged {digest} is lost")
            self.demand(time.monotonic() - began < 120, "a start after a kill took two minutes")
        with servers.serving_apart(root) as (client, _):
            client.until("/v1/factorizations?limit=1000", _all_ended, 300)
            jobs = client.get("/v1/factorizations?limit=1000").json()["items"]
            lost = [job for job in jobs if job["state"] not in ("done", "failed")]
            self.demand(not lost, f"jobs without an end: {lost[:3]}")
        return f"{kills} kills, {len(results)} acknowledged results, 0 lost; {len(jobs)} jobs ended by name"

    # readers

    def readers(self) -> str:
        """Change one thing of a factor file of each structure in turn, and let every reader read it."""
        mutations = import_module("reader_mutations")
        rng, files, read, count = np.random.default_rng(self.luck.randrange(2**63)), mutations.originals(), 0, 0
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # numbers that are none are among what is tried
            while count < CHANGED_FILES and time.monotonic() < self.end:
                original = files[count % len(files)]
                what, data = mutations.changed(rng, original)
                verdict = mutations.judge(original, what, data, self.folder)
                self.demand(not verdict.disagreement, f"{original.name}, {what}: {verdict.disagreement}")
                read += not verdict.refused
                count += 1
        return f"{count} changed files, {read} of them read, 0 in two ways"

    # law

    def law(self) -> str:
        """Invert what generators make."""
        found: str = import_module("benchmarks.law").soak(self.end, self.demand)
        return found

    # strace

    def ranks(self) -> str:
        """Run the tests of noise on several ranks with eight among them."""
        python = ROOT / ".venv-frameworks" / "bin" / "python"
        if not python.exists():
            return "skipped: torch is not here; call make .venv-frameworks/.installed first"
        command = [python, "-m", "pytest", "-q", "-x", "tests/frameworks/test_ranks.py"]
        done = subprocess.run(command, cwd=ROOT, env={**os.environ, "RANKS": RANKS}, capture_output=True, text=True)
        self.demand(done.returncode == 0, f"ranks {RANKS}: {done.stdout[-2000:]}")
        return f"ranks {RANKS}: {done.stdout.strip().splitlines()[-1]}"

    def strace(self) -> str:
        """Let each system call of a put fail, and kill at each, once."""
        if shutil.which("strace") is None:
            return "SKIPPED: there is no strace; install it (apt-get install strace) and allow ptrace"
        before = self.folder / "before"
        open_store(before)
        kinds = dict.fromkeys((*ERRORS, "KILL"), 0)
        for call in CALLS:
            first, last = self._calls(before, call)
            for what in kinds:
                inject = f"signal={what}" if what == "KILL" else f"error={what}"
                for at in range(first, last):
                    self._injected(before, call, f"{inject}:when={at + 1}")
                    kinds[what] += 1
                    if time.monotonic() > self.end:
                        return f"{kinds} injections before time was up at {call}, 0 unsound"
        return f"{kinds} injections into {len(CALLS)} calls, 0 unsound"

    def _calls(self, before: Path, call: str) -> tuple[int, int]:
        """Return how often a call is made before the put, and in all."""
        log, _ = self._put(before, "-e", f"trace={call},access,faccessat2,faccessat")
        calls = [
            MARKER if MARKER in line else line for line in log.splitlines() if MARKER in line or f" {call}(" in line
        ]
        self.demand(MARKER in calls, "strace does not see the process")
        return calls.index(MARKER), len(calls) - 1

    def _injected(self, before: Path, call: str, inject: str) -> None:
        """Run one put with one injection, and look at its store."""
        _, status = self._put(before, "-e", f"trace={call}", "-e", f"inject={call}:{inject}")
        named = (STORED_CODE, REFUSED_CODE, -signal.SIGKILL, 128 + signal.SIGKILL)
        self.demand(status in named, f"{call}:{inject} ended with status {status}")
        store = self.sound(self.folder / "strace")
        there = len(list(store.items())) == 1
        self.demand(there or status != STORED_CODE, f"{call}:{inject}: acknowledged and lost")

    def _put(self, before: Path, *options: str) -> tuple[str, int]:
        root, log, warm = self.folder / "strace", self.folder / "strace.log", self.folder / "warm"
        for folder in (root, warm):
            shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(before, root)
        command = ["strace", "-f", "-o", str(log), *options, sys.executable, "-c", PUT, str(root), str(warm)]
        done = subprocess.run(command, capture_output=True)
        return log.read_text(errors="replace"), done.returncode


def _dense(n: int) -> Any:
    from factorize.structures.dense import DenseMatrix

    return DenseMatrix(np.tril(np.full((n, n), 0.5)) + 0.5 * np.eye(n))


def _file(live: Any, manifest: dict[str, Any]) -> tuple[Path, str, bytes]:
    sha256 = manifest["files"][0]["sha256"]
    path = live.folder / "blobs" / "sha256" / sha256[:2] / sha256
    path.chmod(0o644)
    return path, f"/v1/blobs/{sha256}", path.read_bytes()


def _all_ended(page: dict[str, Any]) -> bool:
    return all(job["state"] in ("done", "failed") for job in page["items"])


def _kill_all(pid: int) -> None:
    """Kill a service and everything that it has started, at once, without a word."""
    import psutil

    with suppress(psutil.Error):
        family = [*psutil.Process(pid).children(recursive=True), psutil.Process(pid)]
        for member in reversed(family):
            with suppress(psutil.Error):
                member.send_signal(signal.SIGKILL)


def main() -> None:
    """Run the parts that are asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; all if none is named")
    parser.add_argument("--minutes", type=float, default=3.0, help="for each part that repeats (3)")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    given = parser.parse_args()
    if unknown := set(given.parts) - set(PARTS):
        parser.error(f"{', '.join(sorted(unknown))}: no such part; name some of {', '.join(PARTS)}")
    sys.path.append(str(ROOT / "tests" / "factorize" / "storage"))
    for name in given.parts or PARTS:
        folder = Path(tempfile.mkdtemp(prefix=f"factorize-soak-{name}-"))
        began = time.monotonic()
        part: Callable[[], str] = getattr(Soak(given.minutes, given.seed, folder), name)
        print(f"{name}: {part()} (seed {given.seed}, {time.monotonic() - began:.0f} s)", flush=True)
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()

"""`python -m tests.simulation [--seed S] [--count N | --minutes M] [--processes P] [--kept]`: runs of the simulated cluster.

Each seed is one run. One that fails is printed with the shortest plan that still fails, and the status is 1.
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import random
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any

from factorize.encoding import sha256
from tests.simulation.hashes import fix_hashes
from tests.simulation.run import Plan, draw_plan, fault_count, play, read_plan, shortest

KEPT = sorted((Path(__file__).parent / "kept").glob("*.json"))
"""Plans that once failed, and of what: they stay as they are when seeds draw other plans."""
SHORTEN_SECONDS = 60.0
"""For the search of the shortest plan, which then is the shortest found."""


def failure_of(plan: Plan) -> str | None:
    """Return what a run of a plan breaks, in a line; None if all holds."""
    try:
        play(plan)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def _kind(failure: str | None) -> str:
    return "" if failure is None else " ".join(word for word in failure.split()[:6] if len(word) < 20)


def one(seed: int) -> tuple[int, int, Counter[str], str, str | None]:
    """Run a seed; how many faults struck, what was answered, a digest of the log, what broke."""
    try:
        run = play(draw_plan(seed))
        return seed, fault_count(run), run.oracle.answered, sha256("\n".join(run.world.log).encode())[:12], None
    except Exception as error:
        return seed, 0, Counter(), "", "".join(traceback.format_exception(error)[-3:])


def explain(seed: int) -> str:
    """Return the shortest plan that fails as a seed does, and the log of its run."""
    plan = draw_plan(seed)
    failure = failure_of(plan)
    end = time.monotonic() + SHORTEN_SECONDS
    small = shortest(plan, lambda less: time.monotonic() < end and _kind(failure_of(less)) == _kind(failure))
    try:
        play(small)
    except Exception as error:
        log = error.run.world.log if hasattr(error, "run") else []
        lines = [
            f"seed {seed}: {error}",
            f"made as {plan.shape}",
            *map(str, small.items),
            "which goes:",
            *log[-60:],
            "to be kept:",
            small.text(str(error)),
        ]
        return "\n".join(lines)
    return f"seed {seed}: {failure} (does not repeat)"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, help="the first seed; drawn by default")
    parser.add_argument("--count", type=int, default=1)
    parser.add_argument("--minutes", type=float, help="in place of a count")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--kept", action="store_true", help="play the plans that once failed, too")
    asked = parser.parse_args()
    logging.disable(logging.CRITICAL)
    first = random.SystemRandom().randrange(10**9) if asked.seed is None else asked.seed
    began, faults, seeds, answered = time.monotonic(), 0, 0, Counter[str]()
    failed: list[int] = []
    broken_again = {path.stem: failure_of(read_plan(path.read_text())) for path in (KEPT if asked.kept else ())}
    end = began + 60 * asked.minutes if asked.minutes else float("inf")
    print(f"seeds from {first}", flush=True)
    with multiprocessing.Pool(asked.processes) as pool:
        numbers = takewhile(
            lambda _: time.monotonic() < end, range(first, first + (10**9 if asked.minutes else asked.count))
        )
        results = pool.imap_unordered(one, numbers) if not asked.minutes else _while(pool, numbers)
        for seed, struck, more, log, broken in results:
            seeds, faults, answered = seeds + 1, faults + struck, answered + more
            if seed == first:
                print(f"seed {seed} has the log {log}", flush=True)
            if seeds % 50 == 0:
                print(f"{seeds} seeds, {faults} faults, {len(failed)} failed", flush=True)
            if broken is not None:
                failed.append(seed)
                print(f"seed {seed} FAILED\n{broken}", flush=True)
    spent = time.monotonic() - began
    print(f"{seeds} seeds, {faults} faults in {spent:.0f} s, {len(failed)} failed")
    print(", ".join(f"{count} {name}" for name, count in sorted(answered.items())))
    for seed in failed[:3]:
        print(explain(seed))
    again = {name: failure for name, failure in broken_again.items() if failure is not None}
    for name, failure in again.items():
        print(f"{name}, which was kept, fails again: {failure}")
    return bool(failed or again)


def _while(pool: multiprocessing.pool.Pool, numbers: Iterable[int]) -> Iterator[Any]:
    """Like `imap_unordered`, and takes the next number only when a process is free."""
    waiting = []
    for number in numbers:
        waiting.append(pool.apply_async(one, (number,)))
        while len(waiting) > 2 * pool._processes:  # type: ignore[attr-defined]
            yield waiting.pop(0).get()
    for result in waiting:
        yield result.get()


if __name__ == "__main__":
    fix_hashes("tests.simulation")
    sys.exit(main())

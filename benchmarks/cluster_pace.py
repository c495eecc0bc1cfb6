"""The pace of a cluster: identical posts over two services, workers added, and what the cluster's path costs a job.

    python -m benchmarks.cluster_pace [posts] [workers] [overhead] [--clients N] [--each N] [--specs N] [--jobs N]

All processes run on this machine (tests/support/cluster.py), so that two workers, two services, a database and a bucket
share its cores. Beside the clock stand the seconds that the machine's cores were busy, those of all other programs
among them: run it where nothing else does. What CPU allows, two workers would do with cores of their own, is twice the
busy seconds of a job with one worker over those with two.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil
from cluster import Cluster
from servers import Client, serving_apart

from benchmarks.posting import Posts, post_request, posts

SPEEDUP_GOAL, OVERHEAD_GOAL = 1.8, 0.040
LARGEST = 256
WAIT = "Prefer: wait=30\r\n"


def spec(number: int, *, kind: str = "auto") -> dict[str, Any]:
    """Return a spec that differs from that of every other number; n is at most LARGEST."""
    n = LARGEST - number % (LARGEST - 16)
    return {"workload": {"kind": "decay", "n": n, "rate": 0.5 + number / 1e6}, "mechanism": {"kind": kind}}


@contextmanager
def cluster(workers: int = 2, *, bucket: bool = True) -> Iterator[tuple[Client, Cluster]]:
    """Run a cluster until it is ready, and let each worker solve something; its balancer's client.

    Args:
        workers: one or two.
        bucket: keep results in a bucket, or in a directory.
    """
    with TemporaryDirectory(prefix="factorize-pace-") as folder, ExitStack() as stack:
        parts = Cluster(Path(folder), stack)
        if not bucket:
            parts.store = f"{folder}/store"
        client = Client(parts.start(workers))
        client.until("/readyz", lambda answer: answer.get("status") == "ready" and not answer["notes"])
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda number: client.solve(spec(-1 - number)), range(4)))
        yield client, parts


def identical_posts(clients: int, each: int) -> tuple[float, list[Posts]]:
    """Post one spec from many clients, half of them to each of two services.

    Returns:
        The solves that were started, and what the clients of each service saw.
    """
    with cluster() as (_, parts):
        services = [Client(f"http://127.0.0.1:{port}") for port in parts.service_ports]
        before = sum(service.solves() for service in services)

        def ask(service: Client) -> Posts:
            request = post_request(service.host, "/v1/factorizations", json.dumps(spec(0)).encode(), more=WAIT)
            return posts(service.host, request, clients=clients // 2, count=clients // 2 * each)

        with ThreadPoolExecutor(2) as pool:
            seen = list(pool.map(ask, services))
        return sum(service.solves() for service in services) - before, seen


def throughput(workers: int, count: int) -> tuple[float, float]:
    """Return the seconds, by the clock and of busy cores, of so many different specs on one worker or two."""
    with cluster(workers) as (client, _):
        known = _jobs(client, "done")
        began, busy = time.perf_counter(), _busy()
        with ThreadPoolExecutor(8) as pool:
            statuses = set(pool.map(lambda number: client.post(spec(number)).status, range(count)))
        assert statuses <= {200, 202}, statuses
        while _jobs(client, "done") < known + count:
            assert not _jobs(client, "failed"), "a job has failed; ask for GET /v1/factorizations?state=failed"
            time.sleep(0.1)
        return time.perf_counter() - began, _busy() - busy


@dataclass(frozen=True)
class Jobs:
    """Jobs that ran one after the other.

    Attributes:
        seconds: of each, from the post to the answer with the result.
        standing: CPU seconds of all processes that stay, so not of those that solve one job; what they take while they
            wait counts as well, and the bucket's server does not.
        bucket: CPU seconds of the bucket's server, which is one for tests.
    """

    seconds: tuple[float, ...]
    standing: float
    bucket: float


def jobs(client: Client, count: int) -> Jobs:
    """Have so many specs solved by closed form; none is left over from before."""
    before = _standing()
    seconds = [_timed(lambda number=number: client.solve(spec(number, kind="square_root"))) for number in range(count)]
    after = _standing()
    used = {pid: after[pid][1] - before[pid][1] for pid in before.keys() & after.keys()}
    bucket = sum(seconds for pid, seconds in used.items() if after[pid][0])
    return Jobs(tuple(seconds), sum(used.values()) - bucket, bucket)


def overhead(count: int) -> dict[str, Jobs]:
    """Run jobs on one service alone, and on clusters with a directory and with a bucket."""
    found = {}
    with TemporaryDirectory(prefix="factorize-pace-") as folder, serving_apart(Path(folder)) as (client, _):
        client.solve(spec(-1))
        found["one process"] = jobs(client, count)
    for name, bucket in (("a cluster, a directory", False), ("a cluster, a bucket", True)):
        with cluster(bucket=bucket) as (client, _):
            found[name] = jobs(client, count)
    return found


def _standing() -> dict[int, tuple[bool, float]]:
    """Whether it is the bucket's server, and CPU seconds, of each process below this one."""
    found = {}
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            times = process.cpu_times()
            found[process.pid] = "moto.server" in process.cmdline(), times.user + times.system
    return found


def _timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _busy() -> float:
    """Seconds that all cores of the machine have worked."""
    times = psutil.cpu_times()
    return float(times.user + times.system + getattr(times, "nice", 0.0))


def _jobs(client: Client, state: str) -> int:
    lines = client.get("/metrics").body.decode().splitlines()
    return int(float(next(line for line in lines if line.startswith(f'factorize_jobs{{state="{state}"}}')).split()[1]))


def main() -> None:
    """Run the parts that are named, or all, and print a line for each number."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cluster_pace", description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="posts|workers|overhead", default=["posts", "workers", "overhead"])
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--each", type=int, default=50)
    parser.add_argument("--specs", type=int, default=1000)
    parser.add_argument("--jobs", type=int, default=100)
    given = parser.parse_args()
    print(f"load {psutil.getloadavg()[0]:.1f} on {psutil.cpu_count()} cores", flush=True)
    for part in given.parts:
        {"posts": _posts, "workers": _workers, "overhead": _overhead}[part](given)


def _posts(given: argparse.Namespace) -> None:
    solves, seen = identical_posts(given.clients, given.each)
    count = sum(len(one.seconds) for one in seen)
    rate, p99 = sum(one.rate for one in seen), max(one.quantile(0.99) for one in seen)
    print(f"{count} identical posts of {given.clients} clients over two services: {solves:g} solves (goal 1), "
          f"{rate:.0f} a second, p99 {1e3 * p99:.0f} ms", flush=True)  # fmt: skip


def _workers(given: argparse.Namespace) -> None:
    (one, one_busy), (two, two_busy) = (throughput(workers, given.specs) for workers in (1, 2))
    each = [1e3 * seconds / given.specs for seconds in (one, one_busy, two, two_busy)]
    print("{:.0f} ms a job by the clock and {:.0f} ms of busy cores on one worker, {:.0f} and {:.0f} ms on two"
          .format(*each), flush=True)  # fmt: skip
    print(f"{given.specs} specs on two workers: {one / two:.2f} times one worker by the clock, "
          f"{2 * one_busy / two_busy:.2f} times by what CPU allows (goal {SPEEDUP_GOAL})", flush=True)  # fmt: skip


def _overhead(given: argparse.Namespace) -> None:
    found = overhead(given.jobs)
    alone = next(iter(found.values()))
    for name, each in found.items():
        more = statistics.median(each.seconds) - statistics.median(alone.seconds)
        cpu, bucket = 1e3 * each.standing / given.jobs, 1e3 * each.bucket / given.jobs
        print(f"{name}: {1e3 * statistics.median(each.seconds):.1f} ms a job, {1e3 * more:+.1f} ms (goal "
              f"{1e3 * OVERHEAD_GOAL:g}); CPU of what stays {cpu:.1f} ms, of the bucket {bucket:.1f} ms",
              flush=True)  # fmt: skip


if __name__ == "__main__":
    main()

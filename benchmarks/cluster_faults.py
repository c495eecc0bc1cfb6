"""Faults on a whole cluster: whatever dies, stands still or is cut off, no accepted job is lost and no answer is wrong.

    python -m benchmarks.cluster_faults [--faults N] [--seed S]

Two services behind a balancer, a scheduler, two workers, PostgreSQL and a bucket run as processes of this machine
(tests/support/cluster.py); the bucket is reached over a proxy that can be cut. What is injected and looked at is in
tests/support/faults.py; the tests run a short form of it.
"""

from __future__ import annotations

import argparse
import random
import time
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import bucket_server
from cluster import Cluster
from faults import FAULTS, Faults, Proxy


def main() -> None:
    """Run as many faults as are asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cluster_faults", description=__doc__.splitlines()[0])
    parser.add_argument("--faults", type=int, default=60)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    given = parser.parse_args()
    began = time.monotonic()
    with TemporaryDirectory(prefix="factorize-faults-") as folder, ExitStack() as stack:
        behind = stack.enter_context(bucket_server.running())
        proxy = Proxy(int(behind.url.rsplit(":", 1)[1]))
        stack.callback(proxy.close)
        buckets = bucket_server.BucketServer(f"http://127.0.0.1:{proxy.port}")
        faults = Faults(Cluster(Path(folder), stack, buckets=buckets), stack, given.seed, proxy=proxy)
        said = faults.run(random.Random(given.seed).choices(FAULTS, k=given.faults))
    print(f"{said} (seed {given.seed}, {time.monotonic() - began:.0f} s)", flush=True)


if __name__ == "__main__":
    main()

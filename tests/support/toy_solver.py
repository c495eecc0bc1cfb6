"""A solver of a pool that does what its spec tells it, and the publication of what it has "solved".

`install` has this process publish so. It is a preload of `dask worker` as well.
"""

from __future__ import annotations

import os
import time
from typing import Any

from patience import wait_for

from factorize.api.jobs import one_solve
from factorize.api.workers.pool import Pool
from factorize.api.workers.publishing import step_of
from factorize.api.workers.worker_process import Tell
from factorize.errors import CertificateError, StoreUnavailable
from factorize.factors.solution import Progress
from factorize.format.manifest import Manifest

RESULT = "cd" * 32
MODULES = ("toy_solver", "toy_solver")


def make_ready() -> None:
    """Do nothing: nothing is needed."""


def solve(request: dict[str, Any], tell: Tell) -> str:
    spec, store = request["spec"], request["store"]
    starts = os.path.join(store, "starts")
    with open(starts, "a") as file:
        file.write(f"{spec['name']} {os.getpid()}\n")
    for step in range(spec.get("progress", 0)):
        tell(**vars(Progress(step, 1.0 / (step + 1), None, 0.1 * step)))
        time.sleep(spec.get("every", 0))
    if "allocate_mb" in spec:
        bytearray(spec["allocate_mb"] << 20)
    if "gate" in spec:
        wait_for(lambda: os.path.exists(os.path.join(store, spec["gate"])))
    if "outage" in spec and open(starts).read().count(spec["name"]) <= spec["outage"]:
        raise StoreUnavailable("the bucket does not answer")
    if "fail" in spec:
        raise CertificateError(spec["fail"])
    if spec.get("store", True):
        path = os.path.join(store, spec["name"])
        with open(path + ".part", "w") as file:
            file.write(RESULT)
        os.replace(path + ".part", path)
    return RESULT


QUESTIONS = {"solve": solve}


def make_and_store(
    question: str, request: dict[str, Any], *, place: Any, store: Any, stages: Any, limits: Any
) -> Manifest:
    """Do what `make_and_store` of a pool does, without a proof and with a store that is a folder."""
    digest = place.pair.solver.ask(
        question,
        {**request, "store": store.objects.root.as_posix()},
        limits,
        lambda event: stages.step(step_of(event)),
    )
    return Manifest(digest=digest)


def install() -> None:
    """Have this process publish without a proof."""
    one_solve.make_and_store = make_and_store


def dask_setup(_worker: Any) -> None:
    """Have a worker of dask do so."""
    from factorize.api.jobs import dask_cluster

    install()
    dask_cluster.pool = lambda: POOL


POOL = Pool(memory_mb=1000, modules=MODULES)
"""The pool of a worker of dask; nothing is started before it is needed."""

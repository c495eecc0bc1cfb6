"""A worker of a cluster that has turned against its services, in a process of its own.

`python tests/support/scheduler_attacker.py ADDRESS FOLDER [CA CERT KEY]`. It takes a solve as every worker does, answers
with pickles that write a file named after the process that opens them, and has the scheduler say pickles, too, wherever
dask opens them. Prints `ready` once it works, and `done` when all is said.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from functools import partial
from typing import Any

import dask
from distributed import Client, Scheduler, Worker, get_worker
from distributed.protocol import Serialize, ToPickle
from distributed.protocol import pickle as dask_pickle

from factorize.api.jobs import dask_cluster
from factorize.api.jobs.cluster_worker import secure
from factorize.api.settings import load_settings

STAYED = threading.Event()
NAMES: list[str] = []


class Bomb:
    """Writes FOLDER/PID where it is opened."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[Any, ...]:
        return exec, (f"import os; open(os.path.join({self.folder!r}, str(os.getpid())), 'w').close()",)


def answer(folder: str, task: str) -> Any:
    """Return what this worker answers in place of a solve."""
    worker = get_worker()
    ended = {"ending": "DONE", "digest": "0" * 64, "error": None, "seconds": 1.0, "timings": {}, "progress": None}
    for said in (
        None,
        {"task": task, "event": "started"},
        {"task": task, "event": "progress", "progress": {"iteration": "many"}},
        {"task": task, "event": "ended", "said": {**ended, "ending": "FAILED"}},
        {"task": task, "event": "stored", "said": ended},
        {"task": "0" * 32, "event": "ended", "said": ended},
    ):
        worker.log_event(dask_cluster.TOPIC, said)
    NAMES.append(task)
    STAYED.wait(60)
    return Bomb(folder)


async def say_more(dask_scheduler: Scheduler, folder: str, task: str) -> None:
    """Say to every client what opens a pickle in dask's own; on the scheduler."""
    bomb = Bomb(folder)
    data = dask_pickle.dumps(bomb)
    for form in (data, ToPickle(bomb), Serialize(bomb)):
        for message in (
            {"op": "event", "topic": "warn", "event": ("", {"message": form, "category": form})},
            {"op": "event", "topic": dask_cluster.TOPIC, "event": ("", form)},
            {"op": "key-in-memory", "key": "another", "type": form},
            {"op": "task-erred", "key": "another", "exception": form, "traceback": form},
            {"op": "error", "exception": form},
            {"op": "key-in-memory", "key": task, "type": form},
            {"op": "task-erred", "key": task, "exception": form, "traceback": form},
            {"status": "error", "exception": form, "traceback": form, "op": "error"},
        ):
            for name, client in dask_scheduler.client_comms.items():
                if "factorize" in name:  # it is a service's, not the attacker's own
                    client.send(message)


async def attack(address: str, folder: str) -> None:
    """Work until a solve came, then say the rest."""
    solve = partial(answer, folder)
    dask_cluster.solve = lambda document, task: solve(task)  # type: ignore[assignment]
    async with Worker(address, nthreads=1, resources=dask_cluster.offer(2000, 1), dashboard_address="127.0.0.1:0"):
        print("ready", flush=True)
        while not NAMES:
            await asyncio.sleep(0.05)
        async with Client(address, asynchronous=True) as client:
            await client.run_on_scheduler(say_more, folder=folder, task=NAMES[0])
        await asyncio.sleep(1)
        STAYED.set()
        await asyncio.sleep(1)
        print("done", flush=True)


if __name__ == "__main__":
    where, into, *files = sys.argv[1:]
    dask.config.set({"distributed.admin.low-level-log-length": 0})
    secure(where, load_settings(**dict(zip(("tls_ca", "tls_cert", "tls_key"), files, strict=False))))
    asyncio.run(attack(where, into))
    os._exit(0)

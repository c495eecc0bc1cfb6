"""Connections to a scheduler that does not answer leave neither a thread nor a socket behind."""

from __future__ import annotations

import socket
import struct
import threading

import pytest
from distributed import LocalCluster
from garbled_server import answering
from patience import wait_for
from ports import free_ports

from factorize.api.jobs import dask_cluster
from factorize.api.jobs.dask_solves import DaskSolves


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("dask client")]


def test_a_link_without_a_scheduler_is_down_and_tries_again(monkeypatch):
    """Where the connection is refused, and where it is accepted and nobody ever says a word."""
    monkeypatch.setattr(dask_cluster, "CONNECT_SECONDS", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        for port in (*free_ports(1), silent.getsockname()[1]):
            link = DaskSolves(f"tcp://127.0.0.1:{port}", "store", lambda event: None)
            for _ in range(2):
                assert link.look_after()  # there is a new client, or none: what was sent means nothing
                assert not link.up and link.rooms() == []
            link.close()
    assert threads() == []


@pytest.mark.parametrize(
    "words",
    [
        b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n",  # read as a length, 3.5 EB
        bytes(4096),
        bytes(range(256)) * 16,
        struct.pack("<QQQ", 17, 1, 1) + b"\x07",  # a frame, and no document in it
        struct.pack("<QQQ", 17, 1, 1) + b"\x80",  # an empty document: no version of dask
    ],
    ids=["http", "zeros", "counts", "number", "empty"],
)
def test_what_is_no_scheduler_is_named_until_one_answers(words, monkeypatch):
    monkeypatch.setattr(dask_cluster, "CONNECT_SECONDS", 5.0)
    with answering(words) as port:
        link = DaskSolves(f"tcp://127.0.0.1:{port}", "store", lambda event: None)
        assert link.look_after()
        (wrong,) = link.missing()
        assert wrong.state == "scheduler-unreadable"
        assert not link.up and f"127.0.0.1:{port} does not answer as a dask scheduler" in wrong.detail
        assert len(wrong.detail) < 400 and "\n" not in wrong.detail
        assert link.look_after() and [one.state for one in link.missing()] == ["scheduler-unreadable"]
    monkeypatch.setattr(dask_cluster, "CONNECT_SECONDS", 0.05)
    assert link.look_after() and not link.up and [one.state for one in link.missing()] == ["scheduler-gone"]
    link.close()
    assert threads() == []


@pytest.mark.parametrize("fault", ["garbage", "cut"])
def test_a_client_that_was_without_its_scheduler_is_replaced_since_it_hears_of_no_solve(fault):
    """A solve of such a client would stay queued, without progress, until it is done."""
    dask_cluster.configure()
    heard: list[object] = []
    ports = {"dashboard_address": "127.0.0.1:0", "worker_dashboard_address": "127.0.0.1:0"}
    with LocalCluster(processes=False, n_workers=1, protocol="tcp://", host="127.0.0.1", **ports) as cluster:
        link = DaskSolves(cluster.scheduler_address, "store", heard.append)
        assert link.look_after() and link.up
        client = link._connection.client
        stream = client.scheduler_comm
        (comm,) = (comm for name, comm in cluster.scheduler.client_comms.items() if name == client.id)
        if fault == "garbage":
            cluster.loop.add_callback(comm.comm.stream.write, struct.pack("<QQQ", 17, 1, 1) + b"\xc1")
            wait_for(lambda: not link.up)
        else:  # after which it comes back by itself
            cluster.loop.add_callback(comm.comm.abort)
            wait_for(lambda: client.status == "running" and client.scheduler_comm not in (None, stream))
        assert not link.up
        assert not link.look_after() and link.look_after() and link.up and link._connection.client is not client
        (worker,) = cluster.workers.values()
        wait_for(lambda: bool(worker.log_event(dask_cluster.TOPIC, {"event": "started"}) or heard))
        link.close()
    assert threads() == []

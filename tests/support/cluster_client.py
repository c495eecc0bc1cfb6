"""The client of a cluster behind its balancer, in place of the service that tests share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import cluster
import pytest
from bucket_server import BucketServer
from postgres_server import PostgresServer
from servers import Client


class ClusterClient(Client):
    """Requests to the services of a cluster, each to the next one.

    Args:
        url: of the balancer.
        ports: of the services.
    """

    def __init__(self, url: str, ports: list[int]) -> None:
        super().__init__(url)
        self._each = [Client(f"http://127.0.0.1:{port}") for port in ports]

    def solves(self) -> float:
        """Return the solver processes that all services together have started."""
        return sum(client.solves() for client in self._each)

    def one(self) -> Client:
        """Return the client of one of the services, past the balancer: for what each keeps to itself."""
        return self._each[0]

    def __getattr__(self, name: str) -> NoReturn:
        """End a test that looks into the service: it runs in `make test`, where that is in the same process."""
        if name in ("service", "store", "folder"):
            pytest.skip(f"looks at the {name} of a service in this process")
        raise AttributeError(name)


@contextmanager
def shared_cluster(postgres: PostgresServer, buckets: BucketServer) -> Iterator[Any]:
    """Run a cluster until it is ready; give its client."""
    with cluster.running(postgres, buckets) as (parts, url):
        client = ClusterClient(url, parts.service_ports)
        client.until("/readyz", lambda answer: answer.get("status") == "ready")
        yield client

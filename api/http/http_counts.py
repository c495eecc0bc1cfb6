"""HTTP counts: the requests of one service by route and status, how long they took, and how many are open."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_METHODS = ("GET", "HEAD", "POST", "DELETE")


class HttpCounts:
    """Counters of one service's requests.

    Attributes:
        registry: holds them, for the route of metrics.
        open: requests whose answers have not ended, streams among them.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.open = Gauge("factorize_http_open", "Requests whose answers have not ended.", registry=self.registry)
        self._requests = Counter(
            "factorize_http_requests",
            "Requests by route and status; what no route has is `none`.",
            ["method", "route", "status"],
            registry=self.registry,
        )
        self._seconds = Histogram(
            "factorize_http_seconds",
            "From a request to the head of its answer.",
            ["method", "route"],
            buckets=_SECONDS,
            registry=self.registry,
        )

    def answered(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a request whose answer begins.

        Args:
            method: of the request.
            route: that has the request; `none` where none has it.
            status: of the answer.
            seconds: since the request began.
        """
        known = method if method in _METHODS else "other"
        self._requests.labels(known, route, str(status)).inc()
        self._seconds.labels(known, route).observe(seconds)

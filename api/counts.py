"""Counts of one service for its metrics: how its solves have ended, and its requests by route and status."""

from __future__ import annotations

import json
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_SOLVE_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600, 14_400, 86_400)
_GAPS = (1e-12, 1e-10, 1e-9, 1e-8, 1e-6, 1e-4, 1e-3, 1e-2, 0.1, 1.0)
_QUEUED_AGAIN = ("CRASHED", "LOST")
_REQUEST_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_METHODS = ("GET", "HEAD", "POST", "DELETE")


class SolveCounts:
    """Counters and histograms of one service's solves.

    Attributes:
        registry: holds them, for the route of metrics.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._seconds = Histogram(
            "factorize_solve_duration_seconds",
            "Wall time of solve, certificate, proof and publication.",
            ["mechanism", "end"],
            buckets=_SOLVE_SECONDS,
            registry=self.registry,
        )
        self._gaps = Histogram(
            "factorize_relative_gap",
            "Gap to the lower bound over all matrices that a solve has last reported.",
            ["mechanism"],
            buckets=_GAPS,
            registry=self.registry,
        )
        self._retries = Counter(
            "factorize_retries",
            "Solves whose process was killed or lost; all but the last of a job are queued again.",
            registry=self.registry,
        )

    def settled(self, spec: str, end: str, seconds: float, progress: dict[str, Any] | None) -> None:
        """Count a solve that is over.

        Args:
            spec: canonical JSON of the spec.
            end: name of its end, such as `DONE`.
            seconds: wall time of its process.
            progress: what it has said last, or None.
        """
        mechanism = str(json.loads(spec)["mechanism"]["kind"])
        self._seconds.labels(mechanism, end.lower()).observe(seconds)
        gap = (progress or {}).get("relative_gap")
        if end == "DONE" and gap is not None:
            self._gaps.labels(mechanism).observe(gap)
        if end in _QUEUED_AGAIN:
            self._retries.inc()


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
            buckets=_REQUEST_SECONDS,
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

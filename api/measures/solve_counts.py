"""Solve counts: how the solves of this service have ended, how long they took and how near to the bound they came."""

from __future__ import annotations

import json
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram

_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600, 14_400, 86_400)
_GAPS = (1e-12, 1e-10, 1e-9, 1e-8, 1e-6, 1e-4, 1e-3, 1e-2, 0.1, 1.0)
_QUEUED_AGAIN = ("CRASHED", "LOST")


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
            buckets=_SECONDS,
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

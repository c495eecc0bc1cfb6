"""Spans of a trace: a job and the stages of its solve, beside the requests that the web framework makes spans of.

All of it is OpenTelemetry's own: without its SDK (the extra `factorize[otel]`), or without a place to send spans to,
nothing is recorded. A job's span goes on the trace of the request that asked for it, also where another service ends
it.
"""

from __future__ import annotations

import importlib.util
import os
from datetime import datetime
from typing import TYPE_CHECKING, Any

from factorize import __version__
from factorize.api.telemetry.log_lines import about

if TYPE_CHECKING:
    from collections.abc import Mapping

    from opentelemetry.trace import TracerProvider

_NAMES = {"prove": "proof"}
_PLACES = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")


def of_application(provider: TracerProvider | None) -> Any:
    """Return what the web framework is told: spans of requests, by standard variables of OpenTelemetry.

    Args:
        provider: where spans go; by default the process's, which is made where a variable names an address to send to.

    Raises:
        MissingExtra: a variable names an address and the SDK is not installed.
    """
    from factorize.errors import MissingExtra

    named = provider is None and any(os.environ.get(name) for name in _PLACES)
    if named and importlib.util.find_spec("opentelemetry.sdk") is None:
        raise MissingExtra(f"sending spans to {' or '.join(_PLACES)}", "opentelemetry")
    return {"tracer_provider": provider, "metrics": False, "logs": False, "auto_configure": named}


def current_trace() -> str:
    """Return the `traceparent` of the present span, else the one that the request brought, else nothing."""
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier)
    return carrier.get("traceparent") or about().get("traceparent", "")


def record_job(
    provider: TracerProvider | None,
    traceparent: str,
    submitted: str,
    attributes: Mapping[str, Any],
    timings: Mapping[str, tuple[float, float]],
    failure: str | None,
) -> None:
    """Record the span of a job that has ended now, with a span for each stage of its solve.

    Args:
        provider: where spans go; by default the process's.
        traceparent: of the request that asked for it, or nothing.
        submitted: when, ISO 8601.
        attributes: what else is said of the job.
        timings: when each stage began and ended, in seconds since 1970.
        failure: why it failed, or None.
    """
    from opentelemetry import trace
    from opentelemetry.context import Context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    tracer = (provider or trace.get_tracer_provider()).get_tracer("factorize", __version__)
    parent = TraceContextTextMapPropagator().extract({"traceparent": traceparent}, Context())
    begun = int(datetime.fromisoformat(submitted).timestamp() * 1e9)
    job = tracer.start_span("job", parent, start_time=begun, attributes=dict(attributes))
    within = trace.set_span_in_context(job, Context())
    for stage, (start, end) in timings.items():
        span = tracer.start_span(_NAMES.get(stage, stage), within, start_time=int(start * 1e9))
        span.end(int(end * 1e9))
    if failure is not None:
        job.set_status(trace.StatusCode.ERROR, failure)
    job.end()

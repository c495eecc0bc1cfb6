"""Telemetry: lines of the log, one JSON object each, and spans of a trace, which say what they are about.

A line has `time` (UTC), `level`, `logger` and `message`, the subject of the work of this thread or task, and what the
call adds by `extra={"about": {...}}`. Input is escaped: a line is one line, in ASCII.

A job and each stage of its solve have a span, and the web framework makes one for each request. OpenTelemetry records
them: without its SDK (the extra `factorize[otel]`), or without an address to send spans to, nothing is recorded. A
job's span belongs to the trace of the request that asked for it, even where another service ends the job.
"""

import importlib.util
import json
import logging
import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any

from factorize import __version__
from factorize.errors import MissingExtra

_REQUEST_ID = re.compile(r"[0-9A-Za-z._-]{8,64}")
_TRACEPARENT = re.compile(r"00-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
_about: ContextVar[Mapping[str, str]] = ContextVar("factorize_log_context")
MAX_MESSAGE_CHARACTERS = 2000
_ROOT = "factorize"
_SPAN_NAMES = {"prove": "proof"}
_SPAN_PLACES = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_DASK_LOGGERS = ("distributed", "distributed.client", "tornado", "tornado.application", "bokeh")


def about() -> Mapping[str, str]:
    """Return what the present work is about."""
    return _about.get({})


@contextmanager
def log_about(**fields: str) -> Iterator[None]:
    """Let all that happens within be about these, too; empty ones are left out."""
    token = _about.set({**about(), **{name: value for name, value in fields.items() if value}})
    try:
        yield
    finally:
        _about.reset(token)


def read_client_id(request_id: str | None, traceparent: str | None) -> str:
    """Return the id that a client gives to a request, or nothing. It names lines of the log beside the id of our own.

    Args:
        request_id: the header `X-Request-Id`: 8 to 64 letters, digits, dots, dashes and underscores.
        traceparent: the header of that name (W3C Trace Context, version 00); its trace id is the next best.
    """
    if request_id is not None and _REQUEST_ID.fullmatch(request_id):
        return request_id
    parts = _TRACEPARENT.fullmatch(traceparent or "")
    return "" if parts is None else parts[1]


def read_traceparent(header: str | None) -> str:
    """Return a `traceparent` that is one, else nothing."""
    return header if header is not None and _TRACEPARENT.fullmatch(header) else ""


class JsonLines(logging.Formatter):
    """Writes a record as one JSON object."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, without its end."""
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        line: dict[str, object] = {"time": time, "level": record.levelname, "logger": record.name}
        line["message"] = record.getMessage()[:MAX_MESSAGE_CHARACTERS]
        line |= about()
        line |= getattr(record, "about", {})
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def log_to_stderr(form: str) -> None:
    """Have this process write its log.

    Args:
        form: `json` writes all of this service's lines and the warnings of libraries as JSON; `text` leaves Python's
            own way, warnings as plain text.
    """
    if form != "json":
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    logging.getLogger().handlers[:] = [handler]
    logging.getLogger(_ROOT).setLevel(logging.INFO)
    logging.captureWarnings(True)
    adopt_dask()


def writes_json() -> bool:
    """Return whether `log_to_stderr` has been told to write JSON in this process."""
    return any(isinstance(handler.formatter, JsonLines) for handler in logging.getLogger().handlers)


def adopt_dask() -> None:
    """Take back the handlers that dask gave its loggers when it was imported, where the log is JSON."""
    if writes_json():
        for name in _DASK_LOGGERS:
            logger = logging.getLogger(name)
            logger.handlers.clear()
            logger.propagate = True


def of_application() -> Any:
    """Return what the web framework is told: spans of requests, by standard variables of OpenTelemetry.

    They go to the process's provider, which is made where a variable names an address to send to.

    Raises:
        MissingExtra: a variable names an address and the SDK is not installed.
    """
    named = any(os.environ.get(name) for name in _SPAN_PLACES)
    if named and importlib.util.find_spec("opentelemetry.sdk") is None:
        raise MissingExtra(f"sending spans to {' or '.join(_SPAN_PLACES)}", "opentelemetry")
    return {"metrics": False, "logs": False, "auto_configure": named}


def current_trace() -> str:
    """Return the `traceparent` of the present span, else the one that the request brought, else nothing."""
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier)
    return carrier.get("traceparent") or about().get("traceparent", "")


def record_job(
    traceparent: str,
    submitted: str,
    attributes: Mapping[str, Any],
    timings: Mapping[str, tuple[float, float]],
    failure: str | None,
) -> None:
    """Record the span of a job that has ended now, with a span for each stage of its solve.

    Args:
        traceparent: the trace of the request that asked for it, or nothing.
        submitted: when, ISO 8601.
        attributes: what else is said of the job.
        timings: when each stage began and ended, in seconds since 1970.
        failure: why it failed, or None.
    """
    from opentelemetry import trace
    from opentelemetry.context import Context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    tracer = trace.get_tracer("factorize", __version__)
    parent = TraceContextTextMapPropagator().extract({"traceparent": traceparent}, Context())
    begun = int(datetime.fromisoformat(submitted).timestamp() * 1e9)
    job = tracer.start_span("job", parent, start_time=begun, attributes=dict(attributes))
    within = trace.set_span_in_context(job, Context())
    for stage, (start, end) in timings.items():
        span = tracer.start_span(_SPAN_NAMES.get(stage, stage), within, start_time=int(start * 1e9))
        span.end(int(end * 1e9))
    if failure is not None:
        job.set_status(trace.StatusCode.ERROR, failure)
    job.end()

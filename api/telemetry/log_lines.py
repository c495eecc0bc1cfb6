"""Lines of the log: one JSON object each, and where they go.

A line has `time` (UTC), `level`, `logger` and `message`, what it is about (`log_context.py`), and what it adds by
`extra={"about": {...}}`. Whatever somebody sends is escaped: a line is one line, in ASCII.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from factorize.api.telemetry.log_context import NAMES, about

FORMATS = ("text", "json")
LEVELS = ("INFO", "WARNING", "ERROR", "CRITICAL")
LONGEST = 2000
_ROOT = "factorize"
_DASK = ("distributed", "distributed.client", "tornado", "tornado.application", "bokeh")


class JsonLines(logging.Formatter):
    """Writes a record as one JSON object."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, without its end."""
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        line: dict[str, Any] = {"time": time, "level": record.levelname, "logger": record.name}
        line["message"] = record.getMessage()[:LONGEST]
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
    for name in _DASK:
        pass_on(logging.getLogger(name))


def writes_json() -> bool:
    """Whether `log_to_stderr` has been told to write JSON in this process."""
    return any(isinstance(handler.formatter, JsonLines) for handler in logging.getLogger().handlers)


def adopt_dask() -> None:
    """Take back the handlers that dask gave its loggers when it was imported, where the log is JSON."""
    if writes_json():
        for name in _DASK:
            pass_on(logging.getLogger(name))


def pass_on(logger: logging.Logger) -> None:
    """Have a logger hand its lines to the root's handler alone."""
    logger.handlers.clear()
    logger.propagate = True


class Told(logging.Handler):
    """Hands lines to whoever asked for this process, who writes them.

    Args:
        say: says an event (api/workers/worker_process.py).
    """

    def __init__(self, say: Callable[..., None]) -> None:
        super().__init__()
        self._say = say

    def emit(self, record: logging.LogRecord) -> None:
        """Say one line."""
        fields = {**about(), **getattr(record, "about", {})}
        message = record.getMessage()
        if record.exc_info:
            message += f": {record.exc_info[1]!r}"
        self._say("log", level=record.levelname, logger=record.name, message=message[:LONGEST], about=fields)


def tell_lines(say: Callable[..., None]) -> None:
    """Have a child process hand its lines on in place of writing them."""
    logging.getLogger().handlers[:] = [Told(say)]
    logging.getLogger(_ROOT).setLevel(logging.INFO)


def hush_lines() -> None:
    """Have a process that hands its lines on say warnings alone, as Python's own way has it."""
    logging.getLogger().handlers.clear()
    logging.getLogger(_ROOT).setLevel(logging.NOTSET)


def relay(event: Mapping[str, Any], known: Mapping[str, str]) -> None:
    """Write a line that a child process has said, which may have said anything.

    Args:
        event: the event.
        known: what the child is about; it cannot say otherwise.
    """
    level, name, message, fields = (event.get(key) for key in ("level", "logger", "message", "about"))
    if level not in LEVELS or not isinstance(name, str) or not isinstance(message, str):
        return
    if not name.startswith(_ROOT):
        name = f"{_ROOT}.child"
    more = fields if isinstance(fields, dict) else {}
    own = {key: _short(value) for key, value in list(more.items())[:20] if key not in NAMES}
    logging.getLogger(name[:100]).log(
        logging.getLevelNamesMapping()[level], "%s", message[:LONGEST], extra={"about": {**own, **known}}
    )


def _short(value: object) -> object:
    return value if isinstance(value, int | float | bool) or value is None else str(value)[:200]

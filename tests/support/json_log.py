"""The lines of JSON that the logger of this package writes."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from factorize.api.telemetry import JsonLines


@contextmanager
def json_lines() -> Iterator[Callable[[], list[dict[str, Any]]]]:
    """Keep the lines; what it gives returns those that have been written so far."""
    stream, logger = io.StringIO(), logging.getLogger("factorize")
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonLines())
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield lambda: [json.loads(line) for line in stream.getvalue().splitlines()]
    finally:
        logger.removeHandler(handler)
        logger.setLevel(logging.NOTSET)

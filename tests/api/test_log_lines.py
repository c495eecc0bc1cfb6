"""Lines of the log: one JSON object each, whatever it says, and what children may say."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from json_log import json_lines

from factorize.api.telemetry import about, log_about, read_client_id, read_traceparent

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def written() -> Any:
    """All lines that the logger of this package writes as JSON."""
    with json_lines() as lines:
        yield lines


def test_a_line_is_one_object_in_ascii_whatever_it_says(written: Any) -> None:
    with log_about(request_id="abc", caller=""):
        logging.getLogger("factorize.x").info("two\nlines %s \u2028", "\x1b[31m", extra={"about": {"status": 200}})
    (line,) = written()
    assert line["message"] == "two\nlines \x1b[31m \u2028"
    assert {name: line[name] for name in ("level", "logger", "request_id", "status")} == {
        "level": "INFO",
        "logger": "factorize.x",
        "request_id": "abc",
        "status": 200,
    }
    assert line["time"].endswith("Z") and "caller" not in line and not about()


def test_an_exception_stays_on_its_line(written: Any) -> None:
    try:
        raise ValueError("wrong")
    except ValueError:
        logging.getLogger("factorize.x").exception("it failed")
    (line,) = written()
    assert line["exception"].endswith("ValueError: wrong") and line["message"] == "it failed"


@pytest.mark.parametrize(
    ("given", "trace", "taken"),
    [
        ("run-17.step_2", None, "run-17.step_2"),
        ("run-17.step_2", TRACE, "run-17.step_2"),
        (None, TRACE, "0af7651916cd43dd8448eb211c80319c"),
        ("short", TRACE, "0af7651916cd43dd8448eb211c80319c"),
        ("a" * 65, None, ""),
        ("two words", None, ""),
        ("<script>1234", None, ""),
        ("ümlaute-12", None, ""),
        ("12345678\n", None, ""),
        (None, TRACE.replace("0af7651916cd43dd8448eb211c80319c", "0" * 32), ""),
        (None, TRACE.replace("00-", "01-"), ""),
        (None, None, ""),
    ],
)
def test_ids_of_callers(given: str | None, trace: str | None, taken: str) -> None:
    assert read_client_id(given, trace) == taken
    assert read_traceparent(trace) == (trace if trace == TRACE else "")

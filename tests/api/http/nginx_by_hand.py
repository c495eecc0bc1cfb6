"""Answers of 90 seconds through nginx, which cuts off what is silent for 60 unless it is told otherwise.

By hand: python -m pytest -n 0 tests/api/http/nginx_by_hand.py; it takes five minutes, and next to no processor time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from nginx_server import nginx
from servers import SLOW_SOLVER, Client, LiveService, serving

from factorize.client import fetch

SECONDS = 90.0
SPEC = {"workload": {"kind": "prefix", "n": 6}, "mechanism": {"kind": "square_root"}}


class _Silent(BaseHTTPRequestHandler):
    """Answers after a silence."""

    def do_GET(self) -> None:  # noqa: N802  # named by its base class
        time.sleep(SECONDS)
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()


@pytest.fixture
def silent() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Silent) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[LiveService]:
    """A service whose solves take 90 seconds."""
    with serving(tmp_path / "store", solver=SLOW_SOLVER) as live:
        timer = threading.Timer(SECONDS, live.go)
        timer.start()
        yield live
        timer.cancel()


def test_an_answer_that_is_silent_for_90_seconds_comes_through(silent: str, tmp_path: Path) -> None:
    with nginx(silent, tmp_path) as url:
        began = time.monotonic()
        assert Client(url).get("/").status == 200
        assert time.monotonic() - began >= SECONDS


def test_a_solve_of_90_seconds_comes_through(slow: LiveService, tmp_path: Path) -> None:
    with nginx(slow.url, tmp_path) as url:
        target = tmp_path / "f.safetensors"
        began = time.monotonic()
        fetch(SPEC, url=url, to=target)
        assert time.monotonic() - began >= SECONDS - 5
        assert target.stat().st_size > 0


def test_events_of_90_seconds_come_through(slow: LiveService, tmp_path: Path) -> None:
    with nginx(slow.url, tmp_path) as url:
        job = Client(url).post(SPEC).json()
        events = Client(url).get(f"/v1/factorizations/{job['spec_digest']}/events")
        assert events.body.rstrip().splitlines()[-1].startswith(b"data: ")
        assert b"done" in events.body

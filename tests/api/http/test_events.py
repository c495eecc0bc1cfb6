"""Server-sent events, over a real connection."""

from __future__ import annotations

import http.client
import itertools
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from servers import SLOW_SOLVER, LiveService, serving

from factorize.api.http import routes

SPEC: dict[str, Any] = {"workload": {"kind": "prefix", "n": 6}, "mechanism": {"kind": "square_root"}}


def listen(live: LiveService, name: str, headers: dict[str, str] | None = None) -> Iterator[dict[str, Any]]:
    """The events of a stream as they come, until the service ends it."""
    connection = http.client.HTTPConnection(live.host, timeout=600)
    try:
        connection.request("GET", f"/v1/factorizations/{name}/events", headers=headers or {})
        answer = connection.getresponse()
        assert (answer.status, answer.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
        assert answer.headers["cache-control"] == "no-store"
        event: dict[str, Any] = {}
        for line in answer:
            field, _, value = line.decode().rstrip("\n").partition(": ")
            if field == "" and not value and event:
                yield event
                event = {}
            elif field == "data":
                event["data"] = json.loads(value)
            elif field in ("id", "event"):
                event[field] = int(value) if field == "id" else value
    finally:
        connection.close()


def test_progress_comes_in_order_and_ends_with_done(slow_service: LiveService) -> None:
    name = slow_service.post(SPEC).json()["spec_digest"]
    events = listen(slow_service, name)
    whole = list(itertools.takewhile(lambda event: event["event"] == "state", events))  # and the first progress is lost
    states = [event["data"]["state"] for event in whole]
    assert states == sorted(set(states)) and set(states) <= {"queued", "running"}
    seen = [next(events)]
    slow_service.go()
    seen += events
    assert [event["event"] for event in seen] == ["progress"] * (len(seen) - 1) + ["done"]
    numbers = [event["id"] for event in whole + seen]
    assert numbers == sorted(set(numbers))
    assert set(seen[0]["data"]) == {"iteration", "relative_gap", "class_gap", "seconds", "phase", "seconds_left"}
    manifest = slow_service.get(f"/v1/factorizations/{name}").json()
    assert seen[-1]["data"] == {"spec_digest": name, "digest": manifest["digest"]}


def test_a_broken_stream_is_taken_up_after_the_last_event_and_an_odd_one_from_what_is(
    slow_service: LiveService,
) -> None:
    name = slow_service.post(SPEC).json()["spec_digest"]
    first = next(event for event in listen(slow_service, name) if event["event"] == "progress")  # the job runs
    resumed = next(listen(slow_service, name, {"Last-Event-ID": str(first["id"])}))
    assert resumed["id"] > first["id"]
    for last in ("", "x", "-1", "9" * 400, "1.5", "٣"):
        found = next(listen(slow_service, name, {"Last-Event-ID": last.encode().decode("latin-1")}))
        assert found["event"] == "progress", last


def test_a_finished_job_gives_its_last_event_at_once(live_service: LiveService) -> None:
    manifest = live_service.solve(SPEC)
    for name in (manifest["spec_digest"], manifest["digest"]):
        (event,) = listen(live_service, name, {"Last-Event-ID": "999"})
        assert event["event"] == "done"
        assert event["data"] == {"spec_digest": manifest["spec_digest"], "digest": manifest["digest"]}


def test_cancelling_ends_the_stream(slow_service: LiveService) -> None:
    name = slow_service.post(SPEC).json()["spec_digest"]
    events = listen(slow_service, name)
    next(events)
    slow_service.send("DELETE", f"/v1/factorizations/{name}")
    assert list(events)[-1]["event"] == "cancelled"
    (again,) = listen(slow_service, name)
    assert (again["event"], again["data"]) == ("cancelled", {"spec_digest": name})


def test_a_failure_is_the_last_event(tmp_path: Path) -> None:
    with serving(tmp_path / "store", solver="no_solver") as live:
        name = live.post(SPEC).json()["spec_digest"]
        *_, last = listen(live, name)
        assert (last["event"], last["data"]["error"]["type"]) == ("failed", "failed")
        (again,) = listen(live, name)
        assert again == last


def test_a_stopping_service_ends_its_streams_and_keeps_the_job(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ended = threading.Event()
    with serving(tmp_path / "store", solver=SLOW_SOLVER) as live:
        name = live.post(SPEC).json()["spec_digest"]
        events = listen(live, name)
        next(events)
        listener = threading.Thread(target=lambda: (list(events), ended.set()))
        listener.start()
    listener.join()
    assert ended.is_set()
    assert "graceful" not in caplog.text  # uvicorn would have cut the stream after its last 10 s
    (tmp_path / "store" / "go").touch()
    with serving(tmp_path / "store", solver=SLOW_SOLVER) as live:
        assert live.until(f"/v1/factorizations/{name}", lambda found: "certificate" in found)


def test_silence_is_filled_with_pings(slow_service: LiveService, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "PING_SECONDS", 0.02)
    name = slow_service.post(SPEC).json()["spec_digest"]
    with slow_service.connected() as connection:
        connection.sendall(f"GET /v1/factorizations/{name}/events HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        heard = b""
        while heard.count(b"\n: ping\n\n") < 3:
            heard += connection.recv(65536)
    assert heard.startswith(b"HTTP/1.1 200")

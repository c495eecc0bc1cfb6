"""The routes of factorizations and jobs, over a real connection."""

from __future__ import annotations

import errno
import json
import sqlite3
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from command_line import CommandLine
from servers import SLOW_SOLVER, LiveService, serving, serving_apart

from factorize.api.jobs.solve_job import JobOrder
from factorize.format.files import Files
from factorize.solvers import solve
from factorize.spec import parse_spec

PREFIX: dict[str, Any] = {"workload": {"kind": "prefix", "n": 16}, "mechanism": {"kind": "square_root"}}


def prefix(n: int, **more: Any) -> dict[str, Any]:
    return {**PREFIX, "workload": {"kind": "prefix", "n": n}, **more}


def test_an_unknown_spec_becomes_one_job_and_then_a_manifest(slow_service: LiveService) -> None:
    first = slow_service.post(PREFIX)
    job = first.json()
    assert first.status == 202
    assert set(job) == {"spec_digest", "state", "progress", "error", "submitted", "updated"}
    assert job["state"] == "queued"
    assert first.headers["location"] == f"/v1/factorizations/{job['spec_digest']}"
    assert int(first.headers["retry-after"]) >= 1

    running = slow_service.until(first.headers["location"], lambda found: found["progress"] is not None)
    assert running["state"] == "running"
    assert set(running["progress"]) == {"iteration", "relative_gap", "class_gap", "seconds", "phase", "seconds_left"}

    waited = slow_service.post(PREFIX, {"Prefer": "respond-async, wait=1"})
    assert (waited.status, waited.headers["preference-applied"]) == (202, "wait=1")
    assert waited.json()["state"] == "running"

    slow_service.go()
    manifest = slow_service.until(first.headers["location"], lambda found: "certificate" in found)
    assert manifest["spec_digest"] == job["spec_digest"]
    again = slow_service.post(PREFIX)
    assert (again.status, again.json()) == (200, manifest)


def test_twenty_identical_posts_run_one_solve(slow_service: LiveService) -> None:
    with ThreadPoolExecutor(20) as threads:
        answers = list(threads.map(slow_service.post, [PREFIX] * 20))
    assert {answer.status for answer in answers} == {202}
    assert len({answer.json()["spec_digest"] for answer in answers}) == 1
    slow_service.go()
    slow_service.until(answers[0].headers["location"], lambda found: "certificate" in found)
    assert slow_service.solves() == 1


def test_a_job_can_be_cancelled_and_posted_again(slow_service: LiveService) -> None:
    place = slow_service.post(PREFIX).headers["location"]
    slow_service.until(place, lambda found: found["state"] == "running")
    cancelled = slow_service.send("DELETE", place)
    assert (cancelled.status, cancelled.json()["state"]) == (202, "cancelled")
    assert slow_service.get(place).json()["state"] == "cancelled"
    slow_service.send("DELETE", place).problem(409, "finished")
    slow_service.go()
    assert slow_service.solve(PREFIX)["spec_digest"] in place
    slow_service.send("DELETE", place).problem(409, "finished")


def test_killed_services_take_their_jobs_up_again(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with serving_apart(store, slow=True) as (client, process):
        place = client.post(PREFIX).headers["location"]
        client.until(place, lambda found: found["progress"] is not None)
        process.kill()
        process.wait()
    (store / "go").touch()
    with serving_apart(store, slow=True) as (client, _):
        assert client.until(place, lambda found: "certificate" in found)["spec_digest"] in place


def test_canonicalize_solves_nothing(live_service: LiveService) -> None:
    before = live_service.solves()
    answer = live_service.send("POST", "/v1/canonicalize", {"workload": {"kind": "prefix", "n": 333}})
    document = answer.json()
    assert set(document) == {"spec", "spec_digest", "known", "estimate", "notes"}
    assert "333 vectors" in document["notes"][0] and "/v1/recommend" in document["notes"][0]
    for quiet in ({"workload": {"kind": "prefix", "n": 127}}, {**document["spec"], "mechanism": {"kind": "dense"}}):
        assert live_service.send("POST", "/v1/canonicalize", quiet).json()["notes"] == [], "few, or by name"
    assert document["spec"]["mechanism"] == {"kind": "dense"}
    assert document["known"] is False
    assert set(document["estimate"]) == {"seconds", "bytes"}
    assert document["estimate"]["seconds"] > 0
    live_service.get(f"/v1/factorizations/{document['spec_digest']}").problem(404, "not-found")
    assert live_service.solves() == before


def test_a_job_says_what_is_optimised_in_place_of_what_was_asked(slow_service: LiveService) -> None:
    spec = {"workload": {"kind": "window", "n": 12, "width": 4}, "mechanism": {"kind": "buffered_linear", "buffers": 2}}
    (note,) = slow_service.post(spec).json()["notes"]
    assert "cannot be optimised for window" in note
    assert slow_service.send("POST", "/v1/canonicalize", spec).json()["notes"] == [note]


def test_the_list_by_age_mixes_jobs_and_foreign_results(tmp_path: Path) -> None:
    """Results of another ledger, then jobs, then results written into the store beside the service."""
    with serving(tmp_path / "store") as live:
        old = [live.solve(prefix(n))["spec_digest"] for n in (2, 3)]
    (tmp_path / "store" / "jobs.sqlite").unlink()
    time.sleep(1.1)  # results state their time to the second
    with serving(tmp_path / "store") as live:
        job = live.solve(prefix(4))["spec_digest"]
        time.sleep(1.1)
        live.store.put(solve(parse_spec(prefix(5))))
        new = parse_spec(prefix(5)).digest
        pages, cursor = [], ""
        while cursor is not None:
            page = live.get(f"/v1/factorizations?limit=1{cursor and '&cursor='}{cursor}").json()
            assert set(page) == {"items", "next", "whole"}
            pages.append([(item["spec_digest"], item["summary"]) for item in page["items"]])
            cursor = page["next"]
        found = [entry for page in pages for entry in page]
        assert all(len(page) == 1 for page in pages)
        assert [name for name, _ in found[:2]] == [new, job]
        assert sorted(name for name, _ in found[2:]) == sorted(old)
        assert found[0][1].startswith("prefix(n=5), single, mean, square_root")
        assert len({summary for _, summary in found}) == 4
        for none in ("state=failed", "workload=momentum"):
            assert live.get(f"/v1/factorizations?{none}").json() == {"items": [], "next": None, "whole": True}
        assert len(live.get("/v1/factorizations?state=done&workload=prefix").json()["items"]) == 4


ENDED_BADLY = [
    ({"type": "store-unavailable", "message": "/srv/store: Permission denied"}, "could not use its store"),
    ({"type": "store-unavailable", "message": "s3.internal:9000 does not answer"}, "could not use its store"),
    ({"type": "failed", "message": "exit status 1: /opt/py/lib/solve.py: OSError at tcp://10.0.0.6:8786"}, "status 1"),
    ({"type": "crashed", "message": "no connection to 10.0.0.6:5432 for 3.5 s"}, "3.5 s"),
    ({"type": "limit-exceeded", "message": "gap 1e-3/step after 1.5 s; use n/2"}, "gap 1e-3/step after 1.5 s; use n/2"),
]


def test_a_failed_job_names_no_place_of_the_service(tmp_path: Path) -> None:
    with serving(tmp_path / "store", solver="no_solver") as live:
        for number, (error, kept) in enumerate(ENDED_BADLY):
            name, spec = str(number) * 64, json.dumps(parse_spec(prefix(4)).document())
            job, _ = live.service.ledger.claim(JobOrder(name, spec, "prefix", 1, 1.0))
            live.service.ledger.fail(job, error)
            for shown in (
                live.get(f"/v1/factorizations/{name}").json(),
                live.get("/v1/factorizations").json()["items"][0],
                live.get(f"/v1/factorizations/{name}/events").body.decode(),
            ):
                assert kept in str(shown)
                assert not [
                    word for word in ("/srv", "/opt", "10.0.0.6", ":8786", ":5432", "s3.internal") if word in str(shown)
                ]


def test_manifests_are_revalidated_by_digest(live_service: LiveService) -> None:
    manifest = live_service.solve(PREFIX)
    tag = f'"{manifest["digest"]}"'
    pinned = live_service.get(f"/v1/factorizations/{manifest['digest']}")
    assert (pinned.headers["etag"], "immutable" in pinned.headers["cache-control"]) == (tag, True)
    by_spec = f"/v1/factorizations/{manifest['spec_digest']}"
    assert live_service.get(by_spec).headers["cache-control"] == "no-cache"
    unchanged = live_service.get(by_spec, {"If-None-Match": f'"x", {tag}'})
    assert (unchanged.status, unchanged.body) == (304, b"")
    head = live_service.send("HEAD", by_spec)
    assert (head.status, head.body, int(head.headers["content-length"]) > 0) == (200, b"", True)


def _files(live: LiveService) -> set[str]:
    return set(live.service.store.objects.names("blobs"))


def test_a_file_with_further_matrices_is_made_once(live_service: LiveService) -> None:
    spec = {"workload": {"kind": "prefix", "n": 12}, "mechanism": {"kind": "dense"}}
    base = live_service.solve(spec)
    by_digest, stored = f"/v1/factorizations/{base['digest']}", _files(live_service)
    unmade = live_service.get(f"{by_digest}?matrices=C,C_inv,B").problem(404, "not-found")
    assert f"POST {by_digest}?matrices=C,C_inv,B" in unmade["detail"] and _files(live_service) == stored
    full = live_service.send("POST", f"{by_digest}?matrices=C,C_inv,B").json()
    assert live_service.post(spec, query="?matrices=C,C_inv,B").json() == full
    assert set(full["matrices"]) == {"C", "C_inv", "B"}
    assert full["digest"] != base["digest"]
    place = f"/v1/factorizations/{base['spec_digest']}"
    live_service.service.forms._known.clear()  # as after a restart
    live_service.service.catalog._next = float("-inf")
    assert live_service.get(f"{place}?matrices=B,C_inv").json() == full
    assert live_service.get(place).json() == base
    assert live_service.get(f"{place}?matrices=C").json() == base
    for names in ("D", "C;B", "C,", "c"):
        live_service.get(f"{place}?matrices={names}").problem(422, "invalid-parameter")


def test_more_matrices_than_memory_are_refused(live_service: LiveService, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = {"workload": {"kind": "prefix", "n": 61}, "mechanism": {"kind": "dense"}}
    base = live_service.solve(spec)
    engine = live_service.service.engine
    monkeypatch.setattr(engine.solves, "rooms", lambda: [(0, 1)])  # the engine asks again at every tick
    monkeypatch.setattr(engine, "rooms", [(0, 1)])
    assert "Stream the rows" in live_service.post(spec, query="?matrices=C_inv,B").problem(422, "too-large")["detail"]
    assert live_service.post(spec, query="?matrices=C").json() == base


def test_a_job_that_no_worker_has_room_for_says_so(tmp_path: Path, within: CommandLine) -> None:
    with serving(tmp_path / "store", solver=SLOW_SOLVER) as live:
        place = live.post({"workload": {"kind": "prefix", "n": 2000}, "mechanism": {"kind": "dense"}}).headers[
            "location"
        ]
        assert "notes" not in live.get(place).json()
    with serving(tmp_path / "store", solver=SLOW_SOLVER, capacity_mb=100) as live:
        job = live.until(place, lambda found: found.get("notes"))
        assert job["state"] == "queued" and job["notes"][0].startswith("it waits for a worker with ")
        assert "the largest has 0.1 GiB (capacity_mb); start a larger one, or cancel the job" in job["notes"][0]
        assert job["notes"][0] in within("jobs", "show", job["spec_digest"], "--service", live.url).out


def test_what_does_not_fit_is_refused_with_the_estimate(tmp_path: Path) -> None:
    with serving(tmp_path / "store", capacity_mb=100) as live:
        document = live.post({"workload": {"kind": "prefix", "n": 8000}}).problem(422, "too-large")
        assert document["estimate"]["bytes"] > 100 * 2**20
        assert "GiB" in document["detail"]
        assert live.get("/v1/factorizations").json()["items"] == []


def test_every_answer_of_a_connection_is_whole(live_service: LiveService) -> None:
    """Three requests on one connection, sent at once."""
    body = json.dumps(PREFIX).encode()
    post = b"POST /v1/canonicalize HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    last = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    answer = live_service.raw(post + post + last)
    assert answer.count(b"HTTP/1.1 200 OK") == 3
    assert answer.endswith(b'{"status":"ok"}')


def test_a_lost_database_is_no_fault_of_the_request(tmp_path: Path) -> None:
    with serving(tmp_path / "store") as live:
        known = live.solve(PREFIX)["digest"]
        with closing(sqlite3.connect(tmp_path / "store" / "jobs.sqlite")) as database:
            database.execute("alter table jobs rename to gone")
            live.get("/v1/factorizations/" + "0" * 64).problem(503, "unavailable")
            (missing,) = live.get("/readyz").problem(503, "unavailable")["missing"]
            assert missing["state"] == "ledger-unreachable" and "no such table: jobs" in missing["detail"]
            assert live.get(f"/v1/factorizations/{known}").status == 200
            database.execute("alter table gone rename to jobs")
        live.get("/v1/factorizations/" + "0" * 64).problem(404, "not-found")


def test_a_store_that_is_only_read_serves_what_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(tmp_path / "store") as live:
        known = live.solve(PREFIX)["digest"]

    def refuse(*_: Any) -> int:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Files, "create", refuse)
    monkeypatch.setattr(Files, "make_directory", refuse)
    with serving(tmp_path / "store", database=f"sqlite:///{tmp_path / 'jobs.sqlite'}") as live:
        assert live.post(PREFIX).json()["digest"] == known and live.get(f"/v1/factorizations/{known}").status == 200
        refusal = live.post(prefix(17)).problem(503, "unavailable")
        assert "the store of this service is read-only" in refusal["detail"]
        notes = live.get("/readyz").json()["notes"]
        assert "store-read-only" in [note["state"] for note in notes]

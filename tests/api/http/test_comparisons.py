"""Comparisons through the two doors: the table of the library, as text, JSON, picture and events."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from command_line import CommandLine
from patience import wait_for
from servers import SLOW_SOLVER, Answer, LiveService, serving

from factorize.api.http import pending
from factorize.solvers import compare
from factorize.spec import parse_spec

SPEC: dict[str, Any] = {"workload": {"kind": "prefix", "n": 12}}
OWN = {"workload": {"kind": "matrix", "rows": [[1, 0, 0], [1, 2, 0], [1, 2, 3]]}}
EPOCHS = {"kind": "fixed_epochs", "epochs": 8}
ROW = "mechanism parameters normalization loss relative_gap sensitivity noise_vectors flops redraws seconds"


def losses(table: dict[str, Any]) -> list[tuple[str, float]]:
    return [(row["mechanism"], row["loss"]["objective"]) for row in table["rows"]]


@pytest.fixture(scope="module")
def expected() -> list[tuple[str, float]]:
    return losses(compare(parse_spec(OWN), buffers=2).to_dict())


def test_the_command_line_gives_the_table_of_a_matrix_that_is_not_stored(
    within: CommandLine, tmp_path: Path, expected: list[tuple[str, float]]
) -> None:
    picture = tmp_path / "table.png"
    done = within("compare", json.dumps(OWN), "--buffers", 2, "--output", "json", "--plot", picture)
    assert done.code == 0, done.err
    table = done.json()
    assert losses(table) == expected
    assert all(row.keys() >= set(ROW.split()) for row in table["rows"])
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert list(tmp_path.rglob("*.safetensors")) == []  # nothing is stored


def test_the_text_has_a_line_for_each_row_and_reason(within: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "factorize.solvers.comparing.plan.optimised", lambda *_: []
    )  # their rows read alike, and take longest
    options = ("--epsilon", 1, "--delta", 1e-6, "--dataset-size", 1200, "--batch-size", 100)
    text = within("compare", json.dumps(SPEC), *options).out
    assert any(line.split()[:2] == ["identity", "poisson"] for line in text.splitlines())
    assert "under balls in bins" in text or "balls_in_bins (random allocation" in text
    assert "Secret: " in text and "next: factorize solve" in text
    assert "left out: semidefinite" in text or "semidefinite" in text
    assert "lower bound" in text
    assert sum(line.startswith("*") for line in text.splitlines()) == 2  # the row, and why


def answer_at(live: LiveService, place: str) -> Answer:
    """Wait for the answer at an address, however long a loaded machine takes."""
    return wait_for(lambda: answer if (answer := live.get(place, {"Prefer": "wait=30"})).status != 202 else None)


def compare_at(live: LiveService, asked: dict[str, Any]) -> Answer:
    """Ask for a comparison and wait for its answer."""
    first = live.send("POST", "/v1/compare", asked)
    return answer_at(live, first.headers["location"]) if first.status == 202 else first


def test_http_gives_the_table_of_a_matrix_of_ones_own(
    live_service: LiveService, expected: list[tuple[str, float]]
) -> None:
    answer = compare_at(live_service, {"spec": OWN, "buffers": 2})
    assert answer.status == 200, answer.body
    assert dict(losses(answer.json())) == pytest.approx(dict(expected), rel=1e-6)
    assert answer.json()["recommendation"]


def test_http_compares_under_sampling(live_service: LiveService) -> None:
    spec = {**SPEC, "workload": {"kind": "prefix", "n": 8}, "participation": {"kind": "fixed_epochs", "epochs": 2}}
    asked = {"spec": spec, "buffers": 2, "epsilon": 2.0, "delta": 1e-5, "samplings": ["balls_in_bins"]}
    table = compare_at(live_service, asked).json()
    chosen = table["rows"][table["recommendation"]["row"]]
    assert {row["sampling"] for row in table["rows"]} == {None, "balls_in_bins"}
    assert chosen["method"] in ("verified", "deterministic") and chosen["noise_vectors"] <= 2
    assert {one["sampling"] for one in table["samplings"]} == {"fixed", "balls_in_bins"}


def test_http_tells_how_far_it_is(live_service: LiveService) -> None:
    answer = live_service.send("POST", "/v1/compare", {"spec": SPEC}, {"Accept": "text/event-stream"})
    assert answer.headers["content-type"].startswith("text/event-stream")
    frames = answer.body.decode().strip().split("\n\n")
    events = [frame.split("\n", 1) for frame in frames if not frame.startswith(":")]  # a slow answer has comments
    names = [name.removeprefix("event: ") for name, _ in events]
    assert names[-1] == "done" and set(names[:-1]) <= {"progress"}
    table, *_ = [json.loads(data.removeprefix("data: ")) for _, data in reversed(events)]
    news = [json.loads(data.removeprefix("data: ")) for _, data in events[:-1]]
    assert news and table["rows"]
    assert all(0 <= one["done"] <= one["total"] > 0 for one in news)
    assert all(isinstance(one["mechanism"], str) and one["mechanism"] for one in news)


def _at_work(live: LiveService) -> float:
    lines = live.get("/metrics").body.decode().splitlines()
    counts = [float(line.split()[-1]) for line in lines if line.startswith('factorize_work{kind="comparison"')]
    assert counts
    return sum(counts)


def test_an_answer_that_takes_long_has_an_address(live_service: LiveService) -> None:
    asked = {"spec": {"workload": {"kind": "prefix", "n": 33}}, "buffers": 2}
    first = live_service.send("POST", "/v1/compare", asked, {"Prefer": "wait=0"})
    assert first.status == 202 and first.json()["state"] == "running" and int(first.headers["retry-after"]) > 0
    place = first.headers["location"]
    assert live_service.send("POST", "/v1/compare", asked, {"Prefer": "wait=0"}).headers["location"] == place  # joined
    answer = answer_at(live_service, place)
    assert answer.status == 200 and answer.json()["rows"]
    assert live_service.send("POST", "/v1/compare", asked).json() == answer.json()
    live_service.get(f"/v1/answers/{'0' * 64}").problem(404, "not-found")
    live_service.send("DELETE", place).problem(404, "not-found")  # it is there


def test_a_long_answer_is_one_for_all_services_of_a_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending, "TELL_SECONDS", 0.1)
    asked = {"spec": {"workload": {"kind": "prefix", "n": 64}, "participation": EPOCHS}, "buffers": 2}
    long = {"spec": {"workload": {"kind": "prefix", "n": 3000}, "participation": EPOCHS}}
    slow = {"solver": SLOW_SOLVER}
    with serving(tmp_path / "store", **slow) as one, serving(tmp_path / "store", **slow) as other:
        place = one.send("POST", "/v1/compare", asked, {"Prefer": "wait=0"}).headers["location"]
        assert other.send("POST", "/v1/compare", asked, {"Prefer": "wait=0"}).headers["location"] == place
        assert _at_work(other) == 0
        answers = [answer_at(live, place) for live in (other, one, other)]
        assert [answer.status for answer in answers] == [200] * 3 and len({answer.body for answer in answers}) == 1
        place = one.send("POST", "/v1/compare", long, {"Prefer": "wait=0"}).headers["location"]
        assert other.get(place, {"Prefer": "wait=0"}).json()["state"] == "running"
        assert other.send("DELETE", place).json()["state"] == "cancelled"
        other.get(place).problem(404, "not-found")
        wait_for(lambda: _at_work(one) == 0)
        monkeypatch.setattr(pending, "IDLE_SECONDS", 0.2)
        place = one.send("POST", "/v1/compare", long, {"Prefer": "wait=0"}).headers["location"]
        wait_for(lambda: _at_work(one) == 0)  # nobody looks
        for live in (one, other):
            live.get(place).problem(404, "not-found")


def test_a_refusal_is_told_by_every_service_and_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending, "TELL_SECONDS", 0.1)
    long = {"spec": {"workload": {"kind": "prefix", "n": 3000}, "participation": EPOCHS}}
    now = {"Prefer": "wait=0"}
    slow = {"solver": SLOW_SOLVER}
    with serving(tmp_path / "store", max_solve_seconds=1, **slow) as one, serving(tmp_path / "store", **slow) as other:
        place = one.send("POST", "/v1/compare", long, now).headers["location"]
        wait_for(lambda: one.get(place, now).status != 202)
        wait_for(lambda: other.get(place, now).status != 202)
        details = [live.get(place).problem(422, "too-large")["detail"] for live in (one, other)]
        assert details[0] == details[1] and "seconds" in details[0]
        assert other.send("POST", "/v1/compare", long, now).status == 202
        assert other.send("DELETE", place).json()["state"] == "cancelled"


def test_a_small_comparison_overtakes_long_ones_which_end_when_their_caller_says_so(slow_service: LiveService) -> None:
    """Two long ones are at work and one is in line: the small one has a place that is kept."""
    places = []
    for n in (2992, 3000, 3008):
        long = {"spec": {"workload": {"kind": "prefix", "n": n}, "participation": EPOCHS}}
        places.append(slow_service.send("POST", "/v1/compare", long, {"Prefer": "wait=0"}).headers["location"])
    small = {"spec": {"workload": {"kind": "prefix", "n": 24}}, "buffers": 1}
    wait_for(lambda: slow_service.send("POST", "/v1/compare", small, {"Prefer": "wait=5"}).status == 200)
    assert [slow_service.get(place, {"Prefer": "wait=0"}).status for place in places] == [202] * 3
    for place in places:
        assert slow_service.send("DELETE", place).json()["state"] == "cancelled"
        answer_at(slow_service, place).problem(404, "not-found")


def test_a_service_that_ends_ends_its_questions(tmp_path: Path) -> None:
    request = (
        b"POST /v1/compare HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\nContent-Length: %d\r\n\r\n%b"
    )
    body = json.dumps({"spec": {"workload": {"kind": "prefix", "n": 2000}}}).encode()
    with ExitStack() as stack:
        live = stack.enter_context(serving(tmp_path, solver=SLOW_SOLVER))
        with live.connected() as connection:
            connection.sendall(request % (len(body), body))
            received = b""
            while b"event: progress" not in received:
                received += connection.recv(65536)
            stack.close()
            received += b"".join(iter(lambda: connection.recv(65536), b""))
    assert b"event: failed" in received and b"unavailable" in received

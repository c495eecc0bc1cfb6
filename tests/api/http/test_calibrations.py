"""Calibrations over HTTP: the answer of the command line, from a worker, kept in memory while it is among the newest."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from command_line import CommandLine
from servers import LiveService, serving

from factorize.api.http import questions
from factorize.client import Service
from factorize.errors import ServiceError
from factorize.numbers.gaussian import noise_multiplier_for_epsilon

SPEC = {
    "workload": {"kind": "prefix", "n": 32},
    "mechanism": {"kind": "square_root"},
    "participation": {"kind": "fixed_epochs", "epochs": 4},
}
TARGET = {"epsilon": 4.0, "delta": 1e-4}
BINS = {**TARGET, "sampling": "balls_in_bins"}


@pytest.fixture(scope="module")
def digest(live_service: LiveService) -> str:
    return live_service.solve(SPEC)["digest"]


def test_a_stored_factorization_is_calibrated(live_service: LiveService, digest: str) -> None:
    path = f"/v1/factorizations/{digest}/calibrations"
    fixed = live_service.send("POST", path, TARGET).json()
    assert fixed["sigma_of_sums"] == pytest.approx(
        noise_multiplier_for_epsilon(4.0, 1e-4) * fixed["sensitivity"], rel=1e-9
    )
    answer = live_service.send("POST", path, {**BINS, "divisor": 5}).json()
    mechanism = answer["claim"]["mechanism"]
    assert (mechanism["factors"], mechanism["bins"]) == (f"sha256:{digest}", 8)
    assert answer["sigma_of_means"] == pytest.approx(answer["sigma_of_sums"] / 5, rel=1e-15)
    assert answer["sigma_of_sums"] < answer["deterministic_sigma"] < fixed["sigma_of_sums"]


def test_the_newest_answers_are_kept(live_service: LiveService, digest: str) -> None:
    service = live_service.one()  # behind a balancer each service has its own
    path = f"/v1/factorizations/{digest}/calibrations"
    asked = {**BINS, "delta": 1e-5}
    first = service.send("POST", path, asked)
    again = service.send("POST", path, {**asked, "clip_norm": 1.0}, {"Accept": "text/event-stream"})
    kind, data = again.body.decode().strip().split("\n")
    assert kind == "event: done"
    assert json.loads(data.removeprefix("data: ")) == first.json()  # `seconds` too: nothing was computed


def test_one_question_is_worked_out_once_for_all_who_wait_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    ask = questions._ask

    def counted(kind: str, *rest: Any) -> bytes:
        asked.append(kind)
        return ask(kind, *rest)

    monkeypatch.setattr(questions, "_ask", counted)
    with serving(tmp_path / "store") as live:
        path = f"/v1/factorizations/{live.solve(SPEC)['digest']}/calibrations"
        with ThreadPoolExecutor(4) as threads:
            found = list(threads.map(lambda _: live.send("POST", path, BINS), range(4)))
    assert [answer.status for answer in found] == [200] * 4 and len({answer.body for answer in found}) == 1
    assert asked == ["calibrate"]


def test_clients_get_what_the_command_line_gets(live_service: LiveService, digest: str, tmp_path: Path) -> None:
    done = CommandLine(tmp_path)(
        "calibrate", digest, "--service", live_service.url, "--epsilon", 4, "--delta", 1e-4, "--output", "json"
    )
    assert done.code == 0, done.err
    assert done.json() == Service(live_service.url).calibrate(digest, TARGET)
    refused = CommandLine(tmp_path)("calibrate", "x.safetensors", "--service", live_service.url, "--mu", 1)
    assert refused.code == 2 and "leave out --service" in refused.err
    with pytest.raises(ServiceError, match="needs epsilon and delta"):
        Service(live_service.url).calibrate(digest, {"mu": 1.0, "sampling": "balls_in_bins"})

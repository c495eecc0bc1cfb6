"""Calibrations over HTTP: the answer of the command line, from a process of its own, as a job where it takes long."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from command_line import CommandLine
from servers import Client, LiveService, serving_apart

from factorize.accounting.calibration_request import CalibrationRequest
from factorize.api.http import calibration_jobs
from factorize.api.http.calibration_jobs import CalibrationJob, CalibrationJobs
from factorize.api.http.child_answers import ChildQuestion
from factorize.api.http.problems import ProblemAnswer
from factorize.api.service import SolverService
from factorize.client import Service
from factorize.errors import ServiceError
from factorize.numbers.gaussian import gaussian_delta, noise_multiplier_for_epsilon

SPEC = {
    "workload": {"kind": "prefix", "n": 32},
    "mechanism": {"kind": "square_root"},
    "participation": {"kind": "fixed_epochs", "epochs": 4},
}
TARGET = {"epsilon": 4.0, "delta": 1e-4}
BINS = {**TARGET, "sampling": "balls_in_bins"}
WAIT = {"Prefer": "wait=30"}


@pytest.fixture(scope="module")
def digest(live_service: LiveService) -> str:
    return live_service.solve(SPEC)["digest"]


def answered(client: Client, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """Post a calibration and follow it to its end, as a client does."""
    answer = client.send("POST", path, body, WAIT)
    if answer.status == 202:
        return client.until(answer.headers["location"], lambda document: "sigma_of_sums" in document)
    assert answer.status == 200, answer
    return answer.json()


def test_a_stored_factorization_is_calibrated(live_service: LiveService, digest: str) -> None:
    path = f"/v1/factorizations/{digest}/calibrations"
    fixed = answered(live_service, path, TARGET)
    assert fixed["sigma_of_sums"] == pytest.approx(
        noise_multiplier_for_epsilon(4.0, 1e-4) * fixed["sensitivity"], rel=1e-9
    )
    answer = answered(live_service, path, {**BINS, "divisor": 5})
    mechanism = answer["claim"]["mechanism"]
    assert (mechanism["factors"], mechanism["bins"]) == (f"sha256:{digest}", 8)
    assert answer["sigma_of_means"] == pytest.approx(answer["sigma_of_sums"] / 5, rel=1e-15)
    assert answer["sigma_of_sums"] < answer["deterministic_sigma"] < fixed["sigma_of_sums"]


def test_what_a_given_noise_is_worth_is_answered(live_service: LiveService, digest: str) -> None:
    path = f"/v1/factorizations/{digest}/calibrations"
    given = {"sigma": 3.0, "delta": 1e-4}
    fixed = answered(live_service, path, given)
    bins = answered(live_service, path, {**given, "sampling": "balls_in_bins"})
    assert bins["claim"]["sigma"] == (3.0).hex() and bins["claim"]["epsilon"] == bins["epsilon"].hex()
    assert bins["sigma_of_sums"] == 3.0 and bins["epsilon"] < fixed["epsilon"]
    delta = answered(live_service, path, {"sigma": 3.0, "epsilon": 2.0})["delta"]
    assert delta == gaussian_delta(2.0, fixed["mu"])


@pytest.mark.parametrize(
    ("body", "slug", "words"),
    [
        ({}, "invalid-spec", "exactly one"),
        ({"sigma": 1.0}, "invalid-spec", "exactly one of epsilon and delta"),
        ({"sigma": 1.0, "delta": 0.1, "mu": 1.0}, "invalid-spec", "exactly one of epsilon and delta"),
        ({"sigma": 1e-40, "delta": 0.1}, "invalid-parameter", "sigma"),
        ({**TARGET, "colour": 1}, "invalid-spec", "colour"),
        ({**TARGET, "batch_size": 5}, "invalid-parameter", "divides nothing"),
        ({**BINS, "batch_size": 5}, "invalid-parameter", "divides nothing"),
        ({**TARGET, "divisor": 0}, "invalid-spec", "divisor"),
        ({**TARGET, "bins": 0, "sampling": "balls_in_bins"}, "invalid-spec", "bins"),
        ("[]", "invalid-spec", "JSON object"),
        ({**TARGET, "sampling": "shuffle"}, "invalid-parameter", "gives away"),
        ({**TARGET, "sampling": "balls_in_bins", "adjacency": "replace_one"}, "invalid-parameter", "zero_out"),
        ({**TARGET, "sampling": "balls_in_bins", "bins": 33}, "invalid-parameter", "n=32"),
        ({"mu": 1.0, "sampling": "balls_in_bins"}, "invalid-parameter", "no Gaussian"),
    ],
)
def test_bad_requests_are_problems(live_service: LiveService, digest: str, body: Any, slug: str, words: str) -> None:
    problem = live_service.send("POST", f"/v1/factorizations/{digest}/calibrations", body, WAIT).problem(422, slug)
    assert words in str(problem)


def test_an_unknown_name_is_not_found(live_service: LiveService) -> None:
    live_service.send("POST", f"/v1/factorizations/{'0' * 64}/calibrations", TARGET).problem(404, "not-found")
    live_service.send("POST", "/v1/factorizations/colour/calibrations", TARGET).problem(404, "not-found")


def test_what_takes_long_is_a_job_that_is_worked_out_once(live_service: LiveService, digest: str) -> None:
    service = live_service.one()  # behind a balancer each service has its own
    path = f"/v1/factorizations/{digest}/calibrations"
    asked = {**BINS, "delta": 1e-5}
    first, second = (service.send("POST", path, asked, {"Prefer": "wait=0"}) for _ in range(2))
    assert first.status == 202 and first.headers["preference-applied"] == "wait=0"
    job = first.json()
    assert job["state"] in ("queued", "running") and job["digest"] == digest and job["request"] == asked
    assert (second.json()["calibration"], second.json()["submitted"]) == (job["calibration"], job["submitted"])
    where = first.headers["location"]
    assert where == second.headers["location"] and first.headers["retry-after"] == "1"
    found = service.until(where, lambda document: "sigma_of_sums" in document)
    again = service.send("POST", path, asked)
    assert again.status == 200 and again.json() == found  # `seconds` too: nothing was computed
    assert service.get(where).json() == found
    service.send("DELETE", where).problem(409, "finished")


def test_a_job_that_was_cancelled_while_it_ran_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its process is then ended by request, and what that says is no answer to who asks later."""
    job = CalibrationJob("0" * 64, CalibrationRequest(epsilon=1.0, delta=1e-5))

    def ended(_question: ChildQuestion, _service: object, stop: threading.Event) -> bytes:
        assert job.state == "running" and job.cancel() and stop.is_set()
        raise ProblemAnswer("unavailable", "the process was ended")

    monkeypatch.setattr(ChildQuestion, "ask", ended)
    job.run(cast(SolverService, None))
    assert job.state == "cancelled" and job.problem is None


def test_as_many_answers_are_kept_as_stated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration_jobs, "KEPT", 4)
    monkeypatch.setattr(ChildQuestion, "ask", lambda *_: b"{}")
    jobs = CalibrationJobs(cast(SolverService, SimpleNamespace(meter=SimpleNamespace(check_left=lambda _: None))))
    asked = [CalibrationRequest(mu=float(place + 1)) for place in range(6)]
    for request in asked:
        jobs.obtain("0" * 64, request).future.result(timeout=10)
    assert [jobs.known("0" * 64, request) is not None for request in asked] == [False] * 2 + [True] * 4
    jobs.close()


def test_jobs_are_cancelled(live_service: LiveService, digest: str) -> None:
    service = live_service.one()
    path = f"/v1/factorizations/{digest}/calibrations"
    waiting = [service.send("POST", path, {**BINS, "clip_norm": 1.0 + k}, {"Prefer": "wait=0"}) for k in range(5)]
    places = [answer.headers["location"] for answer in waiting]
    for where in reversed(places[1:]):  # the last are queued behind the first; one runs at a time
        assert service.send("DELETE", where).json()["state"] == "cancelled"
        service.send("DELETE", where).problem(409, "finished")
        assert service.get(where).json()["state"] == "cancelled"
    posted = service.send("POST", path, {**BINS, "clip_norm": 3.0}, {"Prefer": "wait=0"})
    assert posted.status == 202 and posted.json()["state"] != "cancelled"  # asked anew
    service.send("DELETE", posted.headers["location"])
    service.send("DELETE", f"{path}?epsilon=3&delta=0.1").problem(404, "not-found")
    service.get(f"{path}?epsilon=3&epsilon=4&delta=0.1").problem(422, "invalid-spec")
    service.get(f"{path}?epsilon=three&delta=0.1").problem(422, "invalid-spec")


def test_a_service_that_was_killed_answers_at_the_same_address(tmp_path: Path) -> None:
    store, asked = tmp_path / "store", {**BINS, "method": "deterministic"}
    with serving_apart(store) as (client, process):
        path = f"/v1/factorizations/{client.solve(SPEC)['digest']}/calibrations"
        where = client.send("POST", path, asked, {"Prefer": "wait=0"}).headers["location"]
        process.kill()
        process.wait(600)
    with serving_apart(store) as (client, _):
        found = client.until(where, lambda document: "sigma_of_sums" in document)
        assert Service(client.url, pause=0.1).calibrate(where.split("/")[3], asked) == found


def test_clients_get_what_the_command_line_gets(live_service: LiveService, digest: str, tmp_path: Path) -> None:
    done = CommandLine(tmp_path)(
        "calibrate", digest, "--service", live_service.url, "--epsilon", 4, "--delta", 1e-4, "--output", "json"
    )
    assert done.code == 0, done.err
    assert done.json() == Service(live_service.url).calibrate(digest, TARGET)
    refused = CommandLine(tmp_path)("calibrate", "x.safetensors", "--service", live_service.url, "--mu", 1)
    assert refused.code == 2 and "leave out --service" in refused.err
    with pytest.raises(ServiceError, match="no Gaussian"):
        Service(live_service.url).calibrate(digest, {"mu": 1.0, "sampling": "balls_in_bins"})

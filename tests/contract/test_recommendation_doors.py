"""A job out of the ordinary gets one answer with its basis, or one refusal with a way, over HTTP and on a command line."""

from __future__ import annotations

from typing import Any

import pytest
from command_line import CommandLine
from servers import LiveService

JOB: dict[str, Any] = {"examples": 6, "batch_size": 2, "epochs": 1, "epsilon": 2.0, "delta": 1e-3, "parameters": 400}
JOB |= {"memory": [0], "samplings": ["fixed"]}
OPTIONS = {"samplings": "sampling"}
ONE_STEP = {"examples": 2}
"""One epoch of one batch."""


def rates(*listed: float) -> dict[str, Any]:
    return {"workload": {"kind": "schedule", "learning_rates": list(listed)}}


def both(service: LiveService, command: CommandLine, changes: dict[str, Any]) -> list[Any]:
    """What HTTP and the command line say: the answer, or in words what is wrong."""
    asked = {**JOB, **changes}
    sent = service.send("POST", "/v1/recommend", asked, {"Prefer": "wait=30"})
    while sent.status == 202:
        sent = service.get(sent.headers["location"], {"Prefer": "wait=30"})
    options = {**asked.pop("workload", {}), **asked}
    kind = [options.pop("kind")] if "kind" in options else []
    shown = {name: ",".join(map(str, x)) if isinstance(x, list) else x for name, x in options.items()}
    words = [f"--{OPTIONS.get(name, name).replace('_', '-')}={x}" for name, x in shown.items()]
    done = command("recommend", *kind, *words, "--output", "json").json()
    return [sent.json() if sent.status == 200 else sent.json()["detail"], done.get("error", {}).get("detail", done)]


@pytest.mark.parametrize(
    ("changes", "mechanism", "far"),
    [
        (ONE_STEP | {"epsilon": 0.01}, "identity", "steps 1 or epsilon 0.01"),
        (ONE_STEP | {"epsilon": 50.0}, "identity", "steps 1 or epsilon 50"),
        (rates(0.0, 1.0, 2.0), None, "steps 3"),
    ],
)
def test_a_job_far_from_the_study_is_answered_and_told_so(
    live_service: LiveService, within: CommandLine, changes: dict[str, Any], mechanism: str | None, far: str
) -> None:
    """Every mechanism is the same over one step, so that the answer is independent noise."""
    for found in both(live_service, within, changes):
        assert mechanism in (None, found["mechanism"]) and found["rate"]["value"] > 0
        assert f"no job of the study had {far}" in found["rate"]["basis"]


@pytest.mark.parametrize(
    ("changes", "field", "way"),
    [
        ({"workload": {"kind": "muon"}}, "kind: ", "other takes any optimizer's momentum and learning_rates"),
        (rates(0.0, 0.0, 0.0), "learning_rates", "give at least one positive rate"),
        (rates(-1.0, 1.0, 2.0), "learning_rates", "greater than or equal to 0"),
        ({"epsilon": 0.0}, "epsilon: ", "greater than 0"),
        ({"epochs": 0}, "epochs: ", "greater than or equal to 1"),
    ],
)
def test_a_job_that_is_none_is_refused_alike(
    live_service: LiveService, within: CommandLine, changes: dict[str, Any], field: str, way: str
) -> None:
    for told in both(live_service, within, changes):
        assert field in told and way in told

"""The route of recommendations: the advice of the library for a training job, and each refusal at its field."""

from __future__ import annotations

from typing import Any

import pytest
from servers import LiveService

from factorize import parse_spec
from factorize.api.questions.registry import QUESTIONS
from factorize.workloads import KINDS

JOB: dict[str, Any] = {"examples": 6, "batch_size": 2, "epsilon": 2.0, "delta": 1e-3, "seconds": 600}
FEW = [
    {"kind": "identity"},
    {"kind": "banded_square_root", "bands": 2},
    {"kind": "banded_inverse_square_root", "bands": 3},
    {"kind": "square_root"},
]


def test_a_worker_gives_the_advice_and_its_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """The route itself is asked by the page's test; here four formulas stand for all mechanisms."""
    monkeypatch.setattr("factorize.solvers.comparing.compare.mechanisms", lambda *_: FEW)
    monkeypatch.setattr("factorize.solvers.comparing.compare.optimised", lambda *_: [])
    request = {**JOB, "memory": [2, 1], "samplings": ["fixed"]}
    found = QUESTIONS["recommend"]({"request": request, "store": ""}, lambda **_: None)
    assert found["job"]["steps"] == 3 and found["job"]["memory"] == [1, 2]
    assert found["row"] in found["table"]["rows"] and found["spec_digest"] == parse_spec(found["spec"]).digest
    feasible = [row["rmse_at_privacy"] for row in found["table"]["rows"] if row["noise_vectors"] <= 2]
    assert found["rmse_at_privacy"] == pytest.approx(min(feasible), rel=5e-4)
    assert found["sigma"]["means"] == found["sigma"]["sums"] / 2 and set(found["code"]) == {"torch", "jax", "numpy"}


def test_a_fleet_has_a_route_of_its_own(live_service: LiveService) -> None:
    fleet = {"clients": 5, "clients_a_round": 6, "rounds": 4, "epsilon": 2.0, "delta": 1e-3}
    problem = live_service.send("POST", "/v1/recommend/fleet", fleet).problem(422, "invalid-parameter")
    assert problem["errors"][0]["pointer"] == "/clients_a_round"
    problem = live_service.send("POST", "/v1/recommend/fleet", JOB).problem(422, "invalid-spec")
    assert "/clients" in [error["pointer"] for error in problem["errors"]]
    answer = live_service.send(
        "POST", "/v1/recommend/fleet", {**fleet, "clients": 18, "memory": [1], "seconds": 2}
    ).json()
    assert answer["job"]["min_sep"] == 3 and set(answer["code"]) == {"federated"}


@pytest.mark.parametrize(
    ("change", "slug", "pointer"),
    [
        ({"examples": 0}, "invalid-spec", "/examples"),
        ({"examples": 60.5}, "invalid-spec", "/examples"),
        ({"batch_size": 7}, "invalid-parameter", "/batch_size"),
        ({"delta": 1}, "invalid-spec", "/delta"),
        ({"memory": []}, "invalid-spec", "/memory"),
        ({"memory": [10**7]}, "invalid-spec", "/memory/0"),
        ({"epsilon": -1}, "invalid-spec", "/epsilon"),
        ({"seconds": 0}, "invalid-spec", "/seconds"),
        ({"colour": 1}, "invalid-spec", "/colour"),
        ({"workload": {"kind": "momentum"}}, "invalid-spec", "/workload/momentum"),
        ({"workload": {"kind": "prefix", "n": 3}}, "invalid-spec", "/workload/n"),
        ({"workload": {"kind": "matrix", "rows": [[1]]}}, "invalid-spec", "/workload/kind"),
        ({"objective": {"kind": "weighted", "weights": [1.0]}}, "invalid-spec", "/objective/weights"),
    ],
)
def test_what_is_wrong_is_a_problem_at_its_field(
    live_service: LiveService, change: dict[str, Any], slug: str, pointer: str
) -> None:
    problem = live_service.send("POST", "/v1/recommend", JOB | change).problem(422, slug)
    assert problem["errors"][0]["pointer"] == pointer


def test_a_request_may_name_every_workload_of_a_job(live_service: LiveService) -> None:
    schemas = live_service.get("/openapi.json").json()["components"]["schemas"]
    offered = [
        schemas[one["$ref"].rpartition("/")[2]]["properties"]["kind"]["const"]
        for one in schemas["RecommendRequest"]["properties"]["workload"]["anyOf"]
        if "$ref" in one
    ]
    assert sorted(offered) == sorted(set(KINDS) - {"matrix"})
    assert not any("n" in schemas[name]["properties"] for name in schemas if name.endswith("OfJob"))

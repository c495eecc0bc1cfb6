"""The routes of recommendations: the advice of the library for a fleet, and what a request may name."""

from __future__ import annotations

from servers import LiveService

from factorize.api.questions.optimizer import OPTIMIZERS
from factorize.workloads import KINDS


def test_a_fleet_has_a_route_of_its_own(live_service: LiveService) -> None:
    fleet = {"clients": 18, "clients_a_round": 6, "rounds": 4, "epsilon": 2.0, "delta": 1e-3}
    answer = live_service.send("POST", "/v1/recommend/fleet", {**fleet, "memory": [1], "seconds": 2}).json()
    assert answer["job"]["min_sep"] == 3 and set(answer["code"]) == {"federated"}
    assert answer["row"] in answer["table"]["rows"]


def test_a_request_may_name_every_workload_of_a_job(live_service: LiveService) -> None:
    schemas = live_service.get("/openapi.json").json()["components"]["schemas"]
    offered = [
        schemas[one["$ref"].rpartition("/")[2]]["properties"]["kind"]["const"]
        for one in schemas["RecommendRequest"]["properties"]["workload"]["anyOf"]
        if "$ref" in one
    ]
    assert set(offered) == (set(KINDS) - {"matrix"} | set(OPTIMIZERS))
    assert not any("n" in schemas[name]["properties"] for name in schemas if name.endswith("OfJob"))

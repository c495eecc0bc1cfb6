"""Metrics of a running service, and the dashboard that shows them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from house import ROOT
from patience import wait_for
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families
from servers import serving

from factorize.api.service import SolveCounts

SPEC = '{"mechanism":{"kind":"dense"},"workload":{"kind":"prefix","n":4}}'


def samples(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_solves_are_counted_by_mechanism_and_end(tmp_path: Path) -> None:
    with serving(tmp_path / "store", solver="no_solver") as service:
        posted = service.post(json.loads(SPEC))
        assert posted.status == 202
        name = posted.json()["spec_digest"]
        service.until(f"/v1/factorizations/{name}", lambda job: job["state"] == "failed")
        # The end of a solve is told before its workers are given back.
        wait_for(lambda: b'\nfactorize_worker_solves{worker="local"} 0.0\n' in service.get("/metrics").body)
        found = samples(service.get("/metrics").body.decode())
        offered = service.service.engine.capacity_mb << 20
    assert [v for (name, _), v in found.items() if name == "factorize_worker_solves"] == [0]
    assert [v for (name, _), v in found.items() if name == "factorize_worker_memory_bytes"] == [offered]
    assert found["factorize_solve_duration_seconds_count", (("end", "failed"), ("mechanism", "dense"))] == 1
    assert found["factorize_jobs", (("state", "failed"),)] == 1
    assert found["factorize_queue_oldest_seconds", ()] == found["factorize_memory_admitted_bytes", ()] == 0
    assert found["factorize_work", (("kind", "rows"), ("state", "running"))] == 0


def test_requests_are_counted_by_route_and_status(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(tmp_path / "store", solver="no_solver") as service:
        with monkeypatch.context() as faulty:
            faulty.setattr(service.service, "lookup", lambda *_: 1 / 0)
            answer = service.get(f"/v1/factorizations/{'b' * 64}")
        assert answer.problem(500, "internal")["request_id"] == answer.headers["x-request-id"]
        assert answer.headers["x-content-type-options"] == "nosniff"
        for path in ("/healthz", "/healthz", f"/v1/factorizations/{'a' * 64}", "/strange", "/stranger"):
            service.get(path)
        found = samples(service.get("/metrics").body.decode())
        # A request stays open for a moment after its answer is sent: here only the one that asks is left.
        wait_for(lambda: b"\nfactorize_http_open 1.0\n" in service.get("/metrics").body)

    def count(method: str, route: str, status: str) -> float:
        return found["factorize_http_requests_total", (("method", method), ("route", route), ("status", status))]

    assert count("GET", "/healthz", "200") == 2
    assert count("GET", "/v1/factorizations/{name}", "404") == 1
    assert count("GET", "/v1/factorizations/{name}", "500") == 1
    assert count("GET", "none", "404") == 2
    assert found["factorize_http_seconds_count", (("method", "GET"), ("route", "/healthz"))] == 2


def test_gaps_are_of_solves_that_are_done_and_retries_of_those_that_died() -> None:
    registry = CollectorRegistry()
    counts = SolveCounts(registry)
    counts.count_end(SPEC, "DONE", 2.0, {"relative_gap": 3e-9})
    counts.count_end(SPEC, "DONE", 2.0, {"relative_gap": None})
    counts.count_end(SPEC, "CRASHED", 1.0, {"relative_gap": 0.5})
    value = registry.get_sample_value
    assert value("factorize_solve_duration_seconds_sum", {"mechanism": "dense", "end": "done"}) == 4
    assert value("factorize_relative_gap_sum", {"mechanism": "dense"}) == pytest.approx(3e-9)
    assert value("factorize_retries_total") == 1


def test_the_dashboard_asks_for_what_is_there_and_the_page_names_it() -> None:
    dashboard = json.loads((ROOT / "docs/pictures/grafana.json").read_text())
    asked = set(re.findall(r"factorize_\w+", json.dumps([panel["targets"] for panel in dashboard["panels"]])))
    page = (ROOT / "docs/http.md").read_text()
    named = set(re.findall(r"`(factorize_\w+)", page))
    assert {re.sub("_(bucket|count)$", "", name) for name in asked} == named

"""Following a request: its id and its trace from the API through the job to its worker."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
from json_log import json_lines
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from patience import wait_for
from servers import LiveService, serving

from factorize.api.telemetry import of_application
from factorize.errors import MissingExtra

SPEC: dict[str, Any] = {"workload": {"kind": "prefix", "n": 6}, "mechanism": {"kind": "square_root"}}
TRACE = "0af7651916cd43dd8448eb211c80319c"
HEADERS = {"X-Request-Id": "run-17.step_2", "traceparent": f"00-{TRACE}-b7ad6b7169203331-01", "Prefer": "wait=30"}


@pytest.fixture(scope="module")
def spans() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory, spans: InMemorySpanExporter) -> Iterator[LiveService]:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    trace.set_tracer_provider(provider)  # of the process, which has one at most
    with serving(tmp_path_factory.mktemp("followed")) as live:
        yield live
    provider.shutdown()


@pytest.fixture(scope="module")
def lines(live: LiveService) -> list[dict[str, Any]]:
    """What is written while one spec is solved for one request."""
    with json_lines() as written:
        live.post(SPEC, HEADERS)
        live.solve(SPEC)
        # Its last line, which the answer does not wait for.
        wait_for(lambda: "a solve is settled" in {line["message"] for line in written()})
        return written()


def test_every_line_of_a_job_names_request_job_and_spec(lines: list[dict[str, Any]], live: LiveService) -> None:
    digest = live.spec_digest(SPEC)
    job = live.service.ledger.get(digest)
    of_job = [line for line in lines if line.get("job") == job.task]  # solves of other services may end meanwhile
    begun = ["a job is queued", "a solve starts", "a solve has ended"]
    assert [line["message"] for line in of_job] == [*begun, "a solve is settled"]
    for line in of_job:
        assert (line["client_request_id"], line["spec_digest"]) == ("run-17.step_2", digest)
        assert line["request_id"] == lines[0]["request_id"] != "run-17.step_2"
    assert of_job[1]["pid"] != os.getpid() and of_job[1]["mechanism"] == "square_root"
    (ended,) = (line for line in of_job if line["message"] == "a solve has ended")
    assert ended["digest"] == live.store.digest_of(digest)


def test_the_answer_of_a_request_has_a_line(lines: list[dict[str, Any]]) -> None:
    first = next(line for line in lines if line["message"] == "a request is answered")
    said = [first[name] for name in ("method", "path", "client_request_id")]
    assert said == ["POST", "/v1/factorizations", "run-17.step_2"]
    assert (
        first["status"] in (200, 202) and first["milliseconds"] > 0 and first["traceparent"] == HEADERS["traceparent"]
    )


def test_spans_of_request_job_solve_and_proof_are_on_one_trace(
    lines: list[dict[str, Any]], spans: InMemorySpanExporter, live: LiveService
) -> None:

    def on_trace() -> dict[str, ReadableSpan]:
        return {span.name: span for span in spans.get_finished_spans() if f"{span.context.trace_id:032x}" == TRACE}

    wait_for(lambda: {"POST /v1/factorizations", "job"} <= set(on_trace()))  # ends after its answer is sent
    found = on_trace()
    request, job = found["POST /v1/factorizations"], found["job"]
    assert f"{request.parent.span_id:016x}" == "b7ad6b7169203331"
    # Another span of the framework may stand between a request and what it does.
    assert job.parent.span_id in {span.context.span_id for name, span in found.items() if name != "job"}
    for name in ("solve", "proof", "store"):
        assert found[name].parent.span_id == job.context.span_id
        assert job.start_time <= found[name].start_time <= found[name].end_time <= job.end_time
    assert found["solve"].end_time == found["proof"].start_time
    assert job.attributes["factorize.spec_digest"] == live.spec_digest(SPEC)
    assert (
        job.attributes["factorize.client_request_id"] == "run-17.step_2"
        and job.attributes["factorize.ending"] == "DONE"
    )


def test_an_address_without_the_sdk_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    assert of_application()["auto_configure"] is True
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"factorize\[otel\]"):
        of_application()
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT")
    assert of_application()["auto_configure"] is False

"""The commands that look after the jobs of a service."""

from __future__ import annotations

from typing import Any

from servers import LiveService

UNKNOWN = "c" * 64
SPEC: dict[str, Any] = {"workload": {"kind": "prefix", "n": 6}, "mechanism": {"kind": "square_root"}}


def test_the_jobs_of_a_service(within, slow_service: LiveService):
    def run(*arguments: str) -> Any:
        return within("jobs", *arguments, "--service", slow_service.url, "--output", "json")

    name = slow_service.post(SPEC).json()["spec_digest"]
    assert [job["spec_digest"] for job in run("list", "--state", "queued").json()["items"]] in ([], [name])
    for words, count in [(name[:12], 1), ("prefix n=6", 1), ("prefix n=7", 0)]:
        assert len(run("list", "--search", words).json()["items"]) == count
    assert run("show", name).json()["state"] in ("queued", "running")
    assert f"spec          {name}" in within("jobs", "show", name, "--service", slow_service.url).out
    assert run("retry", name).code == 2
    assert run("cancel", name).json()["state"] == "cancelled"
    assert within("jobs", "watch", name, "--service", slow_service.url).code == 3
    assert run("retry", name).json()["state"] == "queued"
    slow_service.go()
    ended = run("watch", name)
    assert ended.json()["state"] == "done" and run("show", name).json() == ended.json()
    assert run("show", UNKNOWN).code == 2

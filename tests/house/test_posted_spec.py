"""The way of one posted spec through the product, counted: the numbers are limits that may only fall."""

from __future__ import annotations

import json
import threading
from collections import Counter
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from house import ROOT
from servers import serving

from factorize.api.workers.worker import Worker

MOST_FILES, MOST_CANONICAL, MOST_PARSES = 85, 3, 3
"""Files of which a function runs, up to two more where the service waits; and specs that are read and brought into their
form: by the service, the solver and the prover, once each."""


def answer_here(
    worker: Worker, question: str, request: dict[str, Any], _limits: object = None, tell: Any = lambda _event: None
) -> Any:
    """Answer a worker's question in this process, through JSON as between processes."""
    answer = import_module(worker._module).QUESTIONS[question]
    return json.loads(json.dumps(answer(json.loads(json.dumps(request)), lambda **event: tell(event))))


def test_a_posted_spec_goes_a_short_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Worker, "ask", answer_here)
    monkeypatch.setattr(Worker, "start", lambda _worker: None)
    files: set[str] = set()
    calls: Counter[str] = Counter()
    counts = False

    def note(frame: FrameType, event: str, _argument: object) -> None:
        code = frame.f_code
        if counts and event == "call" and code.co_name != "<module>" and code.co_filename.startswith(str(ROOT)):
            path = Path(code.co_filename).resolve().relative_to(ROOT)
            if path.parts[0] in ("factorize", "solvers", "api"):
                files.add(str(path))
                calls[code.co_qualname] += 1
                calls["parse"] += code.co_name == "read_union" and frame.f_back.f_code.co_name == "parse_spec"

    def post(n: int) -> None:
        spec = {"workload": {"kind": "prefix", "n": n}, "mechanism": {"kind": "dense"}}
        answer = live.post(spec, {"Prefer": "wait=30"})
        if answer.status == 202:  # on a busy machine
            live.until(answer.headers["location"], lambda found: "certificate" in found)

    threading.setprofile(note)  # of threads that begin now: those of the service
    try:
        with serving(tmp_path, processors=3) as live:
            post(40)  # which imports, and makes what is made once
            counts = True
            post(48)
            counts = False
    finally:
        threading.setprofile(None)
    found = len(files), calls["Spec.canonical"], calls["parse"]
    limits = MOST_FILES, MOST_CANONICAL, MOST_PARSES
    assert all(count <= limit for count, limit in zip(found, limits, strict=True)), (found, sorted(files))

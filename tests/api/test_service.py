"""The one path from a spec to its stored result, without HTTP."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hostile_server import make
from servers import shared_pool

from factorize.api.access.caller import ANYONE
from factorize.api.jobs.job import Job
from factorize.api.service import AboveCapacity, SolverService
from factorize.api.settings import Settings
from factorize.api.workers.publishing import Form, read_names
from factorize.api.workers.worker import PROVER, SOLVER
from factorize.errors import (
    InvalidParameter,
    InvalidSpec,
    InvalidWorkload,
    MalformedJson,
    TooLarge,
    UnsupportedProblem,
)
from factorize.spec import parse_spec
from factorize.storage.blobs import blob_key
from factorize.storage.index import Result

SPEC: dict[str, Any] = {"workload": {"kind": "prefix", "n": 7}, "mechanism": {"kind": "square_root"}}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SolverService]:
    settings = Settings(store=str(tmp_path_factory.mktemp("service") / "store"), capacity_mb=4000)
    with SolverService(settings, pool=shared_pool((SOLVER, PROVER), 4000, None)) as running:
        yield running


def finished(service: SolverService, source: Any) -> Result:
    """The result of a spec, however long it takes."""
    end = time.monotonic() + 120
    found: Any = service.obtain(source)
    while isinstance(found, Job):
        assert found.state in ("queued", "running", "done"), found
        found = service.lookup(found.spec_digest)
    while service.ledger.counts()["running"]:  # the result is visible a moment before its child has ended
        assert time.monotonic() < end
        time.sleep(0.02)
    return found


def test_the_same_meaning_gives_the_same_result(service: SolverService) -> None:
    result = finished(service, SPEC)
    for source in (json.dumps(SPEC), json.dumps(SPEC).encode(), {**SPEC, "tolerance": 1e-9}, parse_spec(SPEC)):
        assert service.obtain(source) == result
    assert result.manifest()["spec_digest"] == result.entry.spec_digest == service.canonical(SPEC).digest
    assert service.lookup(result.digest) == result
    assert service.lookup(result.entry.spec_digest) == result
    assert service.lookup("0" * 64) is None


@pytest.mark.parametrize(
    ("source", "error"),
    [
        (b"{", MalformedJson),
        (b"[]", InvalidSpec),
        ({"workload": {"kind": "prefix", "n": 0}}, InvalidSpec),
        ({**SPEC, "mechanism": {"kind": "banded_toeplitz", "bands": 99_999}}, UnsupportedProblem),
        ({"workload": {"kind": "prefix", "n": 10_000_000}, "mechanism": {"kind": "dense"}}, TooLarge),
    ],
)
def test_what_cannot_be_solved_leaves_no_job(service: SolverService, source: Any, error: type[Exception]) -> None:
    before = service.ledger.page()
    with pytest.raises(error):
        service.obtain(source)
    assert service.ledger.page() == before


def test_a_solve_above_the_capacity_states_its_estimate(service: SolverService) -> None:
    with pytest.raises(AboveCapacity, match=r"GiB and .* s; the limit is 3\.9 GiB") as caught:
        service.obtain({"workload": {"kind": "prefix", "n": 16_000}, "mechanism": {"kind": "dense"}})
    assert caught.value.estimate["bytes"] > 4000 * 2**20


def test_a_lost_file_is_solved_again(service: SolverService) -> None:
    spec = {**SPEC, "workload": {"kind": "prefix", "n": 8}}
    result = finished(service, spec)
    service.store.objects.delete(blob_key(result.file.sha256))
    assert isinstance(service.obtain(spec), Job)
    again = finished(service, spec)
    assert again.digest == result.digest
    assert service.store.load(again.digest).verify().converged


def test_a_lost_ledger_loses_no_result(tmp_path: Path) -> None:
    settings = Settings(store=str(tmp_path / "store"))
    pool = shared_pool((SOLVER, PROVER), 4000, None)
    with SolverService(settings, pool=pool) as first:
        result = finished(first, SPEC)
    (tmp_path / "store" / "jobs.sqlite").unlink()
    with SolverService(settings, pool=pool) as second:
        assert second.obtain(SPEC) == result


def test_rows_are_made_in_blocks(service: SolverService) -> None:
    stored = make(1000)
    result = service.results.named(service.store.put(stored)["digest"])
    assert result is not None
    rows = service.results.rows(result, "B", 10, None)
    blocks = list(rows.blocks())
    assert rows.shape == (990, 1000)
    assert len(blocks) > 1
    assert max(len(block) for block in blocks) <= 4 << 20
    whole = np.frombuffer(b"".join(blocks), dtype="<f8").reshape(rows.shape)
    np.testing.assert_array_equal(whole, stored.rows("B", 10, 1000))
    with pytest.raises(InvalidParameter, match="rows 0:1001 are outside B"):
        service.results.rows(result, "B", 0, 1001)


def test_an_inline_matrix_is_kept_before_it_is_solved(service: SolverService) -> None:
    result = finished(service, {"workload": {"kind": "matrix", "rows": [[2.0, 0.0], [1.0, 1.0]]}})
    workload = result.manifest()["spec"]["workload"]
    np.testing.assert_array_equal(service.store.matrices.read(workload["sha256"], [2, 2]), [[2, 0], [1, 1]])
    with pytest.raises(InvalidSpec, match="/workload/sha256"):
        service.obtain({"workload": {**workload, "shape": [3, 3]}})


def test_uploads_are_checked(service: SolverService) -> None:
    with pytest.raises(InvalidWorkload):
        service.upload(np.array([[np.inf]]))
    uploaded = service.upload(np.array([[1.0], [-0.0]]))
    assert uploaded["shape"] == [2, 1]
    np.testing.assert_array_equal(service.store.matrices.read(uploaded["sha256"], [2, 1]), [[1], [0]])


def test_more_matrices_than_memory_are_refused(service: SolverService, monkeypatch: pytest.MonkeyPatch) -> None:
    result = finished(service, {"workload": {"kind": "prefix", "n": 64}, "mechanism": {"kind": "dense"}})
    monkeypatch.setattr(service.engine, "room", (0, 1))
    with pytest.raises(TooLarge, match="Stream the rows"):
        service.forms.of(result, Form(("C_inv", "B")), ANYONE)
    assert service.forms.of(result, Form(("C",)), ANYONE) == result


def test_names_of_matrices() -> None:
    assert read_names(None) == ()
    assert read_names("B,C_inv,B") == ("C_inv", "B")
    for text in ("", "D", "C;B", "C,", "c"):
        with pytest.raises(InvalidParameter, match="C_inv"):
            read_names(text)


def test_a_job_says_what_dense_noise_costs_where_nobody_named_it(service: SolverService) -> None:
    def job(n: int) -> Job:
        asked = {"workload": {"kind": "prefix", "n": n}, "mechanism": {"kind": "dense"}}
        return Job("0" * 64, json.dumps(parse_spec(asked).document()), "prefix", 1, 1.0)

    assert "128 vectors" in service.notes(b'{"workload": {"kind": "prefix", "n": 128}}', job(128))[0]
    assert service.notes(b'{"workload": {"kind": "prefix", "n": 127}}', job(127)) == []
    named = b'{"workload": {"kind": "prefix", "n": 128}, "mechanism": {"kind": "dense"}}'
    assert service.notes(named, job(128)) == []

"""Every route with what it answers and what it refuses, at a service that asks for no key.

A refused request gets its kind of problem, at the field that is wrong or in words that say what is. Statuses by scope, and
refusals of foreign, ended and missing keys, are in tests/api/http/test_access.py and test_tenancy.py; bodies that are no JSON
at all in test_hostile_requests.py; ranges of files in test_downloads.py.
"""

from __future__ import annotations

import math
import re
import struct
from typing import Any

import pytest
from servers import LiveService

from factorize.api.http.problems import KINDS

SPEC: dict[str, Any] = {
    "workload": {"kind": "prefix", "n": 32},
    "mechanism": {"kind": "square_root"},
    "participation": {"kind": "fixed_epochs", "epochs": 4},
}
UNSUPPORTED: dict[str, Any] = {
    "workload": {"kind": "prefix", "n": 8},
    "mechanism": {"kind": "semidefinite"},
    "participation": {"kind": "min_sep", "min_sep": 3},
}
LARGE: dict[str, Any] = {"workload": {"kind": "prefix", "n": 100_000}, "mechanism": {"kind": "dense"}}
PREFIX: dict[str, Any] = {"workload": {"kind": "prefix", "n": 12}}
JOB: dict[str, Any] = {"examples": 6, "batch_size": 2, "epsilon": 2.0, "delta": 1e-3, "seconds": 600}
FLEET: dict[str, Any] = {"clients": 5, "clients_a_round": 6, "rounds": 4, "epsilon": 2.0, "delta": 1e-3}
MEAN: dict[str, Any] = {"kind": "mean_estimation", "learning_rate": 0.05, "rho": 0.5}
QUADRATIC: dict[str, Any] = {"kind": "quadratic", "eigenvalues": [1, 0.1], "learning_rate": 0.1, "sigma": 0.5}
TARGET: dict[str, Any] = {"epsilon": 4.0, "delta": 1e-4}
BINS: dict[str, Any] = {**TARGET, "sampling": "balls_in_bins"}
APART: dict[str, Any] = {**TARGET, "sampling": "b_min_sep", "dataset_size": 100, "batch_size": 5}
BANDED: dict[str, Any] = {"workload": {"kind": "prefix", "n": 16}, "mechanism": {"kind": "banded", "bands": 4}}
UNKNOWN = "a" * 64
JOBS, LIST, COMPARE = "GET /v1/factorizations", "POST /v1/factorizations", "POST /v1/compare"
RECOMMEND, PREDICT, CANONICALIZE = "POST /v1/recommend", "POST /v1/predict", "POST /v1/canonicalize"
CALIBRATE, ROWS = f"{LIST}/{{name}}/calibrations", f"{JOBS}/{{name}}/matrices/C?rows="
CELLS, UPLOAD = f"{JOBS}/{{name}}/matrices/C/cells?", "POST /v1/matrices?"


def sampled(bands: int, sampling: Any = None, participation: Any = None, **more: Any) -> dict[str, Any]:
    """A spec under b-min-sep sampling, of 8 steps in one epoch."""
    spec = {"workload": {"kind": "prefix", "n": 8}, "mechanism": {"kind": "banded", "bands": bands}}
    spec["participation"] = participation or {"kind": "single"}
    return {**spec, "sampling": sampling or {"kind": "b_min_sep", **TARGET, **more}}


# request and body
ANSWERED: list[tuple[str, Any]] = [
    *(
        (f"GET {path}", None)
        for path in ("/healthz", "/readyz", "/metrics", "/problems/too-large", "/", "/openapi.json")
    ),
    ("GET /v1/caller", None),
    (JOBS, None),
    (LIST, SPEC),
    *((f"{JOBS}/{{name}}{part}", None) for part in ("", "/events", "/errors", "/matrices/C", "/matrices/C/cells")),
    (CANONICALIZE, SPEC),
]

# request, body, kind of problem, the pointer or words that it has
REFUSED: list[tuple[str, Any, str, str]] = [
    *((f"GET {path}", None, "not-found", "") for path in ("/problems/none", "/page/none", "/nothing")),
    ("PUT /v1/factorizations", None, "method-not-allowed", ""),
    ("GET /v1/keys", None, "keys-closed", ""),
    ("POST /v1/keys", {"name": "x"}, "keys-closed", ""),
    ("GET /v1/keys/x", None, "invalid-parameter", ""),
    ("POST /v1/keys/x/revoke", None, "invalid-parameter", ""),
    ("GET /v1/blobs/x", None, "not-found", ""),
    (f"GET /v1/blobs/{UNKNOWN}", None, "not-found", ""),
    (LIST, "{", "malformed-json", ""),
    (LIST, UNSUPPORTED, "unsupported-problem", ""),
    (LIST, LARGE, "too-large", ""),
    (f"{JOBS}/x", None, "not-found", ""),
    *((f"{JOBS}/{UNKNOWN}{part}", None, "not-found", "") for part in ("", "/events", "/errors", "/matrices/C")),
    *((f"{JOBS}/{name}/cells", None, "not-found", "") for name in (f"{UNKNOWN}/matrices/C", "{name}/matrices/D")),
    (f"{JOBS}/{{name}}/matrices/D", None, "not-found", ""),
    (f"{JOBS}/{{name}}?dtype=float32", None, "not-found", "make it with POST /v1/factorizations/"),
    (f"{LIST}/{UNKNOWN}?matrices=C,B", None, "not-found", ""),
    (f"{LIST}/{{name}}?matrices=D", None, "invalid-parameter", "/matrices"),
    (f"GET /v1/answers/{UNKNOWN}", None, "not-found", "post the question again"),
    (f"DELETE /v1/answers/{UNKNOWN}", None, "not-found", "nothing to end"),
    (f"DELETE /v1/factorizations/{UNKNOWN}", None, "not-found", ""),
    ("DELETE /v1/factorizations/{name}", None, "finished", ""),
    (f"{LIST}/{UNKNOWN}/retry", None, "not-found", ""),
    (f"{LIST}/{UNKNOWN}/calibrations", TARGET, "not-found", ""),
    (CANONICALIZE, {"workload": {"kind": "prefix", "n": 0}}, "invalid-spec", "/workload/n"),
    (LIST, {"workload": {"kind": "prefix", "n": "4"}}, "invalid-spec", "/workload/n"),
    (LIST, PREFIX | {"tolerance": 0}, "invalid-spec", "/tolerance"),
    (LIST, PREFIX | {"work": 1}, "invalid-spec", "/work"),
    (LIST, {"workload": {"kind": "matrix", "rows": [[1, 0], [0, "x"]]}}, "invalid-spec", "/workload/rows/1/1"),
    (f"{JOBS}?state=sleeping", None, "invalid-parameter", "/state"),
    (f"{JOBS}?limit=0", None, "invalid-parameter", "/limit"),
    (f"{JOBS}?limit=x", None, "invalid-parameter", "/limit"),
    (f"{JOBS}?offset=2", None, "invalid-parameter", "/offset"),
    (f"{JOBS}?limit=2&limit=2", None, "invalid-parameter", "/limit"),
    (f"{ROWS}0:4&rows=0:8", None, "invalid-parameter", "/rows"),
    ("GET /v1/factorizations/{name}/errors?rows=0:4", None, "invalid-parameter", "/rows"),
    (f"{JOBS}?cursor=nonsense", None, "invalid-parameter", "/cursor"),
    (f"{JOBS}?cursor=store:x", None, "invalid-parameter", "/cursor"),
    *((ROWS + rows, None, "invalid-parameter", "/rows") for rows in ("0:33", "5:4", "33:34", "a:b", "1", "-1:2")),
    *((ROWS + rows, None, "invalid-parameter", "/rows") for rows in ("0:1:2", "9999999999999999:", "0:%D9%A3")),
    *((f"{CELLS}rows={rows}", None, "invalid-parameter", "/rows") for rows in ("0:33", "1:")),
    (f"{CELLS}rows=4:4", None, "invalid-parameter", "/rows"),
    *((f"{CELLS}columns={columns}", None, "invalid-parameter", "/columns") for columns in ("0:33", "5:5")),
    *((f"{CELLS}cells={cells}", None, "invalid-parameter", "/cells") for cells in ("0:1", "33:1", "9")),
    (f"{UPLOAD}rows=2&columns=2", struct.pack("<3d", 1, 2, 3), "invalid-parameter", "has 24 bytes"),
    (f"{UPLOAD}rows=2&columns=2", struct.pack("<4d", 1, 0, math.nan, 1), "invalid-parameter", "NaN"),
    (f"{UPLOAD}rows=2&columns=2", struct.pack("<4d", 1, 5, 1, 1), "invalid-parameter", "above the diagonal"),
    (f"{UPLOAD}rows=2&columns=2", struct.pack("<4d", 0, 0, 0, 0), "invalid-parameter", "all zeros"),
    (f"{UPLOAD}rows=0&columns=2", b"", "invalid-parameter", "/rows"),
    (f"{UPLOAD}rows=2&columns=1e9", b"", "invalid-parameter", "/columns"),
    (f"{UPLOAD}rows=2", b"", "invalid-parameter", "/columns"),
    (f"{UPLOAD}rows=16385&columns=1", b"", "invalid-parameter", "/rows"),
    (COMPARE, {}, "invalid-spec", "/spec"),
    (COMPARE, {"spec": PREFIX, "colour": 1}, "invalid-spec", "/colour"),
    (COMPARE, {"spec": PREFIX, "epsilon": 1.0}, "invalid-spec", "epsilon and delta come together"),
    (COMPARE, {"spec": PREFIX, "buffers": 1.5}, "invalid-spec", "/buffers"),
    (COMPARE, {"spec": {"workload": {"kind": "prefix", "n": 0}}}, "invalid-spec", "/spec/workload/n"),
    (
        COMPARE,
        {"spec": {"workload": {"kind": "matrix", "sha256": "0" * 64, "shape": [3, 3]}}},
        "invalid-spec",
        "/spec/workload/sha256",
    ),
    (COMPARE, {"spec": PREFIX, **TARGET, "samplings": ["shuffle"]}, "invalid-parameter", "gives away"),
    (COMPARE, {"spec": PREFIX, **TARGET, "samplings": ["nothing"]}, "invalid-parameter", "/samplings"),
    (
        COMPARE,
        {"spec": {"workload": {"kind": "prefix", "n": "unbounded"}}},
        "unsupported-problem",
        "/spec/mechanism/kind",
    ),
    (COMPARE, "[]", "invalid-spec", "a JSON object is expected; got an array"),
    (RECOMMEND, JOB | {"examples": 0}, "invalid-spec", "/examples"),
    (RECOMMEND, JOB | {"examples": 60.5}, "invalid-spec", "/examples"),
    (RECOMMEND, JOB | {"batch_size": 7}, "invalid-parameter", "/batch_size"),
    (RECOMMEND, JOB | {"delta": 1}, "invalid-spec", "/delta"),
    (RECOMMEND, JOB | {"memory": []}, "invalid-spec", "/memory"),
    (RECOMMEND, JOB | {"memory": [10**7]}, "invalid-spec", "/memory/0"),
    (RECOMMEND, JOB | {"epsilon": -1}, "invalid-spec", "/epsilon"),
    (RECOMMEND, JOB | {"seconds": 0}, "invalid-spec", "/seconds"),
    (RECOMMEND, JOB | {"colour": 1}, "invalid-spec", "/colour"),
    (RECOMMEND, JOB | {"workload": {"kind": "momentum"}}, "invalid-spec", "/workload/momentum"),
    (RECOMMEND, JOB | PREFIX, "invalid-spec", "/workload/n"),
    (RECOMMEND, JOB | {"workload": {"kind": "matrix", "rows": [[1]]}}, "invalid-spec", "/workload/kind"),
    (RECOMMEND, JOB | {"objective": {"kind": "weighted", "weights": [1.0]}}, "invalid-spec", "/objective/weights"),
    (f"{RECOMMEND}/fleet", FLEET, "invalid-parameter", "/clients_a_round"),
    (f"{RECOMMEND}/fleet", JOB, "invalid-spec", "clients is required"),
    (PREDICT, {"question": {**MEAN, "rho": -1}}, "invalid-spec", "/question/rho"),
    (PREDICT, {"question": {**MEAN, "learning_rate": 7.0}}, "invalid-parameter", "/question/learning_rate"),
    (PREDICT, {"question": MEAN, "colour": 1}, "invalid-spec", "/colour"),
    (PREDICT, {"question": 3}, "invalid-spec", "/question"),
    (PREDICT, {}, "invalid-spec", "/question"),
    (PREDICT, {"question": MEAN, "factorization": 3}, "invalid-spec", "/factorization"),
    (PREDICT, "[]", "invalid-spec", "a JSON object is expected; got an array"),
    (PREDICT, {"question": QUADRATIC}, "invalid-parameter", "/factorization"),
    (PREDICT, {"question": MEAN, "factorization": "0" * 64}, "not-found", "nothing has the digest"),
    (PREDICT, {"question": MEAN, "factorization": "x"}, "invalid-parameter", "/factorization"),
    (CALIBRATE, {}, "invalid-parameter", "exactly one"),
    (CALIBRATE, {"mu": 1.0, "spent_mu": 1.0}, "invalid-parameter", "nothing is left"),
    (CALIBRATE, {**TARGET, "steps": 33}, "invalid-parameter", "from 1 to 32"),
    (CALIBRATE, {"sigma": 1e-40, "delta": 0.1}, "invalid-parameter", "sigma"),
    (CALIBRATE, {**TARGET, "colour": 1}, "invalid-spec", "/colour"),
    (CALIBRATE, {**BINS, "batch_size": 5}, "invalid-parameter", "applies to Poisson sampling only"),
    (CALIBRATE, {**TARGET, "divisor": 0}, "invalid-spec", "/divisor"),
    (CALIBRATE, "[]", "invalid-spec", "JSON object"),
    (CALIBRATE, {**TARGET, "sampling": "shuffle"}, "invalid-parameter", "gives away"),
    (CALIBRATE, {**BINS, "adjacency": "replace_one"}, "invalid-parameter", "zero_out"),
    (CALIBRATE, {**BINS, "bins": 33}, "invalid-parameter", "n=32"),
    (CALIBRATE, {"mu": 1.0, "sampling": "balls_in_bins"}, "invalid-parameter", "needs epsilon and delta"),
    (CALIBRATE, {**BINS, "epsilon": 1e9}, "invalid-parameter", "/epsilon"),
    (CALIBRATE, APART, "invalid-parameter", "/sampling"),
    (CALIBRATE, {**APART, "sampling": "cyclic_poisson"}, "invalid-parameter", "/sampling"),
    (LIST, sampled(1), "unsupported-problem", "use banded with 2 bands or more"),
    (LIST, sampled(8), "unsupported-problem", "from 2 to 7, or leave the sampling out"),
    (LIST, sampled(9), "unsupported-problem", "from 2 to 7, or leave the sampling out"),
    (LIST, {**sampled(2), "workload": {"kind": "prefix", "n": 2}}, "unsupported-problem", "n=2; use more steps"),
    (LIST, sampled(2, probability=0.5), "invalid-spec", "/sampling/probability"),
    (LIST, sampled(2, delta=1), "invalid-spec", "/sampling/delta"),
    (LIST, sampled(2, epsilon=0), "invalid-spec", "/sampling/epsilon"),
    (LIST, sampled(2, sampling={"kind": "b_min_sep", "delta": 0.1}), "invalid-spec", "/sampling/epsilon"),
    (CANONICALIZE, sampled(2, participation=UNSUPPORTED["participation"]), "invalid-spec", "/sampling/kind"),
    *(
        (f"{LIST}/{{banded}}/calibrations", {**APART, **wrong}, "invalid-parameter", pointer)
        for wrong, pointer in (
            ({"bins": 5}, "/bins"),
            ({"bins": 3}, "/bins"),
            ({"dataset_size": None}, "/dataset_size"),
            ({"batch_size": None}, "/batch_size"),
            ({"batch_size": 26}, "/batch_size"),  # p above 1
            ({"delta": None}, "/delta"),
            ({"epsilon": None}, "/epsilon"),
            ({"epsilon": 500.0}, "/sigma"),  # too little noise for a claim
            ({"adjacency": "replace_one"}, "/adjacency"),
        )
    ),
]


@pytest.fixture(scope="module")
def name(live_service: LiveService) -> str:
    return str(live_service.solve(SPEC)["digest"])


@pytest.fixture(scope="module")
def banded(live_service: LiveService) -> str:
    return str(live_service.solve(BANDED)["digest"])


@pytest.mark.parametrize(("request_line", "body"), ANSWERED)
def test_a_route_answers(live_service: LiveService, name: str, request_line: str, body: Any) -> None:
    method, path = request_line.format(name=name).split()
    assert live_service.send(method, path, body).status == 200


@pytest.mark.parametrize(("request_line", "body", "slug", "words"), REFUSED)
def test_a_route_refuses_and_says_what_is_wrong(
    live_service: LiveService, name: str, banded: str, request_line: str, body: Any, slug: str, words: str
) -> None:
    method, path = request_line.format(name=name, banded=banded).split()
    problem = live_service.send(method, path, body).problem(KINDS[slug].status, slug)
    pointers = [entry["pointer"] for entry in problem.get("errors", [])]
    assert pointers == [words] or (not words.startswith("/") and words in problem["detail"]), problem


def test_every_route_of_the_document_has_a_row(live_service: LiveService) -> None:
    tried = [row[0] for row in (*ANSWERED, *REFUSED)]
    for path, methods in live_service.get("/openapi.json").json()["paths"].items():
        pattern = re.sub(r"\\{\w+\\}", "[^/]+", re.escape(path)) + r"(\?.*)?"
        for method in methods:
            assert any(re.fullmatch(f"{method.upper()} {pattern}", line) for line in tried), (method, path)

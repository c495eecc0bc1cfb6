"""Requests that a route refuses: each gets its problem, at the field that is wrong or in words that say what is."""

from __future__ import annotations

import math
import struct
from typing import Any

import pytest
from servers import LiveService

from factorize.api.http.problems import KINDS

PREFIX: dict[str, Any] = {"workload": {"kind": "prefix", "n": 12}}
STORED: dict[str, Any] = {
    "workload": {"kind": "prefix", "n": 32},
    "mechanism": {"kind": "square_root"},
    "participation": {"kind": "fixed_epochs", "epochs": 4},
}
JOB: dict[str, Any] = {"examples": 6, "batch_size": 2, "epsilon": 2.0, "delta": 1e-3, "seconds": 600}
FLEET: dict[str, Any] = {"clients": 5, "clients_a_round": 6, "rounds": 4, "epsilon": 2.0, "delta": 1e-3}
MEAN: dict[str, Any] = {"kind": "mean_estimation", "learning_rate": 0.05, "rho": 0.5}
QUADRATIC: dict[str, Any] = {"kind": "quadratic", "eigenvalues": [1, 0.1], "learning_rate": 0.1, "sigma": 0.5}
TARGET: dict[str, Any] = {"epsilon": 4.0, "delta": 1e-4}
BINS: dict[str, Any] = {**TARGET, "sampling": "balls_in_bins"}
LIST, COMPARE, RECOMMEND, PREDICT = "/v1/factorizations", "/v1/compare", "/v1/recommend", "/v1/predict"
CALIBRATE, ROWS = f"{LIST}/{{name}}/calibrations", f"{LIST}/{{name}}/matrices/C?rows="
CELLS, UPLOAD = f"{LIST}/{{name}}/matrices/C/cells?", "/v1/matrices?"

# path, body of a POST, kind of problem, the pointer or words that it has
REFUSED: list[tuple[str, Any, str, str]] = [
    (LIST, {"workload": {"kind": "prefix", "n": "4"}}, "invalid-spec", "/workload/n"),
    (LIST, PREFIX | {"tolerance": 0}, "invalid-spec", "/tolerance"),
    (LIST, PREFIX | {"work": 1}, "invalid-spec", "/work"),
    (LIST, {"workload": {"kind": "matrix", "rows": [[1, 0], [0, "x"]]}}, "invalid-spec", "/workload/rows/1/1"),
    (f"{LIST}?state=sleeping", None, "invalid-parameter", "/state"),
    (f"{LIST}?limit=0", None, "invalid-parameter", "/limit"),
    (f"{LIST}?limit=x", None, "invalid-parameter", "/limit"),
    (f"{LIST}?cursor=nonsense", None, "invalid-parameter", "/cursor"),
    (f"{LIST}?cursor=store:x", None, "invalid-parameter", "/cursor"),
    *((ROWS + rows, None, "invalid-parameter", "/rows") for rows in ("0:33", "5:4", "33:34", "a:b", "1", "-1:2")),
    *((ROWS + rows, None, "invalid-parameter", "/rows") for rows in ("0:1:2", "9999999999999999:", "0:%D9%A3")),
    *((f"{CELLS}rows={rows}", None, "invalid-parameter", "/rows") for rows in ("0:33", "1:")),
    (f"{CELLS}rows=4:4", None, "invalid-parameter", "/cells"),
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
    (PREDICT, {"question": {**MEAN, "rho": -1}}, "invalid-spec", "/rho"),
    (PREDICT, {"question": MEAN, "colour": 1}, "invalid-spec", "/colour"),
    (PREDICT, {"question": 3}, "invalid-spec", "/question"),
    (PREDICT, {}, "invalid-spec", "/question"),
    (PREDICT, {"question": MEAN, "factorization": 3}, "invalid-spec", "/factorization"),
    (PREDICT, "[]", "invalid-spec", "a JSON object is expected; got an array"),
    (PREDICT, {"question": QUADRATIC}, "invalid-parameter", "/factorization"),
    (PREDICT, {"question": MEAN, "factorization": "0" * 64}, "not-found", "nothing has the digest"),
    (PREDICT, {"question": MEAN, "factorization": "x"}, "invalid-parameter", "a digest is 64"),
    (CALIBRATE, {}, "invalid-parameter", "exactly one"),
    (CALIBRATE, {"mu": 1.0, "spent_mu": 1.0}, "invalid-parameter", "nothing is left"),
    (CALIBRATE, {**TARGET, "steps": 33}, "invalid-parameter", "from 1 to 32"),
    (CALIBRATE, {"sigma": 1e-40, "delta": 0.1}, "invalid-parameter", "sigma"),
    (CALIBRATE, {**TARGET, "colour": 1}, "invalid-spec", "/colour"),
    (CALIBRATE, {**BINS, "batch_size": 5}, "invalid-parameter", "divides nothing"),
    (CALIBRATE, {**TARGET, "divisor": 0}, "invalid-spec", "/divisor"),
    (CALIBRATE, "[]", "invalid-spec", "JSON object"),
    (CALIBRATE, {**TARGET, "sampling": "shuffle"}, "invalid-parameter", "gives away"),
    (CALIBRATE, {**BINS, "adjacency": "replace_one"}, "invalid-parameter", "zero_out"),
    (CALIBRATE, {**BINS, "bins": 33}, "invalid-parameter", "n=32"),
    (CALIBRATE, {"mu": 1.0, "sampling": "balls_in_bins"}, "invalid-parameter", "no Gaussian"),
]


@pytest.fixture(scope="module")
def name(live_service: LiveService) -> str:
    return str(live_service.solve(STORED)["digest"])


@pytest.mark.parametrize(("path", "body", "slug", "told"), REFUSED)
def test_what_is_wrong_is_said(
    live_service: LiveService, name: str, path: str, body: Any, slug: str, told: str
) -> None:
    answer = live_service.send("GET" if body is None else "POST", path.format(name=name), body)
    problem = answer.problem(KINDS[slug].status, slug)
    pointers = [entry["pointer"] for entry in problem.get("errors", [])]
    assert pointers == [told] or (not told.startswith("/") and told in problem["detail"]), problem

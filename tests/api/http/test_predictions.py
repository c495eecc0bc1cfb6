"""Questions through the two doors: the command line and HTTP give the answers of the library."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from command_line import CommandLine
from servers import LiveService

from factorize.factors.factor_file import load
from factorize.predict import ask

MEAN = {"kind": "mean_estimation", "learning_rate": 0.05, "rho": 0.5}
QUADRATIC = {"kind": "quadratic", "eigenvalues": [1, 0.1], "learning_rate": 0.1, "sigma": 0.5}
SPEC: dict[str, Any] = {"workload": {"kind": "prefix", "n": 24}, "mechanism": {"kind": "square_root"}}


def test_the_command_line_answers_like_the_library(within: CommandLine, tmp_path: Path) -> None:
    assert within("predict", json.dumps(MEAN), "--output", "json").json() == ask(MEAN).document()
    text = within("predict", "-", stdin=json.dumps(MEAN)).out
    assert "basis: exact" in text and "theorem 2.1" in text and "0.00679678526" in text
    file = tmp_path / "c.safetensors"
    assert within("solve", json.dumps(SPEC), "--to", file).code == 0
    answer = within("predict", json.dumps(QUADRATIC), "--factorization", file, "--output", "json").json()
    assert answer == ask(QUADRATIC, load(file)).document()
    assert "give one" in within("predict", json.dumps(QUADRATIC)).error(2)
    assert "/learning_rate" in within("predict", json.dumps({**MEAN, "learning_rate": "1"})).error(2)


def test_http_answers_like_the_library(live_service: LiveService) -> None:
    answer = live_service.send("POST", "/v1/predict", {"question": MEAN})
    assert (answer.status, answer.json()) == (200, ask(MEAN).document())
    manifest = live_service.solve(SPEC)
    for name in (manifest["digest"], manifest["spec_digest"]):
        about = live_service.send("POST", "/v1/predict", {"question": QUADRATIC, "factorization": name})
        assert about.status == 200
        assert about.json()["terms"]["noise"] > 0


@pytest.mark.parametrize(
    ("question", "pointer"),
    [({"kind": "nothing"}, "/question"), ({**MEAN, "rho": "1"}, "/question/rho"), (5, "/question")],
)
def test_a_wrong_question_is_found_in_the_body(live_service: LiveService, question: object, pointer: str) -> None:
    problem = live_service.send("POST", "/v1/predict", {"question": question}).problem(422, "invalid-spec")
    assert problem["errors"][0]["pointer"] == pointer


def test_a_wrong_spec_is_found_in_the_body_of_a_comparison(live_service: LiveService) -> None:
    body = {"spec": {"workload": {"kind": "prefix", "n": 0}}}
    problem = live_service.send("POST", "/v1/compare", body).problem(422, "invalid-spec")
    assert problem["errors"][0]["pointer"] == "/spec/workload/n"

"""Everything that serves a spec of the toys, asked in a process that has them: prints what it has found as JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import described_answers
import kept_openapi
import numpy as np
from servers import serving

import factorize
from factorize import certify, parse_spec, solvers
from factorize.api.settings import Settings
from factorize.auditor import ParticipationAuditor
from factorize.checker import check_factor_file
from factorize.client import load
from factorize.errors import InvalidParticipation
from factorize.factor_file import load as open_file
from factorize.solution import Outcome

FOLDER = Path(sys.argv[1])
N = 12
SPEC: dict[str, Any] = {
    "workload": {"kind": "two_decays", "n": N, "first": 0.9, "second": 0.5},
    "participation": {"kind": "halves"},
    "mechanism": {"kind": "neighbours", "share": 0.25},
}


def by_hand() -> tuple[float, float]:
    """The sensitivity and the mean loss, from dense matrices."""
    powers = np.subtract.outer(np.arange(N), np.arange(N))
    a = np.tril(0.9 ** np.maximum(powers, 0)) @ np.tril(0.5 ** np.maximum(powers, 0))
    c = np.eye(N) + 0.25 * np.eye(N, k=-1)
    gram = np.abs(c.T @ c)
    sensitivity = max(gram[np.ix_([j, j + N // 2], [j, j + N // 2])].sum() for j in range(N // 2)) ** 0.5
    return sensitivity, sensitivity**2 * float(np.sum((a @ np.linalg.inv(c)) ** 2)) / N


def in_this_process() -> dict[str, Any]:
    """Solve, certify, check exactly, and read again."""
    found = solvers.solve(parse_spec(SPEC))
    path = FOLDER / "toys.safetensors"
    found.save(path)
    report = check_factor_file(path.read_bytes())
    again = open_file(path)
    anew = certify(again.spec, again.strategy, {}, outcome=Outcome.CLOSED_FORM)
    return {
        "digest": found.digest,
        "structure": again.strategy.structure,
        "sensitivity": [anew.sensitivity.value, anew.sensitivity.kind],
        "loss": anew.loss.objective,
        "failed": report.failed,
        "supported": report.supported,
        "unseen": report.unseen,
        "checked": report.checked,
    }


def in_training() -> dict[str, Any]:
    """Calibrate, draw noise from the last row alone, and watch who takes part."""
    factors = load(FOLDER / "toys.safetensors")
    calibration = factors.calibrate(epsilon=2.0, delta=1e-6)
    rows = list(factors.noise(calibration, 5, seed=3))
    source = factors.noise_source()
    recurrence = source.recurrence()
    state, scratch = np.zeros((recurrence.vectors, N)), np.zeros((recurrence.scratch, N))
    inverse = np.eye(N)
    for step, x in enumerate(inverse):
        x *= recurrence.gain(step)
        recurrence.advance(step, x, state, scratch)
    off = float(np.abs((np.eye(N) + 0.25 * np.eye(N, k=-1)) @ inverse - np.eye(N)).max())
    auditor = ParticipationAuditor.of(calibration, N)
    auditor.record([0])
    try:
        auditor.record([0])
        refused = False
    except InvalidParticipation:
        refused = True
    return {
        "first": rows[0].tolist(),
        "sigma": calibration.sigma_of_sums,
        "vectors": source.cost.vectors,
        "steps": len(rows),
        "off": off,
        "refused": refused,
    }


def over_http() -> dict[str, Any]:
    """Post the spec, and take the factors and the rows as a training job does; every answer is as it is described."""
    described_answers.KEPT = FOLDER / "openapi.json"
    kept_openapi.keep(described_answers.KEPT)
    with serving(Settings(store=str(FOLDER / "store"))) as live:
        manifest = live.solve(SPEC)
        schema = live.get("/openapi.json").json()["components"]["schemas"]
        theirs = load(manifest["digest"], url=live.url)
        drawn = next(iter(theirs.noise(theirs.calibrate(epsilon=2.0, delta=1e-6), 5, seed=3))).tolist()
        bad = live.post(SPEC | {"workload": {**SPEC["workload"], "first": 2}})
        listed = live.get("/v1/factorizations?workload=two_decays").json()
    return {
        "digest": manifest["digest"],
        "schema": sorted({"TwoDecays", "Halves", "Neighbours"} & set(schema)),
        "bad": bad.status,
        "drawn": drawn,
        "listed": [item["workload"] for item in listed["items"]],
    }


def compared() -> dict[str, float]:
    """Losses of every mechanism that serves the workload and the participation."""
    table = solvers.compare(parse_spec(SPEC), buffers=1).to_dict()
    return {row["mechanism"]: row["loss"]["objective"] for row in table["rows"]}


if __name__ == "__main__":
    (FOLDER / "spec.json").write_text(json.dumps(SPEC))
    answers = {
        "from": str(Path(factorize.__file__).parents[1]),
        "by_hand": by_hand(),
        "process": in_this_process(),
        "training": in_training(),
        "http": over_http(),
        "compared": compared(),
    }
    print(json.dumps(answers))

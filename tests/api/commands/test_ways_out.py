"""The command that a refusal ends with, pasted: it solves the same workload under the same participation."""

import itertools
import json
import shlex

import numpy as np
import pytest
from cases import FAST, PARTICIPATIONS, WORKLOADS, case_of, in_turn

from factorize import solvers
from factorize.api.commands.application import run
from factorize.errors import UnsupportedProblem
from factorize.solvers.register import WAY_OUT
from factorize.spec import Spec

WHOLE = {"dense": 11, "banded": 3, "buffered_linear": 2}
"""Mechanisms whose refusals are all pasted, for each workload and participation, and the vectors that they keep."""
N = 12


def refusal_of(spec):
    """Return the refusal of a spec, None where it is answered."""
    try:
        solvers.choose(spec)
    except UnsupportedProblem as refusal:
        return str(refusal)
    return None


def paste(command, capsys):
    """Run a command as it was printed; return the spec that it solved."""
    words = shlex.split(command)
    assert words[:2] == ["factorize", "solve"], command
    assert run([*words[1:], "--output", "json"]) == 0, (command, capsys.readouterr().err)
    return json.loads(capsys.readouterr().out)["spec"]


@pytest.mark.parametrize("participation", PARTICIPATIONS)
def test_a_job_with_a_memory_gets_a_command_that_keeps_to_it(participation, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("FACTORIZE_STORE", str(tmp_path / "store"))
    seen = set()
    for workload, (mechanism, most) in itertools.product(WORKLOADS, WHOLE.items()):
        asked = case_of(mechanism, workload, participation, "mean")
        refusal = refusal_of(asked)
        command = refusal and refusal.partition(WAY_OUT)[2]
        if refusal is not None and command not in seen:
            seen.add(command)
            solved = paste(command, capsys)
            same = ("workload", "participation", "objective")
            assert [solved[part] for part in same] == [asked.document()[part] for part in same]
            found = solved["mechanism"]
            assert found.get("buffers", found.get("bands", N) - 1) <= most, refusal


def test_the_refusals_of_every_mechanism_end_with_a_command(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("FACTORIZE_STORE", str(tmp_path / "store"))
    for mechanism in FAST:
        cases = itertools.product(WORKLOADS, PARTICIPATIONS)
        specs = (case_of(mechanism, *where, in_turn(mechanism, *where)[0]) for where in cases)
        refusals = [refusal for spec in specs if (refusal := refusal_of(spec)) is not None]
        assert all(WAY_OUT in refusal for refusal in refusals), mechanism
        for refusal in refusals[:1]:
            paste(refusal.partition(WAY_OUT)[2], capsys)


def test_a_refusal_names_no_numbers_that_only_its_caller_has():
    for n, ends in ((4, True), (45, False)):
        own = Spec.of(np.tril(np.ones((n, n))), min_sep=1, objective="max", mechanism="dense")
        refusal = refusal_of(own)
        assert refusal is not None and (WAY_OUT in refusal) == ends and "sha256" not in refusal

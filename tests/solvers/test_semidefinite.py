"""The conic reference by CVXPY and SCS: agreement with the other solvers, and nothing taken on trust."""

import numpy as np
import pytest
from specs import solved

from factorize.errors import SolveFailed
from factorize.solvers import semidefinite


@pytest.mark.parametrize("damage", ["noise", "asymmetry", "indefinite", "too large"])
def test_a_bad_answer_of_the_solver_is_repaired(monkeypatch, damage):
    good = semidefinite._conic

    def bad(*args):
        gram, steps = good(*args)
        rng = np.random.default_rng(1)
        if damage == "noise":
            gram = gram + 1e-3 * rng.standard_normal(gram.shape)
        elif damage == "asymmetry":
            gram = gram + np.triu(0.1 * rng.random(gram.shape), 1)
        elif damage == "indefinite":
            gram = gram - 0.5 * np.linalg.eigvalsh(gram)[0] * np.eye(len(gram)) - 0.3 * np.outer(gram[0], gram[0])
        else:
            gram = 40 * gram
        return gram, steps

    monkeypatch.setattr(semidefinite, "_conic", bad)
    certificate = solved(12, "semidefinite", 3, tolerance=1e-6).certificate
    assert 1 - 1e-9 < certificate.sensitivity.value <= 1
    assert certificate.sensitivity.kind == "exact"
    assert certificate.loss.objective >= certificate.lower_bound.objective
    assert certificate.converged == (damage == "too large")


@pytest.mark.parametrize("answer", [np.zeros((3, 3)), -np.eye(3)])
def test_a_useless_answer_is_a_typed_error(monkeypatch, answer):
    monkeypatch.setattr(semidefinite, "_conic", lambda *_: (answer, 7))
    with pytest.raises(SolveFailed, match="dense"):
        solved(3, "semidefinite", tolerance=1e-6)

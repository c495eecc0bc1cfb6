"""The one path from spec to certified factorization: what is chosen, what is refused, and solvers that lie."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from specs import solved, spec_of

import factorize
from factorize import parse_spec, solvers
from factorize.encoding import tensor_digest
from factorize.errors import (
    Cancelled,
    CertificateError,
    InvalidSpec,
    InvalidWorkload,
    TooLarge,
    UnsupportedProblem,
)
from factorize.solvers import problem
from factorize.solvers.problem import Problem
from factorize.structures.base import Matrix
from factorize.structures.dense import DenseMatrix


class TestChoosing:
    def test_weights_must_fit_both_workloads(self):
        square = np.tril(np.ones((4, 4))).tolist()
        document = {
            "workload": {"kind": "matrix", "rows": square},
            "optimize_for": {"kind": "matrix", "rows": square[2:]},
        }
        spec = parse_spec({**document, "objective": {"kind": "weighted", "weights": [1, 2, 3, 4]}})
        with pytest.raises(UnsupportedProblem, match="4 entries"):
            solvers.solve(spec)

    @pytest.mark.parametrize("mechanism", ["auto", "dense", "identity", "tree"])
    def test_weights_that_leave_nothing(self, mechanism):
        nothing = {"kind": "weighted", "weights": [1, 0, 0]}
        document = {
            "workload": {"kind": "schedule", "n": 3, "learning_rates": [0, 1, 1]},
            "mechanism": {"kind": mechanism} | ({"decoder": "online"} if mechanism == "tree" else {}),
            "objective": nothing,
        }
        for door in (solvers.choose, solvers.estimate, solvers.solve):
            with pytest.raises(UnsupportedProblem, match="every non-zero row of workload has weight 0"):
                door(parse_spec(document))
        swapped = document | {"workload": {"kind": "prefix", "n": 3}, "optimize_for": document["workload"]}
        with pytest.raises(UnsupportedProblem, match="every non-zero row of optimize_for has weight 0"):
            solvers.choose(parse_spec(swapped))

    def test_weights_that_leave_nothing_of_a_matrix_known_by_its_digest(self):
        array = np.array([[0.0, 0.0], [1.0, 0.0]])
        named = {"kind": "matrix", "sha256": tensor_digest([array]), "shape": [2, 2]}
        spec = parse_spec({"workload": named, "objective": {"kind": "weighted", "weights": [1, 0]}})
        solvers.choose(spec)
        with pytest.raises(UnsupportedProblem, match="every non-zero row of workload has weight 0"):
            solvers.solve(spec, matrices={named["sha256"]: array})


class TestEstimates:
    def test_beyond_memory(self, monkeypatch):
        monkeypatch.setattr(problem, "machine_memory", lambda: 2**30)
        spec = spec_of(8192, "dense")
        for door in (solvers.estimate, solvers.solve):
            with pytest.raises(TooLarge, match=r"GiB and .* s; this machine has 1.0 GiB; lower n"):
                door(spec)


class TestUserMatrices:
    array = np.tril(np.arange(1.0, 37.0).reshape(6, 6)) + 6 * np.eye(6)

    def named(self):
        return {"kind": "matrix", "sha256": tensor_digest([self.array]), "shape": [6, 6]}

    def test_bound_and_inline_are_the_same(self):
        named = spec_of(self.named())
        inline = spec_of({"kind": "matrix", "rows": self.array.tolist()})
        bound = solvers.solve(named, matrices={self.named()["sha256"]: self.array})
        assert bound.spec_digest == solvers.solve(inline).spec_digest == solvers.choose(named).digest
        assert bound.certificate.converged

    def test_to_optimise_for(self):
        spec = spec_of(6, optimize_for=self.named())
        found = solvers.solve(spec, matrices={self.named()["sha256"]: self.array})
        assert found.certificate.relative_gap > 1e-4

    def test_unknown_numbers(self):
        with pytest.raises(InvalidWorkload, match="upload"):
            solved(self.named())


class TestTheResult:
    def test_provenance(self):
        solver = solved(16).manifest["solver"]
        assert solver["mechanism"] == "dense"
        assert solver["version"] == factorize.__version__
        assert solver["seconds"] >= 0
        assert solver["iterations"] >= 1
        assert {"python", "numpy", "machine", "system"} == set(solver["environment"])

    def test_progress_is_passed_on(self):
        seen = []
        found = solved(16, progress=seen.append)
        assert seen[-1].iteration == found.manifest["solver"]["iterations"]

    @pytest.mark.parametrize(
        ("mechanism", "participation", "more"),
        [
            ("dense", None, {}),
            ("dense", None, {"n": 160}),
            ("dense", 4, {}),
            ("identity", None, {}),
            ("semidefinite", None, {}),
            ({"kind": "banded", "bands": 4}, 4, {}),
            ({"kind": "buffered_linear", "buffers": 2}, None, {"n": 192}),
            ({"kind": "blt", "buffers": 2}, None, {}),
            ("toeplitz", 4, {"sampling": {"kind": "balls_in_bins", "epsilon": 4.0, "delta": 1e-4}}),
        ],
    )
    def test_what_the_callback_raises_ends_the_solve(self, mechanism, participation, more):
        def cancel(_step):
            raise Cancelled("asked to")

        with pytest.raises(Cancelled):
            solved({"kind": "prefix", "n": 16}, mechanism, participation, progress=cancel, **more)


def test_importing_the_solvers_loads_no_numerical_back_end():
    script = "import sys, solvers; print(sorted({'scipy', 'numba', 'cvxpy', 'scs'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_solve_that_calls_no_kernel_loads_no_compiler():
    script = (
        "import sys, solvers; solvers.solve({'workload': {'kind': 'prefix', 'n': 8}}); print('numba' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


class Forged(Matrix):
    """A matrix whose parts contradict each other: dense() is fine, and what is stored is not."""

    structure = "dense"

    def __init__(self, shown, stored):
        self.n, self.shown, self.stored = len(shown), shown, stored

    def rows(self, start, stop):
        return self.shown[start:stop].copy()

    def right_solve(self, block):
        return np.linalg.solve(self.stored.T, block.T).T

    def leading(self, steps):
        return DenseMatrix(self.stored[:steps, :steps])

    def tensors(self):
        return {"": self.stored}

    def column_norms_squared(self):
        return (self.shown**2).sum(axis=0)


def most_general():
    """The solver of `dense` that takes any target of one participation."""
    return [entry for entry in solvers.SOLVERS["dense"] if entry.own(spec_of(16))][-1]


class TestLiars:
    """A solver may claim what it likes; what is certified is what its matrix says."""

    @pytest.fixture
    def honest(self):
        return self.claim()

    @staticmethod
    def claim():
        return most_general().solve(Problem(solvers.choose(spec_of(16))), lambda _: None)

    @staticmethod
    def lie(monkeypatch, solution, **how):
        def solve(_problem, _progress):
            return solution() if callable(solution) else solution

        entry = replace(most_general(), solve=solve, supports=lambda _: None)
        monkeypatch.setitem(solvers.SOLVERS, "dense", (entry,))
        return solvers.solve(spec_of(16), **how)

    def test_a_wrong_scale_costs_nothing_and_gains_nothing(self, monkeypatch, honest):
        doubled = self.lie(monkeypatch, replace(honest, strategy=DenseMatrix(2 * honest.strategy.dense())))
        assert doubled.certificate.sensitivity.value == pytest.approx(2, rel=1e-12)
        assert doubled.certificate.relative_gap < 1e-9

    def test_without_evidence_nothing_is_converged(self, monkeypatch, honest):
        certificate = self.lie(monkeypatch, replace(honest, dual={}), evidence=False).certificate
        assert certificate.lower_bound is None
        assert not certificate.converged

    def test_a_claim_without_evidence_gets_some(self, monkeypatch, honest):
        own = self.lie(monkeypatch, honest).certificate.lower_bound
        found = self.lie(monkeypatch, replace(honest, dual={})).certificate.lower_bound
        assert found.rule == own.rule
        assert found.objective == pytest.approx(own.objective, rel=1e-6)

    def test_evidence_for_another_workload_is_replaced_where_there_is_better(self):
        """The optimum for momentum is far from that of prefix sums, and its dual proves little about them."""
        spec = spec_of(16, "dense", optimize_for={"kind": "momentum", "n": 16, "momentum": 0.9})
        optimum = solved(16).certificate.lower_bound.objective
        assert solvers.solve(spec).certificate.lower_bound.objective == pytest.approx(optimum, rel=1e-6)
        assert solvers.solve(spec, evidence=False).certificate.lower_bound.objective < 0.99 * optimum

    def test_a_matrix_that_shows_one_thing_and_solves_with_another(self, monkeypatch, honest):
        strategy = honest.strategy.dense()
        with pytest.raises(CertificateError, match="this is a fault of factorize"):
            self.lie(monkeypatch, replace(honest, strategy=Forged(strategy, 3 * strategy)))


@pytest.mark.parametrize("door", [solvers.choose, solvers.estimate, solvers.search, solvers.solve, solvers.compare])
def test_every_door_takes_plain_data_and_says_what_is_no_spec(door):
    for wrong in (3, None, ["prefix"]):
        with pytest.raises(InvalidSpec, match=f"{type(wrong).__name__} is not a spec; give a Spec"):
            door(wrong)
    if door is not solvers.compare:  # which takes a second
        assert door({"workload": {"kind": "prefix", "n": 4}, "mechanism": {"kind": "square_root"}}) is not None

"""The one path from spec to certified factorization: what is chosen, what is refused, and solvers that lie."""

import itertools
import subprocess
import sys
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from cases import MECHANISMS, PARTICIPATIONS
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
from factorize.numbers.blas_threads import one_blas_thread
from factorize.solution import Outcome, Solution
from factorize.solvers import budget, solving
from factorize.solvers.problem import Problem
from factorize.solvers.register import entry_for
from factorize.structures.base import Matrix
from factorize.structures.dense import DenseMatrix
from factorize.structures.toeplitz import ToeplitzMatrix


class TestChoosing:
    @pytest.mark.parametrize(
        ("spec", "kind"),
        [
            (spec_of(16), "dense"),
            (spec_of(8192), "dense"),
            (spec_of(8193), "buffered_linear"),
            (spec_of(16, participation=4), "dense"),
            (spec_of(16, participation=1), "dense"),
            (spec_of(16, participation={"kind": "min_sep", "min_sep": 9, "max_participations": 1}), "dense"),
            (spec_of(16, participation={"kind": "min_sep", "min_sep": 4}), "banded"),
            (spec_of(16, "square_root"), "square_root"),
        ],
    )
    def test_what_stands_for_auto(self, spec, kind):
        chosen = solvers.choose(spec)
        assert chosen.mechanism.kind == kind
        assert solvers.choose(chosen) == chosen
        assert len(chosen.digest) == 64

    @pytest.mark.parametrize(
        ("spec", "words"),
        [
            (spec_of(16, {"kind": "added", "sha256": "0" * 64}), "'added' is a strategy of your own"),
            (
                spec_of(16, participation=2, objective="max"),
                "nu_toeplitz or square_root",
            ),
            (spec_of(16, "dense", {"kind": "min_sep", "min_sep": 4}), "nu_toeplitz"),
        ],
    )
    def test_what_is_refused_and_the_way_out(self, spec, words):
        for door in (solvers.choose, solvers.estimate, solvers.solve):
            with pytest.raises(UnsupportedProblem, match=words):
                door(spec)

    def test_dense_beyond_its_limit_is_refused(self):
        for door in (solvers.estimate, solvers.solve):
            with pytest.raises(TooLarge, match="limit of 16384"):
                door(spec_of({"kind": "window", "n": 16_385, "width": 2}, "dense"))

    def test_parts_that_do_not_fit(self):
        spec = spec_of(16).model_copy(update={"optimize_for": spec_of(8).workload})
        with pytest.raises(InvalidSpec, match="optimize_for"):
            solvers.solve(spec)

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
            with pytest.raises(UnsupportedProblem, match="every row of workload .* weight 0"):
                door(parse_spec(document))
        swapped = document | {"workload": {"kind": "prefix", "n": 3}, "optimize_for": document["workload"]}
        with pytest.raises(UnsupportedProblem, match="every row of optimize_for .* weight 0"):
            solvers.choose(parse_spec(swapped))

    def test_weights_that_leave_nothing_of_a_matrix_known_by_its_digest(self):
        array = np.array([[0.0, 0.0], [1.0, 0.0]])
        named = {"kind": "matrix", "sha256": tensor_digest([array]), "shape": [2, 2]}
        spec = parse_spec({"workload": named, "objective": {"kind": "weighted", "weights": [1, 0]}})
        solvers.choose(spec)
        with pytest.raises(UnsupportedProblem, match="every row of workload .* weight 0"):
            solvers.solve(spec, matrices={named["sha256"]: array})


@pytest.mark.parametrize(
    ("workload", "participation", "side"),
    [
        ({"kind": "prefix", "n": 12}, {"kind": "single"}, 0),
        ({"kind": "window", "n": 12, "width": 3}, {"kind": "single"}, 12),
        ({"kind": "window", "n": 12, "width": 3}, {"kind": "fixed_epochs", "epochs": 2}, 0),
    ],
)
def test_blas_has_all_threads_for_whole_matrices_alone(monkeypatch, workload, participation, side):
    sides = []

    def limited(n, **more):
        sides.append(n)
        return one_blas_thread(n, **more)

    monkeypatch.setattr(solving, "one_blas_thread", limited)
    solvers.search(spec_of(workload, "dense", participation))
    assert sides == [side]


class TestEstimates:
    def test_they_grow_with_the_problem(self):
        small, large = (solvers.estimate(spec_of(n, "dense")) for n in (64, 4096))
        assert small.bytes < large.bytes
        assert small.seconds < large.seconds

    def test_beyond_memory(self, monkeypatch):
        monkeypatch.setattr(budget, "machine_memory", lambda: 2**30)
        spec = spec_of(8192, "dense")
        for door in (solvers.estimate, solvers.solve):
            with pytest.raises(TooLarge, match=r"GiB and .* s; this machine has 1.0 GiB; lower n"):
                door(spec)

    @pytest.mark.parametrize("n", [16_385, 100_000_000])
    def test_beyond_dense_arrays(self, n):
        for mechanism in ({"kind": "dense"}, {"kind": "square_root", "normalization": "columns"}):
            with pytest.raises(TooLarge, match="GiB"):
                solved(n, mechanism)

    def test_a_schedule_needs_the_whole_decoder(self):
        rates = {"kind": "cosine_to_last"}
        spec = spec_of({"kind": "schedule", "n": 20_000, "learning_rates": rates}, "square_root")
        with pytest.raises(TooLarge):
            solvers.estimate(spec)

    @pytest.mark.parametrize("n", [8192, 100_000_000])
    @pytest.mark.parametrize("mechanism", [{"kind": "dense"}, {"kind": "nu_toeplitz", "nu": 0.1}])
    def test_no_array_is_made(self, n, mechanism):
        spec = spec_of(n, mechanism)
        solvers.estimate(spec_of(200, mechanism))  # a first estimate loads code, which takes memory too
        tracemalloc.start()
        try:
            solvers.estimate(spec)
        except TooLarge as refusal:
            assert "GiB" in str(refusal)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 2**21


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

    def test_other_numbers(self):
        with pytest.raises(InvalidWorkload, match="do not hash"):
            solvers.solve(spec_of(self.named()), matrices={self.named()["sha256"]: 2 * self.array})


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

    def test_cancelling(self):
        def cancel(_step):
            raise Cancelled("asked to")

        for mechanism in ({"kind": "dense"}, {"kind": "identity"}, {"kind": "semidefinite"}):
            with pytest.raises(Cancelled):
                solved(16, mechanism, progress=cancel)


def test_importing_the_solvers_loads_no_numerical_back_end():
    script = "import sys, solvers; print(sorted({'scipy', 'numba', 'cvxpy', 'scs'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


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


class TestLiars:
    """A solver may claim what it likes; what is certified is what its matrix says."""

    @pytest.fixture
    def honest(self):
        return self.claim()

    @staticmethod
    def claim():
        entry = solvers.SOLVERS["dense"][-1]
        return entry.solve(Problem(solvers.choose(spec_of(16))), lambda _: None)

    @staticmethod
    def lie(monkeypatch, solution, **how):
        def solve(_problem, _progress):
            return solution() if callable(solution) else solution

        entry = replace(solvers.SOLVERS["dense"][-1], solve=solve, supports=lambda _: None)
        monkeypatch.setitem(solvers.SOLVERS, "dense", (entry,))
        return solvers.solve(spec_of(16), **how)

    def test_a_wrong_scale_costs_nothing_and_gains_nothing(self, monkeypatch, honest):
        doubled = self.lie(monkeypatch, replace(honest, strategy=DenseMatrix(2 * honest.strategy.dense())))
        assert doubled.certificate.sensitivity.value == pytest.approx(2, rel=1e-12)
        assert doubled.certificate.relative_gap < 1e-9

    def test_a_claim_of_convergence_is_not_believed(self, monkeypatch, honest):
        poor = Solution(DenseMatrix(np.eye(16)), Outcome.CONVERGED, 1, honest.dual)
        found = self.lie(monkeypatch, poor)
        assert not found.certificate.converged
        assert found.certificate.relative_gap > 1

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

    def test_another_dual_gives_a_weaker_bound_and_never_a_false_one(self, monkeypatch, honest):
        inflated = {"weights": 1e6 * honest.dual["weights"] ** 2}
        certificate = self.lie(monkeypatch, replace(honest, dual=inflated)).certificate
        assert certificate.lower_bound.objective < certificate.loss.objective
        assert certificate.relative_gap > 1e-3

    @pytest.mark.parametrize(
        "weights",
        [np.full(16, np.nan), np.full(16, np.inf), -np.ones(16), np.zeros(16), np.ones(15), np.ones((16, 16))],
    )
    def test_evidence_that_is_none(self, monkeypatch, honest, weights):
        with pytest.raises(CertificateError, match=r"dual\.weights"):
            self.lie(monkeypatch, replace(honest, dual={"weights": weights}))

    def test_a_strategy_of_another_size(self, monkeypatch, honest):
        with pytest.raises(CertificateError, match="side 15"):
            self.lie(monkeypatch, replace(honest, strategy=DenseMatrix(honest.strategy.dense()[:15, :15])))

    def test_a_matrix_that_shows_one_thing_and_solves_with_another(self, monkeypatch, honest):
        strategy = honest.strategy.dense()
        with pytest.raises(CertificateError, match="one of the two programs is wrong"):
            self.lie(monkeypatch, replace(honest, strategy=Forged(strategy, 3 * strategy)))

    def test_a_matrix_too_ill_conditioned_to_invert(self, monkeypatch, honest):
        array = np.tril(np.full((16, 16), 1.0))
        np.fill_diagonal(array, 1e-30)
        with pytest.raises(CertificateError):
            self.lie(monkeypatch, replace(honest, strategy=DenseMatrix(array)))

    def test_a_toeplitz_matrix_passed_off_as_dense(self, monkeypatch, honest):
        poor = replace(honest, strategy=ToeplitzMatrix(np.array([1.0, 0.5]), 16))
        found = self.lie(monkeypatch, poor)
        assert found.manifest["matrices"]["C"]["structure"] == "banded_toeplitz"
        assert not found.certificate.converged


@pytest.mark.parametrize(
    ("mechanism", "participation"),
    [
        *zip(
            sorted(set(MECHANISMS) - {"semidefinite"}),
            itertools.cycle(["single", "fixed epochs", "min_sep"]),
            strict=False,
        )
    ],
)
def test_an_entry_says_whether_its_claims_bring_a_dual(mechanism, participation):
    """By this their evidence is estimated: a solver that brings none is given some, and that takes its time."""
    asked = spec_of("prefix", MECHANISMS[mechanism], PARTICIPATIONS[participation], n=12, tolerance=1e-3)
    try:
        spec = solvers.choose(asked)
    except UnsupportedProblem:
        return  # the contract suite counts these
    entry = entry_for(spec)
    claim = entry.solve(Problem(spec), lambda _step: None)
    assert entry.dual == any(not name.startswith("class_") for name in claim.dual)
    with_bound, alone = (solvers.estimate(spec, evidence=evidence).seconds for evidence in (True, False))
    assert with_bound == alone if entry.dual else with_bound > alone

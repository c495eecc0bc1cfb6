"""The exact checker on strategies with redraws: against fractions, and against what is wrong on purpose."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import redrawn_cases as cases
from hypothesis import given
from hypothesis import strategies as st
from specs import spec_of

from factorize.certificate.sensitivity import sensitivity_of
from factorize.checker import check_factor_file
from factorize.checker.arithmetic.intervals import NotEnclosed
from factorize.checker.losses import variances
from factorize.checker.sensitivity import squared_sensitivity
from factorize.checker.spec import workload_numbers
from factorize.checker.strategy import Strategy
from factorize.checker.structures import redrawn
from factorize.checker.utility import Utility
from factorize.errors import CorruptObject, InvalidStrategy, TooLarge
from factorize.factorization import Factorization
from factorize.participation import FixedEpochs
from factorize.solution import Outcome, Solution
from factorize.structures.redrawn import RedrawnMatrix

N = 24
EPOCHS = {"kind": "fixed_epochs", "epochs": 4}
SHAPES = st.tuples(st.integers(1, 12), st.integers(1, 3), st.integers(1, 3), st.integers(0, 2**31))


def strategy(matrix: RedrawnMatrix) -> Strategy:
    return Strategy("redrawn", matrix.tensors(), matrix.n)


@given(SHAPES, st.data())
def test_entries_are_enclosed(shape, data):
    n, buffers, redraws, seed = shape
    matrix = cases.wild(n, buffers, redraws, data.draw(st.integers(1, n)), seed)
    exact = cases.strategy(cases.inverse(matrix))
    found = redrawn.entries(redrawn.read(matrix.tensors(), n))
    unit = Fraction(2) ** found.exponent
    assert (abs(exact - found.values * unit) <= found.radius * unit).all()


def test_numbers_of_very_different_sizes_are_enclosed():
    given = cases.likely(12, buffers=2)
    decay, output, inputs = given.decay.copy(), given.output.copy(), given.input.copy()
    decay[:, 0], output[3], inputs[0, 5] = 2.0**-300, 2.0**60, 2.0**-1074
    matrix = RedrawnMatrix(decay, output, inputs, given.direct * 2.0**40, given.lag)
    exact = cases.strategy(cases.inverse(matrix))
    found = redrawn.entries(redrawn.read(matrix.tensors(), 12))
    unit = Fraction(2) ** found.exponent
    assert (abs(exact - found.values * unit) <= found.radius * unit).all()
    assert found.radius * unit < Fraction(1, 10**50)


def test_what_a_state_lost_is_not_forgotten_when_it_cancels():
    matrix = cases.cancelling(6)
    exact = cases.strategy(cases.inverse(matrix))
    found = redrawn.entries(redrawn.read(matrix.tensors(), matrix.n))
    unit = Fraction(2) ** found.exponent
    off = abs(exact - found.values * unit)
    assert unit * 2**20 < off[-1, 0] <= found.radius * unit


def test_what_a_quotient_lost_is_not_forgotten():
    """y_0 is a third, cut in its last place; y_1 takes it times 2^90."""
    none, direct = np.zeros((2, 1)), np.array([[3.0 * 2**58, 1.0], [0.0, 2.0**90]])
    matrix = RedrawnMatrix(none, none, np.zeros((2, 2, 1)), direct, 1)
    exact = cases.strategy(cases.inverse(matrix))
    found = redrawn.entries(redrawn.read(matrix.tensors(), 2))
    unit = Fraction(2) ** found.exponent
    off = abs(exact - found.values * unit)
    assert unit * 2**80 < off[1, 0] <= found.radius * unit


class TestByHand:
    """K and C = K^-1 on paper, with the bound on what is cut from K C - I.

        K = (1, 0, 0 / 8, 1/2, 0 / 5/2, 1, 2),   C = (1, 0, 0 / -16, 2, 0 / 27/4, -1, 1/2)

    x_1 = y_1 / 2 + 5 y_0 + 3 s_0 with s_0 = y_0; x_2 = 2 y_2 + 3 y_1 + s_0 / 2 - 2 s_1 with s_0 = 4 y_0 + y_0, s_1 = y_1.
    """

    @staticmethod
    def matrix() -> RedrawnMatrix:
        decay, output = np.array([[2.0, 0.0], [4.0, 1.0], [1.0, 1.0]]), np.array([[0.0, 0.0], [3.0, 0.0], [0.5, -2.0]])
        inputs, direct = np.zeros((2, 3, 2)), np.array([[1.0, 0.5, 2.0], [0.0, 5.0, 3.0]])
        inputs[0, 0, 0], inputs[0, 1, 1], inputs[1, 1, 0] = 1, 1, 1
        return RedrawnMatrix(decay, output, inputs, direct, 1)

    def entries(self) -> Any:
        return redrawn.entries(redrawn.read(self.matrix().tensors(), 3))

    def test_entries_are_those_on_paper(self):
        """Nothing is cut from numbers with so few digits, so nothing may be off."""
        expected = np.array([[1, 0, 0], [-16, 2, 0], [Fraction(27, 4), -1, Fraction(1, 2)]], dtype=object)
        assert (self.entries().values == expected * 2**256).all()

    def test_the_bound_is_that_on_paper(self):
        """In units: what each sum cuts is 1, what y lost is 1 times the diagonal, rounded up.

        Row 1: 1 + 3 lost_0 + 1, where the states have lost (1, 1). Then they have lost (1 + 4, 1 + 1), so row 2 has
        1 + ceil(5 / 2 + 2 times 2) + 2 = 10, the most. The longest row is 18: the bound is 2 times 18 times 10, and 1.
        """
        assert self.entries().radius == 361

    def test_a_bound_above_the_limit_is_refused(self, monkeypatch):
        monkeypatch.setattr(redrawn, "_WIDEST", 361)
        assert self.entries().radius == 361
        monkeypatch.setattr(redrawn, "_WIDEST", 360)
        with pytest.raises(TooLarge, match="ill-conditioned"):
            self.entries()

    @pytest.mark.parametrize(("diagonal", "enclosed"), [(1.5 * 2.0**254, True), (2.0**255, False)])
    def test_a_defect_of_one_half_is_refused(self, diagonal, enclosed):
        """One step, K = (d): 1 / d is off by up to a unit of 2^-256, which K makes d of them, and one more is cut."""
        matrix = RedrawnMatrix(np.zeros((1, 1)), np.zeros((1, 1)), np.zeros((2, 1, 1)), np.array([[diagonal], [0]]), 1)
        given = redrawn.read(matrix.tensors(), 1)
        if not enclosed:
            with pytest.raises(TooLarge, match="ill-conditioned"):
                redrawn.entries(given)
            return
        found = redrawn.entries(given)
        assert found.values[0, 0] == 2 and found.radius == 1 + 1

    def test_lengths_above_the_limits_are_refused(self, monkeypatch):
        given = redrawn.read(self.matrix().tensors(), 3)
        monkeypatch.setattr(redrawn, "LARGEST", 3)
        monkeypatch.setattr(redrawn, "LARGEST_BY_COLUMNS", 3)
        assert len(redrawn.entries(given).values) == redrawn.ByColumns(given).n == 3
        monkeypatch.setattr(redrawn, "LARGEST", 2)
        monkeypatch.setattr(redrawn, "LARGEST_BY_COLUMNS", 2)
        for solve in (redrawn.entries, redrawn.ByColumns):
            with pytest.raises(TooLarge, match="n=2"):
                solve(given)


class TestSensitivity:
    @pytest.mark.parametrize("seed", range(3))
    def test_single_and_fixed_epochs(self, seed):
        matrix = cases.likely(N, seed=seed)
        c = cases.strategy(cases.inverse(matrix))
        found = squared_sensitivity(strategy(matrix), {"kind": "single"})
        assert found.exact and found.lower <= (c**2).sum(axis=0).max() <= found.upper
        found = squared_sensitivity(strategy(matrix), EPOCHS)
        assert found.lower <= max(abs(c[:, j::6].T @ c[:, j::6]).sum() for j in range(6)) <= found.upper

    @pytest.mark.parametrize("seed", range(3))
    def test_the_lower_end_is_attained_by_the_pattern(self, seed):
        matrix = cases.wild(N, 2, 2, 6, seed)
        c = cases.strategy(cases.inverse(matrix))
        for participation in (EPOCHS, {"kind": "min_sep", "min_sep": 5, "max_participations": 3}):
            found = squared_sensitivity(strategy(matrix), participation)
            total = sum(sign * c[:, step] for step, sign in zip(found.pattern, found.signs, strict=True))
            near = float((total**2).sum())
            assert float(found.lower) == pytest.approx(near, rel=1e-12) and near <= float(found.upper) * (1 + 1e-12)

    def test_it_is_what_the_certificate_states(self):
        for seed in range(3):
            matrix = cases.likely(120, seed=seed, redraws=3)
            stated = sensitivity_of(matrix, FixedEpochs(**EPOCHS)).value
            found = squared_sensitivity(strategy(matrix), EPOCHS)
            assert found.upper <= Fraction(stated) ** 2 <= found.lower * (1 + Fraction(1, 10**9)) or not found.exact


@pytest.mark.parametrize("kind", ["mean", "max"])
def test_losses_enclose_those_of_fractions(kind):
    matrix = cases.likely(N)
    decoder = np.tril(np.ones((N, N), dtype=int)).astype(object) @ cases.inverse(matrix)
    rows = (decoder**2).sum(axis=1)
    spec = {"workload": {"kind": "prefix", "n": N}, "objective": {"kind": kind}}
    found = Utility(spec, strategy(matrix), {}, {})._losses_by_whole()
    expected = {"mean": Fraction(rows.sum(), N), "max": rows.max()}[kind]
    assert found.objective[0] <= expected <= found.objective[1] < expected * (1 + 1e-9)
    assert found.total[0] <= rows.sum() <= found.total[1]


class TestFiles:
    @staticmethod
    def file(tmp_path, change=None, *, whole=True) -> bytes:
        spec = spec_of(N, {"kind": "buffered_linear", "buffers": 3, "redraws": 2}, EPOCHS)
        solution = Solution(cases.likely(N), Outcome.ITERATION_LIMIT, 1)
        made = Factorization.from_solution(spec, solution, solver={"mechanism": "buffered_linear"})
        if change is not None:
            from factorize.format.manifest import manifest_digest

            stated = made.manifest["certificate"]["sensitivity"]
            stated["value"] = float(change(stated["value"]))
            stated["hex"] = stated["value"].hex()
            made.manifest["digest"] = manifest_digest(made.manifest)
        (made.with_matrices(["C_inv", "B"]) if whole else made).save(tmp_path / "f.safetensors")
        return (tmp_path / "f.safetensors").read_bytes()

    def test_every_claim_of_a_file_holds(self, tmp_path):
        report = check_factor_file(self.file(tmp_path))
        assert report.supported, report.failed
        assert any("exact" in sentence for sentence in report.checked)

    def test_a_billionth_less_is_caught(self, tmp_path):
        report = check_factor_file(self.file(tmp_path, lambda value: value * (1 - 1e-9)))
        assert not report.supported and "sensitivity" in report.failed[0]


class TestRefusals:
    @pytest.mark.parametrize(
        "change",
        [
            {"decay": np.zeros((N, 2))},
            {"decay": np.zeros(N)},
            {"output": np.zeros((N - 1, 3))},
            {"input": np.zeros((2, N, 3))},
            {"direct": np.ones((0, N)), "input": np.zeros((0, N, 3))},
            {"direct": np.ones((3, N + 1))},
            {"lag": np.array([0.0])},
            {"lag": np.array([1.5])},
            {"lag": np.array([N + 1.0])},
            {"lag": np.array([6.0, 6.0])},
        ],
    )
    def test_tensors_that_do_not_fit(self, change):
        with pytest.raises(CorruptObject, match="redraws"):
            Strategy("redrawn", cases.likely(N).tensors() | change, N)

    @pytest.mark.parametrize("name", ["decay", "output", "input", "direct", "lag"])
    def test_a_tensor_that_is_missing(self, name):
        parts = cases.likely(N).tensors()
        del parts[name]
        with pytest.raises(CorruptObject, match=name):
            Strategy("redrawn", parts, N)

    @pytest.mark.parametrize("name", ["input", "direct"])
    def test_a_draw_before_the_first(self, name):
        for m, last in ((1, 5), (2, 11)):
            parts = cases.likely(N).tensors()
            parts[name] = parts[name].copy()
            parts[name][m, last] = 1e-300
            with pytest.raises(InvalidStrategy, match=f"before step {last + 1}"):
                Strategy("redrawn", parts, N)

    @pytest.mark.parametrize("bad", [0.0, -1.0, np.nan, np.inf])
    def test_a_diagonal_that_is_none(self, bad):
        parts = cases.likely(N).tensors()
        parts["direct"] = parts["direct"].copy()
        parts["direct"][0, 3] = bad
        with pytest.raises(InvalidStrategy):
            Strategy("redrawn", parts, N)

    def test_an_inverse_that_is_not_enclosed(self):
        """x_i = y_i + 2^60 (y_0 + ... + y_{i-1}): entries of C grow by 2^60 a step, beyond all places."""
        ones, inputs, direct = np.ones((8, 1)), np.zeros((2, 8, 1)), np.zeros((2, 8))
        inputs[0], direct[0] = 1, 1
        matrix = RedrawnMatrix(ones, ones * 2.0**60, inputs, direct, 4)
        with pytest.raises(NotEnclosed, match="above 1e100"):
            squared_sensitivity(strategy(matrix), EPOCHS)

    @pytest.mark.parametrize("participation", [EPOCHS, {"kind": "single"}])
    def test_a_length_above_the_limit(self, participation):
        n = redrawn.LARGEST_BY_COLUMNS + 4
        matrix = cases.likely(n, buffers=1, redraws=1)
        with pytest.raises(TooLarge):
            squared_sensitivity(strategy(matrix), participation)


class TestByColumns:
    """What takes over beyond whole matrices, at lengths where the truth is at hand."""

    def test_a_long_file(self, tmp_path, monkeypatch):
        monkeypatch.setattr("factorize.checker.structures.base.LARGEST_WHOLE", 10)
        report = check_factor_file(TestFiles.file(tmp_path, whole=False))
        assert report.supported, report.failed
        assert any("every loss enclosed" in sentence for sentence in report.checked)
        assert not any("losses:" in sentence for sentence in report.not_checked)
        report = check_factor_file(TestFiles.file(tmp_path, lambda v: v * (1 - 1e-9), whole=False))
        assert not report.supported and "sensitivity" in report.failed[0]

    @pytest.mark.parametrize(
        "workload",
        [
            {"kind": "identity", "n": N},
            {"kind": "prefix", "n": N},
            {"kind": "momentum", "n": N, "momentum": 0.9, "nesterov": True},
            {"kind": "srg", "n": N, "momentum": 0.5, "decay": 0.75},
            {"kind": "schedule", "n": N, "learning_rates": [0.5 + 0.25 * (i % 3) for i in range(N)]},
        ],
        ids=lambda workload: workload["kind"],
    )
    def test_losses_by_columns_enclose_those_of_fractions(self, workload):
        spec = spec_of(workload, "identity").canonical()
        numbers: Any = workload_numbers(spec.document()["workload"], {})
        rows = numbers.values * Fraction(2) ** numbers.exponent
        for matrix in (cases.likely(N), cases.wild(N, 2, 2, 5, 1)):
            norms = ((rows @ cases.inverse(matrix)) ** 2).sum(axis=1)
            found = variances.losses(strategy(matrix), spec.document()["workload"], {"kind": "mean"})
            assert found is not None
            slack = 1 + Fraction(1, 10**15) if numbers.radius else 1
            assert found.total[0] <= norms.sum() * slack and norms.sum() <= found.total[1] * slack
            assert found.total[1] < found.total[0] * (1 + 1e-11)
            assert found.last[0] <= norms[-1] * slack and found.largest[1] * slack >= norms.max()

    def test_what_a_state_lost_is_in_the_losses_too(self):
        """The state of column 0 is 0.3 * 0.7 * 0.9 less its two nearest doubles: less than a pair of doubles can tell."""
        decay, output = np.ones((9, 1)), np.zeros((9, 1))
        inputs, direct = np.zeros((3, 9, 1)), np.zeros((3, 9))
        decay[1:4, 0] = 0.3, 0.7, 0.9
        product = Fraction(0.3) * Fraction(0.7) * Fraction(0.9)
        high = float(product)
        inputs[0, 0], inputs[1, 3], inputs[2, 6], direct[0] = 1, -high, -float(product - Fraction(high)), 1
        output[7:] = 2.0**110
        matrix = RedrawnMatrix(decay, output, inputs, direct, 3)
        noising = cases.inverse(matrix)
        for workload in ({"kind": "identity", "n": 9}, {"kind": "momentum", "n": 9, "momentum": 0.5}):
            numbers: Any = workload_numbers(workload, {})
            norms = (((numbers.values * Fraction(2) ** numbers.exponent) @ noising) ** 2).sum(axis=1)
            found = variances.losses(strategy(matrix), workload, {"kind": "mean"})
            assert found is not None and found.last[0] <= norms[-1] <= found.last[1]
            assert found.last[1] > found.last[0] * (1 + 1e-6)

    def test_numbers_out_of_range(self):
        given = cases.likely(8, buffers=2, redraws=1, lag=4)
        for name, limit, beyond in (("output", 1e100, 1.001e100), ("direct", 1e-100, 0.999e-100)):
            parts = given.tensors()
            parts[name] = parts[name].copy()
            parts[name][0, 0] = limit
            assert redrawn.ByColumns(redrawn.read(dict(parts), 8)).n == 8
            parts[name][0, 0] = beyond
            with pytest.raises(NotEnclosed, match="beyond 1e100"):
                redrawn.ByColumns(redrawn.read(parts, 8))

    def test_entries_out_of_range(self):
        """x_i = y_i + 2^60 (y_0 + ... + y_{i-1}): the last entry of column 0 is near 2^420."""
        ones, inputs, direct = np.ones((8, 1)), np.zeros((2, 8, 1)), np.zeros((2, 8))
        inputs[0], direct[0] = 1, 1
        given = redrawn.RedrawnInverse(ones, ones * 2.0**60, inputs, direct, 4)
        with pytest.raises(NotEnclosed, match="entries above 1e100"):
            redrawn.ByColumns(given).columns(np.array([0]))


class TestBoundsOfColumns:
    """What the defects of Y make of columns (3, 4) and (0, 2): |C - y_j| <= |C|_F r_j, |C|_F <= |Y|_F / (1 - |R|_F)."""

    @staticmethod
    def columns(*defects: float) -> redrawn.ByColumns:
        class Stated(redrawn.ByColumns):
            def __init__(self) -> None:
                self.n = 2

            def _solved(self, indices):
                high = np.array([[3.0, 0.0], [4.0, 2.0]])[:, indices]
                return high, np.zeros(high.shape), np.array(defects)[indices]

        return Stated()

    def test_what_columns_are_off_by(self):
        whole = np.sqrt(29) / (1 - np.sqrt(0.01 + 0.04))
        far = self.columns(0.2, 0.1).columns(np.array([0, 1])).far
        assert (far >= np.array([0.2, 0.1]) * whole).all() and far == pytest.approx(
            [0.2 * whole, 0.1 * whole], rel=1e-8
        )
        low, high = self.columns(0.2, 0.1).magnitudes(0)
        assert low == pytest.approx(np.maximum(np.array([3, 4]) - 0.2 * whole, 0), rel=1e-8)
        assert high == pytest.approx(np.array([3, 4]) + 0.2 * whole, rel=1e-8)

    def test_a_defect_of_one_half_is_refused(self):
        assert self.columns(0.35, 0.35).columns(np.array([0])).far[0] > 1
        with pytest.raises(NotEnclosed, match=r"differs from I by 0\.509"):
            self.columns(0.36, 0.36).columns(np.array([0]))

    def test_what_rounding_makes_of_one_column(self):
        """K = (2): 1 / 2 is exact; the bound is that of a sum of one term 1, twice, and of the smallest numbers."""
        none = np.zeros((1, 1))
        given = redrawn.RedrawnInverse(none, none, np.zeros((2, 1, 1)), np.array([[2.0], [0.0]]), 1)
        high, low, (defect,) = redrawn.ByColumns(given)._solved(np.array([0]))
        assert (high, low) == (0.5, 0) and 2.0**-99 < defect == pytest.approx(2.0**-99, rel=2.0**-18, abs=0)
